"""Deadlines for answers: a server that is silent, behind a network that swallows what is sent, keeps no thread waiting.

A thread that has others to look after, such as a heartbeat's, says for how long it waits for an answer. Where a
connection that it uses is lent for longer than that, the connection is hung up on: what waits for it fails, as if the
server had gone, and may be tried again on another connection.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from math import ceil
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from waterclock import moments

_OPENING = 10.0  # s for opening a connection
_SHORTEST_OPENING = 2.0
_IDLE = 10.0  # s after which a thread that has nothing to watch ends


class _Mine(threading.local):
    seconds: float | None = None


mine = _Mine()
"""For how many seconds this thread waits for an answer; None: for any time. Who lends very often asks this first."""


@contextmanager
def answers_within(seconds: float) -> Generator[None]:
    """Let this thread wait for so many seconds at the most for what it asks over one lending of a connection."""
    before = mine.seconds
    mine.seconds = seconds
    try:
        yield
    finally:
        mine.seconds = before


@contextmanager
def at_most(seconds: float) -> Generator[None]:
    """Let this thread wait for less, where it does not wait for any time."""
    before = mine.seconds
    if before is None:
        yield
        return
    with answers_within(min(before, seconds)):
        yield


class _Watch:
    """Hangs up on connections that are lent for too long. One for a process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lent: dict[int, tuple[Any, float]] = {}
        self._thread: threading.Thread | None = None

    def add(self, connection: Any, seconds: float) -> None:
        with self._changed:
            self._lent[id(connection)] = connection, moments.monotonic() + seconds
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="waterclock-deadlines", daemon=True)
                moments.start(self._thread)
            elif len(self._lent) == 1:
                self._changed.notify()

    def remove(self, connection: Any) -> None:
        if self._lent:
            with self._changed:
                self._lent.pop(id(connection), None)

    def _run(self) -> None:
        with self._changed:
            while True:
                now = moments.monotonic()
                for key, (connection, until) in list(self._lent.items()):
                    if until <= now:
                        del self._lent[key]
                        _hang_up(connection)
                if not self._lent:
                    if not moments.wait(self._changed, _IDLE) and not self._lent:
                        self._thread = None
                        return
                    continue
                first = min(until for _, until in self._lent.values())
                moments.wait(self._changed, min(1.0, first - now))  # a later one may have an earlier deadline


def _hang_up(connection: Any) -> None:
    """End a connection's traffic without waiting for anything; its owner closes it."""
    with suppress(Exception):
        # PyMySQL gives its socket in no other way.
        number = connection.fileno() if hasattr(connection, "fileno") else connection._sock.fileno()  # noqa: SLF001
        with socket.socket(fileno=os.dup(number)) as copy:
            copy.shutdown(socket.SHUT_RDWR)


_watch = _Watch()


def lent(connection: Any) -> None:
    """Note that this thread begins to use a driver's connection."""
    seconds = mine.seconds
    if seconds is not None:
        _watch.add(connection, seconds)


def returned(connection: Any) -> None:
    """Note that a driver's connection is used no more."""
    _watch.remove(connection)


def watch_pool(engine: sa.Engine) -> None:
    """Watch the connections that an engine's pool lends, also while they are opened and looked at."""
    for name in ("connect", "checkout"):
        event.listen(engine, name, lambda connection, *_: lent(connection), insert=True)
    event.listen(engine, "do_connect", _open_in_time)
    if engine.dialect.driver == "pymysql":
        event.listen(engine, "connect", _read_for_any_time, insert=True)
    for name in ("checkin", "detach", "close", "invalidate"):
        event.listen(engine, name, lambda connection, *_: returned(connection))


def _open_in_time(dialect: sa.Dialect, _record: Any, _given: Any, parameters: dict[str, Any]) -> None:
    """Have the driver give up a server that takes connections and says nothing: there is nothing yet to hang up on."""
    seconds = max(_SHORTEST_OPENING, min(mine.seconds or _OPENING, _OPENING))
    if dialect.driver == "psycopg":
        parameters.setdefault("connect_timeout", ceil(seconds))
    elif dialect.driver == "pymysql":
        parameters.setdefault("connect_timeout", seconds)
        parameters.setdefault("read_timeout", _Opening(seconds))


class _Opening(float):
    """A time limit of ours for reading, which is for the opening of a connection alone."""


def _read_for_any_time(connection: Any, _record: Any) -> None:
    # PyMySQL has one limit for the opening and all that is read later, and no other way to change it.
    if isinstance(connection._read_timeout, _Opening):  # noqa: SLF001  # as above
        connection._read_timeout = None  # noqa: SLF001  # as above


def _begin_anew() -> None:
    global _watch  # noqa: PLW0603  # a child has neither the thread nor the connections
    _watch = _Watch()
    mine.seconds = None


os.register_at_fork(after_in_child=_begin_anew)
