"""Records messages and groups that the database refuses to claim, so that claims skip them for a while."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager
from itertools import islice
from typing import Generic, TypeVar

from waterclock._support import moments
from waterclock.errors import InvalidArgumentError, RefusedError

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


REST = 10
"""After a narrowing that found nothing, none begins for this many times its duration: while a database refuses all
claims, narrowing takes at most a tenth of the time. One takes up to 48 transactions.
"""

LONGEST_REST = 30_000_000_000  # the maximum pause, ns: a claimable message waits no longer behind refused ones


class Narrowing:
    """When this process may narrow down refused claims of a message table. Thread-safe."""

    def __init__(self) -> None:
        self._rests_until: int | None = None

    def may_begin(self) -> bool:
        """Return whether the last narrowing led to a claim, or was long enough ago."""
        return self._rests_until is None or moments.monotonic_ns() >= self._rests_until

    def rest_no_more(self) -> None:
        """Allow the next narrowing to start at once."""
        self._rests_until = None

    @contextmanager
    def timed(self) -> Generator[None]:
        """Pause after a narrowing that fails."""
        began = moments.monotonic_ns()
        try:
            yield
        except (RefusedError, InvalidArgumentError):
            now = moments.monotonic_ns()
            self._rests_until = now + min(REST * (now - began), LONGEST_REST)
            raise
        self.rest_no_more()
