"""Makes forks safe: the child starts with its own connections, and the parent opens new ones.

If two processes used one connection, each would get answers meant for the other. SQLite is worse: it records in memory
which locks the process holds, and a fork copies that memory but not the locks. A child then works without the locks,
even on connections that it opens itself, and its parent may remove the log to which the child writes. A child also
inherits SQLite's internal locks, and has no thread to release the locks that another thread held during a call. So a
fork waits until other threads' calls on SQLite end, and closes idle connections, so that no child inherits them. A
child leaves connections to servers alone if the parent still uses them.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

from waterclock._support import moments
from waterclock.errors import UnavailableError

LONGEST_PAUSE = 5.0
"""Seconds that a fork waits for calls of other threads: many times as long as a call takes on a slow disk, but limited
because such a call may wait for the forking thread.
"""


class Forked(Protocol):
    """An object with open connections."""

    def before_fork(self) -> None:
        """Close idle connections."""
        ...

    def after_fork(self, *, in_child: bool) -> None:
        """Continue, in the parent or in the child; the child closes nothing that its parent still uses."""
        ...


_all: WeakValueDictionary[int, Forked] = WeakValueDictionary()


def prepare_for_forks(one: Forked) -> None:
    """Prepare an object for each fork of the process while it is alive. Call it before the object connects."""
    with _preparing:  # a running fork has already prepared the others
        _all[id(one)] = one


def _each() -> list[Forked]:
    # A copy, because other threads may add some.
    return [one for reference in _all.valuerefs() if (one := reference()) is not None]


class Calls(threading.local):
    """The calls of this process's threads on an SQLite file, for which a fork waits. Each call holds a lock.

    A lock per thread costs no function call, and blocks no other thread: only a fork takes it, too. A thread inside a
    call may begin another one on the same file.
    """

    lock: AbstractContextManager[object]
    """This thread's lock. In a process that was forked during another thread's call on the file, it raises an
    UnavailableError. For a database on a server it does nothing.
    """

    def __init__(self, file: str | None) -> None:
        # Once per thread. Wait for a running fork, which has locked all existing locks.
        with _preparing:
            if file is None:
                self.lock = nullcontext()
            elif file in _cut_short:
                self.lock = _CutShort(file)
            else:
                self.lock = lock = threading.RLock()
                _locks[lock] = file


class _CutShort(AbstractContextManager[None]):
    """Refuses calls on a file: another thread's call, which does not exist in this process, will never end."""

    def __init__(self, file: str) -> None:
        self._file = file

    def __enter__(self) -> None:
        raise UnavailableError(
            f"cannot use {self._file} in this process: when the process was forked, another thread had been using"
            f" the file for {LONGEST_PAUSE:g} s. Fork between calls, or start processes with multiprocessing's"
            " 'spawn'"
        )

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


_locks: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""The locks of all threads, and their files. Process-wide, because SQLite shares its state of a file, and most of its
locks, between all connections.
"""

_cut_short: set[str] = set()
_held: list[Any] = []
_preparing = threading.RLock()
_prepared: list[Forked] = []


def _before() -> None:
    _preparing.acquire()
    give_up_at = moments.monotonic() + LONGEST_PAUSE
    _held.extend(lock for lock in list(_locks) if moments.acquire(lock, max(0, give_up_at - moments.monotonic())))
    for one in _each():
        one.before_fork()
        _prepared.append(one)


def _after_in_parent() -> None:
    _go_on(in_child=False)
    _let_go()
    _preparing.release()


def _after_in_child() -> None:
    global _preparing  # noqa: PLW0603  # the old one may be waited for by threads that are not in this process
    for lock in set(_locks).difference(_held):
        _cut_short.add(_locks.pop(lock))
    _let_go()
    _preparing = threading.RLock()
    _go_on(in_child=True)


def _let_go() -> None:
    while _held:
        _held.pop().release()


def _go_on(*, in_child: bool) -> None:
    prepared = list(_prepared)
    _prepared.clear()
    for one in prepared:
        one.after_fork(in_child=in_child)


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
