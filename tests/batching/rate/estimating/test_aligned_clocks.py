"""Clocks are aligned before windows are chosen: pulses land in their true windows although clocks creep and step."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.batching.rate.columns import NAMES, Described, described_columns, laid_out, received, run_class
from tests.batching.rate.estimating.clocks import (
    POLL,
    TRANSIT,
    Clock,
    creeping,
    good,
    received_late,
    run,
    share,
    stepping,
    timeouts,
    traffic,
)
from tests.batching.rate.traffic import SECOND, at, calls, feed, frozen, options, pulses
from tests.support.kernel_forms import in_form

from waterclock.batching.batch import Batch
from waterclock.batching.rate.by_column.columns import RateAwareColumns
from waterclock.batching.rate.by_message.aligned import ClockAlignment
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.errors import InvalidArgumentError, OutsideWindowWarning
from waterclock.message import Message

pytestmark = [
    pytest.mark.filterwarnings("ignore::waterclock.errors.OutsideWindowWarning"),
    pytest.mark.filterwarnings("ignore::waterclock.errors.LongCallWarning"),
]


@pytest.mark.parametrize(
    "clocks",
    [
        pytest.param([good, creeping(0.01), creeping(-0.01)], id="creep of 10 ms a second"),
        pytest.param([good, stepping(5, 40), stepping(-5, 70)], id="steps of 5 s"),
        pytest.param([good, stepping(30, 40), stepping(-30, 70)], id="steps of 30 s"),
        pytest.param([good, lambda s: 2.5 + creeping(0.01)(s), lambda s: stepping(-5, 70)(s) - 1], id="all at once"),
    ],
)
def test_pulses_land_in_their_true_windows_without_more_timeouts(clocks: list[Clock]) -> None:
    arrivals = traffic(clocks, 180)
    aligned, as_sent = run(arrivals, clocks="align"), run(arrivals)
    assert share(aligned) >= 99
    assert share(as_sent) < 80
    assert timeouts(aligned) <= timeouts(run(traffic([good] * 3, 180)))


@pytest.mark.slow
@pytest.mark.parametrize("drift", [0.01, -0.01])
def test_an_hour_of_creep_keeps_pulses_in_their_true_windows(drift: float) -> None:
    clocks = [good, creeping(drift), lambda seconds: creeping(-drift)(seconds) + stepping(30, 900)(seconds)]
    aligned = run(traffic(clocks, 3600), clocks="align")
    assert share(aligned) >= 99
    assert timeouts(aligned) <= timeouts(run(traffic([good] * 3, 3600)))


def test_messages_keep_the_times_that_were_sent_and_the_batch_holds_the_offsets() -> None:
    arrivals = traffic([good, stepping(-5, 1000), lambda _: 60.0], 30)
    for batch in run(arrivals, clocks="align")[1:]:
        assert list(batch.offsets) == sorted({m.stream for m in batch.messages})
        assert batch.offsets["c"] == pytest.approx(-60 * SECOND, abs=POLL)
        assert all(m.event_time - int.from_bytes(m.payload) == 60 * SECOND for m in batch.messages if m.stream == "c")
        assert Batch.from_bytes(batch.to_bytes()) == batch
        assert b'"offsets"' in (batch.to_arrow().schema.metadata or {})[b"waterclock.batch"]
    returned = sorted(id(m) for batch in run(arrivals, clocks="align") for m in batch.messages)
    assert returned == sorted(id(m) for call in arrivals for m in call)


def test_outside_counts_are_of_aligned_times() -> None:
    batches = run(traffic([good, good, lambda _: 60.0], 30), clocks="align")
    assert all(not batch.outside and not batch.messages_outside() for batch in batches)
    [moved] = batches[5:6]
    undone = Batch(moved.source, moved.start, moved.end, moved.closed_at, moved.reason, moved.messages)
    assert undone.outside["c"].total == 14 == len(undone.messages_outside())


@given(calls(), options)
def test_messages_received_when_they_were_sent_are_batched_as_sent(
    arrivals: list[list[Message]], chosen: dict[str, Any]
) -> None:
    arrivals = [[m.replace(receive_time=m.event_time) for m in call] for call in arrivals]
    aligned = run(arrivals, **chosen, clocks="align")
    assert all(set(batch.offsets.values()) == {0} for batch in aligned)
    as_sent = run(arrivals, **chosen)
    bare = [Batch(b.source, b.start, b.end, b.closed_at, b.reason, b.messages, run=b.run) for b in aligned]
    assert bare == as_sent
    assert all(b'"offsets"' not in batch.to_bytes() for batch in as_sent)


@given(calls(), options, st.data())
def test_a_restored_batcher_continues_with_the_same_batches(
    arrivals: list[list[Message]], chosen: dict[str, Any], data: st.DataObject
) -> None:
    random = data.draw(st.randoms(use_true_random=False))
    arrivals = received_late(arrivals, random.randrange(3 * SECOND))
    batcher = RateAwareBatcher(**chosen, clock=frozen, clocks="align")
    batches: list[Batch] = []
    for call in arrivals:
        if random.random() < 0.2:
            batcher = RateAwareBatcher.restore(batcher.state(), clock=frozen)
        batches += batcher.add(call)
    batches += RateAwareBatcher.restore(batcher.state(), clock=frozen).flush()
    assert [b.to_bytes() for b in batches] == [b.to_bytes() for b in run(arrivals, **chosen, clocks="align")]


def test_a_state_without_alignment_has_the_bytes_of_before() -> None:
    batcher = RateAwareBatcher(clock=frozen)
    feed(batcher, pulses("a", 14, 0, 5))
    state = batcher.state()
    explicit = RateAwareBatcher(clock=frozen, clocks="as_sent")
    feed(explicit, pulses("a", 14, 0, 5))
    assert explicit.state() == state == RateAwareBatcher.restore(state, clock=frozen).state()


def test_a_forgotten_source_begins_with_unknown_clocks() -> None:
    early = traffic([good, good, lambda _: 60.0], 10)
    late = [[m.replace(event_time=m.event_time + 100 * SECOND, receive_time=(m.receive_time or 0) + 100 * SECOND)
             for m in call] for call in traffic([good, good, good], 10)]  # fmt: skip
    chosen = {"clocks": "align", "forget_after": "30s"}
    again = run(early + late, **chosen)
    assert [b.to_bytes() for b in again] == [b.to_bytes() for part in (early, late) for b in run(part, **chosen)]


def test_clocks_must_be_a_known_word_and_alignment_needs_receive_times() -> None:
    with pytest.raises(InvalidArgumentError, match="clocks must be one of 'as_sent', 'align', got 'aligned'"):
        RateAwareBatcher(clocks="aligned")  # pyright: ignore[reportArgumentType]
    batcher = RateAwareBatcher(clocks="align")
    with pytest.raises(InvalidArgumentError, match=r"receive_time must be set if clocks are aligned, got None"):
        batcher.add([Message("s", "a", at(0), receive_time=at(0)), Message("s", "a", at(1))])
    assert batcher.window is None


def test_damaged_alignment_in_a_state_is_refused() -> None:
    with pytest.raises(ValueError, match="wrong number of fields"):
        ClockAlignment.from_facts([{"a": [1, 2]}, 0, []], [])
    with pytest.raises(ValueError, match="longer than argument 1"):
        ClockAlignment.from_facts([{}, 0, [[0, 0]]], [])


@given(calls(), options, st.lists(st.integers(0, 60), max_size=3), st.integers(0, 3 * SECOND), st.booleans())
def test_columns_align_clocks_as_the_class_does(
    arrivals: list[list[Message]], chosen: dict[str, Any], cuts: list[int], delay: int, compiled: bool
) -> None:
    arrivals = received_late(arrivals, delay)
    columns = RateAwareColumns(NAMES[:2], **chosen, clocks="align")
    columns.admit(NAMES[2:], chosen["gated"])
    found: list[Described] = []
    outside = 0
    with in_form(compiled=compiled):
        codes, times, _ = laid_out(arrivals, NAMES)
        for first, stop in pairwise([0, *sorted(cuts), len(arrivals)]):
            some = arrivals[first:stop]
            batches = columns.add(*laid_out(some, NAMES), flush=stop == len(arrivals), receive_times=received(some))
            found += described_columns(batches)
            outside += batches.outside(codes, times).sum()
            columns = RateAwareColumns.restore(columns.state())
    assert found == run_class(arrivals, {**chosen, "clocks": "align"})
    counted = [counts.total for batch in run(arrivals, **chosen, clocks="align") for counts in batch.outside.values()]
    assert outside == sum(counted)


def test_aligned_columns_need_a_receive_time_for_each_message() -> None:
    columns = RateAwareColumns(["a"], clocks="align")
    for missing, says in ((None, "must be given if clocks are aligned, got None"), ([1], "equal lengths, got 1 and 2")):
        with pytest.raises(InvalidArgumentError, match=f"receive_times .*{says}"):
            columns.add(np.zeros(2, np.int64), np.array([at(0), at(1)]), receive_times=missing and np.array(missing))
    assert columns.buffered == 0


def test_a_backlog_that_was_received_at_once_keeps_its_distances() -> None:
    backlog = [m.replace(receive_time=at(60)) for m in pulses("a", 14, 0, 10)]
    [batch] = RateAwareBatcher(clock=frozen, clocks="align").add(backlog)
    newest = backlog[-1].event_time
    assert batch.offsets == {"a": at(60) - newest}
    assert batch.end - batch.start == newest - backlog[0].event_time


ANY_TIME = (
    st.integers(-(2**63), 2**63 - 1)
    | st.integers(-(2**62), 2**62)
    | st.integers(at(-100), at(100))
    | st.sampled_from([-(2**63), 2**63 - 1, -(2**62) + 1, 2**62 - 1])
)


def offsets_of(pairs: list[tuple[int, int]]) -> list[int]:
    """Return the offsets of messages of one stream, each with its event time and its receive time."""
    messages = [Message("s", "a", sent, receive_time=received) for sent, received in pairs]
    alignment = ClockAlignment()
    aligned = [alignment.align([each])[0] for each in messages]
    return [each.event_time - sent for each, (sent, _) in zip(aligned, pairs, strict=True)]


@pytest.mark.parametrize("drift", [0.01, -0.01])
def test_the_offset_follows_a_clock_that_creeps_between_its_points(drift: float) -> None:
    times = [k * SECOND // 10 for k in range(600)]
    pairs = [(at(0) + time + round(drift * time), at(0) + time + TRANSIT) for time in times]
    errors = [offset - (arrival - sent) for offset, (sent, arrival) in zip(offsets_of(pairs), pairs, strict=True)]
    assert max(map(abs, errors[100:])) < SECOND // 1000


@pytest.mark.filterwarnings("ignore::waterclock.time.UnitWarning")
@given(st.lists(st.tuples(ANY_TIME, ANY_TIME), min_size=1, max_size=40))
def test_no_message_is_aligned_to_after_its_receive_time_or_beyond_64_bits(pairs: list[tuple[int, int]]) -> None:
    for offset, (sent, arrival) in zip(offsets_of(pairs), pairs, strict=True):
        assert offset == 0 or sent + offset <= arrival
        assert -(2**63) <= sent + offset < 2**63


def test_only_the_first_thousand_streams_of_a_source_are_aligned() -> None:
    behind = 5 * SECOND
    names = [f"s{number}" for number in range(1_003)]
    calls = [[Message("s", "s0", 2**62, receive_time=at(0))], [Message("s", names[-1], 2**62, receive_time=at(0))]]
    calls += [
        [Message("s", name, at(second) - behind, receive_time=at(second)) for name in names] for second in range(3)
    ]
    batcher = RateAwareBatcher(clock=frozen, clocks="align")
    assert batcher.add(calls[0])
    kept = len(batcher.state())
    for call in calls[1:3]:
        batcher.add(call)
    assert len(batcher.state()) < kept + 100_000
    with pytest.warns(OutsideWindowWarning, match=r"source 's': clocks of at most 1,000 streams are aligned"):
        batcher.add(calls[3])
    offsets = {name: offset for batch in run(calls, clocks="align")[1:] for name, offset in batch.offsets.items()}
    assert [name for name in names if offsets[name] != behind] == names[1_000:]
    assert not offsets[names[-1]]
    columns = RateAwareColumns(names, clocks="align")
    found = columns.add(*laid_out(calls, names), flush=True, receive_times=received(calls))
    assert described_columns(found) == run_class(calls, {"clocks": "align"})


def test_a_delay_is_no_offset_unless_it_lasts() -> None:
    late = [(at(k / 10), at(k / 10) + TRANSIT + (SECOND if 100 <= k < 150 else 0)) for k in range(300)]
    assert set(offsets_of(late)) == {TRANSIT}
    lasting = [(at(k / 10), at(k / 10) + TRANSIT + (SECOND if k >= 100 else 0)) for k in range(300)]
    assert offsets_of(lasting)[-1] == TRANSIT + SECOND
