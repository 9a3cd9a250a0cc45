"""When a table's groups are looked through for what contradicts their messages, and how far that look has come."""

from __future__ import annotations

import threading

from waterclock._support import moments

SWEEP_SHARE = 50
"""Looking through groups takes at most one part in so many of the time, of all processes together: with a million
groups a round takes minutes instead of a ``poll_interval``."""


_FIRST_AFTER = 1_000_000_000
"""After this long a process looks for the first time, ns, also where it always has something to do."""


class Sweeps:
    """The rounds through a table's groups, a piece after the other. Safe to share between threads.

    Attributes
    ----------
    due_at
        When the next piece is due, in ns of the monotonic clock.
    """

    def __init__(self) -> None:
        self.due_at = moments.monotonic_ns() + _FIRST_AFTER
        self._has_looked = False
        self._began_at = 0
        self._after: str | None = None
        self._lock = threading.Lock()

    def is_due(self, *, idle: bool) -> bool:
        """Say whether to look at the next piece.

        Parameters
        ----------
        idle
            Whether there is nothing else to do: a process that has not looked yet does so then at once, since it may
            end soon.
        """
        return (idle and not self._has_looked) or moments.monotonic_ns() >= self.due_at

    def begin(self) -> bool:
        """Begin a piece; False where another thread is at it."""
        if not self._lock.acquire(blocking=False):
            return False
        if self._after is None:
            self._began_at = moments.monotonic_ns()
        return True

    @property
    def after(self) -> str | None:
        """The group after which the piece begins; None: the first one."""
        return self._after

    def end(self, last: str | None, took: int, processes: int, every: int) -> None:
        """End a piece.

        Parameters
        ----------
        last
            The last group of it; None where there are no more.
        took
            How long it took, ns.
        processes
            How many processes do the same.
        every
            After which time (ns) a round begins anew.
        """
        self._has_looked = True
        self._after = last
        spared = moments.monotonic_ns() + took * SWEEP_SHARE * max(processes, 1)
        self.due_at = spared if last is not None else max(spared, self._began_at + every)
        self._lock.release()

    def give_up(self, every: int) -> None:
        """End a piece that failed: it is tried again with the next round."""
        self._has_looked = True
        self.due_at = moments.monotonic_ns() + every
        self._lock.release()
