"""The child process of a worker, which runs handlers for the messages that the parent sends, one at a time.

The parent claims, extends leases and acks; a child only runs handlers. So if a child dies, only one message is
affected, and a handler that holds the GIL does not stop the heartbeat.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from waterclock._support.quoting import said_of
from waterclock.connection import connect
from waterclock.tables.catalogue.caller_connections import CallerConnections
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.consumers.delivery import Delivery
from waterclock.work.ground.handlers import BoundHandler, handlers_of
from waterclock.work.ground.outcomes import ACK, GIVE_BACK, HandlerSays, Outcome, outcome_of
from waterclock.work.running.forks import ending_forks
from waterclock.work.running.grouped_process import lead_group

_PR_SET_PDEATHSIG = 1
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LEFT_TO_PARENT = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""Signals that a child ignores, each with the default for processes that it forks."""


@dataclass(frozen=True, slots=True)
class HandledTable:
    """A table whose messages a child handles."""

    url: str  # URL of its database
    name: str  # name of the table
    handler: Any  # the handler, as the worker was given it


@dataclass(frozen=True, slots=True)
class Ready:
    """The child can handle messages: of these kinds for each table (None: of all)."""

    kinds: Sequence[tuple[str, ...] | None]


@dataclass(frozen=True, slots=True)
class Broken:
    """The child cannot start, and why."""

    why: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """The child must cancel a message, unless it has ended."""

    claim_id: int
    seq: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The child has handled a message."""

    # The child's process id, and the message: the parent accepts no other answer.
    process: int
    claim_id: int
    seq: int
    outcome: Outcome
    over: bool  # whether the handler itself has acked it or given it back
    undecided: bool  # whether it was acked in the handler's transaction, which decides its outcome
    memory: int  # memory used by the child, bytes


class Home:
    """A table's database in a child: opened when a handler first needs it."""

    def __init__(self, table: HandledTable) -> None:
        self._table = table
        self._found: tuple[TableContext, CallerConnections] | None = None

    def open(self) -> tuple[TableContext, CallerConnections]:
        """Return the table's context, and the wrapper of callers' connections."""
        if self._found is None:
            database = connect(self._table.url)
            context = database.table(self._table.name).context
            self._found = context, CallerConnections(context.backend)
        return self._found


class DeliveryInChild(Delivery):
    """A delivery whose lease the parent keeps. It uses the database only when the handler calls it."""

    __slots__ = ("_home",)

    def __init__(self, home: Home, facts: Mapping[str, Any]) -> None:
        self._home = home
        self.set_facts(facts)

    @property
    def context(self) -> TableContext:  # pyright: ignore[reportIncompatibleVariableOverride]  # opened on use
        """Return the context of its table."""
        return self._home.open()[0]

    @property
    def _callers(self) -> CallerConnections:  # pyright: ignore[reportIncompatibleVariableOverride]  # as above
        return self._home.open()[1]


def serve(
    pipe: Connection, parent: int, tables: Sequence[HandledTable], around: Callable[[Delivery], Any] | None
) -> None:
    """Handle messages from the pipe until it is closed."""
    lead_group()
    _leave_signals_to_parent()
    _end_with(parent)
    multiprocessing.current_process().daemon = False  # a daemonic process must not have children of its own
    with asyncio.Runner() as loop, ExitStack() as stack:
        try:
            child = _Child(pipe, tables, around, loop, stack)
        except BaseException as error:  # noqa: BLE001  # the parent says it
            pipe.send(Broken(said_of(error)))
            return
        pipe.send(Ready(child.kinds))
        child.serve()


