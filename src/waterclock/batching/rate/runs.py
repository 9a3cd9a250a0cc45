"""Finds the run to which each batch belongs. A run is the part of a source's data between two boundaries.

A boundary is a message of a declared stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def run_after(known: int | None, start: int, end: int, boundaries: Iterable[int]) -> tuple[int | None, int | None]:
    """Find the run of a batch: the newest boundary at or before its start, in it or in an earlier batch.

    Parameters
    ----------
    known
        The run after the batch before, ns; None before the first.
    start, end
        Of the batch, ns.
    boundaries
        The event times of the boundaries in it, ns.

    Returns
    -------
    tuple
        The run of the batch, and the one that is known after it: first batches hold boundaries that later ones follow.
    """
    before = [known] if known is not None and known <= start else []  # later: a stall has set the window back
    held = [*before, *(boundary for boundary in boundaries if boundary <= end)]
    return max((run for run in held if run <= start), default=None), max(held, default=known)


def runs_of(
    known: list[int | None], bounds: Iterable[int], starts: Ints, ends: Ints, boundaries: Mapping[int, list[int]]
) -> list[int | None]:
    """Find the runs of the batches of many sources, in order of closing.

    Parameters
    ----------
    known
        The run of each source, ns; it is brought up to date.
    bounds
        Source s has the batches ``bounds[s]`` to ``bounds[s + 1]``.
    starts, ends
        Of the batches, ns.
    boundaries
        The event times of the boundaries in batches that have some, ns.
    """
    runs: list[int | None] = []
    first, *stops = bounds
    for source, stop in enumerate(stops):
        for batch in range(first, stop):
            own, known[source] = run_after(
                known[source], int(starts[batch]), int(ends[batch]), boundaries.get(batch, ())
            )
            runs.append(own)
        first = stop
    return runs


def boundaries_by_batch(offsets: Ints, times: Ints, cuts: npt.NDArray[np.bool_]) -> dict[int, list[int]]:
    """Return the event times of the boundaries in each batch that has some.

    Parameters
    ----------
    offsets
        Batch k holds the messages ``offsets[k]`` to ``offsets[k + 1]``.
    times, cuts
        Event time (ns) of each message, and whether it is a boundary.
    """
    found: dict[int, list[int]] = {}
    places = np.flatnonzero(cuts)
    for batch, time in zip(np.searchsorted(offsets, places, side="right") - 1, times[places], strict=True):
        found.setdefault(int(batch), []).append(int(time))
    return found
