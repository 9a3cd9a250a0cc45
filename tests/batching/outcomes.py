"""Outcomes in one shape, from any of the ways to compute them: messages are named by their payload, which is different
in each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
from tests.batching.definition import Outcome

from waterclock.batching.batch import Batch, Rejection

Window = tuple[int, int, int, bool, tuple[bytes, ...]]
"""Start, end, closed_at, whether a conflict ended it, and the payloads of its messages."""


class Result(NamedTuple):
    windows: list[Window]
    rejected: dict[bytes, str]


def defined(outcome: Outcome) -> Result:
    windows = [(w.start, w.end, w.closed_at, w.conflict, tuple(m.payload for m in w.messages)) for w in outcome.windows]
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
        batch.reason == "conflict",
        tuple(message.payload for message in batch.messages),
    )


def contents(batches: Iterable[Batch]) -> list[tuple[int, int, int, tuple[bytes, ...]]]:
    """Describe batches without the reason of their closing."""
    return [(b.start, b.end, b.closed_at, tuple(m.payload for m in b.messages)) for b in batches]


def assigned(rows: pa.Table) -> tuple[dict[bytes, tuple[int, int]], dict[bytes, str]]:
    """Read what `assign_batches` says of each payload: its window, or its rejection."""
    found = rows.select(["payload", "batch_start", "batch_end", "rejected"]).to_pylist()
    windows = {r["payload"]: (r["batch_start"], r["batch_end"]) for r in found if r["batch_start"] is not None}
    return windows, {r["payload"]: r["rejected"] for r in found if r["rejected"] is not None}
