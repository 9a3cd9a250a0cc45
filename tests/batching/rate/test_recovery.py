"""A source that moved to another epoch is found again without a clock, and no batch has the identity of another."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.batching.rate.test_columns import NAMES, described_columns, laid_out, run_class
from tests.batching.rate.traffic import SECOND, YEAR, at, frozen, message, pulses

from waterclock.batching.batch import Batch
from waterclock.batching.rate_aware import RateAwareBatcher
from waterclock.batching.rate_columnar import RateAwareColumns
from waterclock.message import Message

SILENCE = 1200


def wild(seconds: tuple[float, float], offset: int, rate: int = 1) -> list[tuple[int, Message]]:
    """Make a monitor whose clock is ``offset`` (ns) off, each message with the time at which it arrives."""
    messages = pulses("mon", rate, *seconds, phase=0.01)
    return [(m.event_time, message("mon", m.event_time + offset)) for m in messages]


def arriving(*arrivals: list[tuple[int, Message]]) -> list[tuple[int, Message]]:
    return sorted((pair for pairs in arrivals for pair in pairs), key=lambda pair: pair[0])


def on_time(messages: list[Message]) -> list[tuple[int, Message]]:
    return [(m.event_time, m) for m in messages]


def in_calls(arrivals: list[tuple[int, Message]], length: int | None) -> list[list[Message]]:
    """Cut into calls of a length of time (ns), or of one message each."""
    calls: dict[int, list[Message]] = {}
    for number, (arrival, m) in enumerate(arrivals):
        calls.setdefault(number if length is None else arrival // length, []).append(m)
    return list(calls.values())


def before_and_after_the_silence(offset: int, length: int | None) -> list[list[Message]]:
    detector = pulses("det", 14, 0, 20) + pulses("det", 14, 20 + SILENCE, 60 + SILENCE)
    broken = wild((0, 20), offset) + wild((20 + SILENCE, 60 + SILENCE), offset)
    return in_calls(arriving(on_time(detector), broken), length)


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
    assert described_columns(columns.add(*laid_out(arrivals, NAMES))) == run_class(
        arrivals, {"gated": gated}, flush=False
    )


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


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from([0, -1, -2, 1, 7])), min_size=1, max_size=5),
    st.dictionaries(
        st.integers(0, 900), st.sampled_from(["1s", "2s", "999999999ns", "300ms", "1000000001ns", "3s"]), max_size=6
    ),
)
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
def test_what_is_buffered_is_bounded_where_every_clock_stands_still(event_time: int) -> None:
    with patch("waterclock.batching.stall.MOST_UNMOVED", 100):
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


def test_a_live_source_is_not_thrown_back_by_a_late_gateway() -> None:
    live = [[m] for m in pulses("det", 14, -1, 60)]
    backlog = [pulses("log", 5, k, k + 60) for k in range(-6000, -60, 60)]
    batcher = RateAwareBatcher(gated=("det",), clock=frozen)
    batches = _batches(batcher, [call for pair in zip(live, backlog * 9, strict=False) for call in pair])
    assert not any(b.reason == "stall" for b in batches)
    assert all(sum(m.stream == "det" for m in b.messages) == 14 for b in batches[8:])
