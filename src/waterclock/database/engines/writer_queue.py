"""Queues the writers of one SQLite file, within a process and between processes.

Without a queue, a writer that finds the file busy can only sleep and retry. It may starve for seconds while others
write without a pause. In the queue, writers take turns. The threads of a process queue in order of arrival. The first
thread in the queue waits for the lock of a file next to the database (``FILE-turn``). The kernel passes that lock on as
soon as it is free, and releases it if a process dies. This lock file is created when two processes meet for the first
time.

A turn is only cooperative: SQLite's own lock protects the data. A writer waits at most `LONGEST_WAIT` for its turn, and
then tries without it. So a process that is frozen during its turn blocks another process once, for at most
`LONGEST_WAIT`. After that, the writers of the other process do not wait for it again. If a writer fails for
`LONGEST_WAIT` during its turn, it ends the turn, so that others can write, and goes on trying.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import weakref
from collections import deque
from contextlib import suppress
from pathlib import Path

from waterclock._support import moments

try:
    import fcntl
except ImportError:  # a system without such locks: then threads take turns, and processes do not
    fcntl = None

LONGEST_WAIT = 2.0  # maximum seconds that a writer waits for its turn, or keeps it without success

_LOOK_EVERY = 0.01
"""Seconds between two attempts to open the file while it is missing, so that not every write makes one."""


class WriterQueue:
    """The turns of the writers of one database file."""

    def __init__(self, file: Path) -> None:
        self._path = file.with_name(f"{file.name}-turn")
        self._lock = threading.RLock()  # a signal handler may write while its thread holds it
        self._owner: threading.Lock | None = None  # the place of the writer whose turn it is
        self._threads: set[int] = set()  # those that have a turn, or wait for one
        self._waiting: deque[threading.Lock] = deque()
        self._file: int | None = None
        self._late: _Wait | None = None  # for a lock that took too long
        self._look_at = -math.inf
        _all.add(self)

    def begin_anew(self) -> None:
        """Forget the waiting threads: after a fork they do not exist in this process."""
        self._lock = threading.RLock()  # a signal handler may write while its thread holds it
        self._owner = self._late = None
        self._threads = set()
        self._waiting = deque()
        self._file, self._look_at = None, -math.inf  # already closed, with those of other turns

    def turn(self, seconds: float = LONGEST_WAIT, *, with_others: bool = False) -> Turn:
        """Wait for a turn, at most so long. The caller must close it.

        ``with_others`` says whether another process is known to write: then the file of turns is created if missing.
        """
        give_up_at = moments.monotonic() + min(seconds, LONGEST_WAIT)
        turn = Turn()
        turn.thread, turn.place = threading.get_ident(), threading.Lock()
        turn.place.acquire()
        try:
            if self._come_first(turn, give_up_at):
                self._take_file(turn, give_up_at, make=with_others)
        except BaseException:
            turn.close()
            raise
        turn.ends_at = moments.monotonic() + LONGEST_WAIT
        return turn

    def _come_first(self, turn: Turn, give_up_at: float) -> bool:
        me = turn.thread
        with self._lock:
            if self._owner is not None and me in self._threads:
                return False  # a signal handler interrupted this thread, which cannot go on meanwhile
            turn.queue = self  # first: if an exception follows, the turn leaves the queue
            if self._owner is None:
                self._owner = turn.place
                self._threads.add(me)
                return True
            self._threads.add(me)
            self._waiting.append(turn.place)
        moments.acquire(turn.place, max(give_up_at - moments.monotonic(), 0))
        with self._lock:
            if self._owner is turn.place:
                return True
        turn.close()
        return False

    def leave(self, place: threading.Lock, thread: int) -> None:
        """Leave the queue, or end the turn and wake the next. Call it again if a signal handler raised an exception."""
        with self._lock:
            if self._owner is place:
                self._owner = self._waiting[0] if self._waiting else None
                if self._owner is not None:
                    self._waiting.popleft()
            elif place in self._waiting:
                self._waiting.remove(place)
            if self._owner is not None and self._owner.locked():
                self._owner.release()  # does nothing to an owner that is awake
            self._threads.discard(thread)

    def _take_file(self, turn: Turn, give_up_at: float, *, make: bool) -> None:
        """Lock the file of turns, unless it is missing, or takes too long."""
        if fcntl is None:
            return
        if self._late is not None:
            if not self._late.is_over:  # another process is frozen in its turn: do not wait for it again
                return
            self._late = None
        now = moments.monotonic()
        if self._file is None and (make or now >= self._look_at):
            self._look_at = now + _LOOK_EVERY
            with suppress(OSError):  # it does not exist yet, or its folder is read-only
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | (os.O_CREAT if make else 0), 0o644)
                _opened.add(self._file)
        if self._file is None:
            return
        file = turn.file = self._file  # before it is locked: if an exception follows, the turn unlocks it
        try:
            _lock(file, wait=False)
        except BlockingIOError:
            if sys.is_finalizing():  # no thread can start
                turn.file = None
                return
            turn.file = self._file = None  # the waiting thread closes it, unless the lock comes in time
            wait = _Wait(file)
            if wait.until(give_up_at, turn):
                self._file = file
            else:
                self._late = wait
        except OSError:
            turn.file = None

    def close(self) -> None:
        """Close the file. The turns can be used again."""
        with self._lock:
            if self._owner is None and self._file is not None:
                _close(self._file)
                self._file, self._look_at = None, -math.inf


class Turn:
    """A writer's turn, also of a writer that waited too long and tries without one."""

    ends_at = math.inf  # by when it should be closed, in seconds of `moments.monotonic`
    file: int | None = None  # the locked file of turns
    queue: WriterQueue | None = None  # in which it waits or has come
    thread: int
    place: threading.Lock  # locked until it comes

    def close(self) -> None:
        """Pass the turn on. Idempotent."""
        if self.file is not None:
            _unlock(self.file)
        if self.queue is not None:
            self.queue.leave(self.place, self.thread)
        self.file = self.queue = None

    __del__ = close  # a signal handler may have raised an exception before the caller got it


