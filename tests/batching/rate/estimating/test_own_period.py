"""A stream whose rate is not near a whole one gates with its own period, if that is stable."""

from __future__ import annotations

from random import Random

import pytest
from tests.batching.rate.traffic import SECOND, at, by_time, feed, frozen, message, pulses

from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.batching.rate.period import StreamPeriodEstimator
from waterclock.message import Message

RATES = [1.11, 1.2, 1.3, 1.5, 2.25, 2.5, 3.35, 3.5]


def steady(rate: float, seconds: float, jitter: float = 0.0) -> list[Message]:
    random = Random(1)  # noqa: S311  # repeatable, nothing secret
    return [message("own", at(k / rate + random.uniform(-jitter, jitter))) for k in range(1, round(seconds * rate))]


def estimated(messages: list[Message]) -> StreamPeriodEstimator:
    estimator = StreamPeriodEstimator()
    for each in messages:
        estimator.observe(each.event_time)
    return estimator


@pytest.mark.parametrize("jitter", [0, 0.005])
@pytest.mark.parametrize("rate", RATES)
def test_a_stream_of_any_steady_rate_gates_and_lands_in_its_windows(rate: float, jitter: float) -> None:
    batcher = RateAwareBatcher(clock=frozen)
    batches = feed(batcher, by_time(steady(rate, 60, jitter), pulses("det", 14, 0, 60, phase=0.01)))
    assert batcher.gating_streams == {"det", "own"}
    assert {batch.reason for batch in batches[20:]} == {"slots"}
    assert not any(batch.outside for batch in batches)


def test_a_window_waits_for_a_late_stream_with_its_own_period() -> None:
    own = [(m.event_time + SECOND // 10, m) for m in steady(2.5, 60)]
    arrivals = sorted([*own, *((m.event_time, m) for m in pulses("det", 14, 0, 60))], key=lambda pair: pair[0])
    batches = feed(RateAwareBatcher(clock=frozen), [m for _, m in arrivals])
    assert not any(batch.outside for batch in batches[20:])
    assert {batch.reason for batch in batches[20:]} == {"slots"}


@pytest.mark.parametrize("rate", RATES)
def test_missed_pulses_and_jitter_leave_the_period(rate: float) -> None:
    messages = [m for number, m in enumerate(steady(rate, 100, 0.01)) if number % 7]
    estimator = estimated(messages)
    assert estimator.rate is None
    assert estimator.own_period() == pytest.approx(SECOND / rate, rel=0.002)


def test_it_takes_16_differences() -> None:
    messages = steady(2.5, 60)
    assert estimated(messages[:16]).own_period() is None
    assert estimated(messages[:17]).own_period() == SECOND * 2 // 5


def test_an_irregular_stream_has_no_period() -> None:
    random = Random(3)  # noqa: S311
    for _ in range(200):
        time, messages = 0.0, []
        for _ in range(33):
            time += random.expovariate(2.5)
            messages.append(message("log", at(time)))
        assert estimated(messages).own_period() is None


def test_slower_streams_and_wild_times_have_no_period() -> None:
    assert estimated(steady(0.7, 60)).own_period() is None
    wild = [message("own", event_time) for event_time in range(-(2**63), 2**63, 2**58)]
    assert estimated(wild).own_period() is None
