"""Opens, cuts and closes windows; see `window`."""

from __future__ import annotations

import numpy as np

from waterclock.batching.rate.by_column.layout import (
    ABSENT_BATCHES,
    ACTIVE_FROM,
    ALL_PILED,
    AUTO,
    AWAITED,
    BATCH_END,
    BATCH_START,
    BATCHES,
    BEFORE_ALL,
    BOUNDARY,
    CLOSED_AT,
    CONTRIBUTING,
    CUT_AT,
    DISORDER,
    DOUBTFUL,
    FALSE,
    GAP,
    GATING,
    HELD_UNTIL,
    HIGH_WATER,
    JOINED,
    KEPT,
    LEFT,
    LENGTH,
    NEVER,
    NEWEST,
    NEXT_KEPT,
    NEXT_LENGTH,
    NEXT_TIMEOUT,
    NONE,
    OUTNUMBERED,
    OVER_FROM,
    PILE_NEWEST,
    PILED,
    PRESENT,
    RATE,
    REASON,
    RIGHT,
    ROLE,
    ROOT,
    SATISFIED,
    SLOTS,
    SLOWEST,
    STALL,
    STEADY,
    STRAYS,
    TIMEOUT,
    TIMEOUT_NS,
    TRACKED,
    TRUE,
    TRUSTED_FROM,
    UNMOVED,
    UNTIL,
    WAITING,
    WAITS_FOR,
    WINDOW_START,
    ZERO,
)
from waterclock.batching.rate.rule import ABSENT, CUTS, FORGETS, HORIZON

from .arrays import Ints, KernelOutput, Known, WaitingMessages, inlined, internal
from .eras import era_until, in_era
from .piles import by_time, has_between, merge, push
from .starts import begin_start, free_start
from .tracks import notice, observe, place_track, regrid, windows_to


@internal
def join(message: int, facts: Ints, out: KernelOutput) -> None:
    out.joined[facts[JOINED]] = message
    facts[JOINED] += 1


@internal
def notice_and_count(track: Ints, event_time: int, facts: Ints) -> None:
    """As `Assembly.notice`."""
    present, satisfied = track[PRESENT], track[SATISFIED]
    notice(track, event_time)
    if track[RATE]:
        facts[CONTRIBUTING] += track[PRESENT] - present
        facts[WAITING] -= track[SATISFIED] - satisfied


@internal
def windows_to_first(gating_only: bool, known: Known, messages: WaitingMessages) -> int:
    """As `Assembly.windows_to_first`."""
    nearest = NEVER
    for row in range(len(known.tracks)):
        track = known.tracks[row]
        if track[PILED] and (track[RATE] or track[ROLE] == CUTS or not gating_only):
            oldest = int(messages.times[int(track[ROOT])])
            nearest = min(nearest, windows_to(track, oldest, known.facts))
    return 0 if nearest == NEVER else nearest


@internal
def _complete_windows(known: Known) -> int:
    """Return for how many windows no message can still come, if each gating stream has a message that waits."""
    facts, complete = known.facts, NEVER
    for row in range(len(known.tracks)):
        track = known.tracks[row]
        if track[RATE]:
            newest = track[PILE_NEWEST] - facts[DISORDER]
            complete = min(complete, windows_to(track, newest, facts))
    return max(complete, 0)


@internal
def _gap(known: Known, messages: WaitingMessages) -> int:
    """As `Assembly.gap`."""
    facts = known.facts
    if not facts[ALL_PILED]:
        return 0
    if not facts[GATING]:
        if facts[JOINED] - facts[ACTIVE_FROM] > facts[STRAYS]:
            return 0
        complete = windows_to(known.tracks[-1], facts[HIGH_WATER] - facts[DISORDER], facts)
        steps = windows_to_first(FALSE, known, messages)
        return max(min(steps, complete), 0) if facts[DISORDER] else steps
    if facts[CONTRIBUTING]:
        return 0
    for row in range(len(known.tracks)):
        if known.tracks[row, RATE] and not known.tracks[row, PILED]:
            return 0
    steps = windows_to_first(TRUE, known, messages)
    return min(steps, _complete_windows(known)) if facts[DISORDER] else steps


@internal
def _let_in(track: Ints, facts: Ints, messages: WaitingMessages, out: KernelOutput) -> None:
    # A field lookup in the loop would cost more than everything else in it.
    times, links = messages.times, messages.links
    joined = out.joined
    root, piled, over_from = track[ROOT], track[PILED], track[OVER_FROM]
    first = last = facts[JOINED]
    while piled and times[root] < over_from:
        joined[last] = root
        last += 1
        piled -= 1
        links[root, WAITS_FOR] = NONE
        lower = np.int64(links[root, LEFT])
        root = lower if links[root, RIGHT] == NONE else merge(lower, np.int64(links[root, RIGHT]), messages)
    if last > first:
        track[ROOT], track[PILED], facts[JOINED] = root, piled, last
        oldest, newest = int(times[joined[first]]), int(times[joined[last - 1]])
        facts[HIGH_WATER] = max(facts[HIGH_WATER], newest)
        notice(track, oldest)
        notice(track, newest)
    if piled and track[RATE] and has_between(track, messages):
        track[SATISFIED] = 1


