"""Applies the rule of batching by id to the columns of many sources at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from waterclock.batching.batch import RejectReason
from waterclock.batching.by_id.rule import NO_ID
from waterclock.batching.by_id.taken_ids import TakenIds
from waterclock.time import MAX_NS

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

ACCEPTED = 0
REASONS: tuple[RejectReason, ...] = ("no_id", "undeclared", "late", "duplicate")
"""The verdict on a rejected message is its reason's place here, plus 1."""

_NO_ID, _UNDECLARED, _LATE, _DUPLICATE = range(1, 5)


class JudgedIds(NamedTuple):
    """The verdict on each message of some sources."""

    verdicts: npt.NDArray[np.uint8]  # `ACCEPTED` or a place in `REASONS`, plus 1
    closes: Ints
    """When the batch of its id closes, ns; meaningless for a message without an id and of an undeclared stream."""
    streams: Ints  # how many streams the batch has


def judge_ids(
    sources: npt.NDArray[np.int32],
    streams: npt.NDArray[np.int32],
    numbers: Ints,
    readings: Ints,
    undeclared: Flags,
    max_delay: int,
    taken: Sequence[TakenIds],
    nows: Ints,
    kept: Ints | None = None,
) -> JudgedIds:
    """Judge messages as an `IdBatcher` of each source does, and record the ids that close.

    Parameters
    ----------
    sources, streams
        Numbers from 0.
    numbers
        The ids; `NO_ID` if missing.
    readings
        The receive clock at each message, ns; the messages of a source are in order of it.
    undeclared
        Which streams, by number, are not declared.
    max_delay
        ns.
    taken
        The closed ids of each source; ids that close up to ``nows`` are added.
    nows
        For each source, the clock at the end, ns.
    kept
        When the ids of the first messages close, ns: these were accepted before, and not closed.
    """
    before = np.empty(0, np.int64) if kept is None else kept
    verdicts = np.where(undeclared[streams], _UNDECLARED, ACCEPTED).astype(np.uint8)
    verdicts[numbers == NO_ID] = _NO_ID
    closes, counts = np.zeros(len(verdicts), np.int64), np.zeros(len(verdicts), np.int64)
    some = np.flatnonzero(verdicts == ACCEPTED)
    if not len(some):
        return JudgedIds(verdicts, closes, counts)
    # Sorting is stable, so the messages of an id and stream stay in order of arrival.
    order = some[np.lexsort((streams[some], numbers[some], sources[some]))]
    begins_id = changes(sources[order], numbers[order])
    begins_stream = begins_id | changes(streams[order])
    bounds = np.flatnonzero(begins_id)
    first = np.minimum.reduceat(order, bounds)
    closing = np.minimum(readings[first], MAX_NS - max_delay) + max_delay
    known = first < len(before)
    closing[known] = before[first[known]]
    ids = np.cumsum(begins_id) - 1
    is_late = _open_and_close(sources[first], numbers[first], first, readings[first], closing, known, taken, nows)[ids]
    is_late |= (readings[order] > closing[ids]) & (order >= len(before))
    verdicts[order[~begins_stream]] = _DUPLICATE
    verdicts[order[is_late]] = _LATE
    closes[order] = closing[ids]
    counts[order] = np.add.reduceat((verdicts[order] == ACCEPTED).astype(np.int64), bounds)[ids]
    return JudgedIds(verdicts, closes, counts)


def changes(*keys: npt.NDArray[Any]) -> Flags:
    """Return for each place whether any of the keys differs from the place before."""
    differs = np.ones(len(keys[0]), np.bool_)
    if len(differs):
        differs[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return differs


def _open_and_close(
    sources: npt.NDArray[np.int32],
    numbers: Ints,
    first: npt.NDArray[np.intp],
    opened: Ints,
    closing: Ints,
    known: Flags,
    taken: Sequence[TakenIds],
    nows: Ints,
) -> Flags:
    """Open and close the ids one after another, and return which of them had closed before; an item for each id."""
    moves = np.zeros(len(nows), np.bool_)  # the sources in which an id opens or closes
    moves[sources[~known]] = True
    moves[sources[closing <= nows[sources]]] = True
    some = np.flatnonzero(moves[sources])
    order = some[np.lexsort((first[some], sources[some]))]
    had_closed = np.zeros(len(first), np.bool_)
    facts = (each[order].tolist() for each in (sources, numbers, opened, closing, known))
    source, closed, waiting = -1, TakenIds(), deque[tuple[int, int]]()
    for place, (at, number, clock, until, is_open) in enumerate(zip(*facts, strict=True)):
        if at != source:
            _close(waiting, closed, int(nows[source]))
            source, closed = at, taken[at]
            waiting.clear()
        if not is_open:
            _close(waiting, closed, clock - 1)
            if number in closed:
                had_closed[order[place]] = True
                continue
        waiting.append((until, number))
    _close(waiting, closed, int(nows[source]))
    return had_closed


def _close(waiting: deque[tuple[int, int]], closed: TakenIds, now: int) -> None:
    while waiting and waiting[0][0] <= now:
        closed.add(waiting.popleft()[1])
