"""Builds the rows of batches from the outcomes of a rule."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

from waterclock.batching.batch import batch_id

_ROWS = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.string()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("closed_at", pa.int64()),
        ("reason", pa.string()),
        ("run", pa.int64()),
        ("number", pa.int64()),
        ("streams", pa.list_(pa.string())),
        ("count", pa.int32()),
        ("offsets", pa.map_(pa.string(), pa.int64())),
        ("messages", pa.binary()),
    ]
)
_COPIED = ("start", "end", "closed_at", "reason", "run", "number", "count", "offsets")


def batch_rows(outcomes: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batches of outcomes, in the columns that `waterclock.spark.streaming.batch_rows.encoded` takes."""
    rows: list[dict[str, object]] = []
    for packed in outcomes.filter(outcomes.column("rejection").is_null()).to_pylist():
        width = len(packed["messages"]) // packed["count"]
        for batch in packed["batches"]:
            first, count = batch["first"], batch["count"]
            rows.append(
                {
                    "id": batch_id(packed["source"], batch["start"] if batch["number"] is None else batch["number"]),
                    "source": packed["source"],
                    "streams": packed["streams"],
                    "messages": packed["messages"][first * width : (first + count) * width],
                    **{name: batch[name] for name in _COPIED},
                }
            )
    return pa.RecordBatch.from_pylist(rows, _ROWS)


def outside(outcomes: pa.RecordBatch) -> int:
    """Count messages that lie outside the window of their batch."""
    return pc.call_function("sum", [outcomes.column("batches").flatten().field("outside")]).as_py() or 0


def incomplete(outcomes: pa.RecordBatch) -> int:
    """Count batches by id that closed without all declared streams."""
    return outcomes.column("batches").flatten().field("reason").to_pylist().count("timeout")


def rejections(outcomes: pa.RecordBatch) -> Counter[str]:
    """Count rejected messages by their reason."""
    counts: Counter[str] = Counter()
    for reason, count in zip(*(outcomes.column(name).to_pylist() for name in ("rejection", "count")), strict=True):
        if reason is not None:
            counts[reason] += count
    return counts
