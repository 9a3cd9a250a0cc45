"""The message table: a queue in an ordinary SQL table."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from typing import Any, Literal, Self, Unpack

import sqlalchemy as sa

from waterclock import tracing
from waterclock._support.html import facts_as_html
from waterclock._support.quoting import quoted
from waterclock.database.backend import Backend
from waterclock.database.schema.table_catalogue import message_tables
from waterclock.errors import ForbiddenError, InvalidArgumentError
from waterclock.tables.catalogue.adopting import adopt as adopt_table
from waterclock.tables.catalogue.caller_connections import CallerConnections
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.creating import create, ensure_dead_letter_table
from waterclock.tables.catalogue.rate_limit import forget_rate
from waterclock.tables.catalogue.selection import make_selection
from waterclock.tables.catalogue.table_row import TableRow, change, drop, load
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.consumers.delivery_handle import delivery_of
from waterclock.tables.consumers.heartbeats.heartbeat import heartbeat_of
from waterclock.tables.consumers.many_deliveries import (
    ack_together,
    extend_together,
    give_back,
    nack_all,
    retry_delayed,
    retry_ids,
)
from waterclock.tables.consumers.receiving import Request, Watched, receive, receive_waiting
from waterclock.tables.consumers.subscription import TableSubscription
from waterclock.tables.groups.group_state import settle_exhausted
from waterclock.tables.message_groups import MessageGroups
from waterclock.tables.message_schedules import MessageSchedules
from waterclock.tables.messages.finishing import acking
from waterclock.tables.messages.finishing.cancelling import cancel, cancel_for_caller
from waterclock.tables.messages.finishing.dead_letters import bury_ids, list_dead_letters, redrive
from waterclock.tables.messages.finishing.expiring import expire_some
from waterclock.tables.messages.inspecting.explaining import Explanation, explain_message
from waterclock.tables.messages.inspecting.failures import dead_messages, failed_messages
from waterclock.tables.messages.inspecting.peeking import Peeked, peek
from waterclock.tables.messages.inspecting.stats import TableStats, table_stats
from waterclock.tables.messages.putting.putting import MessageId, PreparedRows, PutIds, check_id, prepare_rows, put_rows
from waterclock.tables.messages.putting.scheduling import Overlap, remove_schedule, set_schedule, tick
from waterclock.tables.messages.putting.unique_keys import prepare_keys, purge_keys, put_keyed
from waterclock.tables.messages.rows.process_heartbeat import changing
from waterclock.tables.messages.upkeep.purging import purge_some
from waterclock.tables.model.failure_groups import FailureGroup, group_failures
from waterclock.tables.model.keyspace import check_unsharded
from waterclock.tables.model.options import MOST, OptionChanges, TableOptions, check_count, check_rate
from waterclock.tables.model.schema import user_column_names
from waterclock.tables.model.timing.cron import CatchUp
from waterclock.tables.model.timing.rate import Rate
from waterclock.tables.model.values.arguments import (
    check_consumer,
    check_epoch,
    check_group,
    check_reason,
    many,
    one_or_many,
)
from waterclock.time import MAX_NS, Duration, Time, format_duration, to_duration, to_time

_SHOWN = ("ready", "scheduled", "in_flight", "delayed", "acked", "dead", "exhausted", "blocked")
"""The counts of `TableStats` that a notebook shows."""


class MessageTable:
    """A message table: a queue in a SQL table. Thread-safe.

    Plain SQL works, too: ``INSERT INTO name(id, message) VALUES …`` enqueues a message, and SELECT shows messages.
    """

    def __init__(self, context: TableContext) -> None:
        self._row = TableRow(context)
        self._callers = CallerConnections(context.backend)

    @property
    def _context(self) -> TableContext:
        return self._row.last_seen

    @property
    def context(self) -> TableContext:
        """Return the facts that operations on the table need."""
        return self._context

    @property
    def name(self) -> str:
        """The table's name, also in SQL."""
        return self._context.name

    @property
    def options(self) -> TableOptions:
        """The table's options, durations in ns; changes by other processes appear within a second."""
        return self._row.now().options

    @property
    def paused_until(self) -> int | None:
        """When the table's pause ends, ns; None: not paused. A pause without an end has the largest time."""
        context = self._row.now()
        until = context.paused_until
        return None if until is None or until <= context.backend.now() else until

    @classmethod
    def create(
        cls,
        backend: Backend,
        name: str,
        options: TableOptions,
        columns: Mapping[str, object] | None = None,
        *,
        adopt: bool = False,
        exist_ok: bool = False,
    ) -> Self:
        """Create a message table; `Database.create_table` explains the options.

        Raises
        ------
        AlreadyExistsError
            If the table exists and ``exist_ok`` is False, or if another SQL table has the name.
        NotFoundError, SchemaError
            If the SQL table to adopt is missing, or cannot be adopted as it is.
        InvalidArgumentError
            For an invalid name or column.
        """
        make = adopt_table if adopt else create
        make(backend, name, options, columns, exist_ok=exist_ok)
        return cls.open(backend, name)

    @classmethod
    def open(cls, backend: Backend, name: str) -> Self:
        """Open a message table.

        Raises
        ------
        NotFoundError
            If missing.
        SchemaError
            If its SQL table is missing or lacks a column, or its options are incomplete.
        """
        return cls(load(backend, name))

    def alter(self, **options: Unpack[OptionChanges]) -> None:
        """Change the given options. Subscribers apply them within a second.

        Raises
        ------
        InvalidArgumentError
            For an invalid option, or one that cannot change once the table exists.
        SchemaError
            If the dead-letter table exists and does not fit.
        """
        context = self._row.read()
        changed = context.options.changed(options).with_dead_letter(self.name)

        def write_options(own: sa.Connection) -> None:
            further = [context.rows.c[name] for name in user_column_names(context.rows)]
            ensure_dead_letter_table(context.backend, own, self.name, changed, further)
            change(context, own, options=changed.to_json())
            if "rate_limit" in options:
                forget_rate(own, context.table_id)

        context.backend.transact(write_options)
        self._row.read()
        if changed.groups and not {"max_attempts", "on_exhausted"}.isdisjoint(options):
            self._settle_exhausted()

    def _settle_exhausted(self) -> None:
        """Unblock groups whose first message had used up its attempts under the previous options."""
        context = self._context
        after: str | None = None
        while True:
            after = context.backend.transact(lambda own, after=after: settle_exhausted(context, own, after))
            if after is None:
                return

    def pause(self, until: Time | None = None) -> None:
        """Send no messages until this time or `resume`; messages in flight may be acked. Applies within a second."""
        self._change(paused_until=MAX_NS if until is None else to_time(until, "until"))

    def resume(self) -> None:
        """End a pause."""
        self._change(paused_until=None)

    def drop(self) -> None:
        """Remove the table with its messages. Subscribers get a NotFoundError within a second."""
        context = self._context
        context.backend.transact(lambda own: drop(context, own))

    def _change(self, **values: Any) -> None:
        context = self._context
        context.backend.transact(lambda own: change(context, own, **values))
        self._row.read()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the database's URL and the table's name, from which it is reopened."""
        return type(self).open, (self._row.last_seen.backend, self.name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def _repr_html_(self) -> str:
        """Show the table in a notebook: how many messages it has in each state."""
        counts = asdict(self.stats())
        shown = {name: f"{counts[name]:,}" for name in _SHOWN}
        age = counts["oldest_age"]
        return facts_as_html(
            f"Message table {self.name}", shown | {"oldest due for": "" if age is None else format_duration(age)}
        )

    def put(
        self,
        payload: Any,
        *,
        id: MessageId | str | None = None,  # noqa: A002  # the column's name, which the interface has too
        at: Time | None = None,
        delay: Duration | None = None,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
        priority: int = 0,
        expires_at: Time | None = None,
        unique: str | None = None,
        unique_until: Literal["claimed", "done"] | None = None,
        on_conflict: Literal["existing", "replace"] | None = None,
        closes_group: bool = False,
        connection: Any = None,
        **columns: Any,
    ) -> MessageId:
        """Put a message. Idempotent: an existing message with the same id is left unchanged.

        Parameters
        ----------
        payload
            Bytes, text or a JSON value, by the table's option ``payload``.
        id
            Identifies the message; None: generated, as a bigint by the database or as a UUID (version 7) by Waterclock.
        at
            When to send it; None: now.
        delay
            How long to wait before sending it, instead of ``at``: from now by the database's clock, not from your
            commit.
        group
            Its group; None: from the header that ``group_header`` names.
        headers
            Strings by name.
        priority
            Higher priorities are sent first, whatever their age. In a table with groups, a group has the priority of
            its first message. In a table with ``fair_by``, priorities order the messages of each key.
        expires_at
            When it expires and is no longer sent; None: never. A consumer that already has it may still ack it; if the
            consumer returns it, it is not sent again. The table's ``on_expired`` decides whether it is dropped or
            becomes a dead letter.
        unique
            A key of your choice, for deduplication: while a message with this key waits, another put changes nothing
            and returns its id. None: no deduplication.
        unique_until
            How long a message has its key. ``"claimed"`` (default): until a consumer gets it, so that a put during its
            handling, or while it backs off, adds another. ``"done"``: until it is acked or dead.
        on_conflict
            ``"existing"`` (default): the waiting message is left unchanged. ``"replace"``: it gets the payload, the
            time and all other values of the new message, but keeps its id, and its values of columns with a default
            that the new message omits. A leased message is left unchanged.
        closes_group
            Whether the group ends with this message: once it and all before it are gone, the exclusive group is
            released from its consumer, as by `groups.close`. Later messages of the group may go to any consumer. A
            message is gone if it was acked, cancelled, dropped after it expired, dead-lettered, moved or deleted. A
            message that is acked by id, dead-lettered or deleted before any claim has seen it closes nothing; one that
            is cancelled does.
        connection
            A SQLAlchemy Connection or Session, Django's ``connection``, or a DB-API connection of the database's
            driver, whose transaction contains the put: a commit delivers the message, a rollback discards it. If the
            connection commits each statement, the put is a transaction of its own. For an asynchronous SQLAlchemy
            connection, pass the connection that ``run_sync`` provides.
        columns
            Values of additional columns.

        Returns
        -------
        int | str | UUID
            The id.

        Raises
        ------
        InvalidArgumentError
            For an invalid argument.
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
        if delay is not None:
            message["delay"] = delay
        if expires_at is not None:
            message["expires_at"] = expires_at
        if closes_group is not False:
            message["closes_group"] = closes_group
        given = {"unique": unique, "unique_until": unique_until, "on_conflict": on_conflict}
        message |= {name: value for name, value in given.items() if value is not None}
        return self.put_many([message], connection=connection)[0]

    def put_many(self, rows: Iterable[Mapping[str, Any]], *, connection: Any = None) -> PutIds:
        """Put many messages in one transaction, each a dict of the arguments of `put`; return the ids in order.

        The result's ``existing`` holds the ids that existed before, and those of waiting messages with the same unique
        key.
        """
        if tracing.active is None:
            return self._put_many(rows, connection)
        with tracing.active.putting(self.name, rows) as passed_on:
            return self._put_many(passed_on, connection)

    def _put_many(self, rows: Iterable[Mapping[str, Any]], connection: Any) -> PutIds:
        with self._row as context:
            prepared = prepare_rows(context, rows)
            if prepared.keys:
                return self._put_keyed(context, prepared, connection)
            if connection is None:
                # One statement inserts them. If an earlier one failed for a known id, it did nothing.
                return context.backend.alone(lambda own: put_rows(context, own, prepared))
            with self._callers.use(connection) as theirs:
                return put_rows(context, theirs, prepared)

    def _put_keyed(self, context: TableContext, prepared: PreparedRows, connection: Any) -> PutIds:
        prepare_keys(context, prepared.keys)
        if connection is None:
            with changing(context):
                return context.backend.transact(lambda own: put_keyed(context, own, prepared, locks=False))
        with self._callers.use(connection) as theirs:
            return put_keyed(context, theirs, prepared, locks=True)

    def schedule(
        self,
        name: str,
        *,
        cron: str,
        payload: Any,
        timezone: str = "UTC",
        catch_up: CatchUp = "none",
        within: Duration | None = None,
        overlap: Overlap = "run",
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> None:
        """Put a message repeatedly. Creates the schedule of this name, or changes it if it differs.

        Each tick puts one message, by the database's clock, from the first process that sees it: every subscription of
        the table checks for ticks, and so does `tick`. A new, changed or resumed schedule starts with the next tick.
        The message has the headers ``waterclock.schedule``, ``waterclock.tick`` (the tick's time) and
        ``waterclock.caught_up`` ("true" or "false"). In a table with text ids its id is ``NAME@TIME``, with the tick's
        time.

        Parameters
        ----------
        name
            Its name, unique in this table.
        cron
            Minute, hour, day, month and weekday, or ``@hourly``, ``@daily``, ``@weekly``, ``@monthly``, ``@yearly``.
        payload, group, headers, priority
            As in `put`.
        timezone
            Time zone of ``cron``. When clocks change, fixed times tick once, and ``*`` and ``*/n`` tick in each
            interval.
        catch_up
            Which missed ticks to catch up: ``"none"``, the last ``"one"``, or ``"all"``. A tick is missed if no process
            looks within a minute of it.
        within
            Maximum age of missed ticks to catch up; None: any age.
        overlap
            ``"skip"``: a tick puts nothing while the previous message is not acked.

        Raises
        ------
        InvalidArgumentError
            For an invalid argument.
        """
        with self._row as context:
            rule = {"cron": cron, "timezone": timezone, "catch_up": catch_up, "within": within, "overlap": overlap}
            message = {"payload": payload, "group": group, "headers": headers, "priority": priority}
            set_schedule(context, name, rule, message)

    @property
    def schedules(self) -> MessageSchedules:
        """The table's schedules: ``schedules()`` lists them, its methods pause, resume, run and remove them."""
        return MessageSchedules(lambda _: self._row.now(), lambda: [self._row.now()])

    def unschedule(self, name: str) -> bool:
        """Remove a schedule, but not the messages it has put. Return whether it existed."""
        with self._row as context:
            return remove_schedule(context, name)

    def tick(self) -> int:
        """Put the due messages of the table's schedules; return how many. Subscriptions do this by themselves."""
        with self._row as context:
            return tick(context)

    def receive(
        self,
        limit: int | None = None,
        wait: Duration | None = None,
        consumer: str | None = None,
        *,
        where: str | None = None,
        order: str | None = None,
        parameters: Mapping[str, object] | None = None,
        max_groups: int | None = None,
    ) -> list[Delivery]:
        """Take due messages, by priority, then by due time.

        Parameters
        ----------
        limit
            Maximum count; None: the table's ``batch_size``.
        wait
            How long to wait if none is due; None: do not wait.
        consumer
            Name of the consumer, shown to operators; None: the host and the process, and with exclusive groups also a
            number of this ``Database`` object. Exclusive groups stay with this name while it is alive: until its leases
            end, and ``ack_wait`` after its last call. If two live consumers have the same name, the second gets
            nothing.
        where
            A condition in SQL: ``"region = 'eu' AND amount > :min"``. It may use the table's additional columns and id,
            time_scheduled, time_created, epoch, priority and group_id.
        order
            An order in SQL: ``"priority DESC, amount"``; NULL comes last.
        parameters
            Values for the ``:names`` in ``where``.
        max_groups
            Maximum number of exclusive groups; None: any number.

        Raises
        ------
        InvalidArgumentError
            For an invalid argument; also for ``where`` and ``order`` in a table with groups, whose order they would
            break.
        """
        if limit is not None and (type(limit) is not int or not 1 <= limit <= MOST):
            check_count(limit)  # raises with the reason
        if where is None and order is None and parameters is None and max_groups is None:
            request = Request(self._own_name() if consumer is None else check_consumer(consumer))
        else:
            request = self._request(consumer, where, order, parameters, max_groups)
        if wait is None:
            return receive(self._row, self._callers, limit, request)
        return receive_waiting(self._row, self._callers, limit, request, to_duration(wait, "wait"))

    def delivery(self, handle: str) -> Delivery:
        """Return a delivery by its handle (`delivery_handle.handle_of`), also one that another process received.

        It can be acked, given back and extended, but has no payload, headers or columns. A lost lease is noticed only
        when the delivery is used.
        """
        return delivery_of(self._row.now(), self._callers, handle)

    def watched(
        self,
        consumer: str | None = None,
        *,
        where: str | None = None,
        parameters: Mapping[str, object] | None = None,
        max_groups: int | None = None,
    ) -> Watched:
        """Describe the changes that a `receive` with these arguments waits for."""
        return Watched(self._row, self._request(consumer, where, None, parameters, max_groups))

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        """Return deliveries to the table, due at once and without counting an attempt. Ignores finished ones."""
        give_back(self._context, _deliveries(deliveries))

    def subscribe(
        self,
        consumer: str | None = None,
        limit: int | None = None,
        shard: str | None = None,
        key_range: str | None = None,
        *,
        where: str | None = None,
        order: str | None = None,
        parameters: Mapping[str, object] | None = None,
        rate_limit: float | None = None,
        heartbeat: bool = True,
        max_groups: int | None = None,
        kinds: Collection[str] | None = None,
    ) -> TableSubscription:
        """Iterate over messages as they become due, until the subscription is stopped or closed.

        Parameters
        ----------
        consumer
            Name of the consumer; None: the host and the process, and with exclusive groups also a number for each
            subscription.
        limit
            How many messages to claim at a time; None: the table's ``batch_size``, or one if the table has
            ``max_attempts``, because a consumer that dies uses up an attempt of each message that it has claimed.
        shard, key_range
            A part of a sharded table ("Subsetting"). This table is in one database, so only ``""``, ``"0"`` and ``"-"``
            are valid: they name the whole table.
        where, order, parameters
            As in `receive`.
        rate_limit
            Maximum messages per second of this subscription; None: only the table's limit.
        heartbeat
            Whether leases are extended while a delivery's ``with`` block runs.
        max_groups
            Maximum number of exclusive groups; None: any number.
        kinds
            Only messages whose header ``kind`` is one of these. Like ``where``, not in a table with groups.
        """
        check_unsharded(self.name, self._context.options.key_range, shard, key_range)
        name = self._own_name()
        if self.options.groups == "exclusive":  # each subscription is a consumer
            name = f"{name}/{secrets.token_hex(4)}"
        count = None if limit is None else check_count(limit)
        return TableSubscription(
            self._row,
            self._callers,
            lambda: self._context.sql.changes(self._context.backend, self.name),
            self._request(check_consumer(consumer) or name, where, order, parameters, max_groups, kinds),
            count,
            rate=None if rate_limit is None else Rate.of(check_rate(rate_limit)),
            heartbeat=heartbeat,
        )

    def _request(
        self,
        consumer: str | None,
        where: str | None,
        order: str | None,
        parameters: Mapping[str, object] | None,
        max_groups: int | None,
        kinds: Collection[str] | None = None,
    ) -> Request:
        if max_groups is not None:
            if self.options.groups != "exclusive":
                raise InvalidArgumentError(
                    f"max_groups must be omitted with groups={self.options.groups!r}, got {quoted(max_groups)}: only"
                    " exclusive groups stay with a consumer"
                )
            check_count(max_groups, "max_groups")
        selection = make_selection(self._row.now(), where, order, parameters, kinds)
        return Request(check_consumer(consumer) or self._own_name(), selection, max_groups)

    def ack(self, ids: MessageId | Delivery | Iterable[MessageId | Delivery], *, connection: Any = None) -> int:
        """Ack messages (message tables, "Acknowledging messages"): they are never sent again.

        Parameters
        ----------
        ids
            Ids, which are acked even if a consumer has the messages, or deliveries, which are acked unless their lease
            is lost.
        connection
            As in `put`: the acks count when the caller commits. After a rollback the deliveries can be acked again, or
            given back.

        Returns
        -------
        int
            How many were not acked before.

        Raises
        ------
        LeaseLostError
            If a delivery's lease was lost; its ``lost`` is then true. The other messages are acked.
        OrderError
            If an earlier message of a group is not acked. No message is acked.
        UnavailableError
            Without ``connection``, if a transaction that acked one of them has not ended; with ``connection``, if its
            transaction began before one of them was claimed.
        """
        given = one_or_many(ids)
        with self._row as context:
            return ack_together(context, self._callers, given, connection)

    def reschedule(self, ids: MessageId | Iterable[MessageId], at: Time, epoch: int | None = None) -> int:
        """Set when messages are sent next (message tables, "Advanced usage"); return how many were changed.

        Acked and cancelled messages are not changed.

        Parameters
        ----------
        at
            The time at which they are sent next.
        epoch
            How often they count as sent, which determines the next back-off; None: unchanged.
        """
        given = one_or_many(ids)
        when, epoch = to_time(at, "at"), check_epoch(epoch)
        with self._row as context, changing(context):
            plain = [check_id(context, one) for one in given]
            return context.backend.transact(lambda own: acking.reschedule(context, own, plain, when, epoch))

    def nack(self, deliveries: Iterable[Delivery], delay: Duration | None = None) -> int:
        """Return deliveries to the table, as `Delivery.nack` does; return how many were still leased.

        Deliveries whose lease was lost are marked (`Delivery.lost`) and left alone.
        """
        context, given = self._row.now(), _deliveries(deliveries)
        with changing(context):
            return nack_all(context, given, None if delay is None else to_duration(delay, "delay"))

    def extend(self, deliveries: Iterable[Delivery], duration: Duration) -> int:
        """Extend leases to ``duration`` from now, as `Delivery.extend`; return how many are still leased.

        Deliveries whose lease was lost are marked (`Delivery.lost`).
        """
        context, given = self._row.now(), _deliveries(deliveries)
        return extend_together(context, given, to_duration(duration, "duration"))

    def retry(self, ids: MessageId | Iterable[MessageId] | None = None) -> int:
        """Send delayed messages now, as if for the first time; return how many.

        Parameters
        ----------
        ids
            Messages that are scheduled, back off or are leased; None: all that back off.
        """
        given = one_or_many(ids)
        with self._row as context, changing(context):
            if ids is None:
                return retry_delayed(context)
            return retry_ids(context, [check_id(context, one) for one in given])

    def cancel(self, ids: MessageId | Iterable[MessageId], reason: str | None = None, *, connection: Any = None) -> int:
        """Cancel messages: they are no longer sent.

        A waiting message is dropped at once. A leased one stays with its consumer, whose ``delivery.cancelled`` becomes
        true within about a second. The consumer may still ack it; if the consumer returns it, it is not sent again. In
        a group, the messages behind it proceed as if it were acked.

        Parameters
        ----------
        ids
            The messages to cancel.
        reason
            Why; kept in the column ``last_error``, and shown by `explain`.
        connection
            As in `put`: cancelled when the caller commits. Until then no consumer gets them. In a table with groups,
            later messages proceed within a second of the commit if a subscription is open.

        Returns
        -------
        int
            How many were neither acked nor expired nor cancelled before, including those that consumers have.
        """
        given = one_or_many(ids)
        with self._row as context:
            plain = [check_id(context, one) for one in given]
            why = None if reason is None else check_reason(reason)
            if connection is not None:
                with self._callers.use(connection) as theirs:
                    return cancel_for_caller(context, theirs, plain, why)
            with changing(context):
                count = acking.run(context, lambda own: cancel(context, own, plain, why), several=len(plain) > 1)
            if count:
                heartbeat_of(context.backend).look_now()
            return count

    def dead_letter(self, ids: MessageId | Iterable[MessageId], reason: str) -> int:
        """Move messages to the dead-letter table, even if they have attempts left; return how many.

        Messages that consumers have stay with them. In a group, the messages behind the moved ones proceed.

        Parameters
        ----------
        ids
            The messages to move.
        reason
            Kept in the column ``dead_reason``.

        Raises
        ------
        InvalidArgumentError
            If the table has no ``dead_letter``.
        """
        given = one_or_many(ids)
        with self._row as context, changing(context):
            plain = [check_id(context, one) for one in given]
            count = bury_ids(context, plain, check_reason(reason))
        heartbeat_of(context.backend).look_now()
        return count

    def redrive(self, ids: MessageId | Iterable[MessageId] | None = None, *, limit: int | None = None) -> int:
        """Redrive dead letters into this table in their former order; return how many.

        They are due at once and count as never sent. Acked dead letters stay, and so do those whose id was put again
        meanwhile.

        Parameters
        ----------
        ids
            The dead letters to redrive; None: all.
        limit
            Maximum count; None: all.

        Raises
        ------
        InvalidArgumentError
            If the table has no ``dead_letter``.
        """
        given = one_or_many(ids)
        with self._row as context:
            wanted = None if ids is None else [check_id(context, one) for one in given]
            return redrive(context, wanted, None if limit is None else check_count(limit))

    def dead_letters(self, limit: int = 100) -> list[dict[str, Any]]:
        """Read dead letters, latest first: id, payload, group_id, epoch, and why and when they became dead letters.

        Raises
        ------
        InvalidArgumentError
            If the table has no ``dead_letter``.
        """
        with self._row as context:
            return list_dead_letters(context, check_count(limit))

    def purge(self) -> int:
        """Delete messages that were acked longer ago than ``purge_after``, some at a time; return the count.

        First it removes expired messages that are not leased. Depending on ``on_expired``, it moves them to the
        dead-letter table, or drops them, to be deleted later like acked messages.
        """
        total = 0
        with self._row as context:
            try:
                expire_some(context, pieces=None)
            finally:  # a row that cannot expire must not stop the deletion of others
                while purged := purge_some(context):
                    total += purged
            with suppress(ForbiddenError):  # keys need a separate privilege, and a leftover key is harmless
                while purge_keys(context):
                    pass
        return total

    @property
    def groups(self) -> MessageGroups:
        """The table's groups: their consumers, what blocks them, and commands to manage them.

        Raises
        ------
        InvalidArgumentError
            If the table has no groups.
        """
        context = self._row.now()
        return MessageGroups(context, lambda name: load(context.backend, name))

    def stats(self) -> TableStats:
        """Count the messages."""
        with self._row as context, context.backend.snapshot() as connection:
            return table_stats(context, connection)

    def peek(self, limit: int = 10, group: str | None = None) -> list[Peeked]:
        """Read messages without taking them, in the order in which consumers would get them.

        Due messages come first, then later ones. In a table with groups a group's messages come together. Leased
        messages are left out, and a pause of the table is ignored. Nothing is locked or written, so a read-only role
        can call it. Consumers may get other messages first: an exclusive group goes to its owner alone, and the order
        between groups and ungrouped messages is random.

        Parameters
        ----------
        limit
            Maximum count.
        group
            Only this group, ``""`` for messages without one; None: all.

        Raises
        ------
        InvalidArgumentError
            For an invalid limit, or a group of a table without groups.
        """
        count, name = check_count(limit), check_group(group)
        with self._row as context, context.backend.snapshot() as connection:
            return peek(context, connection, count, name)

    def _own_name(self) -> str:
        name = f"{socket.gethostname()}:{os.getpid()}"
        context = self._row.last_seen
        if context.options.groups != "exclusive":
            return name
        # Another Database of this process is another consumer, and so is a restarted process with the same pid.
        return f"{name}/{context.backend.session:x}"

    def failures(self, limit: int = 20) -> list[FailureGroup]:
        """Group the messages that failed by their errors, the largest group first.

        Errors belong to one group if they differ only in numbers, ids, quoted texts, paths and URLs. Only the last
        10,000 failed messages that are not acked, and the last 10,000 dead letters, are counted.

        Parameters
        ----------
        limit
            Maximum number of groups.
        """
        count = check_count(limit)
        with self._row as context, context.backend.snapshot() as connection:
            failed = chain(failed_messages(context, connection), dead_messages(context, connection))
            return list(group_failures(failed))[:count]

    def explain(self, id: MessageId) -> Explanation:  # noqa: A002  # the column's name, which the interface has too
        """Explain why a message is not sent; NotFoundError if missing."""
        with self._row as context, context.backend.snapshot() as connection:
            return explain_message(context, connection, check_id(context, id))


def message_table_names(backend: Backend) -> list[str]:
    """Return the names of all message tables, in alphabetical order."""
    with backend.snapshot() as connection:
        return list(connection.scalars(sa.select(message_tables.c.name).order_by(message_tables.c.name)))


def _deliveries(given: Iterable[Delivery]) -> list[Delivery]:
    deliveries = many("deliveries", given, "deliveries")
    for one in deliveries:
        if not isinstance(one, Delivery):
            raise InvalidArgumentError(f"deliveries must come from receive or a subscription, got {quoted(one)}")
    return deliveries
