"""Decides when to check groups against their messages, and when to look for ended rows and expired messages."""

from __future__ import annotations

import threading
from typing import Any

from waterclock._support import moments
from waterclock.time import MIN_NS

SWEEP_SHARE = 50
"""The searches of checks take at most one part in this many of the time of all processes: with a million groups a round
takes minutes instead of a ``poll_interval``.
"""

_OWN_SHARE = 10  # with their round trips, checks take at most one part in this many of a process's time

WHOLE_EVERY = 600_000_000_000
"""How often a process searches for expired messages from the first one on, and on a server for groups without rows and
for messages before the heads of their groups, ns. These read the entries of all finished messages, on PostgreSQL those
that an old snapshot shows."""

ENDED_FOR = 300_000_000_000
"""How long the row of a group or key that has ended stays on PostgreSQL, ns. One that begins again after that is looked
up among all its earlier versions that an old snapshot shows; the rows of so many are stored meanwhile.
"""

_DELETE_EVERY = 10_000_000_000  # after how long a process deletes such rows again, ns

_FIRST_AFTER = 1_000_000_000  # after how long a process checks for the first time, ns, even if it is always busy

_FIRST_TAKES = 50_000_000  # how long an idle process that has just begun checks groups, ns: its call waits for it

LARGEST_CHUNK = 2000
"""How many groups one check reads at most."""

_CHUNK_TAKES = 20_000_000  # how long one check of some groups should take, ns: a claim waits for it

_VISIT_TAKES = 250_000_000  # how long chunks that follow each other may take with their round trips, ns

_FIRST_CHUNK = 32  # groups in the first check
_GROWS_BY = 4


class Sweeps:
    """The rounds through a table's groups, chunk by chunk. Thread-safe."""

    def __init__(self) -> None:
        self.due_at = moments.monotonic_ns() + _FIRST_AFTER  # when the next chunk is due, in ns of the monotonic clock
        self.is_whole = True  # as in `begin_round`
        self.has_left = False  # whether this round has left wrong groups, because they were locked
        self.chunk = _FIRST_CHUNK  # how many groups to check at once
        self._first_left = _FIRST_TAKES  # how long the first checks of an idle process may still take, ns
        self._spent = 0  # how long the last chunks took, one after the other, ns
        self._searched = 0  # how long of that is not for round trips
        self._began_at = 0
        self._after: Any = None
        self._lock = threading.Lock()

    def is_due(self, *, idle: bool) -> bool:
        """Return whether to check the next chunk.

        ``idle`` says whether the process has nothing else to do. Its first checks are then due at once, because it may
        end soon.
        """
        return (idle and self._first_left > 0) or moments.monotonic_ns() >= self.due_at

    def begin(self) -> bool:
        """Begin a chunk; return False if another thread is checking one."""
        if not self._lock.acquire(blocking=False):
            return False
        if self._after is None:
            self._began_at = moments.monotonic_ns()
        return True

    def begin_round(self, *, whole: bool) -> None:
        """Begin at the first group; ``whole`` says whether to make the searches due every `WHOLE_EVERY`, too."""
        self.is_whole, self.has_left = whole, False
        if whole:
            self.chunk = 1  # an old snapshot may show very many entries of each group

    @property
    def after(self) -> Any:
        """Return the place after which the chunk begins; None: the first group."""
        return self._after

    @property
    def goes_on(self) -> bool:
        """Return whether to check the next chunk at once."""
        return self._spent > 0 or self._first_left > 0

    def end(self, last: Any, took: int, searched: int, processes: int, every: int) -> None:
        """End a chunk.

        ``last`` is the place that it reached; None after the last group. ``took`` is how long it took, and ``searched``
        how long without the round trips, ns. ``processes`` is how many processes do the same. A new round begins after
        ``every``, ns.
        """
        self._first_left = self._first_left - took if last is not None else 0
        self.chunk = _next_chunk(self.chunk, searched)
        self._after = last
        self._spent += max(took, 1)
        self._searched += searched
        if last is None or self._searched >= _CHUNK_TAKES or self._spent >= _VISIT_TAKES:
            pause = max(self._searched * SWEEP_SHARE * max(processes, 1), self._spent * _OWN_SHARE)
            spared = moments.monotonic_ns() + pause
            self.due_at = spared if last is not None else max(spared, self._began_at + every)
            self._spent = self._searched = 0
        self._lock.release()

    def give_up(self, every: int) -> None:
        """End a chunk that failed: it is retried in the next round."""
        self._first_left = self._spent = self._searched = 0
        self.due_at = moments.monotonic_ns() + every
        self._lock.release()


def _next_chunk(chunk: int, searched: int) -> int:
    """Return how many groups to check after a check of ``chunk`` groups that took ``searched`` ns."""
    fitting = chunk * _CHUNK_TAKES // max(searched, 1)
    return max(1, min(fitting, chunk * _GROWS_BY, LARGEST_CHUNK))


class ExpiredPlace:
    """The time from which a subscription searches for expired messages.

    While a transaction holds an old snapshot, an index keeps the entries of messages that were acked before they
    expired. So a search begins at the end of the last one, and only every `WHOLE_EVERY` at the first message: that one
    finds messages that were put when their time was over, or that a consumer had. Claims find these, too.
    """

    def __init__(self) -> None:
        self._whole_at = 0
        self._start = MIN_NS

    def begin(self) -> int:
        """Return when the messages to look for expired at the earliest, ns."""
        return self._start if moments.monotonic_ns() < self._whole_at else MIN_NS

    def end(self, start: int, upto: int) -> None:
        """Note that a search from ``start`` on left no message that expired until ``upto``, ns."""
        if start == MIN_NS:
            self._whole_at = moments.monotonic_ns() + WHOLE_EVERY
        self._start = upto


class EndedRows:
    """When to delete the rows of groups or keys that ended `ENDED_FOR` ago.

    An index keeps the entries of deleted rows for as long as a transaction holds an old snapshot. So each search begins
    at the end of the last one, which the database stores for new processes. If some rows were locked, it begins at the
    first of them.
    """

    def __init__(self) -> None:
        self._due_at = 0

    @property
    def is_due(self) -> bool:
        """Return whether the last search is old enough for the next one."""
        return moments.monotonic_ns() >= self._due_at

    def begin(self, now: int, start: int) -> tuple[int, int]:
        """Begin a search; return between which times those ended whose rows to delete, ns.

        ``start`` is when the first one ended that the last search left.
        """
        self._due_at = moments.monotonic_ns() + _DELETE_EVERY
        upto = now - ENDED_FOR
        return start if start <= upto else MIN_NS, upto  # after ``upto`` if the database's clock was set back

    def end(self, *, more: bool) -> None:
        """Note whether the next search is due at once."""
        if more:
            self._due_at = 0
