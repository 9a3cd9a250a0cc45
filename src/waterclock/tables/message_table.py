"""The message table: a queue in an ordinary SQL table."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any, Literal, Self, Unpack

import sqlalchemy as sa

from waterclock._support.html import facts_as_html
from waterclock._support.quoting import quoted
from waterclock.database.backend import Backend
from waterclock.database.schema.table_catalogue import message_tables
from waterclock.errors import ForbiddenError, InvalidArgumentError, RefusedError
from waterclock.tables.catalogue.adopting import adopt as adopt_table
from waterclock.tables.catalogue.caller_connections import CallerConnections
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.creating import create, ensure_dead_letter_table
from waterclock.tables.catalogue.rate_limit import forget_rate
from waterclock.tables.catalogue.selection import make_selection
from waterclock.tables.catalogue.table_row import TableRow, change, drop, load
from waterclock.tables.consumers.acking_together import ack_together
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.consumers.extending_together import extend_together
from waterclock.tables.consumers.heartbeat import heartbeat_of
from waterclock.tables.consumers.receiving import Request, Watched, receive, receive_waiting
from waterclock.tables.consumers.retrying import give_back, nack_all, retry_delayed, retry_ids
from waterclock.tables.consumers.subscription import TableSubscription
from waterclock.tables.groups.group_state import settle_exhausted
from waterclock.tables.message_groups import MessageGroups
from waterclock.tables.message_schedules import MessageSchedules
from waterclock.tables.messages.finishing import acking
from waterclock.tables.messages.finishing.cancelling import cancel, cancel_for_caller
from waterclock.tables.messages.finishing.dead_letters import list_dead_letters, redrive
from waterclock.tables.messages.finishing.expiring import expire_some
from waterclock.tables.messages.inspecting.explaining import Explanation, explain_message
from waterclock.tables.messages.inspecting.peeking import Peeked, peek
from waterclock.tables.messages.inspecting.stats import TableStats, table_stats
from waterclock.tables.messages.putting.putting import (
    MessageId,
    PreparedRows,
    PutIds,
    check_id,
    prepare_rows,
    put_rows,
)
from waterclock.tables.messages.putting.scheduling import Overlap, remove_schedule, set_schedule, tick
from waterclock.tables.messages.putting.unique_keys import prepare_keys, purge_keys, put_keyed
from waterclock.tables.messages.rows.process_heartbeat import changing
from waterclock.tables.messages.upkeep.purging import purge_some
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
    """A queue in a SQL table (message tables). Safe to share between threads.

    Plain SQL works beside it: ``INSERT INTO name(id, message) VALUES …`` enqueues, SELECT looks.
    """

    def __init__(self, context: TableContext) -> None:
        self._row = TableRow(context)
        self._callers = CallerConnections(context.backend)

    @property
    def _context(self) -> TableContext:
        return self._row.last_seen

    @property
    def context(self) -> TableContext:
        """What the operations on the table need to know of it."""
        return self._context

    @property
    def name(self) -> str:
        """The table's name, also in SQL."""
        return self._context.name

    @property
    def options(self) -> TableOptions:
        """The table's options, durations in ns; another process's changes show after a second."""
        return self._row.now().options

    @property
    def paused_until(self) -> int | None:
        """When the table's pause ends, ns; None: it is not paused. A pause without an end has the largest time."""
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
        """Make a message table; `Database.create_table` explains the options.

        Raises
        ------
        AlreadyExistsError
            Where the table exists and ``exist_ok`` is False, or where another SQL table has the name.
        NotFoundError, SchemaError
            Where there is no SQL table to adopt, or none that can be adopted as it is.
        InvalidArgumentError
            For a name or a further column that a table cannot have.
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
            Where there is none of this name.
        SchemaError
            Where its SQL table is gone or lacks a column, or its options are incomplete.
        """
        return cls(load(backend, name))

    def alter(self, **options: Unpack[OptionChanges]) -> None:
        """Change options; those that are not given stay. Subscribers carry on under them within a second.

        Raises
        ------
        InvalidArgumentError
            For an option that cannot be meant, or that cannot change once the table is there.
        SchemaError
            Where the dead-letter table is there and does not fit.
        """
        context = self._row.read()
        changed = context.options.changed(options).with_dead_letter(self.name)

        def write_options(own: sa.Connection) -> None:
            further = [context.rows.c[name] for name in user_column_names(context.rows)]
            ensure_dead_letter_table(context.backend, own, self.name, changed, further)
            change(own, context.table_id, options=changed.to_json())
            if "rate_limit" in options:
                forget_rate(own, context.table_id)

        context.backend.transact(write_options)
        self._row.read()
        if changed.groups and not {"max_attempts", "on_exhausted"}.isdisjoint(options):
            self._settle_exhausted()

    def _settle_exhausted(self) -> None:
        """Let groups go on whose first message had used up its attempts by the options as they were before."""
        context = self._context
        after: str | None = None
        while True:
            after = context.backend.transact(lambda own, after=after: settle_exhausted(context, own, after))
            if after is None:
                return

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
        self._row.read()

    @contextmanager
    def _loaded(self) -> Generator[TableContext]:
        """Give the table as it is now, and refuse to work on one that cannot be loaded any more."""
        try:
            yield self._row.now()
        except RefusedError as error:
            self._row.check(error)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the database's URL and the table's name; it is opened again by that name."""
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
        delay
            After how long it is to be sent, instead of ``at``: from now on, by the database's clock, and not from the
            commit of a transaction of yours.
        group
            Its group; None: the one that the header named by ``group_header`` names.
        headers
            Text by text.
        priority
            Higher ones are sent earlier, at any age. In a table with groups the head's priority orders groups.
        expires_at
            From when on it is not sent any more; None: it never expires. A consumer that has it then keeps it and may
            ack it, but what it gives back is not sent again. The table's ``on_expired`` says what becomes of it.
        unique
            A key of your choice, of which one message waits at a time: while one does, putting another changes nothing
            and returns its id. None: any number may wait.
        unique_until
            Until when a message has its key: ``"claimed"`` (None means this): until a consumer gets it, so that a put
            during its handling, or while it backs off, starts another; ``"done"``: until it is acked or dead.
        on_conflict
            What becomes of the one that waits: ``"existing"`` (None means this): it stays as it is; ``"replace"``: it
            gets the payload, the time and all else of this one, but not its id. What a consumer has stays as it is.
        connection
            A SQLAlchemy Connection or Session, Django's ``connection``, or a DB-API connection of the database's
            driver, in whose transaction to put: commit delivers, rollback leaves nothing. On one that commits each
            statement, the put is a transaction of its own. Of SQLAlchemy's asynchronous ones, what ``run_sync`` passes.
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
        if delay is not None:
            message["delay"] = delay
        if expires_at is not None:
            message["expires_at"] = expires_at
        given = {"unique": unique, "unique_until": unique_until, "on_conflict": on_conflict}
        message |= {name: value for name, value in given.items() if value is not None}
        return self.put_many([message], connection=connection)[0]

    def put_many(self, rows: Iterable[Mapping[str, Any]], *, connection: Any = None) -> PutIds:
        """Put many messages in one transaction, each a dict of the arguments of `put`; return the ids in their order.

        Its ``existing`` names the ids that were there already, and those that stand for messages with the same key.
        """
        with self._loaded() as context:
            prepared = prepare_rows(context, rows)
            if prepared.keys:
                return self._put_keyed(context, prepared, connection)
            if connection is None:
                # One statement inserts them. One that failed before, for an id that is known, did nothing.
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
        """Put a message again and again; a schedule of this name is changed, and stays as it is where nothing changes.

        Each tick puts one message, by the database's clock, whichever process comes first. Every subscription of the
        table looks, in whichever process, and so does `tick`. One that is new, changed or resumed begins with the next
        tick. The message has the headers ``waterclock.schedule``, ``waterclock.tick`` (the tick's time) and
        ``waterclock.caught_up`` ("true" or "false"). Where ids are text, its id is ``NAME@TIME``, of the tick.

        Parameters
        ----------
        name
            Names it in this table.
        cron
            Minute, hour, day, month and weekday, or ``@hourly``, ``@daily``, ``@weekly``, ``@monthly``, ``@yearly``.
        payload, group, headers, priority
            As in `put`.
        timezone
            Of the hours in ``cron``. Where a clock is set forward or back, fixed times tick once, and ``*`` and ``*/n``
            tick in each interval.
        catch_up
            What becomes of ticks that were missed, because no process looked within a minute: ``"none"`` is put, the
            last ``"one"``, or ``"all"``.
        within
            Those that were missed longer ago than this are not put; None: they are.
        overlap
            ``"skip"``: a tick puts nothing while the message before is not acked.

        Raises
        ------
        InvalidArgumentError
            For an argument that cannot be meant.
        """
        with self._loaded() as context:
            rule = {"cron": cron, "timezone": timezone, "catch_up": catch_up, "within": within, "overlap": overlap}
            message = {"payload": payload, "group": group, "headers": headers, "priority": priority}
            set_schedule(context, name, rule, message)

    @property
    def schedules(self) -> MessageSchedules:
        """The table's schedules: ``schedules()`` lists them, its methods pause, resume, run and remove them."""
        return MessageSchedules(lambda _: self._row.now(), lambda: [self._row.now()])

    def unschedule(self, name: str) -> bool:
        """Remove a schedule; what it has put stays. Say whether there was one of this name."""
        with self._loaded() as context:
            return remove_schedule(context, name)

    def tick(self) -> int:
        """Put what the table's schedules have due; return how many. Subscriptions do it by themselves."""
        with self._loaded() as context:
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
        """Take messages that are due, highest priority first, then the oldest due first.

        Parameters
        ----------
        limit
            How many at the most; None: the table's ``batch_size``.
        wait
            For how long to wait where none is due; None: not at all.
        consumer
            Who takes them, for those who look; None: the host and the process, and with exclusive groups a number that
            this ``Database`` has. Exclusive groups stay with this name for as long as it is alive: until its leases
            end, and ``ack_wait`` after it asked last. Two that are alive cannot have one name: the second one gets
            nothing.
        where
            Which messages, in SQL's words: ``"region = 'eu' AND amount > :min"``. It may name the table's further
            columns and id, time_scheduled, time_created, epoch, priority and group_id.
        order
            In which order, in SQL's words: ``"priority DESC, amount"``; NULL comes last.
        parameters
            Values for the ``:names`` in ``where``.
        max_groups
            How many exclusive groups the consumer may have; None: any number.

        Raises
        ------
        InvalidArgumentError
            For an argument that cannot be meant; also for ``where`` and ``order`` in a table with groups, whose order
            they would break.
        """
        if limit is not None and (type(limit) is not int or not 1 <= limit <= MOST):
            check_count(limit)  # says what is wrong
        if where is None and order is None and parameters is None and max_groups is None:
            request = Request(self._own_name() if consumer is None else check_consumer(consumer))
        else:
            request = self._request(consumer, where, order, parameters, max_groups)
        if wait is None:
            return receive(self._row, self._callers, limit, request)
        return receive_waiting(self._row, self._callers, limit, request, to_duration(wait, "wait"))

    def watched(
        self,
        consumer: str | None = None,
        *,
        where: str | None = None,
        parameters: Mapping[str, object] | None = None,
        max_groups: int | None = None,
    ) -> Watched:
        """Describe what a `receive` with these arguments waits for."""
        return Watched(self._row, self._request(consumer, where, None, parameters, max_groups))

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        """Give deliveries back, due at once and without counting an attempt. Those that are over stay over."""
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
        """Take messages one after another as they become due, until the subscription is stopped or closed.

        Parameters
        ----------
        consumer
            Who takes them; None: the host and the process, and with exclusive groups a number, since each is one
            consumer.
        limit
            How many to claim at a time; None: the table's ``batch_size``, and one where the table has ``max_attempts``:
            what a consumer that dies has claimed counts as an attempt, whether it was handed out or not.
        shard, key_range
            A part of a sharded table ("Subsetting"). This one is in one database: ``""`` and ``"0"``, and ``"-"``, name
            the whole of it, and anything else is an error.
        where, order, parameters
            Which messages, and in which order; as in `receive`.
        rate_limit
            How many messages a second this subscription takes at the most; None: as many as the table lets it.
        heartbeat
            Whether leases are extended while a delivery's ``with`` block runs.
        max_groups
            How many exclusive groups the consumer may have; None: any number.
        kinds
            Only messages whose header ``kind`` is one of these; others stay. Not in a table with groups, as ``where``.
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
                    f"max_groups: {quoted(max_groups)} has no meaning with groups={self.options.groups!r}; only"
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
            Ids, which are acked also where a consumer has them, or deliveries, which are acked where their lease is not
            lost.
        connection
            As in `put`: the acks count when the caller commits. Until then the deliveries are ours, so after a rollback
            they can be acked again, or given back.

        Returns
        -------
        int
            How many were not acked before.

        Raises
        ------
        LeaseLostError
            Where a delivery's lease was lost, which its ``lost`` says then. The other messages are acked.
        OrderError
            Where an earlier message of a group is not acked. No message is acked.
        UnavailableError
            Without ``connection``, where a transaction in which one of them was acked has not ended; with it, where
            that transaction sees a state from before one of them was claimed.
        """
        given = one_or_many(ids)
        with self._loaded() as context:
            return ack_together(context, self._callers, given, connection)

    def reschedule(self, ids: MessageId | Iterable[MessageId], at: Time, epoch: int | None = None) -> int:
        """Set when messages are sent next (message tables, "Advanced usage"); return how many are.

        Those that were acked or cancelled are not.

        Parameters
        ----------
        at
            When.
        epoch
            How often they count as sent, which sets the back-off that follows; None: as it is.
        """
        given = one_or_many(ids)
        when, epoch = to_time(at, "at"), check_epoch(epoch)
        with self._loaded() as context, changing(context):
            plain = [check_id(context, one) for one in given]
            return context.backend.transact(lambda own: acking.reschedule(context, own, plain, when, epoch))

    def nack(self, deliveries: Iterable[Delivery], delay: Duration | None = None) -> int:
        """Give deliveries back, as `Delivery.nack` does; return how many were still ours.

        Those whose lease was lost are noted so (`Delivery.lost`) and left alone.
        """
        context, given = self._row.now(), _deliveries(deliveries)
        with changing(context):
            return nack_all(context, given, None if delay is None else to_duration(delay, "delay"))

    def extend(self, deliveries: Iterable[Delivery], duration: Duration) -> int:
        """Keep deliveries for ``duration`` from now on, as `Delivery.extend` does; return how many are still ours.

        Those whose lease was lost are noted so (`Delivery.lost`).
        """
        context, given = self._row.now(), _deliveries(deliveries)
        return extend_together(context, given, to_duration(duration, "duration"))

    def retry(self, ids: MessageId | Iterable[MessageId] | None = None) -> int:
        """Send messages now that are to be sent later, as if for the first time; return how many.

        Parameters
        ----------
        ids
            Which, whether they are scheduled, back off, or are out; None: all that were sent before and back off.
        """
        given = one_or_many(ids)
        with self._loaded() as context, changing(context):
            if ids is None:
                return retry_delayed(context)
            return retry_ids(context, [check_id(context, one) for one in given])

    def cancel(
        self,
        ids: MessageId | Iterable[MessageId],
        reason: str | None = None,
        *,
        connection: Any = None,
    ) -> int:
        """Cancel messages: they are not sent any more.

        What waits is dropped at once. What a consumer has stays with it, and its ``delivery.cancelled`` says so within
        about a second; it may still ack it, but what it gives back, or leaves to the end of its lease, is not sent
        again. In a group those behind go on as if the message were acked.

        Parameters
        ----------
        ids
            Which.
        reason
            Why; kept in the column ``last_error``, and shown by `explain`.
        connection
            As in `put`: cancelled when the caller commits. Until then no consumer gets them. In a table with groups
            those behind go on within a second of the commit, where there is a subscription.

        Returns
        -------
        int
            How many were neither acked nor expired nor cancelled before, those that consumers have among them.
        """
        given = one_or_many(ids)
        with self._loaded() as context:
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

    def redrive(self, ids: MessageId | Iterable[MessageId] | None = None, *, limit: int | None = None) -> int:
        """Bring dead letters back, in the order that they had in this table; return how many.

        They are due at once and count as never sent. Dead letters that were acked stay where they are, and so do those
        whose id was put again meanwhile.

        Parameters
        ----------
        ids
            Which; None: all.
        limit
            How many at the most; None: all.

        Raises
        ------
        InvalidArgumentError
            Where the table has no ``dead_letter``.
        """
        given = one_or_many(ids)
        with self._loaded() as context:
            wanted = None if ids is None else [check_id(context, one) for one in given]
            return redrive(context, wanted, None if limit is None else check_count(limit))

    def dead_letters(self, limit: int = 100) -> list[dict[str, Any]]:
        """Read dead letters, those that died last first: id, payload, group_id, epoch, and why and when they died.

        Raises
        ------
        InvalidArgumentError
            Where the table has no ``dead_letter``.
        """
        with self._loaded() as context:
            return list_dead_letters(context, check_count(limit))

    def purge(self) -> int:
        """Delete messages that were acked longer ago than ``purge_after``, some at a time; return how many.

        First it removes those that have expired and that no consumer has: as ``on_expired`` says they go to the
        dead-letter table, or are deleted once they were dropped so long ago.
        """
        total = 0
        with self._loaded() as context:
            try:
                expire_some(context, pieces=None)
            finally:  # a row that cannot expire keeps no other from being deleted
                while purged := purge_some(context):
                    total += purged
            with suppress(ForbiddenError):  # keys take a right of their own, and one that stays is no harm
                while purge_keys(context):
                    pass
        return total

    @property
    def groups(self) -> MessageGroups:
        """The table's groups: which consumers have them, what holds them up, and what can be done about it.

        Raises
        ------
        InvalidArgumentError
            Where the table has none.
        """
        context = self._row.now()
        return MessageGroups(context, lambda name: load(context.backend, name))

    def stats(self) -> TableStats:
        """Count the messages."""
        with self._loaded() as context, context.backend.snapshot() as connection:
            return table_stats(context, connection)

    def peek(self, limit: int = 10, group: str | None = None) -> list[Peeked]:
        """Look at messages without taking them, in the order in which consumers would get them.

        Those that are due come first, and then those that will be. In a table with groups a group's messages come
        together. What a consumer has is left out, and a pause of the table changes nothing. Nothing is locked or
        written, so a role that may only read the table can do it. Consumers that claim meanwhile may get other messages
        first: an exclusive group goes to its owner alone, and between groups and messages that are in none chance
        decides.

        Parameters
        ----------
        limit
            How many at the most.
        group
            Of this group alone, ``""`` for the messages that name none; None: of all.

        Raises
        ------
        InvalidArgumentError
            For a limit that is no count, or a group of a table that has none.
        """
        count, name = check_count(limit), check_group(group)
        with self._loaded() as context, context.backend.snapshot() as connection:
            return peek(context, connection, count, name)

    def _own_name(self) -> str:
        name = f"{socket.gethostname()}:{os.getpid()}"
        context = self._row.last_seen
        if context.options.groups != "exclusive":
            return name
        # Another Database of the process is another consumer, and so is the process that starts again with this pid.
        return f"{name}/{context.backend.session:x}"

    def explain(self, id: MessageId) -> Explanation:  # noqa: A002  # the column's name, which the interface has too
        """Say why a message is not out; NotFoundError where there is none with this id."""
        with self._loaded() as context, context.backend.snapshot() as connection:
            return explain_message(context, connection, check_id(context, id))


def message_table_names(backend: Backend) -> list[str]:
    """Name every message table, in alphabetical order."""
    with backend.snapshot() as connection:
        return list(connection.scalars(sa.select(message_tables.c.name).order_by(message_tables.c.name)))


def _deliveries(given: Iterable[Delivery]) -> list[Delivery]:
    deliveries = many("deliveries", given, "deliveries")
    for one in deliveries:
        if not isinstance(one, Delivery):
            raise InvalidArgumentError(f"deliveries: {quoted(one)} is no delivery; give what receive returned")
    return deliveries
