"""Opens, cuts and closes windows; see `window`."""

from __future__ import annotations

import numpy as np

from waterclock.batching.rate.by_column import layout as at
from waterclock.batching.rate.rule import ABSENT, CUTS, FORGETS, HORIZON

from .arrays import Ints, KernelOutput, Known, WaitingMessages, inlined, internal
from .eras import era_until, in_era
from .piles import by_time, has_between, merge, push
from .starts import begin_start, free_start
from .tracks import notice, observe, place_track, regrid, windows_to


@internal
def join(message: int, facts: Ints, out: KernelOutput) -> None:
    out.joined[facts[at.JOINED]] = message
    facts[at.JOINED] += 1


@internal
def notice_and_count(track: Ints, event_time: int, facts: Ints) -> None:
    """As `Assembly.notice`."""
    present, satisfied = track[at.PRESENT], track[at.SATISFIED]
    notice(track, event_time)
    if track[at.RATE]:
        facts[at.CONTRIBUTING] += track[at.PRESENT] - present
        facts[at.WAITING] -= track[at.SATISFIED] - satisfied


@internal
def windows_to_first(gating_only: bool, known: Known, messages: WaitingMessages) -> int:
    """As `Assembly.windows_to_first`."""
    nearest = at.NEVER
    for row in range(len(known.tracks)):
        track = known.tracks[row]
        if track[at.PILED] and (track[at.RATE] or track[at.ROLE] == CUTS or not gating_only):
            oldest = int(messages.times[int(track[at.ROOT])])
            nearest = min(nearest, windows_to(track, oldest, known.facts))
    return 0 if nearest == at.NEVER else nearest


@internal
def _complete_windows(known: Known) -> int:
    """Return for how many windows no message can still come, if each gating stream has a message that waits."""
    facts, complete = known.facts, at.NEVER
    for row in range(len(known.tracks)):
        track = known.tracks[row]
        if track[at.RATE]:
            newest = track[at.PILE_NEWEST] - facts[at.DISORDER]
            complete = min(complete, windows_to(track, newest, facts))
    return max(complete, 0)


@internal
def _gap(known: Known, messages: WaitingMessages) -> int:
    """As `Assembly.gap`."""
    facts = known.facts
    if not facts[at.ALL_PILED]:
        return 0
    if not facts[at.GATING]:
        if facts[at.JOINED] - facts[at.ACTIVE_FROM] > facts[at.STRAYS]:
            return 0
        complete = windows_to(known.tracks[-1], facts[at.HIGH_WATER] - facts[at.DISORDER], facts)
        steps = windows_to_first(at.FALSE, known, messages)
        return max(min(steps, complete), 0) if facts[at.DISORDER] else steps
    if facts[at.CONTRIBUTING]:
        return 0
    for row in range(len(known.tracks)):
        if known.tracks[row, at.RATE] and not known.tracks[row, at.PILED]:
            return 0
    steps = windows_to_first(at.TRUE, known, messages)
    return min(steps, _complete_windows(known)) if facts[at.DISORDER] else steps


@internal
def _let_in(track: Ints, facts: Ints, messages: WaitingMessages, out: KernelOutput) -> None:
    # A field lookup in the loop would cost more than everything else in it.
    times, links = messages.times, messages.links
    joined = out.joined
    root, piled, over_from = track[at.ROOT], track[at.PILED], track[at.OVER_FROM]
    first = last = facts[at.JOINED]
    while piled and times[root] < over_from:
        joined[last] = root
        last += 1
        piled -= 1
        links[root, at.WAITS_FOR] = at.NONE
        lower = np.int64(links[root, at.LEFT])
        root = lower if links[root, at.RIGHT] == at.NONE else merge(lower, np.int64(links[root, at.RIGHT]), messages)
    if last > first:
        track[at.ROOT], track[at.PILED], facts[at.JOINED] = root, piled, last
        oldest, newest = int(times[joined[first]]), int(times[joined[last - 1]])
        facts[at.HIGH_WATER] = max(facts[at.HIGH_WATER], newest)
        notice(track, oldest)
        notice(track, newest)
    if piled and track[at.RATE] and has_between(track, messages):
        track[at.SATISFIED] = 1


@inlined
def _change_length(start: int, known: Known) -> None:
    facts = known.facts
    facts[at.LENGTH], facts[at.TIMEOUT_NS] = facts[at.NEXT_LENGTH], facts[at.NEXT_TIMEOUT]
    facts[at.NEXT_LENGTH] = 0
    for row in range(len(known.tracks) - 1):
        if known.tracks[row, at.TRACKED]:
            regrid(row, start, known)


