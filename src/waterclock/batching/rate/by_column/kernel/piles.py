"""Stores the messages that wait for a later window, in a heap for each stream; see `pile`."""

from __future__ import annotations

import numpy as np

from waterclock.batching.rate.by_column.layout import (
    ALL_PILED,
    FAR_FROM,
    LAST_FROM,
    LEFT,
    NONE,
    PILE_LAST,
    PILE_NEWEST,
    PILED,
    RIGHT,
    ROOT,
    WAITS_FOR,
)

from .arrays import Ints, Known, Table, WaitingMessages, inlined, internal


@internal
def merge(one: int, other: int, messages: WaitingMessages) -> int:
    """Merge two skew heaps (Sleator and Tarjan 1986) of waiting messages."""
    if one == NONE:
        return other
    if other == NONE:
        return one
    times, links = messages.times, messages.links
    if times[other] < times[one]:
        one, other = other, one
    root = one
    while True:
        lower = links[one, RIGHT]
        links[one, RIGHT] = links[one, LEFT]
        if lower == NONE:
            links[one, LEFT] = other
            return root
        if times[other] < times[lower]:
            lower, other = other, lower
        links[one, LEFT] = lower
        one = lower


@inlined  # passing all these arrays to a function costs thirty times the work
def push_behind(row: int, message: int, tracks: Table, messages: WaitingMessages) -> bool:
    """Push a message behind the newest of its pile, as for nearly all; False if it belongs elsewhere.

    It is taken last, so it may be the newest one's child, and catching up stays linear.
    """
    event_time = messages.times[message]
    last = tracks[row, PILE_LAST]
    if not tracks[row, PILED] or event_time < tracks[row, PILE_NEWEST] or messages.links[last, LEFT] != NONE:
        return False
    messages.links[last, LEFT] = message
    messages.links[message, LEFT] = messages.links[message, RIGHT] = NONE
    messages.links[message, WAITS_FOR] = row
    tracks[row, PILE_NEWEST] = event_time
    tracks[row, PILE_LAST] = message
    tracks[row, PILED] += 1
    return True


@internal
def push(row: int, message: int, tracks: Table, messages: WaitingMessages) -> None:
    """As `Pile.push`."""
    if push_behind(row, message, tracks, messages):
        return
    track = tracks[row]
    event_time = messages.times[message]
    messages.links[message, LEFT] = messages.links[message, RIGHT] = NONE
    messages.links[message, WAITS_FOR] = row
    if not track[PILED] or event_time >= track[PILE_NEWEST]:
        track[PILE_NEWEST] = event_time
        track[PILE_LAST] = message
    track[ROOT] = merge(track[ROOT], message, messages)
    track[PILED] += 1


@internal
def take_oldest(track: Ints, messages: WaitingMessages) -> int:
    """Take the oldest message off a pile."""
    message = int(track[ROOT])
    track[ROOT] = merge(np.int64(messages.links[message, LEFT]), np.int64(messages.links[message, RIGHT]), messages)
    track[PILED] -= 1
    messages.links[message, WAITS_FOR] = NONE
    return message


@internal
def by_time(some: Ints, messages: WaitingMessages) -> Ints:
    """Order messages that do not wait by event time, in a heap: to compile a sort by key takes seconds."""
    root = NONE
    for message in some:
        messages.links[message, LEFT] = messages.links[message, RIGHT] = NONE
        root = merge(root, message, messages)
    ordered = np.empty_like(some)
    for k in range(len(some)):
        ordered[k] = root
        root = merge(np.int64(messages.links[root, LEFT]), np.int64(messages.links[root, RIGHT]), messages)
    return ordered


@internal
def has_between(track: Ints, messages: WaitingMessages) -> bool:
    """As `Pile.has_between` for the times that satisfy the gate; visits few messages before them."""
    times, links = messages.times, messages.links
    first, stop = track[LAST_FROM], track[FAR_FROM]
    if times[int(track[ROOT])] >= first:
        return bool(times[int(track[ROOT])] < stop)
    heap = np.empty(track[PILED] + 1, np.int64)
    heap[0] = track[ROOT]
    open_ = 1
    while open_:
        open_ -= 1
        message = heap[open_]
        for child in (links[message, LEFT], links[message, RIGHT]):
            if child == NONE or times[child] >= stop:
                continue
            if times[child] >= first:
                return True
            heap[open_] = child
            open_ += 1
    return False


@internal
def with_piled(times: Ints, known: Known, messages: WaitingMessages) -> Ints:
    """Collect the event times of all messages that wait behind others."""
    together = np.empty(len(times) + known.facts[ALL_PILED], np.int64)
    for k in range(len(times)):
        together[k] = times[k]
    count = len(times)
    for row in range(len(known.tracks)):
        if not known.tracks[row, PILED]:
            continue
        heap = np.empty(known.tracks[row, PILED] + 1, np.int64)
        heap[0] = known.tracks[row, ROOT]
        open_ = 1
        while open_:
            open_ -= 1
            message = heap[open_]
            together[count] = messages.times[message]
            count += 1
            for child in (messages.links[message, LEFT], messages.links[message, RIGHT]):
                if child != NONE:
                    heap[open_] = child
                    open_ += 1
    return together
