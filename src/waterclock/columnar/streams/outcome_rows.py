"""The rows of outcomes. A row holds the packed messages of one source that have the same outcome."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.columnar.cells import from_cell, to_cell
from waterclock.columnar.packing import PACKED_SCHEMA, ROWS

REASONS = ("timeout", "conflict", "boundary", "complete", "slots", "gap", "start", "stall", "flush")
"""Why a batch closed, by its number."""

_BATCH_STRUCT = (
    "start: BIGINT, end: BIGINT, closed_at: BIGINT, reason: STRING, first: INT, count: INT, outside: INT, run: BIGINT,"
    " number: BIGINT, offsets: MAP<STRING, BIGINT>"
)

OUTCOMES_SCHEMA = f"{PACKED_SCHEMA}, rejection STRING, batches ARRAY<STRUCT<{_BATCH_STRUCT}>>"
"""Packed rows of messages with the same verdict, as Spark writes them.

``rejection`` says why the messages are in no batch. If it is null, they are in order of event time and stream, and
``batches`` says which of them each batch holds: ``count`` messages from number ``first`` on, of which ``outside`` lie
outside its window; ``run``, ``number`` and, if clocks were aligned, ``offsets`` are as of `waterclock.Batch`.
"""

_NUMBERS = dict.fromkeys(("start", "end", "closed_at"), np.int64) | dict.fromkeys(
    ("first", "count", "outside"), np.int32
)
_OFFSETS = pa.map_(pa.string(), pa.int64())
_OTHERS = {"reason": pa.string(), "run": pa.int64(), "number": pa.int64(), "offsets": _OFFSETS}
_BATCH_FIELDS = [
    (name, pa.from_numpy_dtype(_NUMBERS[name]) if name in _NUMBERS else _OTHERS[name])
    for name in ("start", "end", "closed_at", "reason", "first", "count", "outside", "run", "number", "offsets")
]

OUTCOMES = pa.schema([*ROWS, ("rejection", pa.string()), ("batches", pa.list_(pa.struct(_BATCH_FIELDS)))])
"""`OUTCOMES_SCHEMA` as Arrow writes it."""

CELL_SCHEMA = "bucket INT, open_batches BIGINT, missing_ids BIGINT, outcomes BINARY"
"""The columns in which Spark's stateful step returns outcomes; one row per bucket counts open batches and missing ids.
"""

# Spark passes 10,000 rows of any size to Python at once, and an Arrow column holds at most 2 GiB.
_LARGEST_CELL = 2**17


def batch_structs(
    reasons: npt.NDArray[Any],
    *,
    runs: pa.Array | None = None,
    numbers: npt.NDArray[np.int64] | None = None,
    offsets: pa.MapArray | None = None,
    **times_and_counts: npt.NDArray[Any],
) -> pa.StructArray:
    """Turn the facts of batches into the structs of `OUTCOMES`; ``reasons`` are places in `REASONS`."""
    columns = {name: pa.array(times_and_counts[name].astype(kind, copy=False)) for name, kind in _NUMBERS.items()}
    columns["reason"] = _reason_texts().take(pa.array(reasons))
    columns["run"] = pa.nulls(len(reasons), pa.int64()) if runs is None else runs
    columns["number"] = pa.nulls(len(reasons), pa.int64()) if numbers is None else pa.array(numbers)
    columns["offsets"] = pa.nulls(len(reasons), _OFFSETS) if offsets is None else offsets
    return pa.StructArray.from_arrays([columns[name] for name, _ in _BATCH_FIELDS], [name for name, _ in _BATCH_FIELDS])


def outcome_cells(outcomes: pa.RecordBatch) -> Iterator[bytes]:
    """Cut outcomes into values of `CELL_SCHEMA`, each with rows of little more than 100 KB together."""
    for part in _cut(outcomes):
        yield to_cell(part)


def expand(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn rows of `CELL_SCHEMA` into rows of `waterclock.columnar.streams.outcome_rows.OUTCOMES`."""
    for batch in rows:
        for cell in batch.column("outcomes").drop_null():
            yield from_cell(cell.as_buffer(), OUTCOMES)


# The first array that Arrow makes of a list imports pandas. Not while this is imported: Spark starts a Python for each
# stream that only plans its state.
@cache
def no_outcomes() -> pa.RecordBatch:
    """Return no rows of `OUTCOMES`."""
    return pa.RecordBatch.from_pylist([], OUTCOMES)


@cache
def _reason_texts() -> pa.StringArray:
    return pa.array(REASONS)


def _cut(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut rows into pieces that fit into a cell, or have one row."""
    if not len(rows):
        return
    sizes = np.diff(
        np.frombuffer(rows.column("messages").buffers()[1], np.int32)[rows.column("messages").offset :][: len(rows) + 1]
    )
    pieces = (np.cumsum(sizes.astype(np.int64)) - sizes) // _LARGEST_CELL
    cuts = np.flatnonzero(np.diff(pieces, prepend=-1)).tolist()
    for first, stop in zip(cuts, [*cuts[1:], len(rows)], strict=True):
        yield rows.slice(first, stop - first)
