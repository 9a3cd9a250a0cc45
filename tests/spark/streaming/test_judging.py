"""Judging packed rows, without Spark: every message gets the verdict that the batcher gives it."""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.batching.event_time.definition import Rule
from tests.batching.event_time.traffic import arrivals, rules
from tests.spark.results import METADATA, Results, in_entries, results_in_rows, results_one_by_one

from waterclock.arrow import to_arrow
from waterclock.batching.event_time.replay import ReplayRange
from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.columnar import packing
from waterclock.columnar.packing import pack
from waterclock.columnar.records import PLAIN, POSITIONED, records
from waterclock.columnar.streams import judged_rows, slices
from waterclock.columnar.streams.judging import judge
from waterclock.errors import InvalidArgumentError
from waterclock.message import Message, Position
from waterclock.time import MAX_NS


def judged(
    messages: list[Message], rule: dict[str, Any], *, positions: bool, chance: random.Random | None = None
) -> Results:
    """Pack messages in pieces, bring those of a source together in any order as a shuffle does, and judge them."""
    record = POSITIONED if positions else PLAIN
    read = pa.Table.from_batches([_columns(messages)]).to_batches(max_chunksize=5)
    packed = [row for rows in pack(read, record) for row in _single(rows)]
    if chance is not None:
        chance.shuffle(packed)
    packed.sort(key=lambda row: (row["source"][0].as_py(), first_position(row) if positions else ()))
    rows = pa.Table.from_batches(packed).combine_chunks() if packed else None
    batches = [] if rows is None else rows.to_batches(max_chunksize=2)
    return results_in_rows(judge(batches, record, EventTimeRule.checked(**rule)))


def first_position(row: pa.RecordBatch) -> tuple[int, ...]:
    first = records(row["messages"][0].as_py(), row["count"][0].as_py())[0]
    return tuple(int(first[name]) for name in ("ledger", "entry", "index"))


def _columns(messages: list[Message]) -> pa.RecordBatch:
    return to_arrow(messages, positions=True).select(METADATA)


def _single(rows: pa.RecordBatch) -> list[pa.RecordBatch]:
    return [rows.slice(number, 1) for number in range(rows.num_rows)]


@settings(deadline=None)
@given(
    messages=arrivals(sources="xyz"),
    rule=rules,
    positions=st.booleans(),
    limits=st.tuples(
        st.integers(1, 20), st.integers(40, 200), st.integers(1, 30), st.integers(1, 10), st.integers(1, 20)
    ),
    chance=st.randoms(use_true_random=False),
)
def test_results_are_those_of_the_batcher_for_any_pieces(
    messages: list[Message], rule: Rule, positions: bool, limits: tuple[int, int, int, int], chance: random.Random
):
    messages = in_entries(messages, 3)
    packed_at_once, largest_cell, judged_at_once, largest_row, most_of_a_source = limits
    with (
        patch.object(packing, "_PACKED_AT_ONCE", packed_at_once),
        patch.object(packing, "_LARGEST_CELL", largest_cell),
        patch.object(slices, "_JUDGED_AT_ONCE", judged_at_once),
        patch.object(slices, "_MOST_OF_A_SOURCE", most_of_a_source),
        patch.object(judged_rows, "_LARGEST_ROW", largest_row),
    ):
        found = judged(messages, rule._asdict(), positions=positions, chance=chance)

    if not positions:
        messages = [m.replace(position=None) for m in messages]
    assert found == results_one_by_one(messages, **rule._asdict())


@settings(deadline=None)
@given(messages=arrivals(sources="xy"), rule=rules, order=st.randoms(use_true_random=False))
def test_a_receive_clock_that_went_back_is_judged_as_a_reader_of_the_topic_does(
    messages: list[Message], rule: Rule, order: random.Random
):
    order.shuffle(messages)
    messages = in_entries(messages, 3)
    assert judged(messages, rule._asdict(), positions=True) == results_one_by_one(messages, **rule._asdict())


@settings(deadline=None)
@given(
    messages=arrivals(sources="xy"),
    rule=rules,
    order=st.randoms(use_true_random=False),
    apart=st.sampled_from([(1, 1), (2**20, 2**20), (2**62, 2**58)]),
    most=st.sampled_from([2, 5, 2**20]),
)
def test_positions_give_the_order_however_the_messages_were_read(
    messages: list[Message], rule: Rule, order: random.Random, apart: tuple[int, int], most: int
):
    numbered = ((m, m.position or Position(0, 0, 0)) for m in in_entries(messages, 3))
    messages = [m.replace(position=Position(p[0] * apart[0], p[1] * apart[1], p[2])) for m, p in numbered]
    read = order.sample(messages, len(messages))
    with patch.object(packing, "_PACKED_AT_ONCE", 7), patch.object(slices, "_MOST_OF_A_SOURCE", most):
        found = judged(read, rule._asdict(), positions=True)
    assert found == results_one_by_one(messages, **rule._asdict())


