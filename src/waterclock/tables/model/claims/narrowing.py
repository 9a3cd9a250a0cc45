"""Decides when a refused claim may be narrowed down to the messages that the database refuses."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from waterclock._support import moments
from waterclock.errors import InvalidArgumentError, RefusedError

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
