"""Group commit: appends of several threads to one topic share transactions; each keeps its own entry and answer.

An append joins the topic's queue. If no append leads, it becomes the leader: it takes the first appends in the queue,
including itself, commits them in one transaction, and hands the lead to the next one in the queue. So a lone thread
never waits, and while the disk is busy with one group, the next one gathers. Threads often append again as soon as they
get a result, so a leader briefly waits for as many appends as the last group had.

- A leader that dies by an exception hands the lead over. Those it had taken go back to the front of the line: whether
  they arrived is not known then, and their next transaction looks for them before it writes them.
- An append that is interrupted (KeyboardInterrupt) while it stands in line leaves it, and was not written. One that was
  taken already may be written or not, as any append that is interrupted while its transaction runs.
- A process that is forked begins with no line at all: the threads that stood in line are not in it.
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
"""Appends that one transaction takes at most."""

MOST_BYTES = 4 << 20
"""Bytes of entries that one transaction takes at most; a single append may be larger."""

GATHERING = 0.5
"""How long a leader waits for others at most, as a share of the duration of the transaction before."""

LONGEST_GATHERING = 0.002
"""How long it waits at most, seconds."""


class Waiting:
    """One append that stands in line, until it is finished: then it has an answer, or the error that it ends with."""

    __slots__ = ("_asleep", "answer", "error", "is_finished", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.answer: Any = None
        self.error: Exception | None = None
        self.is_finished = False
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def finish(self, answer: Any = None, error: Exception | None = None) -> None:
        """Return the answer or the error; the append's own thread learns of it when its leader is done."""
        self.answer, self.error = answer, error
        self.is_finished = True

    def sleep(self, seconds: float = -1) -> None:
        """Wait until this append is finished, or leads; or so long."""
        moments.acquire(self._asleep, seconds)

    def wake(self) -> None:
        """End the waiting; once is enough, and more do no harm."""
        if self._asleep.locked():
            self._asleep.release()


_W = TypeVar("_W", bound=Waiting)


class Line(Generic[_W]):
    """Those who append to one topic, in one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._standing: deque[_W] = deque()
        self._leader: _W | None = None
        self._expected = 1  # those in the group before, and those who stood in line when it was done
        self._gathering = False
        self._took = 0.0  # seconds, the group before

    def pass_through(self, own: _W, carry_out: Callable[[Sequence[_W]], object]) -> None:
        """Stand in line until one's own append is finished; lead if no other thread does.

        Parameters
        ----------
        own
            The append of this thread.
        carry_out
            Finishes some appends, of which ``own`` is the first, in their order. Run by the leader.
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
        """Wait a moment for those who were in the group before, as they may be on their way again."""
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
        """Hand over one's place in line, or the lead. Can be repeated if it was interrupted anywhere."""
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
    """The lines of one database. An empty one is forgotten, so that many topics cost nothing."""

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
    """Return the queue of a topic: shared by all appends through one backend, as long as one waits."""
    return _lines.of(backend).line(topic_id)