def test_of_a_large_source_no_more_is_held_than_a_part_and_others_do_not_wait_for_it():
    messages = in_entries([Message("x", "a", at, receive_time=at) for at in range(0, 4_000, 10)], 3)
    others = [m.replace(source=name) for name in ("w", "y") for m in messages[:3]]
    packed = [row for m in [*others[:3], *messages, *others[3:]] for row in pack([_columns([m])], POSITIONED)]
    with patch.object(slices, "_MOST_OF_A_SOURCE", 20):
        parts = list(slices.slices(packed, sliced=True))
    assert max(sum(part.rows["count"].to_pylist()) for part in parts) <= 20
    assert [part.rows["source"].unique().to_pylist() for part in parts if part.ends] == [["w"], ["y"], ["x"]]
    assert sum(len(part.rows) for part in parts) < 50


def test_rows_of_a_large_source_out_of_order_are_refused():
    messages = in_entries([Message("x", "a", at, receive_time=at) for at in range(0, 400, 10)], 3)
    packed = [row for m in [*messages[9:], *messages[:9]] for row in pack([_columns([m])], POSITIONED)]
    with (
        patch.object(slices, "_MOST_OF_A_SOURCE", 20),
        pytest.raises(InvalidArgumentError, match="source 'x' after later ones"),
    ):
        list(judge(packed, POSITIONED, EventTimeRule.checked(1, 1, 0, "split")))


def test_no_rows_are_judged_as_nothing():
    (packed,) = pack([_columns([Message("x", "a", 0, receive_time=0)])], PLAIN)
    assert list(judge([packed.slice(0, 0)], PLAIN, EventTimeRule.checked(1, 1, 0, "split"))) == []
    assert list(judge([], PLAIN, EventTimeRule.checked(1, 1, 0, "split"))) == []


@pytest.mark.parametrize("span", [None, ReplayRange(MAX_NS - 9, MAX_NS)], ids=["a whole topic", "a range"])
def test_a_window_at_the_end_of_time_closes_with_it(span: ReplayRange | None):
    (packed,) = pack([_columns([Message("x", "a", MAX_NS - 5, receive_time=MAX_NS - 5)])], PLAIN)
    found = results_in_rows(judge([packed], PLAIN, EventTimeRule.checked(10, 10), span=span))
    assert found.batches == {
        "x": [(MAX_NS - 5, MAX_NS, MAX_NS, "timeout", None, None, [("a", MAX_NS - 5, MAX_NS - 5)])]
    }


def test_streams_of_one_event_time_are_in_order_of_text():
    streams = ["b", "ä", "a", "z", "B", "aa"]
    together = [Message("x", stream, 100, receive_time=101) for stream in streams]
    found = judged(together, {"window": 10, "max_delay": 10, "max_lead": 0, "on_conflict": "split"}, positions=False)
    ((*_, messages),) = found.batches["x"]
    assert [stream for stream, *_ in messages] == sorted(streams)


def test_a_source_of_many_messages_leaves_in_several_rows_of_whole_batches():
    sent = [("a", 0), ("b", 1), ("c", 2), ("d", 9)]
    messages = [Message("x", stream, at, receive_time=at + late) for at in range(0, 90, 9) for stream, late in sent]
    with patch.object(judged_rows, "_LARGEST_ROW", 4):
        (outcomes,) = judge(pack([_columns(messages)], PLAIN), PLAIN, EventTimeRule.checked(5, 5, 0, "split"))
    counts = {reason: [] for reason in (None, "late")}
    for reason, count in zip(outcomes["rejection"].to_pylist(), outcomes["count"].to_pylist(), strict=True):
        counts[reason].append(count)
    # Batches of 3 begin at 0, 3, 6 … messages; a row holds those that begin among the same 4.
    assert counts == {None: [6, 3, 3, 6, 3, 3, 6], "late": [4, 4, 2]}


def test_uncut_messages_of_one_source_do_not_affect_the_next_sources():
    """All of x is one row, so that nothing of it can be judged early; z is smaller than x, and large all the same."""
    at = [("x", 1), ("x", 1), ("y", 1), ("z", 1), ("z", 2)]
    messages = [
        Message(source, "s", number, receive_time=number, position=Position(0, entry, number))
        for number, (source, entry) in enumerate(at)
    ]
    pieces = [messages[:2], *([m] for m in messages[2:])]
    rows = [packed for piece in pieces for packed in pack([_columns(piece)], POSITIONED)]
    batches = [pa.Table.from_batches(some).combine_chunks().to_batches()[0] for some in (rows[:1], rows[1:])]
    with patch.object(slices, "_MOST_OF_A_SOURCE", 1), patch.object(slices, "_JUDGED_AT_ONCE", 1):
        found = results_in_rows(judge(batches, POSITIONED, EventTimeRule.checked(10, 10, 0, "split")))
    assert {source: sum(len(b[-1]) for b in found.batches[source]) for source in "xyz"} == {"x": 2, "y": 1, "z": 2}