class _Child:
    def __init__(
        self,
        pipe: Connection,
        tables: Sequence[HandledTable],
        around: Callable[[Delivery], Any] | None,
        loop: asyncio.Runner,
        stack: ExitStack,
    ) -> None:
        self._pipe = pipe
        self._around = around
        self._loop = loop
        self._homes = [Home(each) for each in tables]
        # Handlers that several tables share, or the shards of one, are entered once.
        found = {id(each.handler): each.handler for each in tables}
        known = {key: handlers_of(given, loop, stack) for key, given in found.items()}
        self._handlers = [known[id(each.handler)] for each in tables]
        self._work: queue.SimpleQueue[tuple[int, Delivery] | None] = queue.SimpleQueue()
        self._current: Delivery | None = None
        self.kinds = [each.kinds for each in self._handlers]

    def serve(self) -> None:
        threading.Thread(target=self._listen, daemon=True).start()
        while (work := self._work.get()) is not None:
            number, delivery = work
            outcome = self._handle(self._handlers[number].find(delivery), delivery)
            self._current = None
            leased = delivery.leased
            self._pipe.send(
                Ended(os.getpid(), leased.claim_id, leased.seq, outcome, delivery.over, delivery.undecided, _memory())
            )

    def _listen(self) -> None:
        """Listen to the parent even while a handler runs.

        This thread sets the current message, because its cancellation may be the next word in the pipe.
        """
        while True:
            try:
                said = self._pipe.recv()
            except (EOFError, OSError):
                os._exit(1)  # the parent is gone
            if isinstance(said, Cancel):
                if (current := self._current) is not None:
                    leased = current.leased
                    if (said.claim_id, said.seq) == (leased.claim_id, leased.seq):
                        current.cancel()
            elif said is None:
                self._work.put(None)
            else:
                number, facts = said
                self._current = DeliveryInChild(self._homes[number], facts)
                self._work.put((number, self._current))

    def _handle(self, handler: BoundHandler | None, delivery: Delivery) -> Outcome:
        try:
            if handler is None:
                return GIVE_BACK
            if handler.is_async:
                self._loop.run(self._within_around(handler, delivery))
            else:
                with ExitStack() as stack:
                    if self._around is not None:
                        stack.enter_context(self._around(delivery))
                    with ending_forks(delivery.id):
                        given = handler(delivery)
                        if inspect.isawaitable(given):  # a plain decorator wraps an ``async def``
                            self._loop.run(self._await(given, delivery))
        except BaseException as error:  # noqa: BLE001  # an error of a handler ends its message, not the process
            return GIVE_BACK if delivery.cancelled and not isinstance(error, HandlerSays) else outcome_of(error)
        return ACK

    async def _within_around(self, handler: BoundHandler, delivery: Delivery) -> None:
        async with AsyncExitStack() as stack:
            if self._around is not None:
                manager = self._around(delivery)
                if isinstance(manager, AbstractAsyncContextManager):
                    await stack.enter_async_context(manager)
                else:
                    stack.enter_context(manager)
            await self._await(handler(delivery), delivery)

    async def _await(self, given: Awaitable[object], delivery: Delivery) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # noqa: S101  # this runs in one
        delivery.when_cancelled(lambda: loop.call_soon_threadsafe(task.cancel) and None)
        with ending_forks(delivery.id):
            await given


def _leave_signals_to_parent() -> None:
    """Ignore the signals of a terminal or service manager: the parent decides when a child ends.

    Processes that a handler starts get the defaults back. With ``SIG_IGN``, which fork and exec inherit, only SIGKILL
    would end them, and `multiprocessing.Pool` would wait forever for its workers.
    """
    for number in _LEFT_TO_PARENT:
        signal.signal(number, _ignore)
        signal.siginterrupt(number, False)
    mask = threading.local()

    def block() -> None:  # a signal between the fork and the defaults would be ignored
        mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, _LEFT_TO_PARENT)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask.before)

    def restore() -> None:
        for number, default in _LEFT_TO_PARENT.items():
            if signal.getsignal(number) is _ignore:  # a handler may have set its own
                signal.signal(number, default)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=restore)


def _ignore(_number: int, _frame: object) -> None:
    """Do nothing."""


def _end_with(parent: int) -> None:
    """Ask the system to kill this process with its parent, even if a handler never releases the GIL."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _memory() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    except OSError:
        return 0
