"""What claims pass by for a while, because the database refused to let it be claimed: messages, or whole groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Generic, TypeVar

from waterclock._support import moments

PASSED_BY_FOR = 60_000_000_000
"""Refused messages and groups are tried again after so long, ns: what refused them, such as a user's trigger, may be
gone, and until then one of them costs the claims behind it nothing."""

MOST_PASSED_BY = 10_000
"""So many are passed by at once: the statement of a claim names all of them, and the database steps over them."""

_T = TypeVar("_T")


class PassedBy(Generic[_T]):
    """What this process passes by. Safe to share between threads.

    Attributes
    ----------
    some
        False if it certainly passes by nothing.
    at_once
        How many `due` returns at most: with many that are refused, the fewer are tried together.
    """

    def __init__(self) -> None:
        self._until: dict[_T, int] = {}
        self._all = frozenset[_T]()
        self.some = False
        self.at_once = 1

    def note(self, refused: Collection[_T], *, passed_by_for: int = PASSED_BY_FOR) -> None:
        """Pass by these from now on, for so many ns."""
        until = moments.monotonic_ns() + passed_by_for
        again = set(refused)  # these go to the end
        others = {one: ends for one, ends in self._until.items() if one not in again}
        both = others | dict.fromkeys(refused, until)
        self._keep(dict(list(both.items())[-MOST_PASSED_BY:]))

    def forget(self, some: Iterable[_T]) -> None:
        """Pass by these no more."""
        gone = set(some)
        self._keep({one: until for one, until in self._until.items() if one not in gone})

    def due(self, most: int) -> list[_T]:
        """Return some of what has been passed by for long enough."""
        if not self.some:
            return []
        now = moments.monotonic_ns()
        due = (one for one, until in self._until.items() if until <= now)
        return list(islice(due, min(most, self.at_once)))

    def all(self) -> frozenset[_T]:
        """Return what is passed by, also for long enough."""
        return self._all

    def now(self) -> frozenset[_T]:
        """Return what is passed by, and forget what has been for long enough."""
        if self.some:
            now = moments.monotonic_ns()
            left = {one: until for one, until in self._until.items() if until > now}
            if len(left) < len(self._until):
                self._keep(left)
        return self._all

    def _keep(self, until: dict[_T, int]) -> None:
        self._until, self._all, self.some = until, frozenset(until), bool(until)
