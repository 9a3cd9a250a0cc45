"""The runs of sources, as columns. A run is the part of a source's data between two boundaries.

A boundary always opens a new window, so each run begins at the start of a window.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.errors import InvalidArgumentError
from waterclock.time import MIN_NS

Times = npt.NDArray[np.int64]
Flags = npt.NDArray[np.uint8]


class RunColumns(NamedTuple):
    """The runs of rows, or of sources."""

    begins: Times  # event time of the boundary that opened the run, int64 ns; 0 if none is known
    known: npt.NDArray[np.bool_]  # whether there is such a boundary

    @classmethod
    def unknown(cls, count: int) -> RunColumns:
        """Return no runs."""
        return cls(np.zeros(count, np.int64), np.zeros(count, np.bool_))

    def take(self, places: npt.NDArray[Any]) -> RunColumns:
        """Take some of them, in that order."""
        return RunColumns(self.begins[places], self.known[places])

    def or_else(self, others: RunColumns) -> RunColumns:
        """Replace those that are not known by others."""
        return RunColumns(np.where(self.known, self.begins, others.begins), self.known | others.known)

    def extended(self, count: int) -> RunColumns:
        """Return the runs of ``count`` sources, of which these are the first."""
        missing = RunColumns.unknown(count - len(self.known))
        return RunColumns(np.append(self.begins, missing.begins), np.append(self.known, missing.known))

    def advanced(self, sources: npt.NDArray[np.int32], runs: RunColumns) -> RunColumns:
        """Return the runs of sources after those of their rows, in any order."""
        later = RunColumns(np.where(self.known, self.begins, MIN_NS), self.known.copy())
        np.maximum.at(later.begins, sources[runs.known], runs.begins[runs.known])
        later.known[sources[runs.known]] = True
        return later

    @classmethod
    def of_list(cls, begins: list[int | None]) -> RunColumns:
        """Read back the output of `to_list`."""
        known = np.array([begin is not None for begin in begins], np.bool_)
        return cls(np.array([begin or 0 for begin in begins], np.int64), known)

    def to_list(self) -> list[int | None]:
        """Return ns; None if not known."""
        return self.to_arrow().to_pylist()

    def to_arrow(self) -> pa.Array:
        """Return int64 ns; null if not known."""
        return pa.array(self.begins, mask=~self.known)


def boundary_flags(rule: EventTimeRule, stream_names: pa.Array | None) -> Flags:
    """Return for each stream whether its messages are boundaries; empty if the rule has none.

    Raises `InvalidArgumentError` if the rule has boundaries and the names are missing.
    """
    if not rule.boundaries:
        return np.empty(0, np.uint8)
    if stream_names is None:
        raise InvalidArgumentError(f"stream_names must be given for boundaries {rule.boundaries}, got None")
    return np.isin(stream_names.to_numpy(zero_copy_only=False), rule.boundaries).astype(np.uint8)


def runs_of(
    order: npt.NDArray[np.uint32],
    starts: Times,
    sources: npt.NDArray[np.int32],
    streams: npt.NDArray[np.int32],
    boundaries: Flags,
) -> RunColumns:
    """Find the run of each row in a window; the others have none.

    Parameters
    ----------
    order
        The rows in windows, source by source in order of event time.
    starts, sources, streams
        Of each row: its window, and its numbers.
    boundaries
        As `boundary_flags` returns them.
    """
    runs = RunColumns.unknown(len(starts))
    if not len(order):
        return runs
    start, source = starts[order], sources[order]
    begins_source = np.diff(source, prepend=-1) != 0
    windows = np.cumsum(begins_source | (np.diff(start, prepend=start[0]) != 0)) - 1
    firsts = np.flatnonzero(np.diff(windows, prepend=-1))
    opened = np.zeros(len(firsts), np.bool_)
    opened[windows[boundaries[streams[order]] != 0]] = True
    places = np.arange(len(firsts))
    last = np.maximum.accumulate(np.where(opened, places, -1))
    of_source = np.maximum.accumulate(np.where(begins_source[firsts], places, 0))
    runs.begins[order] = np.where(last >= of_source, start[firsts[last]], 0)[windows]
    runs.known[order] = (last >= of_source)[windows]
    return runs
