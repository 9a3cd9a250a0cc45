"""Divides the free places of a claim among keys. They take turns, each with as many messages as its weight."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)


Behind = tuple[int, str, int]
"""A place in the index of unrouted messages: `TableDialect.block_of`, key and level."""


@dataclass(slots=True)
class KeyTurns:
    """The progress of a process that looks for keys of new messages."""

    routed: Behind | None = None  # the place after which the next search begins; None: at the first one
    ahead: Behind | None = None  # the place after which it looks for keys without a turn, if that is behind
    newest: dict[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])
    """When it found keys and levels among the newest messages, monotonic."""
    looked_ahead_at: float = float("-inf")  # when it did so last, monotonic
    has_other_tiers: bool = False  # whether rows may wait in tiers that claims do not reach
    looked_at_tiers_at: float = float("-inf")  # when it looked for such rows last, monotonic

    def looks_ahead(self, now: float, every: float) -> bool:
        """Return whether the last look ahead began so many seconds ago, and begin another one then."""
        if now - self.looked_ahead_at < every:
            return False
        self.looked_ahead_at = now
        return True

    def looks_at_tiers(self, now: float, every: float) -> bool:
        """Return whether to look for rows in other tiers: after so many seconds, or if the last look left some."""
        if not self.has_other_tiers and now - self.looked_at_tiers_at < every:
            return False
        self.looked_at_tiers_at = now
        return True


@dataclass(slots=True)
class Dealt(Generic[_K]):
    """The places that keys get."""

    visits: list[tuple[_K, int]] = field(default_factory=list[tuple[_K, int]])
    """The keys in turn, with the number of places of each turn."""
    shares: dict[_K, int] = field(default_factory=dict[_K, int])
    """How many places each key gets, in the order of the keys' next turns."""
    unfinished: dict[_K, int] = field(default_factory=dict[_K, int])
    """The key whose turn goes on in the next claim, because the places were used up, with the number of places that it
    had in that turn.
    """

    def add(self, other: Dealt[_K]) -> None:
        """Add the places of other keys, which come after these."""
        self.visits += other.visits
        self.shares |= other.shares
        self.unfinished |= other.unfinished


def deal(
    keys: Sequence[_K], most: Mapping[_K, int], room: int, weights: Mapping[_K, int], begun: Mapping[_K, int]
) -> Dealt[_K]:
    """Divide ``room`` places among keys: deficit round robin (Shreedhar and Varghese, 1995), of single messages.

    ``keys`` are in the order of their turns. ``most`` is the number of places that each key may get. ``weights`` is the
    number of places of one turn, at least 1. ``begun`` is how many places a key has already had in its turn.
    """
    ring = deque(key for key in keys if most[key] > 0)
    dealt: Dealt[_K] = Dealt()
    shares, left = dealt.shares, {key: max(1, weights[key] - begun[key]) for key in ring}
    while ring and room:
        key = ring.popleft()
        had = shares.pop(key, 0)
        count = min(left[key], most[key] - had, room)
        dealt.visits.append((key, count))
        shares[key] = had + count
        room -= count
        if count < left[key] and not room:
            dealt.unfinished[key] = weights[key] - left[key] + count
        elif shares[key] < most[key]:
            left[key] = weights[key]
            ring.append(key)
    return dealt
