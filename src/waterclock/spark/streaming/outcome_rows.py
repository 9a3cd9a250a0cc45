"""The rows in which batches leave a stateful operator: their facts packed too, because a row of Python costs so much.

Spark turns every value of a stateful operator's output into a Python object and back. So the operator gives one row a
source and verdict, and its batches as one binary cell of records of fixed width (`BATCH`). `expand` makes of them, many
rows at once, what a replay gives at once: `waterclock.spark.streaming.judging.OUTCOMES_SCHEMA`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.spark.packing import PACKED_SCHEMA, Records, renumbered

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

OUTCOME_ROW_SCHEMA = f"{PACKED_SCHEMA}, rejection STRING, batches BINARY"
"""The columns of an outcome's row, as Spark writes them."""

BATCHES_TYPE = "ARRAY<STRUCT<start: BIGINT, end: BIGINT, closed_at: BIGINT, reason: STRING, first: INT, count: INT>>"
"""The batches of an outcome, as Spark writes them."""

_ROW = pa.schema(
    [
        ("source", pa.string()),
        ("streams", pa.list_(pa.string())),
        ("count", pa.int32()),
        ("messages", pa.binary()),
        ("rejection", pa.string()),
        ("batches", pa.binary()),
    ]
)
_REASON_TEXTS = pa.array(REASONS)


class Outcome(NamedTuple):
    """Messages of one source with the same verdict.

    Attributes
    ----------
    streams
        The streams that occur.
    messages
        Records, their streams as indices into ``streams``.
    rejection
        Why they are in no batch; None where they are in ``batches``.
    batches
        Records of `BATCH`, in order; none of rejected messages.
    """

    streams: list[str]
    messages: Records
    rejection: str | None
    batches: npt.NDArray[Any]

    def row(self, source: str) -> tuple[str, list[str], int, bytes, str | None, bytes]:
        """Give the values of the row, in the order of `OUTCOME_ROW_SCHEMA`."""
        return source, self.streams, len(self.messages), self.messages.tobytes(), self.rejection, self.batches.tobytes()


NO_BATCHES = np.empty(0, BATCH)


def outcome(messages: Records, streams: list[str], rejection: str | None, batches: npt.NDArray[Any]) -> Outcome:
    """Make an outcome whose streams are those of ``streams`` that occur in ``messages``."""
    numbers = messages["stream"]
    met = np.bincount(numbers, minlength=len(streams)) > 0
    used = [stream for stream, occurs in zip(streams, met.tolist(), strict=True) if occurs]
    return Outcome(used, renumbered(messages, (np.cumsum(met) - 1)[numbers]), rejection, batches)


def outcome_rows(source: str, outcomes: Sequence[Outcome]) -> pa.RecordBatch:
    """Lay outcomes out as rows of `OUTCOME_ROW_SCHEMA`."""
    rows = [outcome.row(source) for outcome in outcomes]
    return pa.RecordBatch.from_arrays(
        [pa.array([row[k] for row in rows], field.type) for k, field in enumerate(_ROW)], schema=_ROW
    )


def expand(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn rows of `OUTCOME_ROW_SCHEMA` into rows of `waterclock.spark.streaming.judging.OUTCOMES_SCHEMA`."""
    for batch in rows:
        packed = [cell.as_py() for cell in batch.column("batches")]
        counts = np.array([len(cell) // BATCH.itemsize for cell in packed], np.int64)
        facts = np.frombuffer(b"".join(packed), BATCH)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        batches = pa.ListArray.from_arrays(offsets, batch_structs(facts))
        yield batch.set_column(batch.schema.get_field_index("batches"), "batches", batches)


def batch_structs(facts: npt.NDArray[Any]) -> pa.StructArray:
    """Turn records of `BATCH` into the structs of `BATCHES_TYPE`."""
    columns = {name: pa.array(facts[name]) for name in ("start", "end", "closed_at", "first", "count")}
    columns["reason"] = _REASON_TEXTS.take(pa.array(facts["reason"]))
    order = ("start", "end", "closed_at", "reason", "first", "count")
    return pa.StructArray.from_arrays([columns[name] for name in order], list(order))
