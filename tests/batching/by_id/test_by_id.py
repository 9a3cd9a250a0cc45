"""Messages with the same id are a batch: the class, the columns and the definition agree, in any order and restarts."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.batching.by_id.definition import LARGEST, batches_of, number_of
from tests.batching.by_id.drawings import DRAWING, drawing
from tests.batching.by_id.scenario import IdScenario

from waterclock.arrow import to_arrow
from waterclock.batching.batch import Batch
from waterclock.batching.by_id import taken_ids
from waterclock.batching.by_id.batcher import IdBatcher
from waterclock.batching.by_id.columns import assign_batches_by_id
from waterclock.batching.by_id.missing import MissingIds, missing_ids
from waterclock.batching.by_source import BySource
from waterclock.errors import InvalidArgumentError, SchemaError
from waterclock.message import Message

STREAMS = ("a", "b", "c")


def message(number: int | str, stream: str = "a", received: int = 0, event_time: int = 0, source: str = "x") -> Message:
    return Message(source, stream, event_time, receive_time=received, headers={"train": str(number)})


def read_number(message: Message) -> int:
    return number_of(message)


@st.composite
def arrivals(draw: st.DrawFn, sources: str = "x") -> list[Message]:
    """Messages of few ids and streams in order of receive time, so that everything collides often."""
    sent = st.tuples(
        st.sampled_from(sources),
        st.sampled_from(STREAMS),
        st.integers(-3, 12),
        st.integers(0, 25),
        st.integers(0, 5),
    )
    messages = [
        Message(source, stream, event, str(n).encode(), receive_time=received, headers={"train": str(number)})
        for n, (source, stream, number, received, event) in enumerate(draw(st.lists(sent, max_size=40)))
    ]
    return sorted(messages, key=lambda m: m.receive_time or 0)


def outcome(batches: Sequence[Batch], batcher: IdBatcher | BySource) -> tuple[object, dict[Message, str]]:
    found = {(b.source, b.number): (b.closed_at, set(b.messages)) for b in batches}
    assert len(found) == len(batches), "an id is in two batches"
    return found, {rejection.message: rejection.reason for rejection in batcher.take_rejected()}


@given(arrivals(), st.integers(0, 8), st.booleans(), st.sets(st.integers(0, 40)), st.sets(st.integers(0, 30)))
def test_the_class_does_what_the_definition_says_through_restarts_and_early_closing(
    messages: list[Message], max_delay: int, declared: bool, restarts: set[int], promises: set[int]
) -> None:
    batcher = IdBatcher(read_number, max_delay=max_delay, streams=STREAMS if declared else None)
    batches: list[Batch] = []
    for n, each in enumerate(messages):
        if n in restarts:
            batcher = IdBatcher.restore(batcher.state(), read_number)
        if each.receive_time in promises:
            batches += batcher.advance(each.receive_time - 1)
        batches += batcher.add(each)
    batches += batcher.advance(LARGEST)
    assert outcome(batches, batcher) == batches_of(messages, max_delay)


@given(arrivals(sources="xy"), st.integers(0, 8), st.integers(-1, 40))
def test_the_columns_and_many_sources_agree_with_the_definition(
    messages: list[Message], max_delay: int, now: int
) -> None:
    expected, rejected = batches_of(messages, max_delay, now)
    by_source = BySource(lambda: IdBatcher("train", max_delay=max_delay))
    batches: list[Batch] = []
    for each in messages:
        if each.receive_time is not None and each.receive_time <= now:
            batches += by_source.add(each)
    batches += by_source.advance(now)
    assert outcome(batches, by_source) == (expected, rejected)
    table = pa.Table.from_batches([to_arrow(messages)])
    table = table.append_column("train", pa.array(list(map(number_of, messages)), pa.int64()))
    assigned = assign_batches_by_id(table, "train", max_delay=max_delay, now=now)
    rows = dict(zip(messages, assigned.select(["closed_at", "rejected"]).to_pylist(), strict=True))
    assert {each: row["rejected"] for each, row in rows.items() if row["rejected"]} == rejected
    closed = {each: row["closed_at"] for each, row in rows.items() if row["closed_at"] is not None}
    assert closed == {each: at for at, there in expected.values() for each in there}


@given(arrivals())
def test_early_closing_and_flush_batch_no_id_twice(messages: list[Message]) -> None:
    batcher = IdBatcher("train", max_delay=5, streams=STREAMS)
    batches: list[Batch] = []
    for n, each in enumerate(messages):
        batches += batcher.add(each)
        if n % 3 == 0:
            batches += batcher.flush()
    batches += batcher.reset()
    found, rejected = outcome(batches, batcher)
    assert isinstance(found, dict)
    assert sum(len(batch.messages) for batch in batches) + len(rejected) == len(messages)


@pytest.mark.parametrize("restored", [False, True])
def test_ids_that_were_open_or_complete_at_a_reset_are_not_batched_again(restored: bool) -> None:
    batcher = IdBatcher("train", ["a", "b"], max_delay=10)
    batches = [batch for each in (message(1), message(2), message(2, "b")) for batch in batcher.add(each)]
    batches += batcher.reset()
    assert [(batch.number, batch.reason) for batch in batches] == [(2, "complete"), (1, "flush")]
    if restored:
        batcher = IdBatcher.restore(batcher.state())
    for each in (message(1, "b", -5), message(2, "a", -5), message(3, "a", -4)):
        assert batcher.add(each) == []
    assert [batch.number for batch in batcher.advance(100)] == [3]
    assert [rejection.reason for rejection in batcher.take_rejected()] == ["late", "late"]


def test_the_scenario_is_batched_as_it_says() -> None:
    scenario = IdScenario.read()
    batcher, batches = scenario.run()
    assert [(tuple(map(scenario.name, b.messages)), b.number, b.closed_at, b.reason) for b in batches] == (
        scenario.batches
    )
    assert {scenario.name(m): reason for m, reason in batcher.take_rejected()} == scenario.rejected
    assert missing_ids(batches, ["a", "b"]) == [
        MissingIds("device", 3, 3, ("b",)),
        MissingIds("device", 4, 4, ()),
        MissingIds("device", 5, 5, ("b",)),
    ]


def test_the_drawing_of_the_documentation_is_current() -> None:
    assert DRAWING.read_text("utf-8") == drawing(), "draw it again: python -m tests.batching.by_id.drawings"


def test_a_batch_by_id_is_named_after_its_id_and_comes_back_from_bytes() -> None:
    batcher = IdBatcher("train", max_delay=5)
    batcher.add(message(-7, "a", event_time=40))
    batcher.add(message(-7, "b", event_time=30))
    [batch] = batcher.flush()
    assert (batch.id, batch.number, batch.start, batch.end) == ("x@-7", -7, 30, 40)
    assert [m.stream for m in batch.messages] == ["b", "a"]
    assert Batch.from_bytes(batch.to_bytes()) == batch
    assert batch.outside == {}


def test_after_a_flush_messages_of_its_ids_are_duplicates_or_late() -> None:
    batcher = IdBatcher("train", max_delay=10)
    batcher.add(message(1, "a", 0))
    batcher.flush()
    for each in (message(1, "a", 10), message(1, "b", 10), message(1, "a", 11)):
        assert batcher.add(each) == []
    assert [reason for _, reason in batcher.take_rejected()] == ["duplicate", "late", "late"]


def test_memory_for_returned_ids_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taken_ids, "MOST_RUNS", 3)
    batcher = IdBatcher("train", max_delay=0)
    for n, number in enumerate((10, 20, 30, 40, 50)):
        batcher.add(message(number, received=n))
    for number, late in ((5, False), (15, True), (25, True), (35, False), (40, True)):
        batcher.take_rejected()
        batcher.add(message(number, "b", received=9))
        assert bool(batcher.take_rejected()) == late, number


def test_an_id_that_was_open_while_runs_around_it_merged_reopens_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taken_ids, "MOST_RUNS", 2)
    batcher = IdBatcher("train", max_delay=5)
    for number, received in ((10, 0), (20, 0), (30, 1), (15, 2)):
        batcher.add(message(number, received=received))
    assert len(batcher.advance(9)) == 4
    batcher = IdBatcher.restore(batcher.state())
    batcher.add(message(20, "b", received=10))
    assert [reason for _, reason in batcher.take_rejected()] == ["late"]


@pytest.mark.parametrize(
    "written", ["", "one", "1.0", "٣", "9223372036854775808", "99999999999999999999", "--1", "1_0"]
)
def test_a_message_without_a_valid_id_is_rejected(written: str) -> None:
    for batcher in (IdBatcher("train", max_delay=5), IdBatcher(lambda _: None, max_delay=5)):
        assert batcher.add(message(written)) == []
        assert [reason for _, reason in batcher.take_rejected()] == ["no_id"]


@pytest.mark.parametrize("found", [1.5, "1", True, 2**63, -(2**63)])
def test_a_function_that_returns_something_else_than_an_id_is_refused(found: object) -> None:
    batcher = IdBatcher(lambda _: found, max_delay=5)  # pyright: ignore[reportArgumentType]
    before = batcher.state()
    with pytest.raises(InvalidArgumentError, match="id_of must return an integer from"):
        batcher.add(message(1))
    assert batcher.state() == before


def test_invalid_options_and_messages_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="id_of must be the name of a header or a function, got 5"):
        IdBatcher(5, max_delay=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidArgumentError, match="step must be an integer ≥ 1, got 0"):
        missing_ids([], step=0)
    with pytest.raises(InvalidArgumentError, match="batches must come from IdBatcher"):
        missing_ids([Batch("x", 0, 1, 1, "flush", (message(1),))])
    batcher = IdBatcher("train", max_delay=1, streams=["a"])
    batcher.add(message(1))
    with pytest.raises(InvalidArgumentError, match="Use BySource for many sources"):
        batcher.add(message(1, source="y"))
    with pytest.raises(InvalidArgumentError, match="receive_time must be set"):
        batcher.add(Message("x", "a", 0, headers={"train": "1"}))


def test_a_state_needs_its_function_back() -> None:
    with pytest.raises(InvalidArgumentError, match="id_of must be the function of the saved batcher"):
        IdBatcher.restore(IdBatcher(read_number, max_delay=1).state())
    with pytest.raises(InvalidArgumentError, match="because header 'train' holds the ids"):
        IdBatcher.restore(IdBatcher("train", max_delay=1).state(), read_number)
    with pytest.raises(SchemaError, match="are not the state of an id batcher"):
        IdBatcher.restore(b"text")


def test_a_column_that_holds_no_ids_is_refused() -> None:
    table = pa.Table.from_batches([to_arrow([message(1)])])
    with pytest.raises(SchemaError, match="column 'stream' must hold integers, got string"):
        assign_batches_by_id(table, "stream", max_delay=1)


@pytest.mark.parametrize("rows", [0, 2])
def test_a_column_of_nulls_holds_no_ids(rows: int) -> None:
    table = pa.Table.from_batches([to_arrow([message(1), message(1, "b")])]).slice(0, rows)
    assigned = assign_batches_by_id(table.append_column("id", pa.nulls(rows)), "id", max_delay=1)
    assert assigned.column("rejected").to_pylist() == ["no_id"] * rows


@pytest.mark.parametrize(
    "column", [pa.array([None, 7], pa.int32()), pa.array([2**63, 7], pa.uint64()), pa.array([-(2**63), 7], pa.int64())]
)
def test_rows_without_an_id_or_of_an_undeclared_stream_are_rejected(column: pa.Array) -> None:
    table = pa.Table.from_batches([to_arrow([message(1), message(1, "b")])]).append_column("id", column)
    assigned = assign_batches_by_id(table, "id", max_delay=1, streams=["a"])
    assert assigned.column("rejected").to_pylist() == ["no_id", "undeclared"]
    assert assigned.column("closed_at").to_pylist() == [None, None]
    batcher = IdBatcher("train", ["a"], max_delay=1)
    assert batcher.add(message(1, "b")) == []
    assert [reason for _, reason in batcher.take_rejected()] == ["undeclared"]
