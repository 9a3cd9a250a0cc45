"""Writes the heartbeat of a process: a row with its number of subscriptions to a table, and its receive rate.

Claims are counted in memory only. The row is written when a subscription begins and when it is closed, and in between
every ten seconds by the heartbeat thread. A process without a subscription writes the row every ten seconds while it
receives messages. A row that was not updated for thirty seconds is ignored, because its process is dead or hangs.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary, WeakSet, ref

import sqlalchemy as sa

from waterclock._support import moments
from waterclock.database.backend import Backend
from waterclock.database.deadlines import at_most
from waterclock.database.per_database_cache import PerDatabaseCache
from waterclock.database.schema.table_catalogue import heartbeats
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import ForbiddenError, WaterclockError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.table_row import ASK_AGAIN
from waterclock.tables.model.claims.passed_by import PASSED_BY_FOR

_SECOND = 1_000_000_000

RATE_SECONDS = 60  # seconds over which rates are averaged
BEAT_EVERY = 10 * _SECOND  # how often a process writes its row, ns
LASTS = 30 * _SECOND  # how long a row of a process is valid, ns
MOST_HANDLERS = 10  # maximum running handlers in a process's row: those that run longest
_PATIENCE = 1.0  # s; no consumer waits longer for statistics
_PATIENCE_OF_LEAVING = 0.1  # s; the lock may belong to the leaving consumer's own caller

# Built once, because each is compiled once: an idle process does little else than write its row.
_MINE = (heartbeats.c.table_id == sa.bindparam("mine", type_=sa.BigInteger)) & (
    heartbeats.c.session == sa.bindparam("own", type_=sa.BigInteger)
)
_VALUES = {column: sa.bindparam(f"new_{column.name}", type_=column.type) for column in list(heartbeats.c)[2:]}
_INSERT = sa.insert(heartbeats).values(
    {heartbeats.c.table_id: sa.bindparam("mine"), heartbeats.c.session: sa.bindparam("own"), **_VALUES}
)
_UPDATE = sa.update(heartbeats).where(_MINE).values(_VALUES)
_DELETE = sa.delete(heartbeats).where(_MINE)
_DELETE_OLD = sa.delete(heartbeats).where(heartbeats.c.beat_at <= sa.bindparam("before", type_=sa.BigInteger))

_log = logging.getLogger(__name__)


class Lately:
    """Counts events of the last `RATE_SECONDS`, exact to a second. Takes the time, in monotonic ns."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque()

    def note(self, count: int, now: int) -> None:
        """Add ``count`` events; negative to take some back."""
        second = now // _SECOND
        if self._seconds and self._seconds[-1][0] == second:
            count += self._seconds.pop()[1]
        self._seconds.append((second, count))
        if self._seconds[0][0] <= second - RATE_SECONDS:
            self._forget(second)

    def count(self, now: int) -> int:
        self._forget(now // _SECOND)
        return max(0, sum(count for _, count in self._seconds))

    def _forget(self, second: int) -> None:
        while self._seconds and self._seconds[0][0] <= second - RATE_SECONDS:
            self._seconds.popleft()


class OpenSubscription(Protocol):
    """A subscription, with claimed messages that are not handed out yet."""

    def note_acked(self, ids: Collection[Any]) -> None:
        """Note that these messages were acked by their ids."""
        ...

    def note_changes(self) -> None:
        """Note that waiting messages may be gone."""
        ...


class RunningHandler(NamedTuple):
    """A handler that runs."""

    # Its message, and the consumer that received it.
    message_id: str
    consumer: str | None
    began_at: int  # when it was called, monotonic ns
    is_stuck: bool  # whether it still runs after its time limit


class Activity(NamedTuple):
    """The activity of one or all processes on a table."""

    subscribers: int  # number of open subscriptions
    sent: int  # number of messages claimed in the last minute
    failing: int  # number of subscriptions whose claims fail
    failure: str | None  # why the claims of one fail, or which messages claims skip because the database refuses them


class ProcessHeartbeat:
    """Publishes a process's subscriptions and receive rate for a table. Thread-safe."""

    def __init__(self, context: TableContext) -> None:
        # Weak reference, because the cache of a database must not keep it alive.
        self._backend = ref(context.backend)
        self._table_id = context.table_id
        self._counting = threading.RLock()  # a signal handler may close a subscription while its thread holds it
        self._writing = threading.Lock()
        self._writer: int | None = None  # the thread that writes
        self._is_outdated = False  # whether a subscription was closed by a signal handler during the write
        self._subscriptions: WeakSet[OpenSubscription] = WeakSet()
        self._failing = WeakKeyDictionary[OpenSubscription, str]()
        self._handlers = WeakKeyDictionary[OpenSubscription, Callable[[], Sequence[RunningHandler]]]()
        self._passed_by = ("", 0)
        self._sent = Lately()
        self._has_row = False
        self._forbidden_until = 0
        self.session = secrets.randbits(63)  # a number unique to this process and this open database
        self.beat_at = moments.monotonic_ns() + BEAT_EVERY  # when the next beat is due, in ns of the monotonic clock

    def join(self, subscription: OpenSubscription) -> None:
        """Count a subscription from now on. The process's heartbeat updates the row at `beat_at`."""
        with self._counting:
            self._subscriptions.add(subscription)
        self.beat()

    def leave(self, subscription: OpenSubscription) -> None:
        """Stop counting a subscription."""
        with self._counting:
            self._subscriptions.discard(subscription)
            self._failing.pop(subscription, None)
            self._handlers.pop(subscription, None)
        self.beat(_PATIENCE_OF_LEAVING)

    @property
    def over(self) -> bool:
        """Return whether it needs no more beats."""
        with self._counting:
            return not self._subscriptions or self._backend() is None

    def note_failing(self, subscription: OpenSubscription, reason: str | None) -> None:
        """Note why a subscription's claims fail; None: they succeed again. The next beat writes it."""
        with self._counting:
            if reason is None:
                self._failing.pop(subscription, None)
            else:
                self._failing[subscription] = reason

    def report_handlers(self, subscription: OpenSubscription, running: Callable[[], Sequence[RunningHandler]]) -> None:
        """Call a function at each beat for the handlers that run for a subscription, and write the longest-running."""
        with self._counting:
            self._handlers[subscription] = running

    def note_passed_by(self, reason: str) -> None:
        """Note that claims skip messages for `PASSED_BY_FOR`. The next beat writes it."""
        self._passed_by = (reason, moments.monotonic_ns() + PASSED_BY_FOR)

    def note_sent(self, count: int) -> None:
        """Count claimed messages; negative if some were given back unstarted."""
        now = moments.monotonic_ns()
        with self._counting:
            self._sent.note(count, now)
            due = now >= self.beat_at and not self._subscriptions
        if due:
            self.beat(patience=0)

    def subscriptions(self) -> list[OpenSubscription]:
        with self._counting:
            return list(self._subscriptions)

    def now(self) -> Activity:
        now = moments.monotonic_ns()
        passed_by, until = self._passed_by
        with self._counting:
            return Activity(
                len(self._subscriptions),
                self._sent.count(now),
                len(self._failing),
                next(iter(self._failing.values()), passed_by if now < until else None),
            )

    def beat(self, patience: float = _PATIENCE) -> None:
        """Write this process's row. Failures are retried at the next beat: statistics must not stop a consumer.

        If the database forbids it, it is retried after `ASK_AGAIN`.
        """
        me = threading.get_ident()
        if self._writer == me:  # a signal handler interrupted a write of this thread, which it cannot wait for
            self._is_outdated = True
            return
        with moments.holding(self._writing):
            self._writer = me  # directly after the lock, so that no signal handler runs in between
            try:
                self._write_row(patience)
                if self._is_outdated:
                    self._is_outdated = False
                    self._write_row(patience)
            finally:
                self._writer = None

    def _write_row(self, patience: float) -> None:
        backend = self._backend()
        now = moments.monotonic_ns()
        self.beat_at = max(now + BEAT_EVERY, self._forbidden_until)
        own = self.now()
        is_active = bool(own.subscribers or own.sent)
        if backend is None or now < self._forbidden_until or not (is_active or self._has_row):
            return
        try:
            with at_most(patience + _PATIENCE), backend.patience(patience):
                backend.transact(lambda one: self._write(one, backend.now(one), own), indexed=True)
        except WaterclockError as error:
            if isinstance(error, ForbiddenError):
                self.beat_at = self._forbidden_until = now + int(ASK_AGAIN * _SECOND)
            _log.info("cannot write this process's heartbeat: %s", error)
        else:
            self._has_row = is_active

    def _write(self, connection: SqlConnection, now: int, own: Activity) -> None:
        mine = {"mine": self._table_id, "own": self.session}
        values = {**own._asdict(), **self._running(now), "beat_at": now}
        row = {**mine, **{f"new_{name}": value for name, value in values.items()}}
        if not (own.subscribers or own.sent):
            connection.execute(_DELETE, mine)
        elif not connection.execute(_UPDATE, row).rowcount:
            connection.execute(_DELETE_OLD, {"before": now - LASTS})
            connection.execute(_INSERT, row)

    def _running(self, now: int) -> dict[str, object]:
        """Return the columns of running handlers; ``now`` is the database's time, ns."""
        with self._counting:
            sources = list(self._handlers.values())
        running = [one for source in sources for one in source()]
        running.sort(key=lambda one: (not one.is_stuck, one.began_at))
        ahead = now - moments.monotonic_ns()
        shown = [
            {"id": one.message_id, "consumer": one.consumer, "since": one.began_at + ahead, "stuck": one.is_stuck}
            for one in running[:MOST_HANDLERS]
        ]
        stuck = sum(one.is_stuck for one in running)
        return {"stuck": stuck, "handlers": json.dumps(shown) if shown else None}


_heartbeats = PerDatabaseCache[dict[int, ProcessHeartbeat]](lambda _: {})  # by table id


def process_heartbeat(context: TableContext) -> ProcessHeartbeat:
    """Return the heartbeat of this process for a table, also after a fork."""
    tables = _heartbeats.known.get(context.backend)
    if tables is None:
        tables = _heartbeats.of(context.backend)
    found = tables.get(context.table_id)
    return tables.setdefault(context.table_id, ProcessHeartbeat(context)) if found is None else found


def forget(backend: Backend) -> None:
    """Drop this process's counts for a database that it closes."""
    for own in (_heartbeats.forget(backend) or {}).values():
        for subscription in own.subscriptions():
            own.leave(subscription)


def note_acked(context: TableContext, ids: Collection[Any]) -> None:
    """Keep the subscriptions of this process from handing out messages that were acked by their ids."""
    for subscription in process_heartbeat(context).subscriptions():
        subscription.note_acked(frozenset(ids))


@contextmanager
def changing(context: TableContext) -> Generator[None]:
    """Cause the subscriptions of this process to check their waiting messages once the block is done."""
    yield
    for subscription in process_heartbeat(context).subscriptions():
        subscription.note_changes()


def everywhere(context: TableContext, connection: sa.Connection, now: int) -> Activity:
    """Return the activity of all processes on a table."""
    process = process_heartbeat(context)
    others = (
        (heartbeats.c.table_id == context.table_id)
        & (heartbeats.c.session != process.session)
        & (heartbeats.c.beat_at > now - LASTS)
    )
    count = sa.func.sum
    subscribers, sent, failing, failure = connection.execute(
        sa.select(
            count(heartbeats.c.subscribers),
            count(heartbeats.c.sent),
            count(heartbeats.c.failing),
            sa.func.max(heartbeats.c.failure),
        ).where(others)
    ).one()
    own = process.now()
    return Activity(
        own.subscribers + int(subscribers or 0),
        own.sent + int(sent or 0),
        own.failing + int(failing or 0),
        own.failure or failure,
    )
