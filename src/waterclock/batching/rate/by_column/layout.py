"""The layout of the arrays on which the kernel of batching by rate works."""

from __future__ import annotations

import numpy as np

from waterclock.batching.rate.rule import MOST_ERAS
from waterclock.batching.rate.starts import MOST_RUNS
from waterclock.time import MAX_NS, MIN_NS

# The columns of a track.
(
    ROLE,
    TRACKED,
    NEWEST,
    KEPT,
    NEXT_KEPT,
    ORIGIN,
    RATE,  # in Hz; or, of a stream without a whole rate, minus its period in ns; 0 without a grid
    ABSENT_BATCHES,
    FIRST,
    PRESENT,
    SATISFIED,
    OVER_FROM,
    LAST_FROM,
    FAR_FROM,
    NOTICE_FROM,
    STEADY,
    ROOT,
    PILED,
    PILE_NEWEST,
    PILE_LAST,
    TRACK_COLUMNS,
) = range(21)

# The facts of a source, without its tracks.
(
    BEGUN,
    WINDOW_START,
    HIGH_WATER,
    STRAYS,
    FURTHEST,
    SETBACKS,
    UNMOVED,
    ERAS,
    RUNS,
    GATING,
    CONTRIBUTING,
    WAITING,
    ALL_PILED,
    HELD_UNTIL,
    JOINED,
    ACTIVE_FROM,
    BATCHES,
    LENGTH,
    TIMEOUT_NS,
    NEXT_LENGTH,
    NEXT_TIMEOUT,
    SINCE,
    LOOKED,
    DOUBTFUL,  # 1 if it is, else 0
    TRUSTED_FROM,
    OUTNUMBERED,
    AUTO,  # 1 if the timeout follows delays, else 0
    SLOWEST,
    AWAITED,
    DISORDER,
    CUT_AT,  # the boundary that ends the window, ns; NEVER without
    FACTS,
) = range(32)

# Rows of other eras' traffic and of runs follow in the same array, since each further array costs time at every call.
ELSEWHERE_FROM = FACTS
ELSEWHERE_COLUMNS = 5
RUNS_FROM = ELSEWHERE_FROM + ELSEWHERE_COLUMNS * MOST_ERAS
RUN_COLUMNS = 3
ALL_FACTS = RUNS_FROM + RUN_COLUMNS * (MOST_RUNS + 1)

# The columns of the links of messages, whose last is NONE for messages that do not wait, and those of batches.
LEFT, RIGHT, WAITS_FOR, LINK_COLUMNS = range(4)
BATCH_START, BATCH_END, CLOSED_AT, REASON, UNTIL, BATCH_COLUMNS = range(6)

# Numba compiles a function once for each Python constant passed to it, but only once for all numbers of NumPy.
NONE, NEVER, BEFORE_ALL, ZERO, ONE = np.array([-1, MAX_NS, MIN_NS, 0, 1], np.int64)
FALSE, TRUE = np.array([False, True])

SLOTS, GAP, TIMEOUT, STALL, FLUSH, START, BOUNDARY = np.arange(7, dtype=np.int64)
"""Why a batch closed, as the kernel writes it."""

REASONS = ("slots", "gap", "timeout", "stall", "flush", "start", "boundary")
