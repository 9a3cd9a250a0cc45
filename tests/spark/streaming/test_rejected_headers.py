"""Why a message was rejected, and where it stood, join its own headers."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from waterclock.arrow import MESSAGE_SCHEMA
from waterclock.spark.writing.message_writer import joined_headers

TYPE = MESSAGE_SCHEMA.field("headers").type
texts = st.sampled_from(["", "a", "öl"])
headers = st.lists(st.none() | st.lists(st.tuples(texts, st.none() | texts), max_size=3), max_size=9)


@given(headers, st.integers(0, 3), st.integers(1, 2))
def test_headers_are_appended_to_those_of_each_message(
    old: list[list[tuple[str, str | None]] | None], first: int, names: int
) -> None:
    column = pa.chunked_array([pa.array(old[:2], TYPE), pa.array(old[2:], TYPE)]).slice(first)
    added = {f"n{name}": [f"{name}-{row}" if row % 3 else None for row in range(len(column))] for name in range(names)}
    found = joined_headers(column, {name: pa.chunked_array([pa.array(v, pa.string())]) for name, v in added.items()})
    found.validate(full=True)
    expected = [[*(each or ()), *((n, v[row]) for n, v in added.items())] for row, each in enumerate(old[first:])]
    assert found.to_pylist() == expected
