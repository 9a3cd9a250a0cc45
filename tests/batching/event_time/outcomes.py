"""Outcomes in one shape, from any of the ways to compute them: messages are named by their payload, which is different
in each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
from tests.batching.event_time.definition import Outcome

from waterclock.batching.batch import Batch, Rejection

Window = tuple[int, int, int, str | None, int | None, tuple[bytes, ...]]
"""Start, end, closed_at, what cut it, its run, and the payloads of its messages."""


class Result(NamedTuple):
    windows: list[Window]
    rejected: dict[bytes, str]


def defined(outcome: Outcome) -> Result:
    windows = [
        (w.start, w.end, w.closed_at, w.cut, w.run, tuple(m.payload for m in w.messages)) for w in outcome.windows
    ]
    return Result(windows, {m.payload: reason for m, reason in outcome.rejected.items()})


def batched(batches: Iterable[Batch], rejected: Iterable[Rejection]) -> Result:
    reasons = {}
    for message, reason in rejected:
        assert message.payload not in reasons, "rejected twice"
        reasons[message.payload] = reason
    return Result([window(batch) for batch in batches], reasons)


def window(batch: Batch) -> Window:
    return (
        batch.start,
        batch.end,
        batch.closed_at,
        batch.reason if batch.reason in ("conflict", "boundary") else None,
        batch.run,
        tuple(message.payload for message in batch.messages),
    )


def contents(batches: Iterable[Batch]) -> list[tuple[int, int, int, int | None, tuple[bytes, ...]]]:
    """Describe batches without the reason of their closing."""
    return [(b.start, b.end, b.closed_at, b.run, tuple(m.payload for m in b.messages)) for b in batches]


def assigned(rows: pa.Table) -> tuple[dict[bytes, tuple[int, int, int | None]], dict[bytes, str]]:
    """Read what `assign_batches` says of each payload: its window and run, or its rejection."""
    found = rows.to_pylist()
    windows = {
        r["payload"]: (r["batch_start"], r["batch_end"], r.get("batch_run"))
        for r in found
        if r["batch_start"] is not None
    }
    return windows, {r["payload"]: r["rejected"] for r in found if r["rejected"] is not None}
