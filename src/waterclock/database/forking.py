"""Forks: a process that is forked begins with connections of its own, and its parent goes on with new ones.

A connection that two processes speak over gives each the other's answers. SQLite's are worse: it knows in memory what
the process has locked, and a fork copies that memory but not the locks. A child then works without them, even on
connections that it opens itself, and its parent removes the log to which the child writes. So what is idle is closed
before a fork, and no child inherits it; what another thread has in use at that moment, the child leaves alone.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakValueDictionary


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


_preparing = threading.RLock()
_prepared: list[Forked] = []


def _before() -> None:
    _preparing.acquire()
    for one in _each():
        one.before_fork()
        _prepared.append(one)


def _after_in_parent() -> None:
    _go_on(in_child=False)
    _preparing.release()


def _after_in_child() -> None:
    global _preparing  # noqa: PLW0603  # the old one may be waited for by threads that are not in this process
    _go_on(in_child=True)
    _preparing = threading.RLock()


def _go_on(*, in_child: bool) -> None:
    prepared = list(_prepared)
    _prepared.clear()
    for one in prepared:
        one.after_fork(in_child=in_child)


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
