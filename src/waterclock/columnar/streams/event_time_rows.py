"""Converts the outcomes of batching by event time from columns to rows."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.batching.event_time.columns import Assignment, closing_times, ended_by_gap
from waterclock.batching.event_time.rule import ACCEPTED, CUT_REASONS, REJECTIONS, UNDECIDED, EventTimeRule
from waterclock.columnar.many_sources import ManySources
from waterclock.columnar.streams.judged_rows import BatchFacts, begins, judged_rows
from waterclock.columnar.streams.outcome_rows import REASONS


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
    verdicts = found.verdicts[order]
    accepted = order[verdicts == ACCEPTED]
    windows = np.flatnonzero(begins(many.sources[accepted], found.starts[accepted]))
    of_windows = accepted[windows]
    starts, ends = found.starts[of_windows], found.ends[of_windows]
    reasons = np.where(ended_by_gap(starts, ends, rule), REASONS.index("gap"), REASONS.index("timeout"))
    for cut, reason in CUT_REASONS.items():
        reasons = np.where(found.cuts[of_windows] == cut, REASONS.index(reason), reasons)
    facts = BatchFacts(
        reasons,
        starts,
        ends,
        closing_times(ends, rule),
        runs=None if found.runs is None else found.runs.take(of_windows).to_arrow(),
    )
    return judged_rows(many.take(order), verdicts, windows, facts, _rejections())


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
