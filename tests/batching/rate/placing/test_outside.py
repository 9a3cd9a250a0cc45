"""Messages that lie outside the windows of their batches are counted, and a steady stream of them is warned about."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.batching.rate.columns import NAMES, laid_out
from tests.batching.rate.traffic import HOUR, SECOND, T0, at, calls, feed, frozen, message, options, pulses

from waterclock.batching.batch import Batch
from waterclock.batching.outside import OutsideCounts
from waterclock.batching.rate.by_column.columns import RateAwareColumns
from waterclock.batching.rate.by_message import outside_watch
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.batching.rate.by_message.outside_watch import STEADY, OutsideWatch
from waterclock.errors import OutsideWindowWarning
from waterclock.message import Message


def later(delay: float, seconds: int = 30) -> list[Message]:
    """Two streams in order of arrival, one of which arrives ``delay`` seconds after the other."""
    arrivals = [(m.event_time, m) for m in pulses("quick", 14, 0, seconds)]
    arrivals += [(m.event_time + round(delay * SECOND), m) for m in pulses("slow", 5, 0, seconds)]
    return [m for _, m in sorted(arrivals, key=lambda arrival: (arrival[0], arrival[1].stream))]


def total(batch: Batch) -> int:
    return sum(counts.total for counts in batch.outside.values())


def window(*times: float, stream: str = "a") -> Batch:
    """A batch of the second that begins at T0."""
    return Batch("s", T0, T0 + SECOND, T0, "slots", tuple(message(stream, at(time)) for time in times))


def test_distances_are_counted_by_side_and_stream() -> None:
    times = [-2000, -5, -0.6, 0, 0.1, 0.2, 0.5, 1.2, 1.5, 4]
    counts = window(*times).outside["a"]
    assert counts == OutsideCounts(before=(0, 0, 1, 0, 0, 1, 0, 1), after=(1, 1, 0, 0, 1, 0, 0, 0))
    assert counts.total == 6


def test_half_a_period_outside_is_jitter() -> None:
    assert window(-0.25, 0.5).outside == {}
    assert window(-0.2501, 0.5).outside == {"a": OutsideCounts((0, 1, *[0] * 6))}
    assert window(-0.5).outside == {}
    assert window(-0.2501, -0.2501, 0.5, 0.5).outside["a"].total == 2  # split messages are one pulse


def test_the_backlog_of_the_start_has_no_window() -> None:
    [batch] = RateAwareBatcher(clock=frozen).add([message("a", T0), message("b", T0 + HOUR), message("c", T0 + HOUR)])
    assert batch.reason == "start"
    assert batch.outside == {}


@given(calls(), options)
def test_the_columnar_form_counts_the_same(arrivals: list[list[Message]], chosen: dict[str, Any]) -> None:
    batcher = RateAwareBatcher(**chosen, clock=frozen)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = [batch for call in arrivals for batch in batcher.add(call)] + batcher.flush()
        codes, times, bounds = laid_out(arrivals, NAMES)
        found = RateAwareColumns(NAMES, **chosen).add(codes, times, bounds, flush=True)
    assert found.outside(codes, times).tolist() == [total(batch) for batch in batches]
    counted = sum(counts.total for counts in batcher.stats().outside.values())
    assert counted == sum(map(total, batches))


@pytest.mark.filterwarnings("ignore::waterclock.time.UnitWarning")
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=6))
def test_times_from_all_over_int64_are_counted_the_same(times: list[int]) -> None:
    arrivals = [[message("a", T0)], [message("a", time) for time in times]]
    batcher = RateAwareBatcher(clock=frozen)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = [batch for call in arrivals for batch in batcher.add(call)] + batcher.flush()
        codes, times_of_all, bounds = laid_out(arrivals, NAMES)
        found = RateAwareColumns(NAMES).add(codes, times_of_all, bounds, flush=True)
    assert found.outside(codes, times_of_all).tolist() == [total(batch) for batch in batches]


@pytest.mark.filterwarnings("ignore::waterclock.errors.OutsideWindowWarning")
def test_a_longer_timeout_puts_a_later_stream_into_its_own_windows() -> None:
    shares: dict[str, float] = {}
    for timeout in ("1200ms", "3s"):
        batches = feed(RateAwareBatcher(timeout=timeout, clock=frozen), later(1.5))
        shares[timeout] = sum(map(total, batches[4:])) / sum(len(batch.messages) for batch in batches[4:])
    assert shares == {"1200ms": pytest.approx(0.26, abs=0.05), "3s": 0}


def test_a_stream_that_steadily_misses_its_windows_is_warned_about_once() -> None:
    batcher = RateAwareBatcher(clock=frozen)
    with pytest.warns(
        OutsideWindowWarning, match="source 's', stream 'slow'.*timeout=\"auto\" or a longer timeout"
    ) as warned:
        feed(batcher, later(1.5))
    assert len(warned) == 1
    assert set(batcher.stats().outside) == {"slow"}


def test_a_warning_raised_as_an_error_changes_nothing() -> None:
    messages = later(1.5)
    quiet, batcher = RateAwareBatcher(clock=frozen), RateAwareBatcher(clock=frozen)
    raised = 0
    for one in messages:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quiet.add([one])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                batcher.add([one])
            except OutsideWindowWarning:
                raised += 1
                batcher.add([one])
    assert raised == 1
    assert batcher.state() == quiet.state()


def test_good_traffic_and_a_short_delay_are_not_warned_about() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        feed(RateAwareBatcher(clock=frozen), later(0.1))
    watch = OutsideWatch()
    for _ in range(5):
        for _ in range(STEADY - 1):
            watch.note(window(5.0))
        watch.note(window(0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch.warn()


def test_a_stream_whose_clock_is_ahead_is_told_to_correct_it() -> None:
    watch = OutsideWatch()
    for _ in range(STEADY):
        watch.note(window(5.0))
    with pytest.warns(OutsideWindowWarning, match="ahead of the windows .* Correct its clock"):
        watch.warn()


def test_rare_messages_after_a_silence_longer_than_an_era_name_the_remedy() -> None:
    rare = [message("a", at(3600 + 5 * number)) for number in range(6)]
    messages = [*pulses("a", 5, 0, 5), *rare]
    with pytest.warns(OutsideWindowWarning, match="silence .* forget_after"):
        feed(RateAwareBatcher(clock=frozen), messages)


def test_the_streams_that_are_counted_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside_watch, "MOST_STREAMS", 2)
    watch = OutsideWatch()
    for stream in ("a", "b", "c", "a"):
        watch.note(window(5.0, stream=stream))
    assert {stream: counts.total for stream, counts in watch.counts.items()} == {"a": 2, "b": 1}


def test_counts_outlast_a_source_that_is_forgotten() -> None:
    batcher = RateAwareBatcher(clock=frozen, forget_after="1m")
    messages = [m.replace(receive_time=m.event_time) for m in pulses("a", 5, 0, 5)]
    messages.insert(20, message("wild", T0 - HOUR).replace(receive_time=at(4)))
    feed(batcher, [*messages, message("a", at(500)).replace(receive_time=at(500))])
    assert batcher.stats().outside["wild"].total == 1
