"""A message table spread over several databases by message id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from heapq import merge
from typing import Any, NoReturn, TypeVar, Unpack

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError, SchemaError, UnavailableError, WaterclockError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.consumers.subscription import TableSubscription
from waterclock.tables.message_schedules import MessageSchedules
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.inspecting.explaining import Explanation
from waterclock.tables.messages.inspecting.peeking import Peeked
from waterclock.tables.messages.putting.putting import MessageId, PutIds, check_id
from waterclock.tables.messages.putting.scheduling import check_name
from waterclock.tables.model.failure_groups import FailureGroup, merge_failures
from waterclock.tables.model.keyspace import choose, keyspace_id
from waterclock.tables.model.options import MOST, OptionChanges, TableOptions, check_count
from waterclock.tables.model.schema import DIED
from waterclock.tables.model.values.arguments import many, one_or_many
from waterclock.tables.sharding.shard import Shard
from waterclock.tables.sharding.sharded_putting import put_over_shards, put_with
from waterclock.tables.sharding.sharded_stats import ShardedStats
from waterclock.tables.sharding.sharded_subscription import ShardedSubscription, receive_from
from waterclock.tables.sharding.shards_connections import home_of
from waterclock.time import Duration, Time, to_duration

_T = TypeVar("_T")
_Part = TypeVar("_Part")


def refuse_limits(options: Mapping[str, Any]) -> None:
    """Raise InvalidArgumentError if these options of a sharded table limit its keys."""
    for option in ("limit", "rate"):
        if options.get(option) is not None:
            raise InvalidArgumentError(
                f"{option} must be omitted in a sharded table, which spreads the messages of a key over its shards, got"
                f" {quoted(options[option])}. Use a table that is not sharded"
            )


class TablePart:
    """A sharded table on one shard, which may be unavailable."""

    def __init__(self, shard: Shard, open_table: Callable[[Shard], MessageTable]) -> None:
        self._shard = shard
        self._open_table = open_table
        self.url = shard.url  # URL of the shard's database

    def open(self) -> MessageTable:
        """Open it; UnavailableError if the shard is unavailable, or was recently and is left alone."""
        if self._shard.rest:
            raise UnavailableError(f"shard {self._shard.name} is unavailable: {self._shard.reason}")
        try:
            table = self._open_table(self._shard)
        except UnavailableError as error:
            self._shard.note_away(error)
            raise
        self._shard.note_back()
        return table


class ShardedTable:
    """A message table on several databases; a message's id decides which one it is in. Thread-safe.

    It works like `MessageTable`, but an operation on several shards is not one transaction.
    """

    def __init__(self, name: str, shards: Sequence[Shard]) -> None:
        self._name = name
        self._shards = list(shards)
        self._tables: dict[str, MessageTable] = {}
        self._turn = 0

    @classmethod
    def open(cls, name: str, shards: Sequence[Shard]) -> ShardedTable:
        """Open the table on the available shards; the others follow once they are available.

        Raises
        ------
        NotFoundError
            If a shard has no message table of this name.
        SchemaError
            If a shard's table holds another key range: its URL is that of another shard.
        UnavailableError
            If every shard is unavailable.
        """
        table = cls(name, shards)
        found, failures = table._on(table._shards, lambda _: None)
        if not found:
            _refuse(failures, "open", found)
        if others := {shard: error for shard, error in failures.items() if not isinstance(error, UnavailableError)}:
            _refuse(others, "open", found)
        return table

    @property
    def name(self) -> str:
        """The table's name, also in SQL."""
        return self._name

    @property
    def context(self) -> TableContext:
        """Return the context of the table on an available shard; UnavailableError if no shard is available."""
        return self._any().context

    @property
    def options(self) -> TableOptions:
        """The table's options, the same on every shard except for the key range."""
        return self._any().options

    @property
    def shards(self) -> list[str]:
        """Names of the shards, which are their key ranges, in order."""
        return [shard.name for shard in self._shards]

    def parts(self, shard: str | None = None, key_range: str | None = None) -> list[TablePart]:
        """Return the table on each shard, or on those named as in `subscribe`, to read each separately."""
        return [TablePart(one, self._table) for one in self._chosen(shard, key_range)]

    def shard_of(self, id: MessageId) -> str:  # noqa: A002  # the column's name, which the interface has too
        """Return the name of the shard that has, or would have, the message with this id."""
        return self._shard_of(check_id(self._any().context, id)).name

    def put(
        self,
        payload: Any,
        *,
        id: MessageId | str | None = None,  # noqa: A002  # the column's name, which the interface has too
        at: Time | None = None,
        delay: Duration | None = None,
        headers: Mapping[str, str] | None = None,
        priority: int = 0,
        expires_at: Time | None = None,
        connection: Any = None,
        **columns: Any,
    ) -> MessageId:
        """Put a message on the shard of its id, as `MessageTable.put`; an omitted bigint id is drawn here.

        Parameters
        ----------
        connection
            As in `MessageTable.put`. It must be to the shard of the id; without an id, one is drawn that belongs there.
        """
        message: dict[str, Any] = {
            "payload": payload,
            "id": id,
            "at": at,
            "headers": headers,
            "priority": priority,
            **columns,
        }
        if delay is not None:
            message["delay"] = delay
        if expires_at is not None:
            message["expires_at"] = expires_at
        return self.put_many([message], connection=connection)[0]

    def put_many(self, rows: Iterable[Mapping[str, Any]], *, connection: Any = None) -> PutIds:
        """Put many messages in one transaction per shard; return their ids in order.

        Raises
        ------
        PartlyPutError
            If shards were unavailable. It names the messages that were put; putting all again under its ids is safe.
        InvalidArgumentError
            For an invalid message, before any is put; for a ``connection`` to another shard.
        """
        if connection is None:
            return put_over_shards(self._any().context, rows, self._shards, self._table)
        home = home_of(connection, [shard for shard in self._shards if not shard.rest], self._table)
        return put_with(self._table(home), rows, home, connection, self._elsewhere)

    def schedule(
        self,
        name: str,
        *,
        cron: str,
        payload: Any,
        headers: Mapping[str, str] | None = None,
        priority: int = 0,
        **rule: Any,
    ) -> None:
        """Put a message repeatedly, as `MessageTable.schedule`, by the clock of the schedule's shard.

        The schedule's name decides the shard, which also gets its messages: a tick is one transaction in one database.

        Parameters
        ----------
        rule
            The other arguments of `MessageTable.schedule`.
        """
        home = self._table(self._shard_of(check_name(name)))
        home.schedule(name, cron=cron, payload=payload, headers=headers, priority=priority, **rule)

    @property
    def schedules(self) -> MessageSchedules:
        """The schedules of all shards, as `MessageTable.schedules`; UnavailableError if a needed one is down."""
        return MessageSchedules(
            lambda name: self._table(self._shard_of(name)).context,
            lambda: [self._table(shard).context for shard in self._shards],
        )

    def unschedule(self, name: str) -> bool:
        """Remove a schedule, as `MessageTable.unschedule`."""
        return self._table(self._shard_of(check_name(name))).unschedule(name)

    def tick(self) -> int:
        """Put the due messages of all shards' schedules, as `MessageTable.tick`."""
        return sum(self._all(MessageTable.tick, "tick"))

    def receive(
        self, limit: int | None = None, wait: Duration | None = None, consumer: str | None = None, **which: Any
    ) -> list[Delivery]:
        """Take due messages from one shard after the other; each call begins with the next shard.

        Parameters
        ----------
        limit, wait, consumer
            As in `MessageTable.receive`.
        which
            Its ``where``, ``order`` and ``parameters``; an order applies to each shard separately.

        Raises
        ------
        UnavailableError
            If every shard is unavailable.
        """
        count = self.options.batch_size if limit is None else limit
        found = receive_from(self._in_turn(), self._table, count, consumer, **which)
        if found or wait is None:
            return found
        with ShardedSubscription(self._shards, self._table, consumer, 1, **which) as deliveries:
            first = deliveries.next_within(to_duration(wait, "wait"))
        if first is None:
            return []
        rest = receive_from(self._in_turn(), self._table, count - 1, consumer, **which) if count > 1 else []
        return [first, *rest]

    def subscribe(
        self,
        consumer: str | None = None,
        limit: int | None = None,
        shard: str | None = None,
        key_range: str | None = None,
        **how: Any,
    ) -> TableSubscription | ShardedSubscription:
        """Take messages one after another as they become due ("Subsetting" in *Vitess Messaging*).

        Parameters
        ----------
        consumer, limit
            As in `MessageTable.subscribe`; the limit and the table's ``cache_size`` apply to each shard.
        shard
            Read this shard alone.
        key_range
            Read this range alone, which must be exactly that of a shard or of several neighbouring ones.
        how
            The other arguments of `MessageTable.subscribe`, for each shard: an order or a rate applies to each
            separately.

        Returns
        -------
        Subscription | ShardedSubscription
            One that reads all these shards in turn. An unavailable shard does not stop the others.
        """
        shards = self._chosen(shard, key_range)
        if len(shards) == 1:
            return self._table(shards[0]).subscribe(consumer, limit, **how)
        return ShardedSubscription(shards, self._table, consumer, limit, **how)

    def ack(self, ids: MessageId | Delivery | Iterable[MessageId | Delivery], *, connection: Any = None) -> int:
        """Ack messages, as `MessageTable.ack`; return how many were not acked before."""
        given = one_or_many(ids)
        by_shard = self._split(given)
        if connection is None:
            return sum(self._each(by_shard, lambda table, part: table.ack(part), "ack"))
        return self._table(self._home_of_all(by_shard, connection)).ack(given, connection=connection)

    def reschedule(self, ids: MessageId | Iterable[MessageId], at: Time, epoch: int | None = None) -> int:
        """Set when messages are sent next, as `MessageTable.reschedule`."""
        given = one_or_many(ids)
        return sum(self._each(self._split(given), lambda table, part: table.reschedule(part, at, epoch), "reschedule"))

    def nack(self, deliveries: Iterable[Delivery], delay: Duration | None = None) -> int:
        """Return deliveries to the table, as `MessageTable.nack`; return how many were still leased."""
        return sum(
            self._each(
                self._split(many("deliveries", deliveries, "deliveries")),
                lambda table, part: table.nack(part, delay),
                "nack",
            )
        )

    def extend(self, deliveries: Iterable[Delivery], duration: Duration) -> int:
        """Extend leases, as `MessageTable.extend`; return how many deliveries are still leased."""
        return sum(
            self._each(
                self._split(many("deliveries", deliveries, "deliveries")),
                lambda table, part: table.extend(part, duration),
                "extend",
            )
        )

    def retry(self, ids: MessageId | Iterable[MessageId] | None = None) -> int:
        """Send delayed messages now, as `MessageTable.retry`, on every shard."""
        if ids is None:
            return sum(self._all(MessageTable.retry, "retry"))
        given = one_or_many(ids)
        return sum(self._each(self._split(given), MessageTable.retry, "retry"))

    def cancel(self, ids: MessageId | Iterable[MessageId], reason: str | None = None, *, connection: Any = None) -> int:
        """Cancel messages, as `MessageTable.cancel`; return how many were neither acked nor cancelled before."""
        given = one_or_many(ids)
        by_shard = self._split(given)
        if connection is None:
            return sum(self._each(by_shard, lambda table, part: table.cancel(part, reason), "cancel"))
        home = self._home_of_all(by_shard, connection)
        return self._table(home).cancel(given, reason, connection=connection)

    def dead_letter(self, ids: MessageId | Iterable[MessageId], reason: str) -> int:
        """Move messages to the dead letters of their shards, as `MessageTable.dead_letter`."""
        parts = self._split(one_or_many(ids))
        return sum(self._each(parts, lambda table, part: table.dead_letter(part, reason), "dead_letter"))

    def redrive(self, ids: MessageId | Iterable[MessageId] | None = None, *, limit: int | None = None) -> int:
        """Redrive dead letters, as `MessageTable.redrive`, in the order that they had on their shard.

        Parameters
        ----------
        limit
            Maximum count, over all shards; one shard is emptied before the next.
        """
        if limit is None and ids is None:
            return sum(self._all(MessageTable.redrive, "redrive"))
        given = one_or_many(ids)
        parts: dict[Shard, list[Any] | None] = dict.fromkeys(self._shards) if ids is None else {**self._split(given)}
        if limit is None:
            return sum(self._each(parts, lambda table, part: table.redrive(part), "redrive"))
        total = 0
        for shard, part in parts.items():
            if not total or total < limit:
                total += self._table(shard).redrive(part, limit=limit - total)
        return total

    def dead_letters(self, limit: int = 100) -> list[dict[str, Any]]:
        """Read the dead letters of all shards, latest first, as `MessageTable.dead_letters`."""
        found = self._all(lambda table: table.dead_letters(limit), "dead_letters")
        return sorted((one for part in found for one in part), key=lambda one: one[DIED], reverse=True)[:limit]

    def failures(self, limit: int = 20) -> list[FailureGroup]:
        """Group the failed messages of all shards by their errors, as `MessageTable.failures`."""
        count = check_count(limit)
        found = self._all(lambda table: table.failures(MOST), "failures")
        return list(merge_failures(group for part in found for group in part))[:count]

    def purge(self) -> int:
        """Delete messages that were acked longer ago than ``purge_after`` on every shard; return how many."""
        return sum(self._all(MessageTable.purge, "purge"))

    @property
    def groups(self) -> NoReturn:
        """Not available: the messages of a group must be in one database.

        Raises
        ------
        InvalidArgumentError
            Always, as `MessageTable.groups` does for a table without groups.
        """
        raise InvalidArgumentError(
            f"message table {self.name!r} has no groups, because it is sharded by id. Use a table in one database"
        )

    def stats(self) -> ShardedStats:
        """Count the messages over all shards; unavailable shards are named and not counted."""
        counted, failures = self._on(self._shards, MessageTable.stats)
        away = {shard.name: str(error) for shard, error in failures.items() if isinstance(error, UnavailableError)}
        if len(away) < len(failures):
            _refuse(failures, "stats", counted)
        return ShardedStats.add_up({shard.name: stats for shard, stats in counted.items()}, away)

    def peek(self, limit: int = 10, group: str | None = None) -> list[Peeked]:
        """Look at messages without taking them, as `MessageTable.peek`, on all shards together.

        Messages of one shard are in the order in which its consumers would get them. The shards are merged: due ones
        first, by priority, then by due time.
        """
        count = check_count(limit)
        now = self._any().context.backend.now()
        found = self._all(lambda table: table.peek(count, group), "peek")
        return list(merge(*found, key=lambda one: _turn_of(one, now)))[:count]

    def explain(self, id: MessageId) -> Explanation:  # noqa: A002  # the column's name, which the interface has too
        """Explain why a message is not sent; NotFoundError if missing."""
        return self._table(self._shard_of(check_id(self._any().context, id))).explain(id)

    def alter(self, **options: Unpack[OptionChanges]) -> None:
        """Change options on every shard; if one is unavailable, run it again later."""
        refuse_limits(options)
        self._all(lambda table: table.alter(**options), "alter")

    def pause(self, until: Time | None = None) -> None:
        """Send nothing until then, or until `resume`, on every shard."""
        self._all(lambda table: table.pause(until), "pause")

    @property
    def paused_until(self) -> int | None:
        """When the longest pause of any shard ends, ns; None: no shard is paused."""
        ends = self._all(lambda table: table.paused_until, "paused_until")
        return max((end for end in ends if end is not None), default=None)

    def resume(self) -> None:
        """End a pause on every shard."""
        self._all(MessageTable.resume, "resume")

    def drop(self) -> None:
        """Remove the table with its messages from every shard."""
        self._all(MessageTable.drop, "drop")

    def _any(self) -> MessageTable:
        if self._tables:
            return next(iter(self._tables.values()))
        found, failures = self._on(self._shards, lambda table: table)
        if not found:
            _refuse(failures, "open", found)
        return next(iter(found.values()))

    def _table(self, shard: Shard) -> MessageTable:
        known = self._tables.get(shard.name)
        if known is not None:
            return known
        table = shard.database.table(self.name)
        if table.options.key_range != shard.name:
            raise SchemaError(
                f"message table {self.name!r} on shard {shard.name} ({shard.backend.name}) must hold the key range"
                f" {shard.name}, got {table.options.key_range}. Are the URLs of two shards swapped, or does this URL"
                " belong to another keyspace?"
            )
        return self._tables.setdefault(shard.name, table)

    def _in_turn(self) -> list[Shard]:
        self._turn = (self._turn + 1) % len(self._shards)
        return self._shards[self._turn :] + self._shards[: self._turn]

    def _shard_of(self, message_id: MessageId) -> Shard:
        place = keyspace_id(message_id)
        return next(shard for shard in self._shards if place in shard.key_range)

    def _chosen(self, shard: str | None, key_range: str | None) -> list[Shard]:
        chosen = choose([one.key_range for one in self._shards], shard, key_range)
        return [one for one in self._shards if one.key_range in chosen]

    def _split(self, given: Iterable[Any]) -> dict[Shard, list[Any]]:
        context = self._any().context
        by_shard: dict[Shard, list[Any]] = {}
        for one in given:
            message_id = one.id if isinstance(one, Delivery) else check_id(context, one)
            by_shard.setdefault(self._shard_of(message_id), []).append(one)
        return by_shard

    def _home_of_all(self, by_shard: Mapping[Shard, list[Any]], connection: Any) -> Shard:
        """Return the shard that a connection is to; InvalidArgumentError if a message belongs to another one."""
        home = home_of(connection, [shard for shard in self._shards if not shard.rest], self._table)
        for shard, part in by_shard.items():
            if shard is not home:
                raise self._elsewhere(part[0].id if isinstance(part[0], Delivery) else part[0], home)
        return home

    def _elsewhere(self, message_id: MessageId, home: Shard) -> InvalidArgumentError:
        where = self._shard_of(message_id)
        return InvalidArgumentError(
            f"connection must be to shard {where.name}, the shard of message {quoted(message_id)} of {self.name!r},"
            f" got a connection to shard {home.name}"
        )

    def _each(self, by_shard: Mapping[Shard, _Part], work: Callable[[MessageTable, _Part], _T], verb: str) -> list[_T]:
        done, failures = _run({shard: lambda s=shard: work(self._table(s), by_shard[s]) for shard in by_shard})
        if failures:
            _refuse(failures, verb, done)
        return list(done.values())

    def _all(self, work: Callable[[MessageTable], _T], verb: str) -> list[_T]:
        done, failures = self._on(self._shards, work)
        if failures:
            _refuse(failures, verb, done)
        return list(done.values())

    def _on(
        self, shards: Iterable[Shard], work: Callable[[MessageTable], _T]
    ) -> tuple[dict[Shard, _T], dict[Shard, WaterclockError]]:
        return _run({shard: lambda s=shard: work(self._table(s)) for shard in shards})

    def __repr__(self) -> str:
        return f"<ShardedTable {self.name!r} on {', '.join(self.shards)}>"


