"""Check that a footer without a checksum can be that of a ledger file: files to import are not in the catalogue.

pyarrow takes such a footer as it is, and one that is damaged may give other values, or end the process. But ledger
files are laid out in one way only: so many columns of known types, whose chunks lie one behind the other, from the
first byte behind the magic to the footer. So the footer is compared with that first, by a reader that no bytes can
harm. A flipped bit that leaves all of it as it is changes nothing that is used of such a file: statistics, or a name.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from waterclock.errors import DamagedError
from waterclock.topics.format.file_facts import KEY
from waterclock.topics.format.thrift import BINARY, I16, I32, I64, LIST, STRUCT, Struct, read_struct

_BEGIN = 4  # behind the magic
_END = 8  # bytes behind the metadata: its length and the magic
_ZSTD = 6
_ENCODINGS = frozenset((0, 2, 3, 4, 5, 8))  # plain, dictionary, run lengths, bits, deltas
_PAGES = range(4)

# The fields of Parquet's structs (parquet.thrift), by number and type.
_VERSION, _SCHEMA, _ROWS, _GROUPS, _TEXTS, _WRITER, _ORDERS = (
    *((1, I32), (2, LIST), (3, I64), (4, LIST), (5, LIST), (6, BINARY), (7, LIST)),
)
_CHUNKS, _GROUP_BYTES, _GROUP_ROWS = (1, LIST), (2, I64), (3, I64)
_COLUMN = (3, STRUCT)
_TYPE, _ENCODED, _PATH, _CODEC, _VALUES = (1, I32), (2, LIST), (3, LIST), (4, I32), (5, I64)
_PLAIN_BYTES, _BYTES, _DATA, _DICTIONARY = (6, I64), (7, I64), (9, I64), (11, I64)
_STATISTICS, _PAGE_KINDS, _SIZES = (12, STRUCT), (13, LIST), (16, STRUCT)
_REPEATED, _DEFINED = (2, LIST), (3, LIST)

# Those that ledger files have, and those that they may have.
_Fields = tuple[set[tuple[int, int]], set[tuple[int, int]]]
_IN_FILE: _Fields = ({_VERSION, _SCHEMA, _ROWS, _GROUPS, _TEXTS}, {_WRITER, _ORDERS})
_IN_GROUP: _Fields = ({_CHUNKS, _GROUP_BYTES, _GROUP_ROWS}, {(5, I64), (6, I64), (7, I16)})
_IN_CHUNK: _Fields = ({(2, I64), _COLUMN}, set())
_IN_COLUMN: _Fields = (
    {_TYPE, _ENCODED, _PATH, _CODEC, _VALUES, _PLAIN_BYTES, _BYTES, _DATA},
    {_DICTIONARY, _STATISTICS, _PAGE_KINDS, _SIZES},
)
_IN_SIZES: _Fields = (set(), {(1, I64), _REPEATED, _DEFINED})
_IN_PAGE_KIND: _Fields = ({(1, I32), (2, I32), (3, I32)}, set())


class _Expected(NamedTuple):
    """How the footer of a file with some columns begins, and what each of its chunks is: type, path, and levels."""

    elements: list[Any]
    orders: list[Any]
    columns: list[tuple[int, list[bytes], int, int]]


def check_layout(footer: bytes, end: int, schemas: Sequence[pa.Schema]) -> None:
    """Compare a footer with how ledger files are laid out.

    Parameters
    ----------
    footer
        The metadata in Thrift, its length, and the magic.
    end
        At which byte of the file it begins.
    schemas
        Columns that a ledger file may have.

    Raises
    ------
    DamagedError
        Where it cannot be that of a ledger file.
    """
    try:
        why = _fault(read_struct(footer[:-_END]), end, schemas)
    except (ValueError, TypeError, KeyError, AttributeError, pa.ArrowException, OSError) as error:
        why = str(error)
    if why:
        raise DamagedError(why)


def _fault(found: Struct, end: int, schemas: Sequence[pa.Schema]) -> str | None:
    if not _has(found, _IN_FILE) or not 1 <= found[_VERSION] <= 2:  # noqa: PLR2004  # there are two versions
        return "it is no footer of Parquet"
    for schema in schemas:
        expected = _expected(schema)
        if found[_SCHEMA] == expected.elements:
            if found.get(_ORDERS, expected.orders) != expected.orders or not _is_noted(found[_TEXTS], schema):
                return "its columns have other types than they were written with"
            return _chunk_fault(found, end, expected)
    return "it has other columns than a ledger file"


def _is_noted(texts: list[Struct], schema: pa.Schema) -> bool:
    """Say whether the columns' types in Arrow, which stand there in a form of their own, are those of a schema."""
    if any(text.keys() != {(1, BINARY), (2, BINARY)} for text in texts):
        return False
    noted = {text[1, BINARY]: text[2, BINARY] for text in texts}
    if len(noted) != len(texts) or noted.keys() - {KEY.encode()} != {b"ARROW:schema"}:
        return False
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(noted[b"ARROW:schema"], validate=True))).equals(schema)


