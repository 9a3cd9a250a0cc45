"""Cells of messages: what goes in comes out, a cell of differences is small, and one that is damaged is refused."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spark.results import in_entries

from waterclock.arrow import to_arrow
from waterclock.columnar import packing_kernel
from waterclock.columnar.packing import pack
from waterclock.columnar.records import (
    PLAIN,
    POSITIONED,
    Records,
    cells_of_differences,
    cells_of_records,
    records,
    records_of,
)
from waterclock.errors import DamagedError, SchemaError
from waterclock.message import Message

LONG = st.integers(-(2**63), 2**63 - 1)
FIELDS = st.tuples(LONG, LONG, st.integers(0, 2**32 - 1), LONG, LONG, st.integers(-(2**31), 2**31 - 1))
HEADER = packing_kernel.HEADER_BYTES


def flow(count: int) -> Records:
    """Messages of a source as a topic has them: three streams, some in an entry, tens of milliseconds apart."""
    messages = np.zeros(count, POSITIONED)
    messages["event_time"] = 1_790_000_000_000_000_000 + np.arange(count) * 70_000_000
    messages["receive_time"] = messages["event_time"] + np.arange(count) % 7 * 9_000_000
    messages["stream"] = np.arange(count) % 3
    messages["ledger"], messages["entry"], messages["index"] = 7, np.arange(count) // 4, np.arange(count) % 4
    return messages


def counts_of(bounds: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.diff(np.array(bounds))


@settings(deadline=None)
@given(st.lists(FIELDS, min_size=1, max_size=40), st.sets(st.integers(1, 39)), st.data())
def test_messages_come_out_of_differences_as_they_went_in(rows: list[Any], cuts: set[int], data: st.DataObject) -> None:
    messages = np.array(rows, POSITIONED)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    cells = cells_of_differences(messages, np.array(bounds))
    for cell, (first, stop) in zip(cells.to_pylist(), pairwise(bounds), strict=True):
        assert records(cell, stop - first).tolist() == messages[first:stop].tolist()
    begin = data.draw(st.integers(0, len(cells)))
    some = cells.slice(begin)
    assert records_of(some, counts_of(bounds)[begin:], POSITIONED).tolist() == messages[bounds[begin] :].tolist()


def test_cells_of_records_and_of_differences_are_read_together() -> None:
    messages = flow(9)
    of_records = cells_of_records(messages[:4], np.array([0, 1, 4]))
    of_differences = cells_of_differences(messages[4:], np.array([0, 2, 5]))
    cells = pa.concat_arrays([of_records, of_differences])
    assert records_of(cells, counts_of([0, 1, 4, 6, 9]), POSITIONED).tolist() == messages.tolist()


def test_a_message_takes_a_third_as_difference() -> None:
    messages = flow(800)
    [cell] = cells_of_differences(messages, np.array([0, 800])).to_pylist()
    assert len(cell) < HEADER + 800 * POSITIONED.itemsize / 3


def test_the_first_message_of_differences_stands_as_its_record() -> None:
    """Spark sorts cells by the place of their first message, wherever they come from."""
    messages = flow(5)
    [cell] = cells_of_differences(messages, np.array([0, 5])).to_pylist()
    assert cell[: POSITIONED.itemsize] == messages[:1].tobytes()


@pytest.mark.parametrize(
    ("what", "changed"),
    [
        ("cut short", lambda cell: cell[:-2]),
        ("too long", lambda cell: cell + b"\0\0"),
        ("shorter than its first record", lambda _: b"\0" * (HEADER - 1)),
        ("a width of nine bytes", lambda cell: cell[:40] + b"\x09" + cell[41:]),
        ("another width", lambda cell: cell[:40] + bytes([cell[40] + 1]) + cell[41:]),
    ],
)
def test_a_damaged_cell_of_differences_is_refused(what: str, changed: Any) -> None:
    del what
    [cell] = cells_of_differences(flow(5), np.array([0, 5])).to_pylist()
    with pytest.raises(DamagedError, match="packed messages are corrupt"):
        records(changed(cell), 5)
    with pytest.raises(DamagedError, match="packed messages are corrupt"):
        records_of(pa.array([changed(cell)], pa.binary()), np.array([5]), POSITIONED)


@pytest.mark.parametrize("count", [-1, 0, 4, 6])
def test_a_cell_of_differences_for_another_count_is_refused(count: int) -> None:
    [cell] = cells_of_differences(flow(5), np.array([0, 5])).to_pylist()
    with pytest.raises(DamagedError):
        records(cell, count)


def test_a_wrong_count_of_messages_that_are_all_alike_takes_no_memory() -> None:
    alike = np.zeros(packing_kernel.MOST_IN_A_CELL, POSITIONED)
    [cell] = cells_of_differences(alike, np.array([0, len(alike)])).to_pylist()
    assert len(cell) == HEADER + 1
    assert len(records(cell, len(alike))) == len(alike)
    with pytest.raises(DamagedError):
        records(cell, len(alike) + 1)


@pytest.mark.parametrize("record", [PLAIN, POSITIONED])
def test_a_cell_is_read_in_place_by_its_count(record: np.dtype):
    written = np.zeros(3, record)
    written["event_time"] = [1, -2, 2**62]
    read = records(written.tobytes(), 3)
    assert read.dtype == record
    assert read["event_time"].tolist() == [1, -2, 2**62]


def test_a_cell_of_another_length_is_refused():
    with pytest.raises(SchemaError, match="must hold 1 messages of 20 or 40 bytes, got 18 bytes"):
        records(bytes(18), 1)


def test_records_have_the_documented_layout():
    assert (PLAIN.itemsize, POSITIONED.itemsize) == (20, 40)
    (rows,) = pack([to_arrow(in_entries([Message("x", "a", 1, receive_time=2)], 1), positions=True)], POSITIONED)
    assert rows["messages"][0].as_py()[: POSITIONED.itemsize].hex(" ", 4) == (
        "01000000 00000000 02000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000"
    )
