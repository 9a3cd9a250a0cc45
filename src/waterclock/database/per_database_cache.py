"""A cache per open database of a process, shared by all users of that database."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import _lru_cache_wrapper, lru_cache  # pyright: ignore[reportPrivateUsage]  # the type of a cached function
from itertools import count
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

_T = TypeVar("_T")


class PerDatabaseCache(Generic[_T]):
    """A cache with one object per database. Thread-safe; empty in a forked process.

    ``make`` creates the object for a database. It must not reference the database. ``known`` has the current objects by
    database, for very frequent lookups.
    """

    def __init__(self, make: Callable[[Any], _T]) -> None:
        self._make = make
        self.begin_anew()
        _all.append(self)

    def begin_anew(self) -> None:
        """Forget everything: after a fork the old lock may be held by a thread that does not exist."""
        self._making = threading.Lock()
        # Weak references, because the cached object must not keep the database alive.
        self.known: WeakKeyDictionary[Any, _T] = WeakKeyDictionary()

    def of(self, database: object) -> _T:
        found = self.known.get(database)
        if found is None:
            with self._making:
                found = self.known.get(database)
                if found is None:
                    found = self.known[database] = self._make(database)
        return found

    def forget(self, database: object) -> _T | None:
        """Remove and return the object of a database, None if there was none."""
        with self._making:
            return self.known.pop(database, None)


def forget(database: object) -> None:
    """Remove all cached objects of a database, as if this process had just opened it."""
    for one in _all:
        one.forget(database)


_all: list[PerDatabaseCache[Any]] = []


def built_once(*, maxsize: int) -> Callable[[Callable[..., _T]], _lru_cache_wrapper[_T]]:
    """Cache a function's results as `functools.lru_cache` does, but drop them soon after the database is closed.

    A statement references its table, and so the database: cached forever it would keep both alive.
    """

    def keep(build: Callable[..., _T]) -> _lru_cache_wrapper[_T]:
        kept = lru_cache(maxsize=maxsize)(build)
        _built.append(kept)
        return kept

    return keep


def note_closed() -> None:
    """Note that a database was closed; after several, drop the cached statements."""
    if next(_closed) % CLOSED_AT_MOST == 0:
        forget_built()


def forget_built() -> None:
    """Drop all cached statements. Those of open databases are built again when needed."""
    for one in _built:
        one.cache_clear()


CLOSED_AT_MOST = 16
"""Closed databases whose statements are still cached, a megabyte each: rebuilding those in use takes some 50 ms, which
not every closing should cost the others.
"""

_built: list[_lru_cache_wrapper[Any]] = []
_closed = count(1)


def _begin_anew() -> None:
    for one in _all:
        one.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)
