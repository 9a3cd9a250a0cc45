"""What claims pass by for a while, because the database refused to let it be claimed: messages, or whole groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from waterclock import moments

PASSED_BY_FOR = 60_000_000_000
"""Refused messages and groups are tried again after so long, ns: what refused them, such as a user's trigger, may be
gone, and until then one of them costs the claims behind it nothing."""

MOST_PASSED_BY = 100
"""So many are passed by at once, the newest ones: a statement names all of them."""

_T = TypeVar("_T")


class PassedBy(Generic[_T]):
    """What this process passes by. Safe to share between threads.

    Attributes
    ----------
    some
        False if it certainly passes by nothing.
    """

    def __init__(self) -> None:
        self._until: dict[_T, int] = {}
        self._now = frozenset[_T]()
        self.some = False

    def note(self, refused: Iterable[_T]) -> None:
        """Pass by these from now on."""
        until = moments.monotonic_ns() + PASSED_BY_FOR
        both = {**self._until, **dict.fromkeys(refused, until)}
        self._until = dict(list(both.items())[-MOST_PASSED_BY:])
        self._now = frozenset(self._until)
        self.some = True

    def now(self) -> frozenset[_T]:
        """Return what is to be passed by."""
        if not self._until:
            return self._now
        now = moments.monotonic_ns()
        left = {one: until for one, until in self._until.items() if until > now}
        if len(left) < len(self._until):
            self._until, self._now, self.some = left, frozenset(left), bool(left)
        return self._now
