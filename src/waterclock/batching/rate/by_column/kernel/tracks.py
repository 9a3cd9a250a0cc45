"""Updates the rows of streams (tracks); see `stream`."""

from __future__ import annotations

from waterclock.batching.rate.by_column import layout as at
from waterclock.batching.rate.period import KEPT_DIFFERENCES, LONGEST_DIFFERENCE
from waterclock.batching.rate.pulse_grid import DRIFT_TOLERANCE
from waterclock.batching.rate.rule import CUTS, ERA, GATES, HORIZON

from .arrays import Ints, Known, internal
from .periods import SECOND, earliest, estimate, own_period


@internal
def observe(row: int, event_time: int, set_back: int, known: Known) -> None:
    """As `StreamPeriodEstimator.observe`."""
    track = known.tracks[row]
    if track[at.NEWEST] == at.NEVER or event_time < track[at.NEWEST] - set_back:
        track[at.NEWEST] = event_time
    elif event_time > track[at.NEWEST]:
        if track[at.ROLE] == GATES:
            known.rings[row, track[at.NEXT_KEPT]] = event_time - track[at.NEWEST]
            track[at.NEXT_KEPT] = (track[at.NEXT_KEPT] + 1) % KEPT_DIFFERENCES
            track[at.KEPT] = min(track[at.KEPT] + 1, KEPT_DIFFERENCES)
        track[at.NEWEST] = event_time


@internal
def notice(track: Ints, event_time: int) -> None:
    """As `Track.notice`."""
    if not track[at.PRESENT]:
        track[at.PRESENT] = 1
        track[at.FIRST] = event_time
    if event_time >= track[at.LAST_FROM]:
        track[at.SATISFIED] = 1
    track[at.NOTICE_FROM] = at.NEVER if not track[at.RATE] or track[at.SATISFIED] else track[at.LAST_FROM]


@internal
def place_track(track: Ints, facts: Ints, steps: int) -> None:
    """As `Track.place`."""
    start, length, disorder = facts[at.WINDOW_START], facts[at.LENGTH], facts[at.DISORDER]
    is_cut = facts[at.CUT_AT] != at.NEVER
    if steps and track[at.STEADY] and not is_cut:
        moved = steps * length
        track[at.OVER_FROM] += moved
        if track[at.RATE]:
            track[at.LAST_FROM] += moved
            track[at.FAR_FROM] += moved
    elif not track[at.RATE]:
        last = start if track[at.ROLE] == CUTS else facts[at.CUT_AT] - 1 if is_cut else start + length
        track[at.OVER_FROM] = last + 1
        track[at.LAST_FROM] = track[at.FAR_FROM] = at.NEVER
        track[at.STEADY] = not is_cut
    else:
        end = facts[at.CUT_AT] if is_cut else start + length
        track[at.OVER_FROM] = end if is_cut else earliest(track[at.ORIGIN], track[at.RATE], end, at.ZERO)
        if disorder:
            track[at.LAST_FROM] = track[at.OVER_FROM] + disorder
        else:
            track[at.LAST_FROM] = earliest(track[at.ORIGIN], track[at.RATE], end + DRIFT_TOLERANCE * is_cut, at.ONE)
        track[at.FAR_FROM] = earliest(track[at.ORIGIN], track[at.RATE], end + HORIZON * length + disorder, at.ZERO)
        rate = track[at.RATE]
        track[at.STEADY] = not is_cut and (length % -rate if rate < 0 else length % SECOND * rate % SECOND) == 0
    if track[at.NEWEST] < start - ERA * length:
        track[at.NEWEST] = at.NEVER
    track[at.PRESENT] = track[at.SATISFIED] = 0
    track[at.FIRST] = at.NEVER
    track[at.NOTICE_FROM] = at.BEFORE_ALL if track[at.ROLE] == GATES else at.NEVER


@internal
def regrid(row: int, start: int, known: Known) -> None:
    """As `Track.regrid`."""
    track, length = known.tracks[row], known.facts[at.LENGTH]
    for k in range(track[at.KEPT]):
        known.rings[row, k] = min(known.rings[row, k], LONGEST_DIFFERENCE)
    rate = estimate(known.rings[row], track[at.KEPT], max(track[at.RATE], 0))
    origin = track[at.ORIGIN]
    if not rate:
        period = own_period(known.rings[row], track[at.KEPT])
        if (
            period
            and period <= length
            and track[at.NEWEST] != at.NEVER
            and abs(track[at.NEWEST] - start) <= ERA * length
        ):
            rate, origin = -period, track[at.NEWEST]
    elif (SECOND + rate - 1) // rate > length:
        rate = 0
    if rate > 0 and (not track[at.RATE] or abs(origin - start) > ERA * length):
        origin = track[at.FIRST] if track[at.PRESENT] else track[at.NEWEST]
        if origin == at.NEVER or abs(origin - start) > ERA * length:
            rate = 0
    if rate != track[at.RATE] or (rate and origin != track[at.ORIGIN]):
        track[at.RATE] = rate
        track[at.ORIGIN] = origin
        track[at.STEADY] = 0


@internal
def windows_to(track: Ints, event_time: int, facts: Ints) -> int:
    """As `Track.windows_to`."""
    start, length = facts[at.WINDOW_START], facts[at.LENGTH]
    if facts[at.CUT_AT] != at.NEVER:
        return int(event_time >= facts[at.CUT_AT])
    steps = (event_time - start) // length
    if track[at.RATE] and event_time >= earliest(
        track[at.ORIGIN], track[at.RATE], start + (steps + 1) * length, at.ZERO
    ):
        steps += 1
    return steps


@internal
def begin_track(row: int, known: Known) -> None:
    track = known.tracks[row]
    track[at.TRACKED] = 1
    track[at.NEWEST] = at.NEVER
    track[at.KEPT] = track[at.NEXT_KEPT] = track[at.RATE] = track[at.STEADY] = track[at.ABSENT_BATCHES] = 0
    track[at.ROOT] = at.NONE
    place_track(track, known.facts, at.ZERO)
