"""Sources batched by id in a stream, without Spark: cut anywhere, restored anywhere, they get the class's batches."""

from __future__ import annotations

from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.spark.results import METADATA, in_entries, results_in_rows, results_of

from waterclock.arrow import to_arrow
from waterclock.batching.batch import Batch
from waterclock.batching.by_id import taken_ids
from waterclock.batching.by_id.batcher import IdBatcher
from waterclock.batching.by_id.rule import NO_ID, IdRule, number_in
from waterclock.batching.by_source import BySource
from waterclock.columnar.many_sources import ManySources, from_packed, nothing
from waterclock.columnar.message_ids import numbers_in, with_numbers
from waterclock.columnar.packing import ROWS, pack
from waterclock.columnar.records import NUMBERED, PLAIN
from waterclock.columnar.streams.event_time_stream import EventTimeStream
from waterclock.columnar.streams.id_stream import IdStream, judge_by_id
from waterclock.errors import DamagedError, InvalidArgumentError, SchemaError
from waterclock.message import Message
from waterclock.time import MAX_NS

MS = 1_000_000
END_MS = MAX_NS // MS + 1
STREAMS = ["a", "b"]
WRITTEN = [
    "",
    "1",
    "-7",
    "007",
    "-0",
    "+1",
    " 1",
    "1\n",
    "one",
    "1.0",
    "٣",
    "--1",
    "1_0",
    "0" * 18 + "1",
    "0" * 20 + "1",
]
WRITTEN += [str(number) for number in (MAX_NS, MAX_NS + 1, -MAX_NS, -MAX_NS - 1, 10**20)]


def packed(messages: list[Message]) -> pa.Table:
    rows = with_numbers(to_arrow(messages, positions=True).select([*METADATA, "headers"]), "train")
    found = [each.select(ROWS.names).cast(ROWS) for each in pack([rows], NUMBERED)]
    return pa.Table.from_batches(found, ROWS)


def many(messages: list[Message]) -> ManySources:
    return from_packed(packed(messages), NUMBERED) if messages else nothing(NUMBERED)


@st.composite
def arrivals(draw: st.DrawFn) -> list[Message]:
    """Messages of few ids and streams, some without an id or of an undeclared stream; receive times in any order."""
    numbers = st.one_of(st.integers(-3, 12).map(str), st.sampled_from(["one", str(2**63), None]))
    sent = st.tuples(
        st.sampled_from("xy"),
        st.sampled_from([*STREAMS, *STREAMS, "c"]),
        numbers,
        st.integers(0, 25),
        st.integers(0, 5),
    )
    messages = [
        Message(
            source, stream, event, receive_time=received * MS, headers=None if number is None else {"train": number}
        )
        for source, stream, number, received, event in draw(st.lists(sent, max_size=40))
    ]
    if draw(st.booleans()):
        messages.sort(key=lambda message: message.receive_time or 0)
    return in_entries(messages, 3)


@given(
    messages=arrivals(),
    max_delay=st.integers(0, 8),
    declared=st.booleans(),
    cuts=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30)), max_size=6),
    most=st.sampled_from([2, 3, 10_000]),
)
def test_a_stream_returns_the_batchers_results_wherever_it_is_cut_and_restored(
    messages: list[Message], max_delay: int, declared: bool, cuts: list[tuple[int, int]], most: int
) -> None:
    streams = STREAMS if declared else None
    rule = IdRule.checked("train", max_delay * MS, streams)
    by_source = BySource(lambda: IdBatcher("train", streams, max_delay=max_delay * MS))
    stream = IdStream(rule)
    batches: list[Batch] = []
    outcomes: list[pa.RecordBatch] = []
    first = promise = 0
    with patch.object(taken_ids, "MOST_RUNS", most):
        for stop, at in [*sorted(cuts), (len(messages), 0)]:
            piece, first = messages[first:stop], max(first, stop)
            promise = max(promise, at)
            if promise:
                batches += by_source.advance(promise * MS - 1)
            for message in piece:
                batches += by_source.add(message)
            outcomes.append(stream.take(many(piece), promise))
            stream = IdStream.restore(stream.state(), rule)
        batches += by_source.advance(MAX_NS)
        outcomes.append(stream.take(nothing(NUMBERED), END_MS))
    assert results_in_rows(outcomes) == results_of(batches, by_source.take_rejected())
    assert stream.open_batches == 0


