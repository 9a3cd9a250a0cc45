"""Messages and groups that claims skip for a while, because the database refused to let them be claimed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Generic, TypeVar

from waterclock._support import moments

PASSED_BY_FOR = 60_000_000_000
"""How long refused messages and groups are skipped, ns: their cause, such as a user's trigger, may be gone by then.
Until then they cost later claims nothing.
"""

MOST_PASSED_BY = 10_000
"""How many are skipped at once: the claim's statement names all of them, and the database steps over them."""

_T = TypeVar("_T")


class PassedBy(Generic[_T]):
    """The messages or groups that this process skips. Thread-safe."""

    def __init__(self) -> None:
        self._until: dict[_T, int] = {}
        self._all = frozenset[_T]()
        self.some = False  # False if it certainly skips no messages
        self.at_once = 1  # maximum number that `due` returns: the more are refused, the fewer are tried together

    def note(self, refused: Collection[_T], *, passed_by_for: int = PASSED_BY_FOR) -> None:
        """Skip these from now on, for so many ns."""
        until = moments.monotonic_ns() + passed_by_for
        again = set(refused)  # moves these to the end
        others = {one: ends for one, ends in self._until.items() if one not in again}
        both = others | dict.fromkeys(refused, until)
        self._keep(dict(list(both.items())[-MOST_PASSED_BY:]))

    def forget(self, some: Iterable[_T]) -> None:
        """Stop skipping these."""
        gone = set(some)
        self._keep({one: until for one, until in self._until.items() if one not in gone})

    def due(self, most: int) -> list[_T]:
        """Return some that have been skipped for long enough."""
        if not self.some:
            return []
        now = moments.monotonic_ns()
        due = (one for one, until in self._until.items() if until <= now)
        return list(islice(due, min(most, self.at_once)))

    def all(self) -> frozenset[_T]:
        """Return all skipped ones, including those skipped for long enough."""
        return self._all

    def now(self) -> frozenset[_T]:
        """Return the skipped ones, and forget those skipped for long enough."""
        if self.some:
            now = moments.monotonic_ns()
            left = {one: until for one, until in self._until.items() if until > now}
            if len(left) < len(self._until):
                self._keep(left)
        return self._all

    def _keep(self, until: dict[_T, int]) -> None:
        self._until, self._all, self.some = until, frozenset(until), bool(until)
