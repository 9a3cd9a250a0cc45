"""Supervises a worker: stops handlers that exceed the time limit or lose their lease, and returns waiting messages."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from weakref import WeakSet

from waterclock._support import moments
from waterclock._support.log_events import event
from waterclock.tables.messages.rows.process_heartbeat import RunningHandler
from waterclock.work.flow.dispatch_queue import DispatchQueue, Handling, MessageOrigin
from waterclock.work.ground.counts import WorkCounts
from waterclock.work.ground.outcomes import GIVE_BACK
from waterclock.work.running.calling import Caller, cancel
from waterclock.work.running.processes import Processes
from waterclock.work.running.threads import HandlerThreads

_STUCK_AFTER = 5_000_000_000  # ns after its timeout, a cancelled asynchronous handler is abandoned

_log = logging.getLogger(__name__)


class WorkerSupervisor:
    """Supervises the messages that a worker handles."""

    def __init__(self, queue: DispatchQueue, counter: WorkCounts, caller: Caller) -> None:
        self._queue = queue
        self._counter = counter
        self._caller = caller
        # The callers of handlers, other than the event loop.
        self.threads: HandlerThreads | None = None
        self.processes: Processes | None = None
        self._given_up: WeakSet[Handling] = WeakSet()  # a handler that runs keeps its own
        self._giving_up = threading.Lock()
        self._returning: list[threading.Thread] = []

    def look(self) -> None:
        """Check once."""
        self._queue.release_slow_claims()
        self.give_back(self._queue.take_back())
        running = self._queue.running
        if self._caller.loop is not None and running and self._caller.loop.watch():
            for one in self._caller.loop.take_back(running):
                self._pass_on(one)
        for one in running:
            if one.delivery.lost and not one.asked:
                _log.warning(
                    "the lease of message %r was lost; the worker asks the handler of the message to stop",
                    one.delivery.id,
                    extra=event("lease_lost", id=one.delivery.id),
                )
                self.ask(one)
            if self.processes is None and self._caller.is_late(one, _STUCK_AFTER if self.threads is None else 0):
                self._give_up(one)

    def give_back(self, handlings: Iterable[Handling]) -> None:
        """Begin to return messages to their tables, due at once, without counting an attempt.

        A locked table must block neither other tables nor supervision.
        """
        by_fetcher: dict[MessageOrigin, list[Handling]] = {}
        for one in handlings:
            by_fetcher.setdefault(one.fetcher, []).append(one)
        self._returning = [each for each in self._returning if each.is_alive()]
        self._returning += start_each(partial(fetcher.give_back, ours) for fetcher, ours in by_fetcher.items())

    def wait_until_given_back(self, seconds: float) -> None:
        """Wait until messages are returned, but only this long."""
        join_each(self._returning, seconds)

    def give_up(self, handlings: Iterable[Handling]) -> None:
        """Note that the worker takes back messages whose handlers still run."""
        with self._giving_up:
            self._given_up.update(handlings)

    def unfinished(self) -> list[Handling]:
        """Return messages whose handlers still run although the worker took them back."""
        with self._giving_up:
            return [one for one in self._given_up if not one.ended]

    def handlers_of(self, fetcher: MessageOrigin) -> list[RunningHandler]:
        """List the handlers that run for a table's messages. Other threads may call it."""
        stuck = set(self.unfinished())
        stuck.update(one for one in self._queue.running if self._caller.is_late(one))
        return [
            RunningHandler(str(one.delivery.id), fetcher.subscription.consumer, one.began_at, one in stuck)
            for one in stuck.union(self._queue.running)
            if one.fetcher is fetcher and not one.waits_for_loop
        ]

    def _give_up(self, one: Handling) -> None:
        """Take its slot from a handler that still runs after its time limit."""
        handler = one.fetcher.handlers.find(one.delivery)
        if (
            self.threads is not None
            and handler is not None
            and handler.is_async
            and not self._caller.is_late(one, _STUCK_AFTER)
        ):
            return  # the loop cancels it by itself
        if not one.decide():
            return
        self._counter.add("timed_out")
        self._counter.add("stuck")
        self.give_up((one,))
        _log.warning(
            "the handler of message %r still runs after its time limit, so the worker handles another message"
            " meanwhile",
            one.delivery.id,
            extra=event("handler_stuck", id=one.delivery.id),
        )
        self.ask(one)
        dropped = self._queue.end(one, goes_on=False)
        one.fetcher.put_outcome(one, self._caller.timed_out(), dropped)
        if self.threads is not None:
            self.threads.replace()

    def _pass_on(self, one: Handling) -> None:
        """Return a message that has a slot, but whose handler has not begun, to the table for other workers."""
        dropped = self._queue.end(one, goes_on=False)
        one.fetcher.put_outcome(one, GIVE_BACK, dropped)
        if self.threads is not None:
            cancel(one)  # its thread waits for it, and ends
            self.threads.replace()

    def ask(self, one: Handling) -> None:
        """Ask the handler of a message to stop."""
        one.asked = True
        one.delivery.cancel()
        if self.processes is not None:
            cancel(one)


def start_each(works: Iterable[Callable[[], object]]) -> list[threading.Thread]:
    """Start operations that a database may delay, each in a thread of its own; return the threads."""
    threads = [threading.Thread(target=each, name="waterclock-work-return", daemon=True) for each in works]
    for thread in threads:
        moments.start(thread)
    return threads


def join_each(threads: Iterable[threading.Thread], seconds: float) -> None:
    """Wait for threads, but at most so long for all of them."""
    until = moments.monotonic() + seconds
    for thread in threads:
        moments.join(thread, max(0.0, until - moments.monotonic()))
