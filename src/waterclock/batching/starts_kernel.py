"""As `waterclock.batching.starts`, over arrays, compiled with Numba as part of `rate_kernel`."""

from __future__ import annotations

import numpy as np
from numba import njit

from waterclock.batching.starts import MOST_RUNS
from waterclock.batching.track_kernel import FURTHEST, NONE, RUNS, Known, apart
from waterclock.time import MIN_NS

# The columns of a run.
FIRST_START, LAST_START, STEP, RUN_COLUMNS = range(4)


@njit(error_model="numpy")
def _taken(start: int, known: Known) -> int:
    runs = known.runs
    for k in range(known.facts[RUNS]):
        first = runs[k, FIRST_START]
        if first <= start <= runs[k, LAST_START] and apart(first, start) % np.uint64(runs[k, STEP]) == np.uint64(0):
            return k
    return NONE


@njit(error_model="numpy")
def free_start(start: int, known: Known) -> int:
    """As `Starts.free`."""
    furthest = int(known.facts[FURTHEST])
    if start > furthest:
        return start
    for _ in range(2 * MOST_RUNS):
        k = _taken(start, known)
        if k == NONE:
            return start
        start = int(known.runs[k, LAST_START]) + 1 if known.runs[k, STEP] == 1 else start + 1
    return furthest + 1


@njit(error_model="numpy")
def _remove_earliest(known: Known) -> int:
    facts, runs = known.facts, known.runs
    earliest = 0
    for k in range(1, facts[RUNS]):
        if runs[k, LAST_START] < runs[earliest, LAST_START]:
            earliest = k
    last = int(runs[earliest, LAST_START])
    for k in range(earliest, facts[RUNS] - 1):
        runs[k, :] = runs[k + 1, :]
    facts[RUNS] -= 1
    return last


@njit(error_model="numpy")
def remember_start(first: int, last: int, step: int, known: Known) -> None:
    """Take note of a run that began before all others."""
    facts, runs = known.facts, known.runs
    for k in range(facts[RUNS], 0, -1):
        runs[k, :] = runs[k - 1, :]
    runs[0, FIRST_START], runs[0, LAST_START], runs[0, STEP] = first, last, step
    facts[RUNS] += 1


@njit(error_model="numpy")
def begin_start(start: int, step: int, known: Known) -> None:
    """As `Starts.begin`."""
    facts, runs = known.facts, known.runs
    facts[FURTHEST] = max(facts[FURTHEST], start)
    count = facts[RUNS]
    if count:
        last = runs[count - 1, LAST_START]
        follows = runs[count - 1, STEP] == step and start > last
        if follows and apart(last, start) % np.uint64(step) == np.uint64(0):
            runs[count - 1, LAST_START] = start
            return
    runs[count, FIRST_START], runs[count, LAST_START], runs[count, STEP] = start, start, step
    facts[RUNS] += 1
    if facts[RUNS] > MOST_RUNS:
        _remove_earliest(known)
        remember_start(MIN_NS, _remove_earliest(known), 1, known)
