"""Finds the messages to read so that a replay of a range returns the same batches as the whole topic.

A replay of ``[since, until)`` returns the batches that start in this range, and the late, future and duplicate messages
that were received in it. Whether a message is accepted depends on its source's receive clock, and the start of a window
depends on the windows before it. So a replay reads more than its range, in both directions:

- Backward, it reads from the messages received at ``received_from``. Messages received earlier do not affect whether a
  message with an event time of ``begin`` or later is late, or too far ahead.
- Forward, it reads up to the last message received at ``received_until``. Messages received later are late for windows
  that start before ``until``.

The windows before ``begin`` are unknown, so `synchronised` follows every possible start. After a silence longer than
the window, and often much sooner, all these starts lead to the same windows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.batching.event_time.columns import KERNEL, Assignment, find_late_and_future, read_clocks
from waterclock.batching.event_time.rule import ACCEPTED, CONFLICTS, REPLACED, EventTimeRule
from waterclock.batching.event_time.runs import boundary_flags
from waterclock.time import MAX_NS, MIN_NS

WINDOWS_BACK = (16, 1024)
"""How many windows before its range a replay searches for a synchronised start, step by step; then it reads from the
topic's start. Each step reads the range of the previous one again: since they grow fast, all together cost little more
than the last.
"""

_RUNS_BACK = 65_536
"""A further step with boundaries, since a run is longer than a window: 9 hours of windows of 500 ms."""


def windows_back(rule: EventTimeRule) -> tuple[int, ...]:
    """Return how many windows before its range a replay searches, step by step."""
    return (*WINDOWS_BACK, _RUNS_BACK) if rule.boundaries else WINDOWS_BACK


class ReplayRange(NamedTuple):
    """The range of a replay, and the limits of its knowledge of earlier messages; int ns."""

    # Batches that start in ``[since, until)``, and messages rejected when they were received in it.
    since: int
    until: int
    # Messages that happened before are ignored, since it is unknown whether they were accepted; None: no messages are
    # earlier than those read.
    begin: int | None = None
    promised: int = MIN_NS  # no message received before this comes later: windows that close by then are returned

    @classmethod
    def reaching_back(cls, rule: EventTimeRule, since: int, until: int, windows: int) -> ReplayRange:
        """Begin ``windows`` windows before the first message that may belong to the range."""
        back = rule.max_delay + windows * (rule.window + 1)
        return cls(since, until, max(since - back, MIN_NS))

    def received_from(self, rule: EventTimeRule) -> int:
        """Receive time of the first message to be read."""
        return MIN_NS if self.begin is None else max(self.begin - rule.max_lead, MIN_NS)

    def received_until(self, rule: EventTimeRule) -> int:
        """Receive time of the last message to be read."""
        return min(self.until + rule.window + rule.max_delay, MAX_NS)

    def leaves_out(self, found: Assignment, received: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return for each message whether it belongs to another range: by its window, or by its receive time."""
        by_window = (found.verdicts == ACCEPTED) | (found.verdicts == REPLACED)
        at = np.where(by_window, found.starts, received)
        return (at < self.since) | (at >= self.until)


def synchronised(
    sources: npt.NDArray[np.int32],
    streams: npt.NDArray[np.int32],
    event_times: npt.NDArray[np.int64],
    received: npt.NDArray[np.int64],
    rule: EventTimeRule,
    span: ReplayRange,
    stream_names: pa.Array | None = None,
    *,
    with_runs: bool = True,
) -> npt.NDArray[np.bool_]:
    """Return for each source whether its windows from ``since`` on are known.

    Parameters
    ----------
    sources, streams
        Numbers from 0.
    event_times, received
        Those of the messages of ``span`` in the order of their positions, up to ``since`` at least; ns.
    rule
        The checked options.
    span
        The range; its ``begin`` must not be None.
    stream_names
        The streams by number, for a rule with boundaries.
    with_runs
        Whether the run of the first of these windows must be known, too, if it opens by ``since`` + window.
    """
    count = int(sources.max()) + 1 if len(sources) else 0
    begin = MIN_NS if span.begin is None else span.begin
    clocks = read_clocks(sources, received, np.full(count, MIN_NS))
    known = (find_late_and_future(event_times, clocks, rule) == ACCEPTED) & (event_times >= begin)
    # Messages after the range's first window do not affect it.
    known &= event_times <= min(span.since + rule.window, MAX_NS)
    order = np.flatnonzero(known)
    order = order[np.lexsort((event_times[order], sources[order]))]
    boundaries = np.zeros(len(order), np.uint8)
    if rule.boundaries:
        boundaries = boundary_flags(rule, stream_names)[streams[order]]
    found = np.zeros(count, np.uint8)
    KERNEL.call(
        "synchronise",
        len(order),
        streams[order].astype(np.uint32),
        event_times[order],
        np.searchsorted(sources[order], np.arange(count + 1)).astype(np.int64),
        boundaries,
        int(streams.max()) + 1 if len(streams) else 0,
        rule.window,
        CONFLICTS[rule.on_conflict],
        rule.silence,
        begin,
        span.since,
        with_runs and bool(rule.boundaries),
        found,
    )
    return found.astype(np.bool_)
