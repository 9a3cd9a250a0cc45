"""The worker: runs handlers on the messages of one or several message tables until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from functools import partial
from typing import Any, NoReturn

from waterclock._support import moments
from waterclock._support.log_events import event
from waterclock._support.pickling import refuse_pickling
from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError, UnavailableError, WaterclockError
from waterclock.tables.catalogue.selection import make_selection
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.consumers.subscription import TableSubscription
from waterclock.tables.databases.changes import Stop
from waterclock.tables.model.options import check_count, check_rate
from waterclock.tables.model.values.arguments import check_consumer
from waterclock.time import Duration, to_duration
from waterclock.work.flow.dispatch_queue import DispatchQueue
from waterclock.work.flow.fetcher import Fetcher
from waterclock.work.flow.outcome_writer import OutcomeWriter
from waterclock.work.ground.counts import Counts, Observer, WorkCounts
from waterclock.work.ground.handlers import Handlers, entered, is_factory
from waterclock.work.ground.sources import AnyTable, sources_of, tables_of
from waterclock.work.running.calling import Caller
from waterclock.work.running.child import HandledTable
from waterclock.work.running.processes import Processes
from waterclock.work.running.signals import stopping_at_signals
from waterclock.work.running.supervisor import WorkerSupervisor, join_each, start_each
from waterclock.work.running.threads import HandlerThreads

_SECOND = 1_000_000_000
_LOOK_EVERY = 0.05  # s, while busy
_IDLE = 1.0  # s
_AWAY = 0.2  # s after which an unavailable shard is tried again
_UNWINDING = 1.0  # s that a handler has after it was asked to stop
_SHORTEST_TIMEOUT = 1_000_000  # ns
ENDING = 4.0  # maximum seconds that a worker takes to end after its grace period

MOST_SLOTS = 10_000
"""Maximum number of messages that a worker handles at a time: systems limit the threads of a process."""

_log = logging.getLogger(__name__)


class Worker:
    """Runs handlers on messages of message tables. An instance runs once.

    A handler that returns acks its message; one that raises sends it back, with its back-off. It may raise `Retry`,
    `Snooze`, `DeadLetter` or `Discard` for another outcome. The lease is extended while the handler runs.

    Handlers defined with ``def`` run in threads, those with ``async def`` in one event loop.

    Parameters
    ----------
    table
        The table; or several, each with its handler, as a dict. They share the worker's slots, and so do the shards of
        a sharded table. An unavailable shard does not block others.
    handler
        A function that takes a `Delivery`; or such functions by the header ``kind``, as a dict: messages of other kinds
        are left to other workers. Or a context manager, possibly asynchronous, that yields either, for resources that
        handlers need while the worker runs.
    concurrency
        How many messages are handled at a time.
    consumer
        Name of the consumer, as in `MessageTable.subscribe`.
    where, parameters
        As in `MessageTable.receive`.
    rate_limit
        Maximum number of messages per second from each table; None: only the table's limit.
    processes
        How many child processes call the handlers, instead of this one: for handlers that are CPU-bound or may crash.
        Each handles one message at a time, so that a crash affects no other message, and is replaced. Handlers must be
        in modules that children can import.
    timeout
        How long a handler may take; None: unlimited. An asynchronous one is cancelled. A process is killed. A thread
        cannot be killed: its message backs off, its slot goes to a new thread, and it is counted as stuck. All of them
        can check `Delivery.cancelled`.
    recycle_after, recycle_above
        Number of messages after which, or bytes of memory above which, a child process is replaced.
    grace
        How long running handlers may continue after a stop. Unfinished messages are then given back, due at once,
        without counting an attempt.
    shard, key_range
        The part of a sharded table, as in `ShardedTable.subscribe`; None: all of it.
    around
        A context manager, given each delivery, in which its handler is called.

    Raises
    ------
    InvalidArgumentError
        For an invalid argument.
    """

    def __init__(
        self,
        table: AnyTable | Mapping[Any, Any],
        handler: Any = None,
        *,
        concurrency: int = 1,
        processes: int = 0,
        consumer: str | None = None,
        where: str | None = None,
        parameters: Mapping[str, object] | None = None,
        rate_limit: float | None = None,
        timeout: Duration | None = None,
        grace: Duration = "30s",
        around: Callable[[Delivery], Any] | None = None,
        recycle_after: int | None = None,
        recycle_above: int | None = None,
        shard: str | None = None,
        key_range: str | None = None,
    ) -> None:
        given = tables_of(table, handler)
        self._sources = [one for each, its in given for one in sources_of(each, its, shard, key_range)]
        self._slots = check_count(concurrency, "concurrency")
        if self._slots > MOST_SLOTS:
            raise InvalidArgumentError(
                f"concurrency must be at most {MOST_SLOTS}, got {concurrency}. Run several workers"
            )
        self._child_count = _children(processes, self._slots, recycle_after, recycle_above)
        self._recycled = {"recycle_after": recycle_after, "recycle_above": recycle_above}
        self._subscribed = {
            "consumer": check_consumer(consumer),
            "where": where,
            "parameters": parameters,
            "rate_limit": None if rate_limit is None else check_rate(rate_limit),
        }
        for each, _ in given:
            make_selection(each.context, where, None, parameters)  # raises for invalid ones
        self._timeout = None if timeout is None else to_duration(timeout, "timeout", minimum=_SHORTEST_TIMEOUT)
        self._grace = to_duration(grace, "grace")
        if around is not None and not callable(around):
            raise InvalidArgumentError(f"'around' must be a context manager, got {quoted(around)}")
        self._around = around
        self._stop = Stop()
        self._stops_at: float | None = None
        self._error: BaseException | None = None
        self._has_run = self._was_signalled = False
        self._queue = DispatchQueue(0 if self._child_count else self._slots)  # with processes, each brings its own slot
        self._counter = WorkCounts()
        self._outcome_writers: list[OutcomeWriter] = []
        self._caller = Caller(self._queue, self._counter, around, self._timeout, self._note_ended)
        self._watch = WorkerSupervisor(self._queue, self._counter, self._caller)
        self._fetchers: list[Fetcher] = []
        self._changing = threading.Lock()

    @property
    def unfinished(self) -> int:
        """Return how many handlers still run although the worker took their messages back."""
        return len(self._watch.unfinished())

    @property
    def ends_by(self) -> float | None:
        """Return the deadline for its end after a signal, in monotonic seconds; None before a signal."""
        return None if self._stops_at is None or not self._was_signalled else self._stops_at + ENDING

    @property
    def counts(self) -> Counts:
        """Its counters so far."""
        return self._counter.now()

    def observe(self, observer: Observer) -> None:
        """Report each message to an observer; call it before `run`."""
        self._counter.observer = observer

    def reasons_not_ready(self) -> list[str]:
        """Return why it is not ready to handle messages; nothing if it is."""
        if not self._has_run or self._stops_at is not None:
            return ["the worker has not started" if self._stops_at is None else "the worker stops"]
        with self._changing:
            failing = [one.table.name for one in self._fetchers if one.subscription.is_failing]
        return [f"claims from table {name!r} fail" for name in failing]

    def facts(self) -> dict[str, Any]:
        """Return the numbers of slots, of used slots, and of waiting messages."""
        return self._queue.facts()

    def stop(self, grace: Duration | None = None) -> None:
        """Stop claiming, and let running handlers finish within the grace period. Safe in threads and signal handlers.

        Parameters
        ----------
        grace
            The grace period; None: the worker's. A second call can only shorten it.
        """
        seconds = (self._grace if grace is None else to_duration(grace, "grace")) / _SECOND
        self._stop_within(seconds)

    def _stop_within(self, seconds: float) -> None:
        ends = moments.monotonic() + seconds
        self._stops_at = ends if self._stops_at is None else min(self._stops_at, ends)
        self._stop.nudge()

    def run(self, *, signals: bool = True) -> None:
        """Run until `stop` is called or a signal comes; return once all messages are acked or given back.

        Parameters
        ----------
        signals
            Whether SIGTERM and SIGINT stop it, if in the main thread: the first with the grace period, the second at
            once.

        Raises
        ------
        WaterclockError
            If a table is dropped, or cannot be used.
        """
        if self._has_run:
            raise InvalidArgumentError("cannot run this worker again. Create a new worker")
        self._has_run = True
        with ExitStack() as stack:
            if signals:
                stack.enter_context(stopping_at_signals(self._stop_at_signal))
            try:
                self._start(stack)
                self._keep()
            except BaseException:
                self._stop_within(0)
                raise
            finally:
                self._end()
        if self._error is not None:
            raise self._error

    async def run_async(self) -> None:
        """Work inside an application's loop: asynchronous handlers run in it, everything else in threads.

        It returns after `stop`. If the task is cancelled, the worker stops with its grace before the cancellation goes
        on. Signals are left to the application.

        Raises
        ------
        WaterclockError
            If a table is dropped, or cannot be worked with.
        """
        loop = self._caller.application_loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def work_until_stopped() -> None:
            error: BaseException | None = None
            try:
                self.run(signals=False)
            except BaseException as raised:  # noqa: BLE001  # it is raised in the loop
                error = raised
            loop.call_soon_threadsafe(_end, ended, error)

        moments.start(threading.Thread(target=work_until_stopped, name="waterclock-work"))
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            self.stop()
            await ended
            raise

    def _stop_at_signal(self, *, again: bool) -> None:
        self._was_signalled = True
        self._stop_within(0 if again else self._grace / _SECOND)

    def _note_ended(self) -> None:
        if self._stops_at is not None:
            self._stop.nudge()

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._stop_within(self._grace / _SECOND)

    def _start(self, stack: ExitStack) -> None:
        handlers = self._start_processes(self._child_count) if self._child_count else self._entered(stack)
        if self._stops_at is not None:
            return
        every = [each for known in handlers for each in known.all]
        only_async = all(each.is_async for each in every)
        if self._watch.processes is None and any(each.is_async for each in every):
            self._caller.open_loop()
        ready: list[Fetcher] = []
        away: list[int] = []
        for number, known in enumerate(handlers):
            try:
                ready.append(self._fetcher(number, known))
            except UnavailableError:
                if not self._sources[number].is_shard:
                    raise
                away.append(number)
        self._queue.when_waiting = self._stop.nudge
        if only_async and self._caller.loop is not None:
            self._caller.loop.start()
        elif self._watch.processes is None:
            self._watch.threads = HandlerThreads(self._queue, self._slots, self._caller.call)
            self._watch.threads.start()
        for fetcher in ready:
            fetcher.start()
        for number in away:
            moments.start(threading.Thread(target=self._begin_when_back, args=(number, handlers[number]), daemon=True))

    def _fetcher(self, number: int, handlers: Handlers) -> Fetcher:
        """Return the fetcher of a table."""
        table = self._sources[number].open()
        kinds = None if table.options.groups else handlers.kinds
        subscription = table.subscribe(kinds=kinds, **self._subscribed)  # type: ignore[arg-type]  # a dict of keywords of several types
        subscription.patience = math.inf  # wait for an unavailable database
        with self._changing:
            writer = OutcomeWriter(self._queue, self._counter)  # a locked table must not block others
            writer.start()
            self._outcome_writers.append(writer)
            here = self._watch.processes is None
            fetcher = Fetcher(
                table, handlers, subscription, self._queue, writer.put, self._counter, self._fail, here=here
            )
            if self._watch.processes is not None:
                self._watch.processes.begin(fetcher, number)
            fetcher.report_handlers(self._watch.handlers_of)
            self._fetchers.append(fetcher)
        return fetcher

    def _begin_when_back(self, number: int, handlers: Handlers) -> None:
        """Wait for an unavailable shard, and then take its messages, too."""
        while self._stops_at is None:
            moments.sleep(_AWAY)
            try:
                fetcher = self._fetcher(number, handlers)
            except UnavailableError:
                continue
            except BaseException as error:  # noqa: BLE001  # the worker says it, and ends
                self._fail(error)
                return
            if self._stops_at is None:
                fetcher.start()
            else:
                fetcher.subscription.close()
            return

    def _start_processes(self, count: int) -> Sequence[Handlers]:
        """Start the children, and get the kinds that they handle."""
        tables = [HandledTable(one.url, one.name, one.handler) for one in self._sources]
        self._watch.processes = Processes(
            count,
            tables,
            self._around,
            self._queue,
            self._counter,
            self._caller.finish,
            self._fail,
            timeout=self._timeout,
            **self._recycled,
        )
        kinds = self._watch.processes.start(lambda: self._stops_at is not None)
        if kinds is None:
            return []
        return [Handlers(_in_child if known is None else dict.fromkeys(known, _in_child)) for known in kinds]

    def _entered(self, stack: ExitStack) -> Sequence[Handlers]:
        """Return the handlers of each table; shared ones are entered once."""
        known: dict[int, Handlers] = {}
        for given in {id(one.handler): one.handler for one in self._sources}.values():
            handlers = self._enter(given, stack)
            if handlers is None:
                return []
            known[id(given)] = handlers
        return [known[id(one.handler)] for one in self._sources]

    def _enter(self, given: Any, stack: ExitStack) -> Handlers | None:
        if not is_factory(given):
            return Handlers(given)
        manager = entered(given)
        if isinstance(manager, AbstractAsyncContextManager):
            entered_there = self._caller.open_loop().enter(manager, lambda: self._stops_at is not None)
            return None if self._stops_at is not None else Handlers(entered_there)
        return Handlers(stack.enter_context(manager))

    def _keep(self) -> None:
        """Supervise until the worker stops, and then until all handlers have ended, or the grace period is over."""
        while self._stops_at is None:
            self._watch.look()
            busy = self._queue.waits or (
                self._queue.running and (self._timeout is not None or self._caller.loop is not None)
            )
            self._stop.wait(_LOOK_EVERY if busy else _IDLE)
        self._begin_to_stop()
        while self._queue.running and (left := self._stops_at - moments.monotonic()) > 0:
            self._watch.look()
            self._stop.wait(min(left, _LOOK_EVERY))

    def _begin_to_stop(self) -> None:
        with self._changing:
            fetchers = list(self._fetchers)
        for fetcher in fetchers:
            fetcher.stop()
        self._watch.give_back(self._queue.close())

    def _end(self) -> None:
        """End within `ENDING` seconds, even if handlers still run, or a database does not answer."""
        until = moments.monotonic() + ENDING

        def left() -> float:
            return max(0.0, until - moments.monotonic())

        self._begin_to_stop()
        running = self._queue.running
        for one in running:
            self._watch.ask(one)
        self._wait_for_unwinding()
        ours = [one for one in running if one.decide()]
        self._watch.give_up(ours)
        for one in ours:
            self._queue.end(one, goes_on=False)
        if ours:
            _log.warning(
                "%d handlers still run after the grace period; their messages are given back",
                len(ours),
                extra=event("handlers_unfinished", count=len(ours)),
            )
        self._watch.give_back(ours)
        self._watch.wait_until_given_back(left() / 2)
        until_recorded = moments.monotonic() + left() / 2
        with self._changing:
            writers = list(self._outcome_writers)
        recorded = [each.close(max(0.0, until_recorded - moments.monotonic())) for each in writers]
        claimed = [fetcher.join(left() / 2) for fetcher in self._fetchers]
        join_each(start_each(partial(_close, fetcher.subscription) for fetcher in self._fetchers), left() / 2)
        if self._caller.loop is not None:
            self._caller.loop.close(left())
        if self._watch.processes is not None:
            self._watch.processes.close(left())
        if not (all(recorded) and all(claimed)):
            _log.warning(
                "the database does not respond; messages whose outcomes cannot be written will be redelivered when"
                " their leases end"
            )

    def _wait_for_unwinding(self) -> None:
        """Wait a moment for cancelled handlers to end; their outcomes then count."""
        until = moments.monotonic() + _UNWINDING
        while any(one.cancel is not None for one in self._queue.running) and moments.monotonic() < until:
            moments.sleep(_LOOK_EVERY)

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self, "Pickle the table, and create the worker in the other process")


def _children(processes: int, slots: int, recycle_after: int | None, recycle_above: int | None) -> int:
    if type(processes) is not int or processes < 0:
        raise InvalidArgumentError(f"processes must be an integer ≥ 0, got {quoted(processes)}")
    if processes and slots != 1:
        raise InvalidArgumentError(
            f"concurrency must be omitted with processes, got {slots}: a process handles one message at a time. Use"
            f" processes={slots}"
        )
    for name, value in (("recycle_after", recycle_after), ("recycle_above", recycle_above)):
        if value is not None:
            if not processes:
                raise InvalidArgumentError(f"{name} needs processes, got {quoted(value)} without processes")
            check_count(value, name)
    return processes


def _in_child(_: Delivery) -> None:
    """Stand for a handler in a child process."""


def _close(subscription: TableSubscription) -> None:
    with suppress(WaterclockError):
        subscription.close()


def _end(ended: asyncio.Future[None], error: BaseException | None) -> None:
    if ended.done():
        return
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error)