def _turn_of(one: Peeked, now: int) -> tuple[int, int, int]:
    """Return a message's rank among messages of other shards at ``now``, ns."""
    if one.due_at <= now:
        return 0, -one.priority, one.due_at
    return 1, one.due_at, -one.priority


def _run(jobs: Mapping[Shard, Callable[[], _T]]) -> tuple[dict[Shard, _T], dict[Shard, WaterclockError]]:
    """Run a function on several shards at once; return the results and the errors."""
    done: dict[Shard, _T] = {}
    failures: dict[Shard, WaterclockError] = {}
    with ThreadPoolExecutor(max(1, len(jobs))) as pool:
        waiting = {shard: pool.submit(job) for shard, job in jobs.items()}
        for shard, result in waiting.items():
            try:
                done[shard] = result.result()
            except WaterclockError as error:
                failures[shard] = error
    return done, failures


def _refuse(failures: Mapping[Shard, WaterclockError], verb: str, done: Mapping[Shard, object]) -> None:
    """Raise the errors of some shards, first one that a retry cannot fix."""
    first = min(failures.values(), key=lambda error: isinstance(error, UnavailableError))
    others = "" if not done else f"; done on {', '.join(shard.name for shard in done)}"
    if isinstance(first, UnavailableError):
        away = "; ".join(f"{shard.name}: {error}" for shard, error in failures.items())
        raise UnavailableError(
            f"cannot {verb} on all shards: some are unavailable ({away}){others}. Try again later"
        ) from first
    first.add_note(f"{verb}: on shards {', '.join(shard.name for shard in failures)}{others}")
    raise first
