"""The rows in which batches leave: those of a source with the same verdict together, packed as they came."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.spark.packing import PACKED_SCHEMA

REASONS = ("timeout", "conflict", "slots", "gap", "start", "stall", "flush")
"""Why a batch closed, by the number that stands for it in `BATCH`."""

BATCH = np.dtype(
    [
        ("start", "<i8"),
        ("end", "<i8"),
        ("closed_at", "<i8"),
        ("first", "<i4"),
        ("count", "<i4"),
        ("reason", "u1"),
    ]
)
"""The record of a batch; ``first`` and ``count`` say which of its row's messages it holds."""

_BATCH_STRUCT = "start: BIGINT, end: BIGINT, closed_at: BIGINT, reason: STRING, first: INT, count: INT"

OUTCOMES_SCHEMA = f"{PACKED_SCHEMA}, rejection STRING, batches ARRAY<STRUCT<{_BATCH_STRUCT}>>"
"""Packed rows of messages with the same verdict, as Spark writes them.

``rejection`` says why the messages are in no batch, or is null. Then they are in order of event time and stream, and
``batches`` says which of them each batch holds: ``count`` from the one numbered ``first`` on.
"""

_NUMBERS = {"start": pa.int64(), "end": pa.int64(), "closed_at": pa.int64(), "first": pa.int32(), "count": pa.int32()}
_BATCH_FIELDS = [
    (name, _NUMBERS.get(name, pa.string())) for name in ("start", "end", "closed_at", "reason", "first", "count")
]

ROWS = pa.schema(
    [("source", pa.string()), ("streams", pa.list_(pa.string())), ("count", pa.int32()), ("messages", pa.binary())]
)
"""The columns of a packed row, as Arrow writes them."""

OUTCOMES = pa.schema([*ROWS, ("rejection", pa.string()), ("batches", pa.list_(pa.struct(_BATCH_FIELDS)))])
"""`OUTCOMES_SCHEMA` as Arrow writes it."""

_REASON_TEXTS = pa.array(REASONS)


def batch_structs(facts: npt.NDArray[Any]) -> pa.StructArray:
    """Turn records of `BATCH` into the structs of `OUTCOMES`."""
    columns = {name: pa.array(facts[name]) for name in _NUMBERS}
    columns["reason"] = _REASON_TEXTS.take(pa.array(facts["reason"]))
    return pa.StructArray.from_arrays([columns[name] for name, _ in _BATCH_FIELDS], [name for name, _ in _BATCH_FIELDS])
