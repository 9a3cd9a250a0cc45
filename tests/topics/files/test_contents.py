"""The contents of a table as one number: independent of its layout in memory, different if one value differs."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.topics.format.fingerprints import fingerprint

SCHEMA = pa.schema(
    [("number", pa.int64()), ("text", pa.string()), ("data", pa.binary()), ("map", pa.map_(pa.string(), pa.string()))]
)
SMALL = st.text("ab\x00", max_size=3)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "number": st.none() | st.integers(-2, 2),
            "text": st.none() | SMALL,
            "data": st.none() | st.binary(max_size=3),
            "map": st.none() | st.lists(st.tuples(SMALL, st.none() | SMALL), max_size=2),
        }
    ),
    max_size=6,
)


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@given(ROWS, st.integers(0, 6), st.integers(0, 6))
def test_it_is_the_same_however_the_table_is_cut(rows: list[dict[str, Any]], first: int, second: int) -> None:
    padded = table([*rows[:1], *rows, *rows[:1]]).slice(len(rows[:1]), len(rows))
    cut, rest = sorted((min(first, len(rows)), min(second, len(rows))))
    pieces = [padded.slice(0, cut), table(rows[cut:rest]), padded.slice(rest)]
    assert fingerprint(pa.concat_tables(pieces)) == fingerprint(table(rows))


@given(ROWS, ROWS)
def test_it_differs_where_the_tables_do(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    assert (fingerprint(table(one)) == fingerprint(table(other))) == (one == other)


@pytest.mark.parametrize("name", ["data", "map"])
def test_the_bytes_under_a_null_mean_nothing(name: str) -> None:
    plain = table([{"data": b"x", "map": [("a", "b")]}, {"data": b"y", "map": [("c", "d")]}])[name].chunk(0)
    buffers = [pa.py_buffer(b"\x01"), *plain.buffers()[1:3]]  # the second is null, and has bytes
    if name == "data":
        hidden = pa.Array.from_buffers(plain.type, 2, buffers)
    else:
        children = pa.StructArray.from_arrays(
            [plain.keys, plain.items], fields=[plain.type.key_field, plain.type.item_field]
        )
        hidden = pa.Array.from_buffers(plain.type, 2, buffers[:2], children=[children])
    clean = pa.array([plain[0].as_py(), None], plain.type)
    assert fingerprint(pa.table({name: hidden})) == fingerprint(pa.table({name: clean}))
