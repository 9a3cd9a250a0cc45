"""A source that moved to another era is found again without a clock, and no batch has the identity of another."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from itertools import pairwise, product
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.batching.rate.columns import NAMES, described, described_columns, laid_out, numbered, run_class
from tests.batching.rate.placing.silence import (
    SILENCE,
    a_broken_stream_alone_in_the_silence,
    arriving,
    before_and_after_the_silence,
    in_calls,
    on_time,
    wild,
)
from tests.batching.rate.traffic import HOUR, SECOND, YEAR, at, frozen, message, pulses

from waterclock.batching.batch import Batch
from waterclock.batching.by_source import BySource
from waterclock.batching.rate.by_column.columns import RateAwareColumns
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.batching.rate.starts import MOST_RUNS, StartRun, Starts
from waterclock.errors import LongCallWarning
from waterclock.message import Message
from waterclock.time import MIN_NS

FEW = settings.default.max_examples * 2 // 5  # of thousands of messages each


@pytest.mark.parametrize("offset", [43 * YEAR, -43 * YEAR], ids=["ahead", "behind"])
@pytest.mark.parametrize("length", [None, SECOND // 14, SECOND, 3 * SECOND, 9 * SECOND], ids=str)
@pytest.mark.parametrize("gated", [True, ("det",), False], ids=str)
def test_a_broken_stream_does_not_keep_the_others_from_being_found_after_a_silence(
    offset: int, length: int | None, gated: Any
) -> None:
    arrivals = before_and_after_the_silence(offset, length)
    batcher = RateAwareBatcher(gated=gated, clock=frozen)
    batches: list[Batch] = []
    most = 0
    for call in arrivals:
        batches += batcher.add(call)
        most = max(most, batcher.buffered)
    resumed = at(20 + SILENCE)
    found = [b for b in batches if resumed <= b.start < resumed + YEAR]
    assert found[0].start <= resumed + 20 * SECOND
    detected = [sum(m.stream == "det" for m in b.messages) for b in found]
    assert set(detected[1:-1]) <= {13, 14}  # where a grid is found anew, a pulse changes its window
    assert set(detected[5:-1]) == {14}
    assert len(detected) >= 40 - 20 - 2
    assert most <= 20 * 15
    columns = RateAwareColumns(NAMES, gated=gated)
    assert described_columns(columns.add(*laid_out(arrivals, NAMES))) == described(batches, numbered(arrivals))


@pytest.mark.parametrize("offset", [43 * YEAR, -43 * YEAR], ids=["ahead", "behind"])
@pytest.mark.parametrize("length", [None, *(s * SECOND for s in (0.5, 1, 2, 3, 5, 10))], ids=str)
@pytest.mark.parametrize("gated", [True, ("det",)], ids=str)
def test_a_broken_stream_that_was_alone_in_the_silence_gives_the_window_back(
    offset: int, length: int | None, gated: Any
) -> None:
    arrivals = a_broken_stream_alone_in_the_silence(offset, length)
    batches = _batches(RateAwareBatcher(gated=gated, clock=frozen), arrivals)
    assert any(abs(b.start - at(0) - offset) < YEAR for b in batches)  # the broken stream had it
    found = [b for b in batches if at(60 + SILENCE) <= b.start < at(120 + SILENCE)]
    assert found[0].start <= at(60 + SILENCE + 20)
    detected = [sum(m.stream == "det" for m in b.messages) for b in found]
    assert set(detected[5:-1]) == {14}
    assert len(detected) >= 60 - 20 - 2
    columns = RateAwareColumns(NAMES, gated=gated)
    assert described_columns(columns.add(*laid_out(arrivals, NAMES))) == described(batches, numbered(arrivals))


@settings(max_examples=FEW)
@given(
    st.integers(1020, 10**8),
    st.sampled_from([None, *range(SECOND // 2, 5 * SECOND, SECOND // 2)]),
    st.sampled_from([1, 5, 14]),
    st.booleans(),
    st.floats(0, 1),
)
def test_messages_after_a_long_silence_lie_in_their_own_windows(
    silence: int, length: int | None, rate: int, gated: bool, phase: float
) -> None:
    before = pulses("det", 14, 0, 20) + pulses("mon", rate, 0, 20)
    after = pulses("det", 14, 20 + silence, 60 + silence, phase) + pulses("mon", rate, 20 + silence, 60 + silence)
    arrivals = in_calls(arriving(on_time(before), on_time(after)), length)
    chosen = {"gated": gated}
    batcher = RateAwareBatcher(**chosen, clock=frozen)
    batches = _batches(batcher, arrivals) + batcher.flush()
    resumed = [b for b in batches if b.start >= at(19 + silence)]
    assert sum(len(b.messages) for b in resumed) == len(after)
    assert not any(b.outside for b in resumed)
    assert {b.end - b.start for b in resumed} == {SECOND}
    columns = RateAwareColumns(NAMES, **chosen)
    found = described_columns(columns.add(*laid_out(arrivals, NAMES), flush=True))
    assert found == described(batches, numbered(arrivals))


def test_a_window_that_was_empty_in_the_silence_leaves_no_batch() -> None:
    detector = pulses("det", 14, 0, 20) + pulses("det", 14, 20 + SILENCE, 60 + SILENCE)
    arrivals = in_calls(on_time(detector), None)
    assert all(b.messages for b in _batches(RateAwareBatcher(clock=frozen), arrivals))
    columns = RateAwareColumns(NAMES)
    found = columns.add(*laid_out(arrivals, NAMES), flush=True)
    assert described_columns(found) == run_class(arrivals, {})


@settings(max_examples=FEW)
@given(
    st.sampled_from([43 * YEAR, -43 * YEAR]),
    st.sampled_from([None, *range(SECOND // 2, 10 * SECOND, SECOND // 2)]),
    st.integers(1, 6),
    st.floats(0, 1),
)
def test_the_window_returns_for_any_calls_and_any_rate_of_the_broken_stream(
    offset: int, length: int | None, rate: int, phase: float
) -> None:
    arrivals = a_broken_stream_alone_in_the_silence(offset, length, rate, phase)
    columns = RateAwareColumns(NAMES)
    found = columns.add(*laid_out(arrivals, NAMES))
    resumed = (at(60 + SILENCE) <= found.starts) & (found.starts < at(130 + SILENCE))
    assert found.starts[resumed][0] <= at(60 + SILENCE + 22)
    assert found.starts[-1] == found.starts[resumed][-1]


def test_a_state_says_that_a_window_is_doubtful() -> None:
    arrivals = a_broken_stream_alone_in_the_silence(43 * YEAR, 3 * SECOND)
    half = 1230 // 3
    whole, columns = RateAwareBatcher(clock=frozen), RateAwareColumns(NAMES)
    _batches(whole, arrivals[:half])
    columns.add(*laid_out(arrivals[:half], NAMES))
    again = RateAwareBatcher.restore(whole.state(), clock=frozen)
    columns = RateAwareColumns.restore(columns.state(), NAMES)
    after = _batches(whole, arrivals[half:])
    assert _batches(again, arrivals[half:]) == after
    assert columns.add(*laid_out(arrivals[half:], NAMES)).starts.tolist() == [b.start for b in after]
    assert after[-1].start < at(2000)


@pytest.mark.parametrize("offset", [43 * YEAR, -43 * YEAR, HOUR, -HOUR], ids=str)
def test_a_stream_whose_clock_breaks_takes_no_window_in_which_two_streams_have_agreed(offset: int) -> None:
    detector = on_time(pulses("det", 5, 0, 90))
    monitor = on_time(pulses("mon", 14, 0, 20))
    arrivals = in_calls(arriving(detector, monitor, wild((20, 90), offset, rate=14)), 2 * SECOND)
    batches = _batches(RateAwareBatcher(clock=frozen), arrivals)
    assert all(at(-1) <= b.start < at(100) for b in batches)
    assert {sum(m.stream == "det" for m in b.messages) for b in batches[2:]} == {5}
    columns = RateAwareColumns(NAMES)
    assert described_columns(columns.add(*laid_out(arrivals, NAMES), flush=True)) == run_class(arrivals, {})


OFFSETS, RATES, ALONE = (43 * YEAR, -43 * YEAR, HOUR, -HOUR), (1, 5, 10), (0, 1, 60)
CALLS = ((None, True), (SECOND // 2, ("det",)), (3 * SECOND, False), (10 * SECOND, ("mon",)))
"""Lengths of calls, and which streams may gate."""


def combinations() -> Iterator[Any]:
    """Combine all of them in `make soak`; in `make test`, so that each two of their values come together."""
    for places in product(*map(range, map(len, (OFFSETS, RATES, ALONE, CALLS)))):
        offset, rate, alone, calls = places
        values = OFFSETS[offset], RATES[rate], ALONE[alone], *CALLS[calls]
        is_short = (offset + rate + alone) % len(CALLS) == calls
        yield pytest.param(*values, marks=() if is_short else pytest.mark.slow, id="-".join(map(str, values)))


@pytest.mark.parametrize(("offset", "rate", "alone", "length", "gated"), combinations())
def test_a_wrong_clock_that_comes_first_gives_way_to_most_of_the_traffic(
    offset: int, rate: int, alone: int, length: int | None, gated: Any
) -> None:
    broken = wild((-alone, 40), offset, rate)
    arrivals = in_calls(arriving(broken, on_time(pulses("det", 14, 0, 40, phase=0.02))), length)
    arrivals = [arrivals[0][:1], arrivals[0][1:], *arrivals[1:]]  # the first call is of the wrong clock alone
    batcher = RateAwareBatcher(gated=gated, clock=frozen)
    batches: list[Batch] = []
    for call in arrivals:
        batches += batcher.add(call)
        assert batcher.buffered <= 20 * (14 + rate)
    found = [b for b in batches if at(0) <= b.start < at(50)]
    assert found[0].start <= at(20)
    assert {sum(m.stream == "det" for m in b.messages) for b in found[5:-1]} == {14}
    assert batches[-1] is found[-1]
    columns = RateAwareColumns(NAMES, gated=gated)
    assert described_columns(columns.add(*laid_out(arrivals, NAMES))) == described(batches, numbered(arrivals))


def starts_are_unique(arrivals: list[list[Message]], lengths: dict[int, str] | None = None) -> list[Batch]:
    """Run the class and the columns, with new batch lengths before some calls; no start may come twice."""
    batcher, columns = RateAwareBatcher(clock=frozen), RateAwareColumns(NAMES)
    batches: list[Batch] = []
    starts: list[int] = []
    for number, call in enumerate(arrivals):
        if length := (lengths or {}).get(number):
            batcher.set_batch_length(length)
            columns.set_batch_length(length)
        batches += batcher.add(call)
        starts += columns.add(*laid_out([call], NAMES)).starts.tolist()
    batches += batcher.flush()
    starts += columns.add(*laid_out([], NAMES), flush=True).starts.tolist()
    assert [b.start for b in batches] == starts
    assert len(set(starts)) == len(starts)
    for before, after in pairwise(batches):
        assert before.reason == "stall" or before.end <= after.start
    return batches


def test_a_stall_that_goes_back_short_of_the_grid_gives_no_batch_an_identity_twice() -> None:
    forth = [[m] for m in pulses("det", 10, 0, 60)]
    back = [[message("det", m.event_time - 1)] for m in pulses("det", 10, 20, 40)]
    batches = starts_are_unique(forth + back)
    assert len(batches) > 70
    assert [b.reason for b in batches].count("stall") == 1


@settings(max_examples=FEW)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from([0, -1, -2, 1, 7])), min_size=1, max_size=5),
    st.dictionaries(
        st.integers(0, 900), st.sampled_from(["1s", "2s", "999999999ns", "300ms", "1000000001ns", "3s"]), max_size=6
    ),
)
@example([(5, -2), (51, -2), (5, -2)], {})  # comes back to a start of a run that is not the last
def test_no_identity_comes_twice_however_often_time_goes_back_and_lengths_change(
    turns: list[tuple[int, int]], lengths: dict[int, str]
) -> None:
    arrivals = [[m] for m in pulses("det", 10, 0, 30)]
    for begin, off in turns:
        arrivals += [[message("det", m.event_time + off)] for m in pulses("det", 10, begin, begin + 16)]
    starts_are_unique(arrivals, lengths)


def test_a_source_whose_messages_are_rare_is_found_again_too() -> None:
    """A gap between two of them is wider than three lengths, and still they move on."""
    arrivals = [[message("log", at(10 * k))] for k in [*range(10), *range(200, 220)]]
    batcher = RateAwareBatcher(clock=frozen)
    batches = [b for call in arrivals for b in batcher.add(call)]
    assert [len(b.messages) for b in batches if b.start > at(1990)] == [1] * 14
    assert [len(b.messages) for b in batches if b.reason == "stall"] == [6]
    columns = RateAwareColumns(NAMES)
    assert described_columns(columns.add(*laid_out(arrivals, NAMES), flush=True)) == run_class(arrivals, {})


@pytest.mark.parametrize("offset", [0, 43 * YEAR], ids=["near", "elsewhere"])
def test_a_clock_that_stands_still_hides_nothing_however_much_it_sends(offset: int) -> None:
    frozen_clock = [(at(SILENCE + k / 50), message("log", at(0) + offset)) for k in range(40 * 50)]
    detector = on_time(pulses("det", 14, SILENCE, SILENCE + 40))
    arrivals = in_calls(arriving(on_time(pulses("det", 14, -1, 0.5)), frozen_clock, detector), None)
    batcher = RateAwareBatcher(clock=frozen)
    batches = [b for call in arrivals for b in batcher.add(call)]
    found = [b for b in batches if at(SILENCE) <= b.start < at(SILENCE) + YEAR]
    assert len(found) >= 25
    assert {sum(m.stream == "det" for m in b.messages) for b in found[5:]} == {14}
    columns = RateAwareColumns(NAMES)
    assert described_columns(columns.add(*laid_out(arrivals, NAMES), flush=True)) == run_class(arrivals, {})


@pytest.mark.parametrize("event_time", [at(0), at(0) + 43 * YEAR, at(0) - 43 * YEAR])
def test_the_buffer_is_bounded_if_every_clock_stands_still(event_time: int) -> None:
    with patch("waterclock.batching.rate.by_message.stall.MOST_UNMOVED", 100):
        batcher = RateAwareBatcher(clock=frozen)
        batcher.add(pulses("det", 14, -1, 0))
        batches: list[Batch] = []
        for _ in range(1000):
            batches += batcher.add([message("log", event_time)])
            assert batcher.buffered <= 100
    assert len(batches) >= 9
    assert len({b.id for b in batches}) == len(batches)


def test_the_columns_hold_as_much_as_the_class_where_every_clock_stands_still() -> None:
    # More than the bound, in few calls: the kernel's bound is compiled.
    arrivals = [pulses("det", 14, -1, 0), *([message("log", at(-50))] * 30_000 for _ in range(9))]
    columns = RateAwareColumns(NAMES)
    found = columns.add(*laid_out(arrivals, NAMES))
    assert list(zip(found.starts.tolist(), found.reasons, np.diff(found.offsets).tolist(), strict=True)) == [
        (b.start, b.reason, len(b.messages)) for b in _batches(RateAwareBatcher(clock=frozen), arrivals)
    ]
    assert found.reasons == ("start", "stall", "stall")
    assert columns.buffered == 30_000


def _batches(batcher: RateAwareBatcher, arrivals: list[list[Message]]) -> list[Batch]:
    return [b for call in arrivals for b in batcher.add(call)]


def test_a_broken_stream_does_not_draw_the_window_away_from_what_waits_without_a_timeout() -> None:
    arrivals = in_calls(arriving(on_time(pulses("det", 14, 0, 40)), wild((0, 40), -43 * YEAR)), None)
    batches = _batches(RateAwareBatcher(timeout=math.inf, clock=frozen), arrivals)
    assert all(abs(b.start - at(0)) < YEAR for b in batches)
    assert {b.reason for b in batches[5:]} == {"slots"}
    columns = RateAwareColumns(NAMES, timeout=math.inf)
    expected = run_class(arrivals, {"timeout": math.inf})
    assert described_columns(columns.add(*laid_out(arrivals, NAMES), flush=True)) == expected


def test_a_live_source_is_not_thrown_back_by_a_late_gateway() -> None:
    live = [[m] for m in pulses("det", 14, -1, 60)]
    backlog = [pulses("log", 5, k, k + 60) for k in range(-6000, -60, 60)]
    batcher = RateAwareBatcher(gated=("det",), clock=frozen)
    batches = _batches(batcher, [call for pair in zip(live, backlog * 9, strict=False) for call in pair])
    assert not any(b.reason == "stall" for b in batches)
    assert all(sum(m.stream == "det" for m in b.messages) == 14 for b in batches[8:])


def test_of_too_many_runs_the_earliest_become_one_in_which_nothing_is_free() -> None:
    starts = Starts(0, [])
    for k in range(MOST_RUNS + 1):
        starts.begin(100 * k, 7 + k)
    assert len(starts.runs) == MOST_RUNS
    assert starts.runs[0] == StartRun(MIN_NS, 100, 1)
    assert starts.free(-(10**15)) == 101
    assert starts.free(200) == 201


def test_if_no_step_is_free_a_window_begins_behind_all() -> None:
    starts = Starts(10**9, [StartRun(0, 10**9, 2), StartRun(1, 10**9, 2)])
    assert starts.free(5) == 10**9 + 1


def test_the_columns_agree_where_more_runs_begin_than_are_distinguished() -> None:
    arrivals = [[m] for m in pulses("det", 10, 0, 100)]
    arrivals += [[message("det", m.event_time - 1)] for m in pulses("det", 10, 20, 110)]
    lengths = {10 * k: f"{1000 + k % 7}ms" for k in range(100)}
    starts_are_unique(arrivals, lengths)


def _clocks_that_break(random: Random) -> list[list[Message]]:
    """Draw streams of several eras that pause, come again, and change their era."""
    arrivals: list[tuple[int, Message]] = []
    for name in random.sample(NAMES, random.randint(1, 5)):
        rate, begin = random.choice([1, 2, 5, 10, 14, 25]), random.randint(0, 30)
        offset = random.choice([0, 0, 43 * YEAR, -43 * YEAR, HOUR, -HOUR, 300 * SECOND])
        for _ in range(random.randint(1, 3)):
            span = random.randint(1, 60)
            sent = pulses(name, rate, begin, begin + span)
            arrivals += [(m.event_time, message(name, m.event_time + offset)) for m in sent]
            begin += span + random.choice([0, 5, 100])
            if random.random() < 0.3:
                offset = random.choice([0, 43 * YEAR, HOUR])
    size = random.choice([None, SECOND // 2, SECOND, 3 * SECOND, 10 * SECOND, 30 * SECOND])
    calls = in_calls(arriving(arrivals), size)
    return [calls[0][:1], calls[0][1:], *calls[1:]]


@pytest.mark.filterwarnings("ignore::waterclock.errors.LongCallWarning")
@settings(max_examples=FEW)
@given(st.integers(0, 10**6), st.sampled_from([None, math.inf]))
def test_the_columns_agree_and_nothing_is_lost_where_clocks_break_and_come_again(seed: int, timeout: Any) -> None:
    arrivals = _clocks_that_break(Random(seed))  # noqa: S311  # messages, not secrets
    chosen = {"timeout": timeout}
    expected = run_class(arrivals, chosen)
    columns = RateAwareColumns(NAMES, timeout=timeout)
    half = len(arrivals) // 2
    found = described_columns(columns.add(*laid_out(arrivals[:half], NAMES)))
    columns = RateAwareColumns.restore(columns.state(), NAMES)
    assert found + described_columns(columns.add(*laid_out(arrivals[half:], NAMES), flush=True)) == expected
    assert sum(len(batch[4]) for batch in expected) == sum(map(len, arrivals))
    assert len({batch[0] for batch in expected}) == len(expected)


class _Refuses:
    """Chooses what may gate, and raises at the name "bad" while it is set to."""

    def __init__(self) -> None:
        self.raises = True
        self.asked: list[str] = []

    def __call__(self, stream: str) -> bool:
        self.asked.append(stream)
        if stream == "bad" and self.raises:
            raise LookupError(stream)
        return stream != "log"


def test_a_function_that_raises_leaves_nothing_applied() -> None:
    gated = _Refuses()
    batcher = RateAwareBatcher(gated=gated, clock=frozen)
    for call in ([message("det", at(0)), message("bad", at(0))], [*pulses("det", 14, 0, 5), message("bad", at(5))]):
        before = batcher.state()
        with pytest.raises(LookupError):
            batcher.add(call)
        assert batcher.state() == before
        batcher.add([message("det", at(0))])
    assert gated.asked.count("det") == 1
    gated.raises = False
    batcher.add([message("bad", at(0.1))])
    assert batcher.tracked_streams == {"det", "bad"}


def test_a_function_that_raises_for_one_source_leaves_none_of_a_list_applied() -> None:
    gated = _Refuses()
    sources = BySource(lambda: RateAwareBatcher(gated=gated, clock=frozen))
    call = [Message("a", "det", at(0)), Message("b", "bad", at(0))]
    with pytest.raises(LookupError):
        sources.add(call)
    assert sources.stats() == {}
    assert sources.flush() == []
    gated.raises = False
    assert [(b.source, len(b.messages)) for b in sources.add(call)] == [("a", 1), ("b", 1)]


def test_a_function_that_raises_leaves_the_columns_as_they_were() -> None:
    columns = RateAwareColumns(["det"])
    before = columns.state()
    with pytest.raises(LookupError):
        columns.admit(["log", "bad"], _Refuses())
    assert columns.state() == before


def test_a_clock_that_raises_leaves_nothing_applied() -> None:
    readings = iter([0.0, 0.0, 0.0])
    batcher = RateAwareBatcher(clock=lambda: next(readings))
    batcher.add(pulses("det", 14, -1, 0))
    batcher.add(pulses("det", 14, 0, 0.5))
    with pytest.raises(StopIteration):
        batcher.add(pulses("det", 14, 0.5, 5))
    assert batcher.buffered == 7


def test_a_call_too_long_to_be_cut_warns_by_the_names_of_source_and_stream() -> None:
    long = [*pulses("log", 1, 0, 5), *pulses("det", 1, 0, 1002)]
    batcher, columns = RateAwareBatcher(clock=frozen), RateAwareColumns(NAMES)
    for _ in range(2):  # the first call, and any other
        with pytest.warns(
            LongCallWarning, match="source 's', stream 'det': .* of one call span more than 1000 batch lengths of 1s"
        ):
            batcher.add(long)
        with pytest.warns(LongCallWarning, match="^stream 'det': the event times of one call"):
            columns.add(*laid_out([long], NAMES))
    columns = RateAwareColumns.restore(columns.state())
    with pytest.warns(LongCallWarning, match="^stream '5': the event times of one call"):
        columns.add(*laid_out([long], NAMES))


def test_a_warning_that_is_an_error_leaves_nothing_applied() -> None:
    batcher, columns = RateAwareBatcher(clock=frozen), RateAwareColumns(NAMES)
    states = batcher.state(), columns.state()
    long = pulses("det", 1, 0, 1002)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(LongCallWarning):
            batcher.add(long)
        with pytest.raises(LongCallWarning):
            columns.add(*laid_out([long], NAMES))
    assert (batcher.state(), columns.state()) == states


@pytest.mark.parametrize("calls", [1, 3])
def test_calls_that_can_be_cut_and_streams_far_from_each_other_warn_of_nothing(calls: int) -> None:
    call = [*pulses("det", 1, 0, 1000), *pulses("log", 1, -1001, 0), message("mon", at(0) - 43 * YEAR)]
    arrivals = [[], call, [], *[[m] for m in call]][: 2 * calls]
    batcher = RateAwareBatcher(clock=frozen)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _batches(batcher, arrivals)
        RateAwareColumns(NAMES).add(*laid_out(arrivals, NAMES))