@inlined
def _change_length(start: int, known: Known) -> None:
    facts = known.facts
    facts[LENGTH], facts[TIMEOUT_NS] = facts[NEXT_LENGTH], facts[NEXT_TIMEOUT]
    facts[NEXT_LENGTH] = 0
    for row in range(len(known.tracks) - 1):
        if known.tracks[row, TRACKED]:
            regrid(row, start, known)


@internal
def ahead(facts: Ints) -> int:
    """Return how far (ns) the mark may be ahead of the window's start, and a held message of its end."""
    return HORIZON * facts[LENGTH] + facts[DISORDER]


@internal
def _set_timeout(facts: Ints) -> None:
    """As `RateRule.awaiting`."""
    if facts[AUTO]:
        facts[TIMEOUT_NS] = min(facts[LENGTH] * 6 // 5 + facts[AWAITED], HORIZON * facts[LENGTH])


@internal
def open_window(start: int, steps: int, known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    """As `Assembly.open`."""
    facts = known.facts
    free = free_start(start, facts)
    steps *= free == start  # after a jump, such as a change of length, no steps are counted
    start = free
    if facts[NEXT_LENGTH]:
        _change_length(start, known)
        steps = 0
    length = facts[LENGTH]
    _set_timeout(facts)
    begin_start(start, length, facts)
    facts[WINDOW_START], facts[CUT_AT] = start, NEVER
    boundary = NEVER
    for row in range(len(known.tracks)):
        track = known.tracks[row]
        if track[TRACKED] and track[ROLE] == CUTS:
            place_track(track, facts, steps)
            _let_in(track, facts, messages, out)
            if track[PILED]:
                boundary = min(boundary, messages.times[int(track[ROOT])])
    if boundary <= start + length:
        facts[CUT_AT] = boundary
    for row in range(len(known.tracks)):
        track = known.tracks[row]
        if track[TRACKED] and track[ROLE] != CUTS:
            place_track(track, facts, steps)
    _admit_waiting(known, messages, out)


@inlined
def skip(steps: int, known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    """As `Assembly.skip`."""
    facts = known.facts
    is_cut = facts[CUT_AT] != NEVER
    start = facts[CUT_AT] if is_cut else facts[WINDOW_START] + steps * facts[LENGTH]
    open_window(start, ZERO if is_cut else steps, known, messages, out)


@internal
def cut(known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    """As `Assembly._cut`, when `_place_ahead` has found the boundary."""
    facts = known.facts
    for row in range(len(known.tracks)):
        if known.tracks[row, TRACKED]:
            place_track(known.tracks[row], facts, ZERO)
    stop, facts[JOINED] = facts[JOINED], facts[ACTIVE_FROM]
    for place in range(facts[JOINED], stop):
        message = out.joined[place]
        row, event_time = messages.rows[message], messages.times[message]
        track = known.tracks[row]
        if not in_era(event_time, facts[WINDOW_START], facts[LENGTH]):
            join(message, facts, out)
        elif event_time < track[OVER_FROM] or (not track[RATE] and event_time > facts[HELD_UNTIL]):
            join(message, facts, out)
            notice(track, event_time)
        else:
            push(row, message, known.tracks, messages)
    facts[UNMOVED] = 0
    _admit_waiting(known, messages, out)


@internal
def _admit_waiting(known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    """As `Assembly._admit_waiting`."""
    facts = known.facts
    start, length = facts[WINDOW_START], facts[LENGTH]
    facts[GATING] = facts[CONTRIBUTING] = facts[WAITING] = facts[ALL_PILED] = 0
    newest_waiting = BEFORE_ALL
    newest_gating = start + length
    for row in range(len(known.tracks)):
        track = known.tracks[row]
        if not track[TRACKED]:
            continue
        if track[PILED]:
            _let_in(track, facts, messages, out)
        if track[PILED]:
            facts[ALL_PILED] += track[PILED]
            newest_waiting = max(newest_waiting, track[PILE_NEWEST])
            if track[RATE]:
                newest_gating = max(newest_gating, track[PILE_NEWEST])
        if track[RATE]:
            facts[GATING] += 1
            facts[CONTRIBUTING] += track[PRESENT]
            facts[WAITING] += 1 - track[SATISFIED]
    facts[HELD_UNTIL] = newest_gating + ahead(facts)
    if not facts[GATING]:
        facts[WAITING] = NONE
        if facts[ALL_PILED]:
            facts[HIGH_WATER] = max(facts[HIGH_WATER], min(newest_waiting, start + ahead(facts)))


@inlined
def _review(known: Known) -> None:
    for row in range(len(known.tracks) - 1):
        track = known.tracks[row]
        if not track[TRACKED]:
            continue
        if track[PRESENT]:
            track[ABSENT_BATCHES] = 0
            regrid(row, known.facts[WINDOW_START], known)
            continue
        track[ABSENT_BATCHES] += 1
        if track[ABSENT_BATCHES] >= ABSENT:
            track[NEWEST] = NEVER
            track[KEPT] = track[NEXT_KEPT] = 0
            track[RATE] = track[STEADY] = 0
            if not track[PILED]:
                track[TRACKED] = track[ABSENT_BATCHES] = 0


@internal
def is_rivalled(facts: Ints) -> bool:
    """As `Assembly.is_rivalled`."""
    more = 2 * facts[STRAYS] > facts[JOINED] - facts[ACTIVE_FROM] + facts[ALL_PILED]
    return bool(facts[DOUBTFUL] == 1 and (facts[OUTNUMBERED] or more))


@internal
def _is_agreed(known: Known) -> bool:
    """As `Assembly._is_agreed`."""
    facts, riding = known.facts, len(known.tracks) - 1
    start, length = facts[WINDOW_START], facts[LENGTH]
    newest = known.tracks[riding, NEWEST]
    streams = int(start - HORIZON * length <= newest <= era_until(start, length))
    for row in range(riding):
        streams += known.tracks[row, TRACKED] and known.tracks[row, PRESENT]
    return bool(streams > 1 and not is_rivalled(facts))


@internal
def write_batch(start: int, end: int, reason: int, facts: Ints, out: KernelOutput) -> None:
    """Close a batch of all that has joined."""
    batch = out.batches[facts[BATCHES]]
    batch[BATCH_START], batch[BATCH_END], batch[CLOSED_AT] = start, end, facts[HIGH_WATER]
    batch[REASON], batch[UNTIL] = reason, facts[JOINED]
    facts[BATCHES] += 1
    facts[ACTIVE_FROM] = facts[JOINED]
    facts[STRAYS] = 0


@inlined
def _observe_in_order(known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    """Observe the messages of the window, whose order of arrival does not show the rates."""
    facts = known.facts
    for message in by_time(out.joined[facts[ACTIVE_FROM] : facts[JOINED]], messages):
        row, event_time = messages.rows[message], messages.times[message]
        if known.tracks[row, TRACKED] and in_era(event_time, facts[WINDOW_START], facts[LENGTH]):
            observe(row, event_time, HORIZON * facts[LENGTH], known)


@internal
def give_out(reason: int, known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    """As `Assembly.close`, up to the opening of the next window."""
    facts = known.facts
    start, length = facts[WINDOW_START], facts[LENGTH]
    if facts[DISORDER]:
        _observe_in_order(known, messages, out)
    if facts[DOUBTFUL] == 1 and start >= facts[TRUSTED_FROM] and _is_agreed(known):
        facts[DOUBTFUL] = 0
    facts[OUTNUMBERED] = 2 * facts[STRAYS] > facts[JOINED] - facts[ACTIVE_FROM]
    if facts[CUT_AT] == NEVER:
        write_batch(start, start + length, reason, facts, out)
    else:
        write_batch(start, facts[CUT_AT], STALL if reason == STALL else BOUNDARY, facts, out)
    facts[AWAITED] = max(facts[SLOWEST], facts[AWAITED] - facts[AWAITED] // FORGETS)
    facts[SLOWEST] = 0
    _review(known)


@internal
def has_timed_out(start: int, facts: Ints) -> bool:
    return bool(facts[TIMEOUT_NS] != NEVER and facts[HIGH_WATER] >= start + facts[TIMEOUT_NS] + facts[DISORDER])


@internal
def close_complete(known: Known, messages: WaitingMessages, out: KernelOutput) -> bool:
    facts = known.facts
    before = facts[BATCHES]
    while True:
        steps = _gap(known, messages)
        if steps:
            reason = GAP
        elif not facts[WAITING]:
            reason = SLOTS
        elif has_timed_out(facts[WINDOW_START], facts):
            reason = TIMEOUT
        else:
            return facts[BATCHES] > before
        if facts[JOINED] > facts[ACTIVE_FROM]:
            give_out(reason, known, messages, out)
        skip(max(steps, 1), known, messages, out)
