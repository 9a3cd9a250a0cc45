"""Encodes the outcomes of batching as rows. A row holds one batch with its messages in order, or rejected messages."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.batching.event_time.rule import ACCEPTED
from waterclock.columnar.many_sources import ManySources
from waterclock.columnar.packing import local_streams
from waterclock.columnar.records import NUMBERED, cells_of_records, without_numbers
from waterclock.columnar.streams.outcome_rows import batch_structs

# A source may have any number of messages, but a cell of Arrow or Spark holds at most 2 GiB.
_LARGEST_ROW = 2**20


class BatchFacts(NamedTuple):
    """The facts of batches, an item for each; as those of `waterclock.Batch`, with reasons as places in `REASONS`."""

    reasons: npt.NDArray[Any]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    closed_at: npt.NDArray[np.int64]
    runs: pa.Array | None = None
    numbers: npt.NDArray[np.int64] | None = None


def judged_rows(
    leaving: ManySources,
    verdicts: npt.NDArray[np.uint8],
    batches: npt.NDArray[np.intp],
    facts: BatchFacts,
    rejections: pa.StringArray,
) -> pa.RecordBatch:
    """Encode messages: rows of `waterclock.columnar.streams.outcome_rows.OUTCOMES_SCHEMA`.

    Parameters
    ----------
    leaving
        The messages: first the accepted ones by source and batch, then the rejected ones by verdict and source.
    verdicts
        `ACCEPTED`, or why a message is rejected.
    batches
        The first message of each batch.
    facts
        Those of each batch.
    rejections
        The reason of each verdict.
    """
    messages, sources = leaving.messages, leaving.sources
    accepted = int(np.count_nonzero(verdicts == ACCEPTED))
    # Places where a batch begins; a message in no batch counts as one.
    changes = begins(verdicts, sources)
    apart = changes.copy()
    apart[batches] = True
    apart[accepted:] = True
    parts = np.flatnonzero(apart)
    pieces = (parts - np.maximum.accumulate(np.where(changes[parts], parts, 0))) // _LARGEST_ROW
    row_parts = np.flatnonzero(changes[parts] | begins(pieces))
    firsts = parts[row_parts]
    counts = np.diff(firsts, append=len(messages))
    rows = np.repeat(np.arange(len(firsts)), counts)
    streams, messages["stream"] = local_streams(rows, len(firsts), leaving.streams, leaving.stream_names)
    structs = batch_structs(
        facts.reasons,
        runs=facts.runs,
        numbers=facts.numbers,
        start=facts.starts,
        end=facts.ends,
        closed_at=facts.closed_at,
        first=batches - firsts[rows[batches]],
        count=np.diff(batches, append=accepted),
        outside=np.zeros(len(batches), np.int32),
    )
    bounds = np.minimum(np.append(row_parts, len(parts)), len(batches)).astype(np.int32)
    if messages.dtype == NUMBERED:
        messages = without_numbers(messages)
    return pa.record_batch(
        {
            "source": leaving.source_names.take(pa.array(sources[firsts])),
            "streams": streams,
            "count": counts.astype(np.int32),
            "messages": cells_of_records(messages, np.append(firsts, len(messages))),
            "rejection": rejections.take(pa.array(verdicts[firsts])),
            "batches": pa.ListArray.from_arrays(bounds, structs),
        }
    )


def begins(*columns: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return for each place whether any of the columns differs from the place before."""
    differs = np.ones(len(columns[0]), np.bool_)
    first, *others = columns
    np.not_equal(first[1:], first[:-1], out=differs[1:])
    for column in others:
        differs[1:] |= column[1:] != column[:-1]
    return differs