def _close(file: int) -> None:
    _unlock(file)  # closing does not, while a forked process has a copy
    _opened.discard(file)
    os.close(file)


def _lock(file: int, *, wait: bool = True) -> None:
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def _unlock(file: int) -> None:
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_UN)


class _Wait:
    """Waits for a lock, in a thread of its own, because the kernel waits forever."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._lock = threading.RLock()  # a signal handler may write while its thread holds it
        self._has_it = threading.Event()
        self._is_given_up = False

    def _wait(self) -> None:
        with suppress(OSError):
            _lock(self._file)
        with self._lock:
            self._has_it.set()
            if self._is_given_up:
                _close(self._file)

    @property
    def is_over(self) -> bool:
        """Return whether it waits no longer."""
        return self._has_it.is_set()

    def until(self, give_up_at: float, turn: Turn) -> bool:
        """Wait; return False if it took too long; then the file is closed when the lock comes."""
        try:
            threading.Thread(target=self._wait, name="turn", daemon=True).start()
            if moments.wait(self._has_it, max(give_up_at - moments.monotonic(), 0)) or not self._give_up():
                turn.file = self._file
                return True
        except RuntimeError:  # the system has no more threads
            self._has_it.set()
            _close(self._file)
        except BaseException:
            if not self._give_up():
                _close(self._file)
            raise
        return False

    def _give_up(self) -> bool:
        with self._lock:
            self._is_given_up = not self._has_it.is_set()
            return self._is_given_up


_all: weakref.WeakSet[WriterQueue] = weakref.WeakSet()
_opened: set[int] = set()


def _begin_anew() -> None:
    # A lock belongs to all copies of a descriptor: a leftover copy here would make a turn outlive the parent process.
    for file in _opened:
        os.close(file)
    _opened.clear()
    for turns in list(_all):
        turns.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)
