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
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

from waterclock._support import moments
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


class Calls(threading.local):
    """The calls of this process's threads on an SQLite file, for which a fork waits. Each is made with the lock held.

    A lock for each thread costs no call of a function, and holds up no other thread: only a fork takes it, too. A
    thread that is inside of a call may begin another one on the same file.

    Attributes
    ----------
    lock
        This thread's. In a process that was forked in the middle of another thread's call on the file, it raises an
        UnavailableError. For a database on a server it does nothing.
    """

    lock: AbstractContextManager[object]

    def __init__(self, file: str | None) -> None:
        # Once in each thread. A fork that is under way is waited for: it has locked what there was.
        with _preparing:
            if file is None:
                self.lock = nullcontext()
            elif file in _cut_short:
                self.lock = _CutShort(file)
            else:
                self.lock = lock = threading.RLock()
                _locks[lock] = file


class _CutShort(AbstractContextManager[None]):
    """Refuses calls on a file: a call of another thread, which is not in this process, will never end."""

    def __init__(self, file: str) -> None:
        self._file = file

    def __enter__(self) -> None:
        raise UnavailableError(
            f"cannot use {self._file} in this process: it was forked while another thread had been in a call on the"
            f" file for {LONGEST_PAUSE:g} s. Fork between calls, or start processes with multiprocessing's 'spawn'"
        )

    def __exit__(self, *_: object) -> None:
        """Nothing has begun."""


_locks: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""The locks of all threads, and their files. Process-wide, because SQLite is: what it knows about a file, and most of
its locks, all connections share."""

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
