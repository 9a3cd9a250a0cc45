"""Divides the free places of a claim among keys: they take turns, one message each. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

_K = TypeVar("_K", bound=Hashable)


@dataclass(slots=True)
class KeyTurns:
    """The progress of a process that looks for keys of new messages.

    Attributes
    ----------
    routed
        The key and the priority after which the next search begins; None: at the first one.
    """

    routed: tuple[str, int] | None = None


def deal(keys: Sequence[_K], most: Mapping[_K, int], room: int) -> dict[_K, int]:
    """Return how many messages each key gets.

    Parameters
    ----------
    keys
        Keys in the order of their turns.
    most
        The number of messages that each key may get.
    room
        The number of messages that all keys together may get.

    Returns
    -------
    dict
        The keys that had a turn, in the order of their next turn: the one that got its last message first is first.
    """
    ring = deque(key for key in keys if most[key] > 0)
    dealt: dict[_K, int] = {}
    while ring and room:
        fewest = min(most[key] - dealt.get(key, 0) for key in ring)
        rounds = min(room // len(ring), fewest) or 1
        for _ in range(min(room, len(ring))):
            key = ring.popleft()
            dealt[key] = dealt.pop(key, 0) + rounds
            room -= rounds
            if dealt[key] < most[key]:
                ring.append(key)
    return dealt
