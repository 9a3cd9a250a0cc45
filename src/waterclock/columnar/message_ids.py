"""Reads the ids of many messages from their headers.

`waterclock.batching.by_id.rule.number_in` has the same rule for one message.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from waterclock.batching.by_id.rule import NO_ID
from waterclock.time import MAX_NS

_WRITTEN = r"\A-?[0-9]{1,19}\z"
_MOST_DIGITS = 18
"""An integer of so many digits fits int64, so Arrow can cast it."""


def with_numbers(messages: pa.RecordBatch, header: str) -> pa.RecordBatch:
    """Replace the column ``headers`` by ``number``: the ids in a header, int64, `NO_ID` if missing or invalid."""
    names = [name for name in messages.schema.names if name != "headers"]
    numbers = numbers_in(messages.column("headers"), header)
    return messages.select(names).append_column("number", numbers)


def numbers_in(headers: pa.MapArray, header: str) -> pa.Array:
    """Return the id in a header of each message, int64; `NO_ID` if missing or invalid."""
    found = pc.call_function("map_lookup", [headers], pc.MapLookupOptions(pa.scalar(header), "last"))
    valid = pc.call_function("match_substring_regex", [found], pc.MatchSubstringOptions(_WRITTEN))
    written = pc.call_function("if_else", [valid, found, pa.scalar(None, pa.string())])
    digits = pc.call_function("utf8_ltrim", [written], pc.TrimOptions("-"))
    is_long = pc.call_function("greater", [pc.call_function("utf8_length", [digits]), pa.scalar(_MOST_DIGITS)])
    short = pc.call_function("if_else", [is_long, pa.scalar(None, pa.string()), written]).cast(pa.int64())
    if pc.call_function("any", [is_long]).as_py():
        numbers = [
            _number(text) if long else number
            for text, long, number in zip(
                written.to_pylist(),
                is_long.fill_null(False).to_pylist(),
                short.to_pylist(),
                strict=True,
            )
        ]
        short = pa.array(numbers, pa.int64())
    return short.fill_null(NO_ID)


def _number(written: str) -> int | None:
    number = int(written)
    return number if abs(number) <= MAX_NS else None
