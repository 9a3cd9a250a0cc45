"""The message table: a queue in an ordinary SQL table."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from typing import Any, Self

import sqlalchemy as sa

from waterclock.database.backend import Backend
from waterclock.database.table_catalogue import message_tables
from waterclock.errors import InvalidArgumentError, LeaseLostError
from waterclock.tables import acking
from waterclock.tables.callers import CallerConnections
from waterclock.tables.context import TableContext
from waterclock.tables.creating import create
from waterclock.tables.delivery import Delivery
from waterclock.tables.entry import Entry, change, drop, load
from waterclock.tables.explaining import Explanation, explain_message
from waterclock.tables.options import (
    UNCHANGED,
    AckOrder,
    Groups,
    IdType,
    OnExhausted,
    Payload,
    TableOptions,
    Unchanged,
    Ungrouped,
)
from waterclock.tables.purging import purge_some
from waterclock.tables.putting import MessageId, PutIds, check_id, prepare_rows, put_rows
from waterclock.tables.receiving import receive, receive_waiting
from waterclock.tables.stats import TableStats, table_stats
from waterclock.tables.subscribing import Subscription
from waterclock.time import MAX_NS, Duration, Time, to_duration, to_time


class MessageTable:
    """A queue in a SQL table (message tables). Safe to share between threads.

    Plain SQL works beside it: ``INSERT INTO name(id, message) VALUES …`` enqueues, SELECT looks.
    """

    def __init__(self, context: TableContext) -> None:
        self._entry = Entry(context)
        self._callers = CallerConnections(context.backend)

    @property
    def _context(self) -> TableContext:
        return self._entry.last_seen

    @property
    def name(self) -> str:
        """The table's name, also in SQL."""
        return self._context.name

    @property
    def options(self) -> TableOptions:
        """The table's options, durations in ns; another process's changes show after a second."""
        return self._entry.now().options

    @classmethod
    def create(
        cls,
        backend: Backend,
        name: str,
        *,
        ack_wait: Duration = "30s",
        purge_after: Duration | None = "1d",
        batch_size: int = 10,
        cache_size: int = 10_000,
        poll_interval: Duration = "30s",
        min_backoff: Duration | None = None,
        max_backoff: Duration | None = None,
        jitter: float = 0.33,
        max_attempts: int | None = None,
        dead_letter: str | None = None,
        rate_limit: float | None = None,
        groups: Groups | None = None,
        group_header: str = "waterclock.group",
        ungrouped: Ungrouped = "default",
        ack_order: AckOrder = "strict",
        on_exhausted: OnExhausted = "block",
        columns: Mapping[str, object] | None = None,
        id_type: IdType = "bigint",
        payload: Payload = "bytes",
        exist_ok: bool = False,
    ) -> Self:
        """Make a message table; `Database.create_table` explains the options.

        Raises
        ------
        AlreadyExistsError
            Where the table exists and ``exist_ok`` is False, or where another SQL table has the name.
        InvalidArgumentError
            For an option that cannot be meant, or that this version does not have.
        """
        options = TableOptions.check(
            ack_wait=ack_wait,
            purge_after=purge_after,
            batch_size=batch_size,
            cache_size=cache_size,
            poll_interval=poll_interval,
            min_backoff=min_backoff,
            max_backoff=max_backoff,
            jitter=jitter,
            max_attempts=max_attempts,
            dead_letter=dead_letter,
            rate_limit=rate_limit,
            groups=groups,
            group_header=group_header,
            ungrouped=ungrouped,
            ack_order=ack_order,
            on_exhausted=on_exhausted,
            id_type=id_type,
            payload=payload,
            columns={column: kind for column, kind in (columns or {}).items() if isinstance(kind, str)},
        )
        create(backend, name, options, columns, exist_ok=exist_ok)
        return cls.open(backend, name)

    @classmethod
    def open(cls, backend: Backend, name: str) -> Self:
        """Open a message table.

        Raises
        ------
        NotFoundError
            Where there is none of this name.
        SchemaError
            Where its SQL table is gone or lacks a column, or its options are incomplete.
        """
        return cls(load(backend, name))

    def alter(
        self,
        *,
        ack_wait: Duration | Unchanged = UNCHANGED,
        purge_after: Duration | Unchanged | None = UNCHANGED,
        batch_size: int | Unchanged = UNCHANGED,
        cache_size: int | Unchanged = UNCHANGED,
        poll_interval: Duration | Unchanged = UNCHANGED,
        min_backoff: Duration | Unchanged | None = UNCHANGED,
        max_backoff: Duration | Unchanged | None = UNCHANGED,
        jitter: float | Unchanged = UNCHANGED,
    ) -> None:
        """Change options; those that are not given stay. Subscribers carry on under them within a second.

        Raises
        ------
        InvalidArgumentError
            For an option that cannot be meant.
        """
        given = {
            "ack_wait": ack_wait,
            "purge_after": purge_after,
            "batch_size": batch_size,
            "cache_size": cache_size,
            "poll_interval": poll_interval,
            "min_backoff": min_backoff,
            "max_backoff": max_backoff,
            "jitter": jitter,
        }
        wanted = {option: value for option, value in given.items() if value is not UNCHANGED}
        options = self._entry.read().options.changed(wanted)
        self._change(options=options.to_json())

    def pause(self, until: Time | None = None) -> None:
        """Send nothing until then, or until `resume`; what is out already may be acked. Noticed within a second."""
        self._change(paused_until=MAX_NS if until is None else to_time(until, "until"))

    def resume(self) -> None:
        """End a pause."""
        self._change(paused_until=None)

    def drop(self) -> None:
        """Remove the table with its messages. Subscribers end with a NotFoundError within a second."""
        context = self._context
        context.backend.transact(lambda own: drop(context, own))

    def _change(self, **values: Any) -> None:
        context = self._context
        context.backend.transact(lambda own: change(own, context.table_id, **values))
        self._entry.read()

    def put(
        self,
        payload: Any,
        *,
        id: MessageId | str | None = None,  # noqa: A002  # the column's name, which the interface has too
        at: Time | None = None,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
        priority: int = 0,
        connection: Any = None,
        **columns: Any,
    ) -> MessageId:
        """Put a message. An id that is there already stays as it is: putting twice is putting once.

        Parameters
        ----------
        payload
            Bytes, text or a JSON value, as the table's ``payload`` says.
        id
            Identifies the message; None: the database generates a bigint, Waterclock a UUID (version 7).
        at
            When it is to be sent; None: now.
        group
            Its group; None: the one that the header named by ``group_header`` names.
        headers
            Text by text.
        priority
            Higher ones are sent earlier, whatever their age. In a table with groups the head's priority orders groups.
        connection
            A SQLAlchemy Connection or Session, or a DB-API connection of the database's driver, in whose transaction
            to put: commit delivers, rollback leaves nothing.
        columns
            Values for the table's further columns.

        Returns
        -------
        int | str | UUID
            The id.

        Raises
        ------
        InvalidArgumentError
            Naming the argument and the value.
        """
        message = {
            "payload": payload,
            "id": id,
            "at": at,
            "group": group,
            "headers": headers,
            "priority": priority,
            **columns,
        }
        return self.put_many([message], connection=connection)[0]

    def put_many(self, rows: Iterable[Mapping[str, Any]], *, connection: Any = None) -> PutIds:
        """Put many messages in one transaction, each a dict of the arguments of `put`; return the ids in their order.

        Its ``existing`` names the ids that were there already.
        """
        prepared = prepare_rows(self._context, rows)
        if connection is None:
            return self._context.backend.transact(lambda own: put_rows(self._context, own, prepared))
        with self._callers.use(connection) as theirs:
            return put_rows(self._context, theirs, prepared)

    def receive(
        self, limit: int | None = None, wait: Duration | None = None, consumer: str | None = None
    ) -> list[Delivery]:
        """Take messages that are due, highest priority first, then the oldest due first.

        Parameters
        ----------
        limit
            How many at the most; None: the table's ``batch_size``.
        wait
            For how long to wait where none is due; None: not at all.
        consumer
            Who takes them, for those who look; None: the host and the process.
        """
        count = self.options.batch_size if limit is None else _limit(limit)
        name = consumer or _this_process()
        if wait is None:
            return receive(self._entry, self._callers, count, name)
        return receive_waiting(self._entry, self._callers, count, name, to_duration(wait, "wait"))

    def subscribe(self, consumer: str | None = None, limit: int | None = None) -> Subscription:
        """Take messages one after another as they become due, until the subscription is stopped or closed.

        Parameters
        ----------
        consumer
            Who takes them; None: the host and the process.
        limit
            How many to claim at a time; None: the table's ``batch_size``.
        """
        return Subscription(
            self._entry,
            self._callers,
            self._context.sql.changes(self._context.backend),
            consumer or _this_process(),
            self.options.batch_size if limit is None else _limit(limit),
        )

    def ack(self, ids: MessageId | Delivery | Iterable[MessageId | Delivery], *, connection: Any = None) -> int:
        """Ack messages (message tables, "Acknowledging messages"): they are never sent again.

        Parameters
        ----------
        ids
            Ids, which are acked whoever has them, or deliveries, which are acked where their lease is not lost.
        connection
            As in `put`: the acks count when the caller commits.

        Returns
        -------
        int
            How many were not acked before.

        Raises
        ------
        LeaseLostError
            Where a delivery's lease was lost. The other messages are acked.
        OrderError
            Where an earlier message of a group is not acked. No message is acked.
        """
        given = list(ids) if isinstance(ids, Iterable) and not isinstance(ids, str) else [ids]
        deliveries = [one for one in given if isinstance(one, Delivery)]
        plain = [check_id(self._context, one) for one in given if not isinstance(one, Delivery)]

        def work(own: sa.Connection) -> tuple[int, set[int]]:
            lost = acking.ack_held(self._context, own, [one.held for one in deliveries])
            count = len({one.held.seq for one in deliveries} - lost)
            return count + (acking.ack_ids(self._context, own, plain) if plain else 0), lost

        if connection is None:
            count, lost = self._context.backend.transact(work)
        else:
            with self._callers.use(connection) as theirs:
                count, lost = work(theirs)
        for delivery in deliveries:
            delivery.end()
        if lost:
            names = ", ".join(repr(one.id) for one in deliveries if one.held.seq in lost)
            raise LeaseLostError(
                f"ack: {names} of {self.name!r} are not ours any more: their lease ended and they were sent to somebody"
                f" else, acked or rescheduled; the other {count} are acked"
            )
        return count

    def reschedule(self, ids: MessageId | Iterable[MessageId], at: Time, epoch: int | None = None) -> int:
        """Set when messages are sent next (message tables, "Advanced usage"); return how many were not acked.

        Parameters
        ----------
        at
            When.
        epoch
            How often they count as sent, which sets the back-off that follows; None: as it is.
        """
        given = [ids] if isinstance(ids, str) or not isinstance(ids, Iterable) else list(ids)
        when = to_time(at, "at")
        plain = [check_id(self._context, one) for one in given]
        return self._context.backend.transact(lambda own: acking.reschedule(self._context, own, plain, when, epoch))

    def purge(self) -> int:
        """Delete messages that were acked longer ago than ``purge_after``, some at a time; return how many."""
        context = self._entry.now()
        total = 0
        while purged := purge_some(context):
            total += purged
        return total

    def stats(self) -> TableStats:
        """Count the messages."""
        with self._context.backend.snapshot() as connection:
            return table_stats(self._context, connection)

    def explain(self, id: MessageId) -> Explanation:  # noqa: A002  # the column's name, which the interface has too
        """Say why a message is not out; NotFoundError where there is none with this id."""
        wanted = check_id(self._context, id)
        with self._context.backend.snapshot() as connection:
            return explain_message(self._context, connection, wanted)

    def __repr__(self) -> str:
        return f"<MessageTable {self.name!r}>"


def message_table_names(backend: Backend) -> list[str]:
    """Name every message table, in alphabetical order."""
    with backend.snapshot() as connection:
        return list(connection.scalars(sa.select(message_tables.c.name).order_by(message_tables.c.name)))


def _limit(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:  # pyright: ignore[reportUnnecessaryIsInstance]  # users need not check types
        raise InvalidArgumentError(f"limit: {value!r} is no count; give a whole number from 1")
    return value


def _this_process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"
