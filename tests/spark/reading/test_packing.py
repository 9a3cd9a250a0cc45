"""Packing and unpacking, without Spark: what goes in comes out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.batching.event_time.traffic import arrivals
from tests.spark.results import METADATA, in_entries
from tests.support.kernel_forms import in_form

from waterclock.arrow import to_arrow
from waterclock.columnar import packing
from waterclock.columnar.many_sources import from_packed, joined, many_from_cell, nothing
from waterclock.columnar.packing import ROWS, pack, unpack
from waterclock.columnar.records import PLAIN, POSITIONED, cells_of_records
from waterclock.errors import InvalidArgumentError, SchemaError
from waterclock.message import Message

BOUNDS = np.array([0, 1, 4, 6])


def columns_of(messages: list[Message], batch_size: int) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_batches([to_arrow(messages, positions=True)]).select(METADATA)
    yield from table.to_batches(max_chunksize=batch_size)


@settings(deadline=None)
@given(
    messages=arrivals(sources="xyz"),
    positioned=st.booleans(),
    batch_size=st.integers(1, 50),
    at_once=st.integers(1, 30),
    largest_cell=st.integers(40, 300),
    compiled=st.booleans(),
)
def test_messages_come_out_as_they_went_in_and_in_order(
    messages: list[Message], positioned: bool, batch_size: int, at_once: int, largest_cell: int, compiled: bool
):
    messages = in_entries(messages, 3)
    record = POSITIONED if positioned else PLAIN
    sizes = {"_PACKED_AT_ONCE": at_once, "_LARGEST_CELL": largest_cell}
    with patch.multiple(packing, **sizes), in_form(compiled=compiled):
        packed = list(pack(columns_of(messages, batch_size), record))

    came_out = defaultdict(list)
    for rows in packed:
        most = largest_cell // record.itemsize
        assert all(count <= most for count in rows.column("count").to_pylist())
        numbers, columns = unpack(rows)
        sources = rows.column("source").take(pa.array(numbers)).to_pylist()
        for source, *message in zip(sources, *(c.to_pylist() for c in columns.values()), strict=True):
            came_out[source].append(tuple(message))
    went_in = defaultdict(list)
    for m in messages:
        position = m.position if positioned else (None, None, None)
        went_in[m.source].append((m.stream, m.event_time, m.receive_time, *position))
    assert came_out == went_in


def test_a_row_names_only_the_streams_that_occur_in_it():
    messages = [Message(source, stream, 0, receive_time=0) for source, stream in ("xb", "xa", "yc", "xb")]
    (rows,) = pack(columns_of(messages, 10), PLAIN)
    assert dict(zip(rows["source"].to_pylist(), map(set, rows["streams"].to_pylist()), strict=True)) == {
        "x": {"a", "b"},
        "y": {"c"},
    }


def test_unpacking_no_rows_gives_no_messages():
    (rows,) = pack(columns_of([Message("x", "a", 0, receive_time=0)], 1), PLAIN)
    numbers, columns = unpack(rows.slice(0, 0))
    assert len(numbers) == 0
    assert [len(column) for column in columns.values()] == [0] * 6


@pytest.mark.parametrize("record", [PLAIN, POSITIONED])
def test_records_of_many_rows_are_unpacked_as_one_array(record: np.dtype, monkeypatch: pytest.MonkeyPatch):
    messages = np.zeros(6, record)
    messages["event_time"] = np.arange(6)
    columns = [["x", "y", "x"], [["a"]] * 3, pa.array([1, 3, 2], pa.int32()), cells_of_records(messages, BOUNDS)]
    monkeypatch.setattr(packing, "records", None)  # reads one row
    numbers, read = unpack(pa.RecordBatch.from_arrays(columns, schema=ROWS))
    assert numbers.tolist() == [0, 1, 1, 1, 2, 2]
    assert read["event_time"].to_pylist() == [0, 1, 2, 3, 4, 5]


def test_no_messages_pack_into_no_rows():
    empty = next(columns_of([Message("x", "a", 0, receive_time=0)], 1)).slice(0, 0)
    assert list(pack([empty], POSITIONED)) == []


@pytest.mark.parametrize("name", ["source", "stream", "event_time", "receive_time", "entry"])
def test_a_null_is_an_error_that_names_its_column(name: str):
    (batch,) = columns_of(in_entries([Message("x", "a", 0, receive_time=0)], 1), 1)
    position = batch.schema.get_field_index(name)
    holed = batch.set_column(position, batch.schema.field(name).with_nullable(True), pa.nulls(1, batch[name].type))
    with pytest.raises(InvalidArgumentError, match=f"column '{name}' must not hold nulls"):
        list(pack([holed], POSITIONED))


@pytest.mark.parametrize("name", ["source", "stream"])
def test_a_text_that_is_not_utf8_is_an_error_that_shows_its_bytes(name: str):
    number = pa.array([b"ok", b"\0\0\0\x81"])  # a key as Kafka's serializer of whole numbers writes it
    rows = to_arrow([Message("x", "s", 1, receive_time=1)] * 2, positions=True).select(METADATA)
    text = pa.Array.from_buffers(pa.string(), 2, number.buffers())
    rows = rows.set_column(rows.schema.get_field_index(name), name, text)
    with pytest.raises(
        InvalidArgumentError, match=r"b'\\x00\\x00\\x00\\x81'\. Convert the bytes to text, .*hex\(key\)"
    ):
        list(pack([rows], PLAIN))


def test_messages_without_position_are_refused_where_positions_are_due():
    (rows,) = pack(columns_of([Message("x", "a", 0, receive_time=0)], 1), PLAIN)
    with pytest.raises(SchemaError, match="messages of 40 bytes each"):
        from_packed(pa.table(rows.select(ROWS.names)), POSITIONED)


def test_messages_of_nothing_are_nothing():
    assert joined([], PLAIN).to_cell() == nothing(PLAIN).to_cell() == joined([nothing(PLAIN)] * 2, PLAIN).to_cell()


def test_joined_messages_keep_their_names():
    parts = [
        from_packed(pa.table(rows.select(ROWS.names)), PLAIN)
        for names in (("x", "b"), ("y", "a"), ("x", "c"))
        for rows in pack(columns_of([Message(*names, 1, receive_time=2)], 1), PLAIN)
    ]
    many = many_from_cell(joined(parts, PLAIN).to_cell(), PLAIN)
    assert (many.source_names.to_pylist(), many.stream_names.to_pylist()) == (["x", "y"], ["a", "b", "c"])
    assert (many.sources.tolist(), many.streams.tolist()) == ([0, 1, 0], [1, 0, 2])
    few = many.take(np.array([2])).of_sources(np.array([0]))
    assert (few.source_names.to_pylist(), few.stream_names.to_pylist()) == (["x"], ["c"])
    assert (few.sources.tolist(), few.streams.tolist()) == ([0], [0])
