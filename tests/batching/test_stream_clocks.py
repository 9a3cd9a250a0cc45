"""The clock of each stream is estimated from batches: offset, drift, lag and disorder."""

from __future__ import annotations

import random

import pytest
from tests.batching.rate.traffic import SECOND, T0, feed, frozen, pulses

from waterclock.batching import stream_clocks
from waterclock.batching.batch import Batch
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.batching.stream_clocks import StreamClock, StreamClocks, offsets
from waterclock.message import Message

MS = 1_000_000


def batch(number: int, *times: tuple[float, float], stream: str = "a") -> Batch:
    """The batch of a second; event times in seconds after its start, and how many seconds later they are received."""
    start = T0 + number * SECOND
    messages = [
        Message("s", stream, start + round(time * SECOND), receive_time=start + round((time + delay) * SECOND))
        for time, delay in times
    ]
    return Batch("s", start, start + SECOND, start + SECOND, "slots", tuple(messages))


def followed(*batches: Batch) -> StreamClock:
    clocks = StreamClocks()
    for one in batches:
        clocks.note(one)
    return clocks.estimates()["a"]


def test_delays_are_lag_and_no_offset() -> None:
    chance = random.Random(5)  # noqa: S311  # repeatable, nothing secret
    delays = [[0.02 + chance.choice([0, 0, 0, 0.3, 0.9]) for _ in range(10)] for _ in range(40)]
    found = followed(*(batch(n, *((k / 10, delay) for k, delay in enumerate(row))) for n, row in enumerate(delays)))
    assert found.offset == 20 * MS
    assert found.drift == 0
    assert found.lag == round((max(delays[35]) - 0.02) * 1000) * MS > 0  # of the last batch looked at


@pytest.mark.parametrize("step", [0.1, -0.1])
def test_a_change_of_100_ms_shows_within_a_minute(step: float) -> None:
    clocks = StreamClocks()
    seen: list[int] = []
    for number in range(160):
        offset = 0.5 if number < 100 else 0.5 + step
        clocks.note(batch(number, *((k / 10, offset + (k % 4) / 20) for k in range(10))))
        seen.append(clocks.estimates()["a"].offset)
    assert seen[99] == 500 * MS
    assert seen[159] == round((0.5 + step) * 1000) * MS


@pytest.mark.parametrize("drift", [0.01, -0.01, 0])
def test_drift_is_how_much_the_offset_grows_in_a_second(drift: float) -> None:
    found = followed(*(batch(n, *((k / 10, 2 + drift * (n + k / 10)) for k in range(10))) for n in range(60)))
    assert found.drift == pytest.approx(drift, abs=0.0005)


def test_disorder_is_how_far_a_message_was_behind_one_received_before_it() -> None:
    assert followed(batch(0, (0.1, 0), (0.2, 0), (0.3, 0))).disorder == 0
    assert followed(batch(0, (0.1, 0.4), (0.2, 0.05), (0.4, 0))).disorder == 300 * MS
    many = [batch(0, (0.1, 0.4), (0.4, 0)), *(batch(n, (0.1, 0)) for n in range(5, 31, 5))]
    assert followed(*many).disorder == 300 * MS
    assert followed(*many, batch(35, (0.1, 0))).disorder == 0


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_clocks, "MOST_STREAMS", 2)
    clocks = StreamClocks()
    for number in range(4):
        clocks.note(batch(5 * number, (0.1, 0), stream=f"stream-{number}"))
    assert list(clocks.estimates()) == ["stream-0", "stream-1"]


def test_memory_is_bounded_if_the_receive_clock_stands() -> None:
    def stands(delay: float) -> list[Batch]:
        return [batch(5 * n, (0.1, delay - 5 * n)) for n in range(stream_clocks.MOST_KEPT)]

    assert followed(*stands(0), *stands(900)).offset == (900 - 70) * SECOND


def test_of_batches_that_follow_closely_one_in_five_seconds_is_looked_at() -> None:
    seen = [batch(n, (0.1, 0.2 if n % 5 == 0 else 0)) for n in range(40)]
    assert followed(*seen).offset == 200 * MS
    assert followed(batch(9, (0.1, 0.2)), batch(4, (0.1, 0))).offset == 0  # a window was placed anew


def test_messages_without_a_receive_time_do_not_count() -> None:
    assert offsets([Batch("s", T0, T0 + SECOND, T0, "slots", (Message("s", "a", T0),))]) == {}


def test_the_stats_of_a_batcher_tell_the_clocks_apart() -> None:
    batcher = RateAwareBatcher(timeout="3s", clock=frozen)
    quick = [m.replace(receive_time=m.event_time + 10 * MS) for m in pulses("quick", 14, 0, 40)]
    ahead = [m.replace(receive_time=m.event_time - 700 * MS) for m in pulses("ahead", 5, 0, 40)]
    arrivals = sorted([*quick, *ahead], key=lambda m: (m.receive_time or 0, m.stream))
    batches = feed(batcher, arrivals)
    streams = batcher.stats().streams
    assert {stream: clock.offset for stream, clock in streams.items()} == {"ahead": -700 * MS, "quick": 10 * MS}
    lines = offsets(batches)
    assert {stream: {value for _, value in line} for stream, line in lines.items()} == {
        "ahead": {-700 * MS},
        "quick": {10 * MS},
    }
    assert len(lines["ahead"]) == len(batches)
