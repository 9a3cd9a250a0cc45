"""Waits for messages on behalf of all waiters of a database, in one thread.

Waiters with the same request share a *watch*. The thread looks up when the messages of each watch are due. It sleeps
until the first of these messages is due or something changes. Then it wakes one waiter of each watch that may have a
due message. This waiter claims, and reports whether it found a message. Only then is the next waiter of its watch
woken, so one message does not wake all waiters.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from waterclock._support import moments
from waterclock.errors import InvalidArgumentError, WaterclockError
from waterclock.tables.consumers.receiving import Watched, pause_after
from waterclock.tables.databases.changes import Changes, Stop

_LOOK_EVERY = 1.0  # seconds after which a check is repeated without a notification: options change, and clocks differ
_WRITERS_UNDER_WAY = 0.003  # seconds between checks of a database that cannot guarantee to notify of every change

_CLAIM_TAKES = 5.0
"""Seconds after which the next waiter is woken without a report: the loop of the first may be blocked or stopped."""


@dataclass
class _WatchedTable:
    watched: Watched
    changes: Changes | None = None
    waiters: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = field(default_factory=deque)
    claims_until: float = -math.inf
    in_vain: int = 0
    look_at: float = 0.0

    @property
    def is_claiming(self) -> bool:
        """Return whether a waiter was woken and has not reported yet."""
        return moments.monotonic() < self.claims_until


class DatabaseWaits:
    """The waits for one database. Its thread runs while there are waiters."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._watches: dict[Hashable, _WatchedTable] = {}
        self._lock = threading.Lock()
        self._stop = Stop()
        self._alarm = Stop()
        self._thread: threading.Thread | None = None

    async def until_due(self, watched: Watched, seconds: float = math.inf) -> bool:
        """Wait until a claim may find something; then claim, and `report`.

        Returns False if ``seconds`` were over first; then do not call `report`. Raises `InvalidArgumentError` if the
        database is closed.
        """
        if self._process != os.getpid():  # the thread stayed in the process that forked this one
            self._begin()
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        waiter = (loop, woken)
        with self._lock:
            self._check_open()  # `close` wakes those that came before it
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="waterclock-aio-waiting", daemon=True)
                moments.start(thread)  # first: if the system has no more threads, the next waiter tries again
                self._thread = thread
            watch = self._watches.setdefault(watched.what, _WatchedTable(watched))
            watch.waiters.append(waiter)
            watch.look_at = 0.0
        self._stop.nudge()
        try:
            async with asyncio.timeout(None if seconds == math.inf else max(seconds, 0)):
                await woken
        except TimeoutError:
            if self._leave(watch, waiter):
                return False
        except asyncio.CancelledError:
            if not self._leave(watch, waiter):
                self.report(watched, found=True)  # the next waiter must look instead
            raise
        self._check_open()
        return True

    def _check_open(self) -> None:
        if self._stop.is_set():
            raise InvalidArgumentError("cannot wait for messages: the database was closed. Connect again")

    def _leave(self, watch: _WatchedTable, waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]) -> bool:
        """Stop waiting; return False if this waiter was already woken."""
        with self._lock:
            if waiter not in watch.waiters:
                return False
            watch.waiters.remove(waiter)
        self._stop.nudge()
        return True

    def report(self, watched: Watched, *, found: bool) -> None:
        """Record the outcome of the claim for which a waiter was woken."""
        with self._lock:
            watch = self._watches.get(watched.what)
            if watch is None or not watch.is_claiming:
                return
            watch.claims_until = -math.inf
            watch.in_vain = 0 if found else watch.in_vain + 1
            watch.look_at = moments.monotonic() + pause_after(watch.in_vain)
        self._stop.nudge()

    def close(self) -> None:
        """End the thread, and all waits with an error."""
        self._stop.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            moments.join(thread)
        self._end()

    def _run(self) -> None:
        while watches := self._open():
            try:
                self._wait(watches, self._look(watches))
            except BaseException:
                self._end()
                raise

    def _open(self) -> list[_WatchedTable]:
        """Return the watched tables. When no table is left the thread ends; the next waiter starts another one."""
        with self._lock:
            for what, watch in [*self._watches.items()]:
                if self._stop.is_set() or not (watch.waiters or watch.is_claiming):
                    if not watch.waiters:  # others are woken when the thread has ended
                        del self._watches[what]
                    if watch.changes is not None:
                        watch.changes.close()
            if self._stop.is_set() or not self._watches:
                self._thread = None
                return []
            return [*self._watches.values()]

    def _end(self) -> None:
        """Wake all, so that their claims raise the error, or they learn that the database is closed."""
        with self._lock:
            watches, self._watches = self._watches, {}
            self._thread = None
        for watch in watches.values():
            while watch.waiters:
                self._wake(watch)

    def _look(self, watches: list[_WatchedTable]) -> float:
        """Wake the waiters that may claim; return in how many seconds to look again."""
        pauses = [_LOOK_EVERY]
        for watch in watches:
            if watch.is_claiming or not watch.waiters:
                continue
            now = moments.monotonic()
            if watch.look_at > now:
                pauses.append(watch.look_at - now)
                continue
            try:
                if watch.changes is None:
                    watch.changes = watch.watched.changes()
                if not watch.changes.arm():
                    pauses.append(_WRITERS_UNDER_WAY)
                due_in = watch.watched.due_in()
            except WaterclockError:
                due_in = 0.0  # the claim raises it in its caller
            if due_in <= 0:
                self._wake(watch)
            else:
                watch.look_at = now + min(due_in, _LOOK_EVERY)
                pauses.append(due_in)
        return min(pauses)

    def _wake(self, watch: _WatchedTable) -> None:
        with self._lock:
            while watch.waiters:
                loop, woken = watch.waiters.popleft()
                try:
                    loop.call_soon_threadsafe(_set, woken)
                except RuntimeError:  # its loop was closed
                    continue
                watch.claims_until = moments.monotonic() + _CLAIM_TAKES
                return

    def _wait(self, watches: list[_WatchedTable], seconds: float) -> None:
        waiting = [watch for watch in watches if watch.waiters and not watch.is_claiming and watch.changes is not None]
        if not waiting:
            self._stop.wait(seconds)
            return
        first, *others = (watch.changes for watch in waiting if watch.changes is not None)
        first.ring(self._alarm)
        for other in others:
            other.ring(self._stop)
        if first.wait(seconds, self._stop) or not first.tells:
            for watch in waiting:
                if not watch.in_vain:  # otherwise it is left alone until its pause is over
                    watch.look_at = 0.0


def _set(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
