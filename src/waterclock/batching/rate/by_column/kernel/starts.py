"""Stores the starts of earlier windows; see `starts`."""

from __future__ import annotations

import numpy as np

from waterclock.batching.rate.by_column import layout as at
from waterclock.batching.rate.starts import MOST_RUNS

from .arrays import Ints, internal
from .eras import apart

# Places of the last start and of the step of a run of starts, after its first.
_LAST, _STEP = 1, 2


@internal
def _taken(start: int, facts: Ints) -> int:
    for k in range(facts[at.RUNS]):
        run = at.RUNS_FROM + at.RUN_COLUMNS * k
        first = facts[run]
        if first <= start <= facts[run + _LAST] and apart(first, start) % np.uint64(facts[run + _STEP]) == np.uint64(0):
            return int(run)
    return at.NONE


@internal
def free_start(start: int, facts: Ints) -> int:
    """As `Starts.free`."""
    furthest = int(facts[at.FURTHEST])
    if start > furthest:
        return start
    for _ in range(2 * MOST_RUNS):
        run = _taken(start, facts)
        if run == at.NONE:
            return start
        start = int(facts[run + _LAST]) + 1 if facts[run + _STEP] == 1 else start + 1
    return furthest + 1


@internal
def _remove_earliest_run(facts: Ints) -> int:
    count = int(facts[at.RUNS])
    earliest = at.RUNS_FROM
    for k in range(1, count):
        run = at.RUNS_FROM + at.RUN_COLUMNS * k
        if facts[run + _LAST] < facts[earliest + _LAST]:
            earliest = run
    last = int(facts[earliest + _LAST])
    for place in range(earliest, at.RUNS_FROM + at.RUN_COLUMNS * (count - 1)):
        facts[place] = facts[place + at.RUN_COLUMNS]
    facts[at.RUNS] -= 1
    return last


@internal
def remember_run(first: int, last: int, step: int, facts: Ints) -> None:
    """Record a run that began before all others."""
    for place in range(at.RUNS_FROM + at.RUN_COLUMNS * facts[at.RUNS] - 1, at.RUNS_FROM - 1, -1):
        facts[place + at.RUN_COLUMNS] = facts[place]
    facts[at.RUNS_FROM], facts[at.RUNS_FROM + _LAST], facts[at.RUNS_FROM + _STEP] = first, last, step
    facts[at.RUNS] += 1


@internal
def begin_start(start: int, step: int, facts: Ints) -> None:
    """As `Starts.begin`."""
    facts[at.FURTHEST] = max(facts[at.FURTHEST], start)
    run = at.RUNS_FROM + at.RUN_COLUMNS * facts[at.RUNS]
    if facts[at.RUNS]:
        before = run - at.RUN_COLUMNS
        last = int(facts[before + _LAST])
        if facts[before + _STEP] == step and start > last and apart(last, start) % np.uint64(step) == np.uint64(0):
            facts[before + _LAST] = start
            return
    facts[run], facts[run + _LAST], facts[run + _STEP] = start, start, step
    facts[at.RUNS] += 1
    if facts[at.RUNS] > MOST_RUNS:
        _remove_earliest_run(facts)
        remember_run(at.BEFORE_ALL, _remove_earliest_run(facts), at.ONE, facts)
