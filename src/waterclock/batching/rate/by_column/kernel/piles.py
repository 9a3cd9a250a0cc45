"""Stores the messages that wait for a later window, in a heap for each stream; see `pile`."""

from __future__ import annotations

import numpy as np

from waterclock.batching.rate.by_column import layout as at

from .arrays import Ints, Known, Table, WaitingMessages, inlined, internal


@internal
def merge(one: int, other: int, messages: WaitingMessages) -> int:
    """Merge two skew heaps (Sleator and Tarjan 1986) of waiting messages."""
    if one == at.NONE:
        return other
    if other == at.NONE:
        return one
    times, links = messages.times, messages.links
    if times[other] < times[one]:
        one, other = other, one
    root = one
    while True:
        lower = links[one, at.RIGHT]
        links[one, at.RIGHT] = links[one, at.LEFT]
        if lower == at.NONE:
            links[one, at.LEFT] = other
            return root
        if times[other] < times[lower]:
            lower, other = other, lower
        links[one, at.LEFT] = lower
        one = lower


@inlined  # passing all these arrays to a function costs thirty times the work
def push_behind(row: int, message: int, tracks: Table, messages: WaitingMessages) -> bool:
    """Push a message behind the newest of its pile, as for nearly all; False if it belongs elsewhere.

    It is taken last, so it may be the newest one's child, and catching up stays linear.
    """
    event_time = messages.times[message]
    last = tracks[row, at.PILE_LAST]
    if (
        not tracks[row, at.PILED]
        or event_time < tracks[row, at.PILE_NEWEST]
        or messages.links[last, at.LEFT] != at.NONE
    ):
        return False
    messages.links[last, at.LEFT] = message
    messages.links[message, at.LEFT] = messages.links[message, at.RIGHT] = at.NONE
    messages.links[message, at.WAITS_FOR] = row
    tracks[row, at.PILE_NEWEST] = event_time
    tracks[row, at.PILE_LAST] = message
    tracks[row, at.PILED] += 1
    return True


@internal
def push(row: int, message: int, tracks: Table, messages: WaitingMessages) -> None:
    """As `Pile.push`."""
    if push_behind(row, message, tracks, messages):
        return
    track = tracks[row]
    event_time = messages.times[message]
    messages.links[message, at.LEFT] = messages.links[message, at.RIGHT] = at.NONE
    messages.links[message, at.WAITS_FOR] = row
    if not track[at.PILED] or event_time >= track[at.PILE_NEWEST]:
        track[at.PILE_NEWEST] = event_time
        track[at.PILE_LAST] = message
    track[at.ROOT] = merge(track[at.ROOT], message, messages)
    track[at.PILED] += 1


@internal
def take_oldest(track: Ints, messages: WaitingMessages) -> int:
    """Take the oldest message off a pile."""
    message = int(track[at.ROOT])
    track[at.ROOT] = merge(
        np.int64(messages.links[message, at.LEFT]), np.int64(messages.links[message, at.RIGHT]), messages
    )
    track[at.PILED] -= 1
    messages.links[message, at.WAITS_FOR] = at.NONE
    return message


@internal
def by_time(some: Ints, messages: WaitingMessages) -> Ints:
    """Order messages that do not wait by event time, in a heap: to compile a sort by key takes seconds."""
    root = at.NONE
    for message in some:
        messages.links[message, at.LEFT] = messages.links[message, at.RIGHT] = at.NONE
        root = merge(root, message, messages)
    ordered = np.empty_like(some)
    for k in range(len(some)):
        ordered[k] = root
        root = merge(np.int64(messages.links[root, at.LEFT]), np.int64(messages.links[root, at.RIGHT]), messages)
    return ordered


@internal
def has_between(track: Ints, messages: WaitingMessages) -> bool:
    """As `Pile.has_between` for the times that satisfy the gate; visits few messages before them."""
    times, links = messages.times, messages.links
    first, stop = track[at.LAST_FROM], track[at.FAR_FROM]
    if times[int(track[at.ROOT])] >= first:
        return bool(times[int(track[at.ROOT])] < stop)
    heap = np.empty(track[at.PILED] + 1, np.int64)
    heap[0] = track[at.ROOT]
    open_ = 1
    while open_:
        open_ -= 1
        message = heap[open_]
        for child in (links[message, at.LEFT], links[message, at.RIGHT]):
            if child == at.NONE or times[child] >= stop:
                continue
            if times[child] >= first:
                return True
            heap[open_] = child
            open_ += 1
    return False


@internal
def with_piled(times: Ints, known: Known, messages: WaitingMessages) -> Ints:
    """Collect the event times of all messages that wait behind others."""
    together = np.empty(len(times) + known.facts[at.ALL_PILED], np.int64)
    for k in range(len(times)):
        together[k] = times[k]
    count = len(times)
    for row in range(len(known.tracks)):
        if not known.tracks[row, at.PILED]:
            continue
        heap = np.empty(known.tracks[row, at.PILED] + 1, np.int64)
        heap[0] = known.tracks[row, at.ROOT]
        open_ = 1
        while open_:
            open_ -= 1
            message = heap[open_]
            together[count] = messages.times[message]
            count += 1
            for child in (messages.links[message, at.LEFT], messages.links[message, at.RIGHT]):
                if child != at.NONE:
                    heap[open_] = child
                    open_ += 1
    return together
