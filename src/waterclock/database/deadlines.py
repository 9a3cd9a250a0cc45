"""Ends calls at a deadline, so that a server that stays silent on an open connection blocks no thread forever.

Each of our statements has a deadline: the `timeout` of `waterclock.connect`. A thread with other duties, such as a
heartbeat thread, sets a deadline for everything it does while it holds a connection. One thread watches all deadlines.
When a deadline passes, this thread shuts the socket down. The waiting call then fails as if the server had gone, and
may be retried on another connection.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from math import ceil
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from waterclock._support import moments

_OPENING = 10.0  # s for opening a connection, and for the ping before it is used
_SHORTEST_OPENING = 2.0
_IDLE = 10.0  # s after which an idle thread ends
_LOOK_EVERY = 1.0  # s
LONGEST_STATEMENT = 3600.0  # s for DDL, which may rewrite or index a large table, and for rows that are streamed

ANSWERS_WITHIN = "waterclock_answers_within"
"""Execution option of our engines: seconds for which a statement waits for its answer. Callers' have none."""

SLACK = 1.0  # seconds by which this deadline exceeds the server's own limits, whose errors name the reason


class _Mine(threading.local):
    seconds: float | None = None


mine = _Mine()  # seconds for which this thread holds a connection at most; None: each statement has its own deadline


@contextmanager
def answers_within(seconds: float) -> Generator[None]:
    """Limit this thread to so many seconds in which it holds a connection."""
    before = mine.seconds
    mine.seconds = seconds
    try:
        yield
    finally:
        mine.seconds = before


@contextmanager
def at_most(seconds: float) -> Generator[None]:
    """Lower this thread's limit."""
    before = mine.seconds
    if before is None:
        yield
        return
    with answers_within(min(before, seconds)):
        yield


class _DeadlineWatch:
    """Shuts down connections that are checked out for too long. One per process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # through the condition, each use of it takes two more calls
        self._changed = threading.Condition(self._lock)
        self._lent: dict[int, tuple[Any, float]] = {}
        self._thread: threading.Thread | None = None
        self._looks_at = 0.0

    def add(self, connection: Any, seconds: float) -> None:
        if sys.is_finalizing():  # a thread can no longer start, and Python 3.11 would wait for it forever
            return
        until = moments.monotonic() + seconds
        with self._lock:
            self._lent[id(connection)] = connection, until
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="waterclock-deadlines", daemon=True)
                moments.start(self._thread)
            elif until < self._looks_at:  # rarely: waking the thread at each statement would cost more
                self._changed.notify()

    def remove(self, connection: Any) -> None:
        if self._lent:
            with self._lock:
                self._lent.pop(id(connection), None)

    def _run(self) -> None:
        with self._changed:
            while True:
                now = moments.monotonic()
                for key, (connection, until) in list(self._lent.items()):
                    if until <= now:
                        del self._lent[key]
                        _hang_up(connection)
                first = min((until for _, until in self._lent.values()), default=now + _IDLE)
                is_idle = not self._lent
                self._looks_at = now + _IDLE if is_idle else min(now + _LOOK_EVERY, first)
                if not moments.wait(self._changed, self._looks_at - now) and is_idle and not self._lent:
                    self._thread = None
                    return


def _hang_up(connection: Any) -> None:
    """Shut down a connection's socket without waiting; its owner closes it."""
    with suppress(Exception):
        # PyMySQL offers no other way to its socket.
        number = connection.fileno() if hasattr(connection, "fileno") else connection._sock.fileno()  # noqa: SLF001  # as above
        with socket.socket(fileno=os.dup(number)) as copy:
            copy.shutdown(socket.SHUT_RDWR)


_watch = _DeadlineWatch()


def lent(connection: Any, seconds: float | None = None) -> None:
    """Start the deadline of a driver's connection: the thread's, or ``seconds``; None: no deadline."""
    limit = seconds if mine.seconds is None else mine.seconds
    if limit is not None:
        _watch.add(connection, limit)


def is_over(began: float) -> bool:
    """Return whether this thread has a limit that has passed since a time of the monotonic clock, s."""
    return mine.seconds is not None and moments.monotonic() - began >= mine.seconds


def returned(connection: Any) -> None:
    """End the deadline of a driver's connection."""
    _watch.remove(connection)


def watch_pool(engine: sa.Engine, seconds: float) -> None:
    """Set deadlines for the connections of an engine's pool, also while they are opened and pinged.

    Opening a connection may take ``seconds``, but `_OPENING` at most. Statements have the engine's `ANSWERS_WITHIN`.
    """
    opening = min(_OPENING, seconds)
    for name in ("connect", "checkout"):
        event.listen(engine, name, lambda connection, *_: lent(connection, opening), insert=True)
    event.listen(engine, "checkout", lambda connection, *_: _end_statement(connection))  # after the ping
    event.listen(engine, "do_connect", lambda *given: _open_in_time(opening, *given))
    if engine.dialect.driver == "pymysql":
        event.listen(engine, "connect", _read_for_any_time, insert=True)
    for name in ("checkin", "detach", "close", "invalidate"):
        event.listen(engine, name, lambda connection, *_: returned(connection))
    event.listen(engine, "before_cursor_execute", _before_statement)
    event.listen(engine, "after_cursor_execute", _after_statement)
    for name in ("commit", "rollback"):
        event.listen(
            engine, name, _start_statement
        )  # no event follows its end except the next statement or the checkin


def _start_statement(connection: sa.Connection, least: float = 0.0) -> None:
    seconds: float | None = connection.get_execution_options().get(ANSWERS_WITHIN)
    if seconds is not None and mine.seconds is None and not connection.invalidated:
        _watch.add(connection.connection.driver_connection, max(seconds, least))


def _end_statement(connection: Any) -> None:
    if mine.seconds is None:
        returned(connection)


def _before_statement(connection: sa.Connection, *given: Any) -> None:
    context = given[3]
    _start_statement(connection, LONGEST_STATEMENT if context.isddl else 0.0)


def _after_statement(connection: sa.Connection, *given: Any) -> None:
    _end_statement(connection.connection.driver_connection)
    if given[3].execution_options.get("stream_results"):  # each fetch is a round trip without an event
        _start_statement(connection, LONGEST_STATEMENT)


def _open_in_time(opening: float, dialect: sa.Dialect, _record: Any, _given: Any, parameters: dict[str, Any]) -> None:
    """Set the driver's own timeout for a server that accepts connections and is silent: no socket is known yet."""
    seconds = max(_SHORTEST_OPENING, min(mine.seconds or opening, opening))
    if dialect.driver == "psycopg":
        parameters.setdefault("connect_timeout", ceil(seconds))
    elif dialect.driver == "pymysql":
        parameters.setdefault("connect_timeout", seconds)
        parameters.setdefault("read_timeout", _OpeningTimeout(seconds))


class _OpeningTimeout(float):
    """Marks our read timeout, which applies only to opening a connection."""


def _read_for_any_time(connection: Any, _record: Any) -> None:
    # PyMySQL has one timeout for opening and all later reads, and no other way to change it.
    if isinstance(connection._read_timeout, _OpeningTimeout):  # noqa: SLF001  # as above
        connection._read_timeout = None  # noqa: SLF001  # as above


def _begin_anew() -> None:
    global _watch  # noqa: PLW0603  # a child has neither the thread nor the connections
    _watch = _DeadlineWatch()
    mine.seconds = None


os.register_at_fork(after_in_child=_begin_anew)
