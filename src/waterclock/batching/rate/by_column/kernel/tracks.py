"""Updates the rows of streams (tracks); see `stream`."""

from __future__ import annotations

from waterclock.batching.rate.by_column.layout import (
    ABSENT_BATCHES,
    BEFORE_ALL,
    CUT_AT,
    DISORDER,
    FAR_FROM,
    FIRST,
    KEPT,
    LAST_FROM,
    LENGTH,
    NEVER,
    NEWEST,
    NEXT_KEPT,
    NONE,
    NOTICE_FROM,
    ONE,
    ORIGIN,
    OVER_FROM,
    PRESENT,
    RATE,
    ROLE,
    ROOT,
    SATISFIED,
    STEADY,
    TRACKED,
    WINDOW_START,
    ZERO,
)
from waterclock.batching.rate.period import KEPT_DIFFERENCES, LONGEST_DIFFERENCE
from waterclock.batching.rate.pulse_grid import DRIFT_TOLERANCE
from waterclock.batching.rate.rule import CUTS, ERA, GATES, HORIZON

from .arrays import Ints, Known, internal
from .periods import SECOND, earliest, estimate, own_period


@internal
def observe(row: int, event_time: int, set_back: int, known: Known) -> None:
    """As `StreamPeriodEstimator.observe`."""
    track = known.tracks[row]
    if track[NEWEST] == NEVER or event_time < track[NEWEST] - set_back:
        track[NEWEST] = event_time
    elif event_time > track[NEWEST]:
        if track[ROLE] == GATES:
            known.rings[row, track[NEXT_KEPT]] = event_time - track[NEWEST]
            track[NEXT_KEPT] = (track[NEXT_KEPT] + 1) % KEPT_DIFFERENCES
            track[KEPT] = min(track[KEPT] + 1, KEPT_DIFFERENCES)
        track[NEWEST] = event_time


@internal
def notice(track: Ints, event_time: int) -> None:
    """As `Track.notice`."""
    if not track[PRESENT]:
        track[PRESENT] = 1
        track[FIRST] = event_time
    if event_time >= track[LAST_FROM]:
        track[SATISFIED] = 1
    track[NOTICE_FROM] = NEVER if not track[RATE] or track[SATISFIED] else track[LAST_FROM]


@internal
def place_track(track: Ints, facts: Ints, steps: int) -> None:
    """As `Track.place`."""
    start, length, disorder = facts[WINDOW_START], facts[LENGTH], facts[DISORDER]
    is_cut = facts[CUT_AT] != NEVER
    if steps and track[STEADY] and not is_cut:
        moved = steps * length
        track[OVER_FROM] += moved
        if track[RATE]:
            track[LAST_FROM] += moved
            track[FAR_FROM] += moved
    elif not track[RATE]:
        last = start if track[ROLE] == CUTS else facts[CUT_AT] - 1 if is_cut else start + length
        track[OVER_FROM] = last + 1
        track[LAST_FROM] = track[FAR_FROM] = NEVER
        track[STEADY] = not is_cut
    else:
        end = facts[CUT_AT] if is_cut else start + length
        track[OVER_FROM] = end if is_cut else earliest(track[ORIGIN], track[RATE], end, ZERO)
        if disorder:
            track[LAST_FROM] = track[OVER_FROM] + disorder
        else:
            track[LAST_FROM] = earliest(track[ORIGIN], track[RATE], end + DRIFT_TOLERANCE * is_cut, ONE)
        track[FAR_FROM] = earliest(track[ORIGIN], track[RATE], end + HORIZON * length + disorder, ZERO)
        rate = track[RATE]
        track[STEADY] = not is_cut and (length % -rate if rate < 0 else length % SECOND * rate % SECOND) == 0
    if track[NEWEST] < start - ERA * length:
        track[NEWEST] = NEVER
    track[PRESENT] = track[SATISFIED] = 0
    track[FIRST] = NEVER
    track[NOTICE_FROM] = BEFORE_ALL if track[ROLE] == GATES else NEVER


@internal
def regrid(row: int, start: int, known: Known) -> None:
    """As `Track.regrid`."""
    track, length = known.tracks[row], known.facts[LENGTH]
    for k in range(track[KEPT]):
        known.rings[row, k] = min(known.rings[row, k], LONGEST_DIFFERENCE)
    rate = estimate(known.rings[row], track[KEPT], max(track[RATE], 0))
    origin = track[ORIGIN]
    if not rate:
        period = own_period(known.rings[row], track[KEPT])
        if period and period <= length and track[NEWEST] != NEVER and abs(track[NEWEST] - start) <= ERA * length:
            rate, origin = -period, track[NEWEST]
    elif (SECOND + rate - 1) // rate > length:
        rate = 0
    if rate > 0 and (not track[RATE] or abs(origin - start) > ERA * length):
        origin = track[FIRST] if track[PRESENT] else track[NEWEST]
        if origin == NEVER or abs(origin - start) > ERA * length:
            rate = 0
    if rate != track[RATE] or (rate and origin != track[ORIGIN]):
        track[RATE] = rate
        track[ORIGIN] = origin
        track[STEADY] = 0


@internal
def windows_to(track: Ints, event_time: int, facts: Ints) -> int:
    """As `Track.windows_to`."""
    start, length = facts[WINDOW_START], facts[LENGTH]
    if facts[CUT_AT] != NEVER:
        return int(event_time >= facts[CUT_AT])
    steps = (event_time - start) // length
    if track[RATE] and event_time >= earliest(track[ORIGIN], track[RATE], start + (steps + 1) * length, ZERO):
        steps += 1
    return steps


@internal
def begin_track(row: int, known: Known) -> None:
    track = known.tracks[row]
    track[TRACKED] = 1
    track[NEWEST] = NEVER
    track[KEPT] = track[NEXT_KEPT] = track[RATE] = track[STEADY] = track[ABSENT_BATCHES] = 0
    track[ROOT] = NONE
    place_track(track, known.facts, ZERO)
