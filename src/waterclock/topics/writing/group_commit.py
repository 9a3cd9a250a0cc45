"""Commits the appends of several threads to one topic in one transaction. Each append keeps its own entry and result.

An append joins the topic's queue. If the queue has no leader, the append becomes the leader. The leader takes the first
appends in the queue, including itself, commits them in one transaction, and hands the lead to the next one in the
queue. So a lone thread never waits, and while the disk is busy with one group, the next group gathers. Threads often
append again as soon as they get a result, so a leader briefly waits for as many appends as the last group had.

- A leader that fails with an exception hands the lead over. The appends that it had taken go back to the front of the
  queue. Whether they were committed is unknown, so the next transaction checks this before it writes them.
- An append that is interrupted (KeyboardInterrupt) while it is queued leaves the queue, and was not written. An append
  that the leader had already taken may have been written or not, like any append that is interrupted during its
  transaction.
- A forked process begins with empty queues, because the queued threads do not exist in it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from waterclock._support import moments
from waterclock.database.per_database_cache import PerDatabaseCache

MOST_APPENDS = 512
"""Maximum appends in one transaction."""

MOST_BYTES = 4 << 20
"""Maximum bytes of entries in one transaction; a single append may be larger."""

GATHERING = 0.5
"""Maximum wait of a leader for others, as a share of the duration of the previous transaction."""

LONGEST_GATHERING = 0.002
"""Maximum wait of a leader for others, seconds."""


class WaitingAppend:
    """A queued append, until it is finished: then it has an answer or an error."""

    __slots__ = ("_asleep", "answer", "error", "is_finished", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.answer: Any = None
        self.error: Exception | None = None
        self.is_finished = False
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def finish(self, answer: Any = None, error: Exception | None = None) -> None:
        """Record the answer or the error; the append's own thread gets it when its leader is done."""
        self.answer, self.error = answer, error
        self.is_finished = True

    def sleep(self, seconds: float = -1) -> None:
        """Wait until this append is finished or leads, or until the time is over."""
        moments.acquire(self._asleep, seconds)

    def wake(self) -> None:
        """End the waiting. Idempotent."""
        if self._asleep.locked():
            self._asleep.release()


_W = TypeVar("_W", bound=WaitingAppend)


class Line(Generic[_W]):
    """The queue of the appends to one topic in one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._standing: deque[_W] = deque()
        self._leader: _W | None = None
        self._expected = 1  # the appends of the previous group, and those queued when it was done
        self._gathering = False
        self._took = 0.0  # seconds that the previous group took

    def pass_through(self, own: _W, carry_out: Callable[[Sequence[_W]], object]) -> None:
        """Queue an append until it is finished; lead if no other thread does.

        Parameters
        ----------
        own
            The append of this thread.
        carry_out
            Finishes some appends in order, beginning with ``own``. Run by the leader.
        """
        group: list[_W] = []
        try:
            try:
                with self._lock:
                    self._standing.append(own)
                    if self._leader is None:
                        self._leader = own
                    elif self._gathering and len(self._standing) >= self._expected:
                        self._gathering = False
                        self._leader.wake()
                if self._leader is not own:
                    own.sleep()
                if not own.is_finished:
                    self._gather(own)
                    with self._lock:
                        group += self._next_group()
                    began = moments.monotonic()
                    carry_out(group)
                    self._took = moments.monotonic() - began
            finally:
                if not own.is_finished or self._leader is own:
                    self._leave(own, group)
        except BaseException:
            self._leave(own, group)  # again: the interruption may have come while it was leaving
            raise

    def _gather(self, own: _W) -> None:
        """Wait briefly for the threads of the previous group, which may append again."""
        with self._lock:
            self._gathering = len(self._standing) < min(self._expected, MOST_APPENDS)
        if self._gathering:
            own.sleep(min(self._took * GATHERING, LONGEST_GATHERING))

    def _next_group(self) -> list[_W]:
        self._gathering = False
        group = [self._standing.popleft()]
        size = group[0].size
        while self._standing and len(group) < MOST_APPENDS and size + self._standing[0].size <= MOST_BYTES:
            group.append(self._standing.popleft())
            size += group[-1].size
        return group

    def _leave(self, own: _W, group: Sequence[_W]) -> None:
        """Release this append's place in the queue, or its lead. Can be repeated after an interruption at any point."""
        with self._lock:
            if not group and own in self._standing:
                self._standing.remove(own)
            if self._leader is own:
                unfinished = [each for each in group if not each.is_finished and each is not own]
                self._standing.extendleft(each for each in reversed(unfinished) if each not in self._standing)
                following = self._standing[0] if self._standing else None
                if following is not None:
                    following.wake()
                self._expected = len(group) + len(self._standing)
                self._leader = following
        for each in group:
            if each.is_finished and each is not own:
                each.wake()


class _Lines:
    """The queues of one database. Empty queues are removed, so that many topics cost nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: WeakValueDictionary[int, Line[Any]] = WeakValueDictionary()

    def line(self, topic_id: int) -> Line[Any]:
        with self._lock:
            line = self._of.get(topic_id)
            if line is None:
                line = self._of[topic_id] = Line()
            return line


_lines = PerDatabaseCache[_Lines](lambda _: _Lines())


def line_of(backend: object, topic_id: int) -> Line[Any]:
    """Return the queue of a topic: shared by all appends through one backend, while one waits."""
    return _lines.of(backend).line(topic_id)
