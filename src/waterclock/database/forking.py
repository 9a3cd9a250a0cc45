"""Forks: a process that is forked begins with connections of its own, and its parent goes on with new ones.

A connection that two processes speak over gives each the other's answers. SQLite's are worse: it knows in memory what
the process has locked, and a fork copies that memory but not the locks. A child then works without them, even on
connections that it opens itself, and its parent removes the log to which the child writes. A child also inherits locks
of SQLite's own that another thread held in the middle of a call, and no thread is left to release them. So a fork waits
for the calls on SQLite that other threads have under way, closes what is idle, and no child inherits it. What is still
in use on a server, the child leaves alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol
from weakref import WeakValueDictionary

from waterclock import moments
from waterclock.errors import UnavailableError

LONGEST_PAUSE = 5.0
"""Seconds that a fork waits for calls of other threads: many times as long as a call takes on a slow disk, and bounded
because such a call may wait for the thread that forks."""


class Forked(Protocol):
    """What has connections open."""

    def before_fork(self) -> None:
        """Close what is idle."""
        ...

    def after_fork(self, *, in_child: bool) -> None:
        """Go on, in the parent or in the child; the child closes nothing that its parent still has in use."""
        ...


_all: WeakValueDictionary[int, Forked] = WeakValueDictionary()


def prepare_for_forks(one: Forked) -> None:
    """Have this one prepared for each fork of the process, for as long as it lives."""
    _all[id(one)] = one


def _each() -> list[Forked]:
    # At once, since other threads may add some.
    return [one for reference in _all.valuerefs() if (one := reference()) is not None]


class Calls:
    """The calls on SQLite files that the threads of this process have under way, for which a fork waits.

    Process-wide, because SQLite is: what it knows about a file, and most of its locks, all connections share.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way: dict[tuple[int, str], int] = {}  # by thread and file; a call may be inside of another one
        self._forking: int | None = None  # thread
        self._cut_short: frozenset[str] = frozenset()

    @contextmanager
    def on(self, file: str) -> Generator[None]:
        """Let no fork cut the block short; wait for one that is under way.

        Raises
        ------
        UnavailableError
            If this process was forked in the middle of another thread's call on the file.
        """
        if file in self._cut_short:
            raise UnavailableError(
                f"cannot use {file} in this process: it was forked while another thread had been in a call on the file"
                f" for {LONGEST_PAUSE:g} s. Fork between calls, or start processes with multiprocessing's 'spawn'"
            )
        thread = threading.get_ident()
        key = (thread, file)
        with self._changed:
            while self._forking not in (None, thread) and not self._is_inside(thread):
                moments.wait(self._changed)
            self._under_way[key] = self._under_way.get(key, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way[key] -= 1
                if not self._under_way[key]:
                    del self._under_way[key]
                if self._forking is not None:
                    self._changed.notify_all()

    def pause(self) -> None:
        """Let no other thread begin a call, and wait for those that are under way, at most `LONGEST_PAUSE` seconds."""
        give_up_at = moments.monotonic() + LONGEST_PAUSE
        with self._changed:
            self._forking = threading.get_ident()
            while self._of_others() and (left := give_up_at - moments.monotonic()) > 0:
                moments.wait(self._changed, left)

    def go_on(self) -> None:
        """Let calls begin again."""
        with self._changed:
            self._forking = None
            self._changed.notify_all()

    def begin_anew(self) -> None:
        """Begin in a child, which has only the thread that forked."""
        thread = threading.get_ident()
        self._cut_short |= self._of_others()
        self._under_way = {key: count for key, count in self._under_way.items() if key[0] == thread}
        self._changed = threading.Condition()  # a thread that is not in this process may hold the old one
        self._forking = None

    def _is_inside(self, thread: int) -> bool:
        return any(inside == thread for inside, _ in self._under_way)

    def _of_others(self) -> frozenset[str]:
        return frozenset(file for thread, file in self._under_way if thread != self._forking)


calls = Calls()
_preparing = threading.RLock()
_prepared: list[Forked] = []


def _before() -> None:
    _preparing.acquire()
    calls.pause()
    for one in _each():
        one.before_fork()
        _prepared.append(one)


def _after_in_parent() -> None:
    _go_on(in_child=False)
    calls.go_on()
    _preparing.release()


def _after_in_child() -> None:
    global _preparing  # noqa: PLW0603  # the old one may be waited for by threads that are not in this process
    calls.begin_anew()
    _go_on(in_child=True)
    _preparing = threading.RLock()


def _go_on(*, in_child: bool) -> None:
    prepared = list(_prepared)
    _prepared.clear()
    for one in prepared:
        one.after_fork(in_child=in_child)


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