def _chunk_fault(found: Struct, end: int, expected: _Expected) -> str | None:
    at, rows = _BEGIN, 0
    for number, group in enumerate(found[_GROUPS]):
        if not _has(group, _IN_GROUP) or len(group[_CHUNKS]) != len(expected.columns) or group[_GROUP_ROWS] < 1:
            return f"row group {number} is not laid out as it was written"
        rows += group[_GROUP_ROWS]
        for chunk, column in zip(group[_CHUNKS], expected.columns, strict=True):
            if not _has(chunk, _IN_CHUNK) or not _is_ours(chunk[_COLUMN], column, at, group[_GROUP_ROWS]):
                return f"column {b'.'.join(column[1]).decode()} of row group {number} is not laid out as it was written"
            at += chunk[_COLUMN][_BYTES]
    if at != end or rows != found[_ROWS]:
        return f"its row groups end at byte {at} with row {rows}, the file's at {end} with {found[_ROWS]}"
    return None


def _is_ours(chunk: Struct, column: tuple[int, list[bytes], int, int], at: int, rows: int) -> bool:
    kind, path, definitions, repetitions = column
    if not _has(chunk, _IN_COLUMN):
        return False
    start = chunk.get(_DICTIONARY, chunk[_DATA])
    sizes = chunk.get(_SIZES, {})
    return (
        (chunk[_TYPE], chunk[_PATH], chunk[_CODEC]) == (kind, path, _ZSTD)
        and _ENCODINGS.issuperset(chunk[_ENCODED])
        and (chunk[_VALUES] >= rows if repetitions else chunk[_VALUES] == rows)
        and chunk[_PLAIN_BYTES] > 0
        and start == at
        and start <= chunk[_DATA] < start + chunk[_BYTES]
        and all(_is_page_kind(each) for each in chunk.get(_PAGE_KINDS, []))
        and _has(sizes, _IN_SIZES)
        and len(sizes.get(_REPEATED, [])) in (0, repetitions + 1)
        and len(sizes.get(_DEFINED, [])) in (0, definitions + 1)
    )


def _is_page_kind(found: Struct) -> bool:
    return _has(found, _IN_PAGE_KIND) and found[1, I32] in _PAGES and found[2, I32] in _ENCODINGS


def _has(struct: Struct, fields: _Fields) -> bool:
    needed, allowed = fields
    return needed <= struct.keys() <= needed | allowed


@cache
def _expected(schema: pa.Schema) -> _Expected:
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema).close()
    data = sink.getvalue().to_pybytes()
    length = int.from_bytes(data[-_END:-4], "little")
    footer = read_struct(data[-_END - length : -_END])
    leaves = [element[_TYPE] for element in footer[_SCHEMA] if _TYPE in element]
    stored = pq.read_metadata(pa.BufferReader(data)).schema
    columns = [stored.column(number) for number in range(len(leaves))]
    return _Expected(
        footer[_SCHEMA],
        footer[_ORDERS],
        [
            (kind, column.path.encode().split(b"."), column.max_definition_level, column.max_repetition_level)
            for kind, column in zip(leaves, columns, strict=True)
        ],
    )