@internal
def ahead(facts: Ints) -> int:
    """Return how far (ns) the mark may be ahead of the window's start, and a held message of its end."""
    return HORIZON * facts[at.LENGTH] + facts[at.DISORDER]


@internal
def _set_timeout(facts: Ints) -> None:
    """As `RateRule.awaiting`."""
    if facts[at.AUTO]:
        facts[at.TIMEOUT_NS] = min(facts[at.LENGTH] * 6 // 5 + facts[at.AWAITED], HORIZON * facts[at.LENGTH])


@internal
def open_window(start: int, steps: int, known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    """As `Assembly.open`."""
    facts = known.facts
    free = free_start(start, facts)
    steps *= free == start  # after a jump, such as a change of length, no steps are counted
    start = free
    if facts[at.NEXT_LENGTH]:
        _change_length(start, known)
        steps = 0
    length = facts[at.LENGTH]
    _set_timeout(facts)
    begin_start(start, length, facts)
    facts[at.WINDOW_START], facts[at.CUT_AT] = start, at.NEVER
    boundary = at.NEVER
    for row in range(len(known.tracks)):
        track = known.tracks[row]
        if track[at.TRACKED] and track[at.ROLE] == CUTS:
            place_track(track, facts, steps)
            _let_in(track, facts, messages, out)
            if track[at.PILED]:
                boundary = min(boundary, messages.times[int(track[at.ROOT])])
    if boundary <= start + length:
        facts[at.CUT_AT] = boundary
    for row in range(len(known.tracks)):
        track = known.tracks[row]
        if track[at.TRACKED] and track[at.ROLE] != CUTS:
            place_track(track, facts, steps)
    _admit_waiting(known, messages, out)


@inlined
def skip(steps: int, known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    """As `Assembly.skip`."""
    facts = known.facts
    is_cut = facts[at.CUT_AT] != at.NEVER
    start = facts[at.CUT_AT] if is_cut else facts[at.WINDOW_START] + steps * facts[at.LENGTH]
    open_window(start, at.ZERO if is_cut else steps, known, messages, out)


@internal
def cut(known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    """As `Assembly._cut`, when `_place_ahead` has found the boundary."""
    facts = known.facts
    for row in range(len(known.tracks)):
        if known.tracks[row, at.TRACKED]:
            place_track(known.tracks[row], facts, at.ZERO)
    stop, facts[at.JOINED] = facts[at.JOINED], facts[at.ACTIVE_FROM]
    for place in range(facts[at.JOINED], stop):
        message = out.joined[place]
        row, event_time = messages.rows[message], messages.times[message]
        track = known.tracks[row]
        if not in_era(event_time, facts[at.WINDOW_START], facts[at.LENGTH]):
            join(message, facts, out)
        elif event_time < track[at.OVER_FROM] or (not track[at.RATE] and event_time > facts[at.HELD_UNTIL]):
            join(message, facts, out)
            notice(track, event_time)
        else:
            push(row, message, known.tracks, messages)
    facts[at.UNMOVED] = 0
    _admit_waiting(known, messages, out)


@internal
def _admit_waiting(known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    """As `Assembly._admit_waiting`."""
    facts = known.facts
    start, length = facts[at.WINDOW_START], facts[at.LENGTH]
    facts[at.GATING] = facts[at.CONTRIBUTING] = facts[at.WAITING] = facts[at.ALL_PILED] = 0
    newest_waiting = at.BEFORE_ALL
    newest_gating = start + length
    for row in range(len(known.tracks)):
        track = known.tracks[row]
        if not track[at.TRACKED]:
            continue
        if track[at.PILED]:
            _let_in(track, facts, messages, out)
        if track[at.PILED]:
            facts[at.ALL_PILED] += track[at.PILED]
            newest_waiting = max(newest_waiting, track[at.PILE_NEWEST])
            if track[at.RATE]:
                newest_gating = max(newest_gating, track[at.PILE_NEWEST])
        if track[at.RATE]:
            facts[at.GATING] += 1
            facts[at.CONTRIBUTING] += track[at.PRESENT]
            facts[at.WAITING] += 1 - track[at.SATISFIED]
    facts[at.HELD_UNTIL] = newest_gating + ahead(facts)
    if not facts[at.GATING]:
        facts[at.WAITING] = at.NONE
        if facts[at.ALL_PILED]:
            facts[at.HIGH_WATER] = max(facts[at.HIGH_WATER], min(newest_waiting, start + ahead(facts)))


@inlined
def _review(known: Known) -> None:
    for row in range(len(known.tracks) - 1):
        track = known.tracks[row]
        if not track[at.TRACKED]:
            continue
        if track[at.PRESENT]:
            track[at.ABSENT_BATCHES] = 0
            regrid(row, known.facts[at.WINDOW_START], known)
            continue
        track[at.ABSENT_BATCHES] += 1
        if track[at.ABSENT_BATCHES] >= ABSENT:
            track[at.NEWEST] = at.NEVER
            track[at.KEPT] = track[at.NEXT_KEPT] = 0
            track[at.RATE] = track[at.STEADY] = 0
            if not track[at.PILED]:
                track[at.TRACKED] = track[at.ABSENT_BATCHES] = 0


@internal
def is_rivalled(facts: Ints) -> bool:
    """As `Assembly.is_rivalled`."""
    more = 2 * facts[at.STRAYS] > facts[at.JOINED] - facts[at.ACTIVE_FROM] + facts[at.ALL_PILED]
    return bool(facts[at.DOUBTFUL] == 1 and (facts[at.OUTNUMBERED] or more))


@internal
def _is_agreed(known: Known) -> bool:
    """As `Assembly._is_agreed`."""
    facts, riding = known.facts, len(known.tracks) - 1
    start, length = facts[at.WINDOW_START], facts[at.LENGTH]
    newest = known.tracks[riding, at.NEWEST]
    streams = int(start - HORIZON * length <= newest <= era_until(start, length))
    for row in range(riding):
        streams += known.tracks[row, at.TRACKED] and known.tracks[row, at.PRESENT]
    return bool(streams > 1 and not is_rivalled(facts))


@internal
def write_batch(start: int, end: int, reason: int, facts: Ints, out: KernelOutput) -> None:
    """Close a batch of all that has joined."""
    batch = out.batches[facts[at.BATCHES]]
    batch[at.BATCH_START], batch[at.BATCH_END], batch[at.CLOSED_AT] = start, end, facts[at.HIGH_WATER]
    batch[at.REASON], batch[at.UNTIL] = reason, facts[at.JOINED]
    facts[at.BATCHES] += 1
    facts[at.ACTIVE_FROM] = facts[at.JOINED]
    facts[at.STRAYS] = 0


@inlined
def _observe_in_order(known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    """Observe the messages of the window, whose order of arrival does not show the rates."""
    facts = known.facts
    for message in by_time(out.joined[facts[at.ACTIVE_FROM] : facts[at.JOINED]], messages):
        row, event_time = messages.rows[message], messages.times[message]
        if known.tracks[row, at.TRACKED] and in_era(event_time, facts[at.WINDOW_START], facts[at.LENGTH]):
            observe(row, event_time, HORIZON * facts[at.LENGTH], known)


@internal
def give_out(reason: int, known: Known, messages: WaitingMessages, out: KernelOutput) -> None:
    """As `Assembly.close`, up to the opening of the next window."""
    facts = known.facts
    start, length = facts[at.WINDOW_START], facts[at.LENGTH]
    if facts[at.DISORDER]:
        _observe_in_order(known, messages, out)
    if facts[at.DOUBTFUL] == 1 and start >= facts[at.TRUSTED_FROM] and _is_agreed(known):
        facts[at.DOUBTFUL] = 0
    facts[at.OUTNUMBERED] = 2 * facts[at.STRAYS] > facts[at.JOINED] - facts[at.ACTIVE_FROM]
    if facts[at.CUT_AT] == at.NEVER:
        write_batch(start, start + length, reason, facts, out)
    else:
        write_batch(start, facts[at.CUT_AT], at.STALL if reason == at.STALL else at.BOUNDARY, facts, out)
    facts[at.AWAITED] = max(facts[at.SLOWEST], facts[at.AWAITED] - facts[at.AWAITED] // FORGETS)
    facts[at.SLOWEST] = 0
    _review(known)


@internal
def has_timed_out(start: int, facts: Ints) -> bool:
    return bool(
        facts[at.TIMEOUT_NS] != at.NEVER and facts[at.HIGH_WATER] >= start + facts[at.TIMEOUT_NS] + facts[at.DISORDER]
    )


@internal
def close_complete(known: Known, messages: WaitingMessages, out: KernelOutput) -> bool:
    facts = known.facts
    before = facts[at.BATCHES]
    while True:
        steps = _gap(known, messages)
        if steps:
            reason = at.GAP
        elif not facts[at.WAITING]:
            reason = at.SLOTS
        elif has_timed_out(facts[at.WINDOW_START], facts):
            reason = at.TIMEOUT
        else:
            return facts[at.BATCHES] > before
        if facts[at.JOINED] > facts[at.ACTIVE_FROM]:
            give_out(reason, known, messages, out)
        skip(max(steps, 1), known, messages, out)