@given(messages=arrivals(), max_delay=st.integers(0, 8), declared=st.booleans(), ended=st.booleans())
def test_a_replay_returns_what_the_batcher_gives_with_and_without_an_end(
    messages: list[Message], max_delay: int, declared: bool, ended: bool
) -> None:
    streams = STREAMS if declared else None
    by_source = BySource(lambda: IdBatcher("train", streams, max_delay=max_delay * MS))
    batches = [batch for message in messages for batch in by_source.add(message)]
    if ended:
        batches += by_source.advance(MAX_NS)
    rows = packed(sorted(messages, key=lambda message: message.source)).to_batches() if messages else []
    rule = IdRule.checked("train", max_delay * MS, streams)
    found = results_in_rows(judge_by_id(rows, rule, ended=ended))
    assert found == results_of(batches, by_source.take_rejected())


def test_an_open_batch_wakes_the_stream_and_a_complete_one_does_not() -> None:
    stream = IdStream(IdRule.checked("train", "5ms", STREAMS))
    sent = [Message("x", name, 0, receive_time=10 * MS, headers={"train": "1"}) for name in STREAMS]
    stream.take(many(in_entries(sent[:1], 1)), 0)
    assert (stream.open_batches, stream.wakes_at) == (1, 16)
    outcomes = stream.take(many(in_entries(sent, 1)[1:]), 0)
    [[batch]] = outcomes.column("batches").to_pylist()
    assert (batch["number"], batch["reason"], batch["closed_at"]) == (1, "complete", 15 * MS)
    assert (stream.open_batches, stream.wakes_at) == (0, None)


def test_ids_between_closed_ones_are_missing() -> None:
    stream = IdStream(IdRule.checked("train", 0))
    sent = [Message("x", "a", 0, receive_time=n, headers={"train": str(n)}) for n in (3, 4, 9, 20)]
    stream.take(many(in_entries(sent, 1)), 0)
    assert stream.missing_ids == 4  # 5 to 8; 20 is still open
    assert IdStream.restore(stream.state(), IdRule.checked("train", 0)).missing_ids == 4


def test_missing_ids_between_the_least_and_the_largest_id_fit_int64() -> None:
    stream = IdStream(IdRule.checked("train", 0))
    sent = [Message("x", "a", 0, receive_time=n, headers={"train": str(n * MAX_NS)}) for n in (-1, 1)]
    stream.take(many(in_entries(sent, 1)), END_MS)
    stream.take(nothing(NUMBERED), END_MS)
    assert stream.missing_ids == MAX_NS


def test_columns_read_a_header_as_the_batcher_does() -> None:
    headers = [{"other": "1"}, {}, *({"train": text, "other": "1"} for text in WRITTEN)]
    column = to_arrow([Message("x", "a", 0, headers=each) for each in headers]).column("headers")
    wanted = [number_in(Message("x", "a", 0, headers=each), "train") for each in headers]
    assert numbers_in(column, "train").to_pylist() == [NO_ID if each is None else each for each in wanted]
    assert 1 in wanted
    assert MAX_NS in wanted


def test_a_state_of_other_options_or_of_something_else_is_refused() -> None:
    rule = IdRule.checked("train", "1s")
    stream = IdStream(rule)
    stream.take(many(in_entries([Message("x", "a", 0, receive_time=0, headers={"train": "1"})], 1)), 0)
    state = stream.state()
    for other in (("pulse", "1s", None), ("train", "2s", None), ("train", "1s", ["a"])):
        with pytest.raises(
            InvalidArgumentError, match="its checkpoint was written with id_of = 'train', max_delay = 1s"
        ):
            IdStream.restore(state, IdRule.checked(*other))
    with pytest.raises(DamagedError, match="the state of batching by id is corrupt"):
        IdStream.restore(state[:-1] + b"?", rule)
    with pytest.raises(SchemaError, match="are not the state of batching by id"):
        IdStream.restore(EventTimeStream.__name__.encode(), rule)
    assert PLAIN != NUMBERED
