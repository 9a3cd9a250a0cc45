"""What a process keeps for each database that it has open, for all who use that database there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import _lru_cache_wrapper, lru_cache  # pyright: ignore[reportPrivateUsage]
from itertools import count
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

_T = TypeVar("_T")


class PerDatabaseCache(Generic[_T]):
    """One thing for each database. Safe to share between threads; a process that was forked begins with none.

    Parameters
    ----------
    make
        Makes it for a database that has none. It must not keep the database.

    Attributes
    ----------
    known
        What is kept by now, by database, for those who look very often.
    """

    def __init__(self, make: Callable[[Any], _T]) -> None:
        self._make = make
        self.begin_anew()
        _all.append(self)

    def begin_anew(self) -> None:
        """Forget everything: after a fork the old lock may be held by a thread that is not in this process."""
        self._making = threading.Lock()
        # Weak, because what is kept for a database must not keep it.
        self.known: WeakKeyDictionary[Any, _T] = WeakKeyDictionary()

    def of(self, database: object) -> _T:
        """Give what is kept for a database."""
        found = self.known.get(database)
        if found is None:
            with self._making:
                found = self.known.get(database)
                if found is None:
                    found = self.known[database] = self._make(database)
        return found

    def forget(self, database: object) -> _T | None:
        """Keep it no more; return it, None where there was none."""
        with self._making:
            return self.known.pop(database, None)


def forget(database: object) -> None:
    """Keep nothing for a database any more, as if this process had just opened it."""
    for one in _all:
        one.forget(database)


_all: list[PerDatabaseCache[Any]] = []


def built_once(*, maxsize: int) -> Callable[[Callable[..., _T]], _lru_cache_wrapper[_T]]:
    """Keep what a function builds, as `functools.lru_cache` does, but not for long after its database was closed.

    A statement for a table knows the table, and with it the database: kept for ever it would keep both.
    """

    def keep(build: Callable[..., _T]) -> _lru_cache_wrapper[_T]:
        kept = lru_cache(maxsize=maxsize)(build)
        _built.append(kept)
        return kept

    return keep


def note_closed() -> None:
    """Note that a database was closed; where several were, forget what was built for them."""
    if next(_closed) % CLOSED_AT_MOST == 0:
        forget_built()


def forget_built() -> None:
    """Keep nothing that was built. What is for databases that are open is built again where it is needed."""
    for one in _built:
        one.cache_clear()


CLOSED_AT_MOST = 16
"""Databases that are closed and of which statements are still kept, a megabyte each: to build those anew that are in
use takes some 50 ms, which not each closing is to cost the others."""

_built: list[_lru_cache_wrapper[Any]] = []
_closed = count(1)


def _begin_anew() -> None:
    for one in _all:
        one.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)
