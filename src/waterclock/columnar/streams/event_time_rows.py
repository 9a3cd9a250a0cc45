"""The verdicts of the columnar rule of event time as rows."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.batching.event_time.columns import Assignment, closing_times, ended_by_gap
from waterclock.batching.event_time.rule import ACCEPTED, CUT_REASONS, REJECTIONS, UNDECIDED, EventTimeRule
from waterclock.columnar.many_sources import ManySources
from waterclock.columnar.packing import local_streams
from waterclock.columnar.records import cells_of_records
from waterclock.columnar.streams.outcome_rows import REASONS, batch_structs

# A source may have any number of messages, but a cell of Arrow or Spark holds at most 2 GiB.
_LARGEST_ROW = 2**20


@cache
def _rejections() -> pa.StringArray:
    """Return the reason of each verdict."""
    return pa.array([REJECTIONS.get(verdict) for verdict in range(UNDECIDED)])


def outcome_rows(many: ManySources, found: Assignment, rule: EventTimeRule) -> pa.RecordBatch:
    """Encode the outcomes of messages: rows of `waterclock.columnar.streams.outcome_rows.OUTCOMES_SCHEMA`.

    Parameters
    ----------
    many
        The messages.
    found
        The outcome of each, in the same order.
    rule
        The checked options.
    """
    order = _leaving_order(many, found)
    leaving = many.take(order)
    messages, sources, verdicts = leaving.messages, leaving.sources, found.verdicts[order]
    accepted = int(np.count_nonzero(verdicts == ACCEPTED))
    # Places where a batch begins; a message in no batch counts as one.
    changes = begins(verdicts, sources)
    apart = changes.copy()
    apart[:accepted] |= begins(found.starts[order[:accepted]])
    apart[accepted:] = True
    parts = np.flatnonzero(apart)
    pieces = (parts - np.maximum.accumulate(np.where(changes[parts], parts, 0))) // _LARGEST_ROW
    row_parts = np.flatnonzero(changes[parts] | begins(pieces))
    firsts = parts[row_parts]
    counts = np.diff(firsts, append=len(messages))
    rows = np.repeat(np.arange(len(firsts)), counts)
    streams, messages["stream"] = local_streams(rows, len(firsts), leaving.streams, many.stream_names)
    windows = parts[: np.searchsorted(parts, accepted)]
    of_windows = order[windows]
    starts, ends = found.starts[of_windows], found.ends[of_windows]
    by_time = np.where(ended_by_gap(starts, ends, rule), REASONS.index("gap"), REASONS.index("timeout"))
    reasons = by_time
    for cut, reason in CUT_REASONS.items():
        reasons = np.where(found.cuts[of_windows] == cut, REASONS.index(reason), reasons)
    batches = batch_structs(
        reasons,
        runs=None if found.runs is None else found.runs.take(of_windows).to_arrow(),
        start=starts,
        end=ends,
        closed_at=closing_times(ends, rule),
        first=windows - firsts[rows[windows]],
        count=np.diff(windows, append=accepted),
        outside=np.zeros(len(windows), np.int32),
    )
    bounds = np.minimum(np.append(row_parts, len(parts)), len(windows)).astype(np.int32)
    return pa.record_batch(
        {
            "source": many.source_names.take(pa.array(sources[firsts])),
            "streams": streams,
            "count": counts.astype(np.int32),
            "messages": cells_of_records(messages, np.append(firsts, len(messages))),
            "rejection": _rejections().take(pa.array(verdicts[firsts])),
            "batches": pa.ListArray.from_arrays(bounds, batches),
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


def _leaving_order(many: ManySources, found: Assignment) -> npt.NDArray[np.intp]:
    """Order the accepted messages by source, event time and stream, followed by rejected ones by verdict."""
    sources, streams, verdicts = many.sources, many.streams, found.verdicts
    accepted = found.order[verdicts[found.order] == ACCEPTED].astype(np.intp)
    times = many.messages["event_time"]
    tied = np.flatnonzero(~begins(times[accepted])) if len(accepted) else accepted
    tied = np.union1d(tied, tied - 1)
    some = accepted[tied]
    accepted[tied] = some[np.lexsort((streams[some], times[some], sources[some]))]
    rejected = np.flatnonzero((verdicts != ACCEPTED) & (verdicts != UNDECIDED))
    return np.concatenate([accepted, rejected[np.lexsort((sources[rejected], verdicts[rejected]))]])
