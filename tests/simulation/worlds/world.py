"""A world of one message table: its processes, what their callers saw, and what must be true of that."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import sqlalchemy as sa
from tests.simulation.gate import Rewrite, gates
from tests.simulation.scheduler import SECOND, START, Choosing, Scheduler, within_time
from tests.simulation.strategies import InTurn, Runs, as_runs
from tests.simulation.waits import waits_of
from tests.tables.keys.key_rows import contradictions

from waterclock._support import moments
from waterclock.connection import Database, connect
from waterclock.database import deadlines, driver_fast_path, per_database_cache
from waterclock.database.schema.table_catalogue import (
    consumers,
    groups,
    heartbeats,
    message_keys,
    schedules,
    totals,
    unique_keys,
)
from waterclock.database.schema.topic_catalogue import entries, files, ledgers, producers, subscriptions, topics
from waterclock.errors import LeaseLostError, NotFoundError, OrderError, UnavailableError, WaterclockError
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.groups import consumers as group_consumers
from waterclock.tables.groups import group_state, routing
from waterclock.tables.groups.info import GroupInfo
from waterclock.tables.keys import key_routing
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.inspecting.explaining import Explanation
from waterclock.tables.model.row_conditions import EXPIRED, is_expired
from waterclock.time import MAX_NS
from waterclock.topics.topic import Topic
from waterclock.work.ground.outcomes import Retry
from waterclock.work.worker import Worker

_T = TypeVar("_T")

LEASE = 10 * SECOND
SHORT, POLL = 0.003, 2.0
"""After how many seconds consumers ask again: while the run is explored, and at its end."""

SMALL = 2
"""What is routed, released and settled at once."""

HEALED_WITHIN = 6 * LEASE
_SOON = 6 * SECOND
"""How much later than it is due a fresh consumer that asks every two seconds may get a message, ns."""

_BACK_OFF = 2  # s

_OVER = ("acked", "expired", "cancelled", "dead")  # though no caller had the answer
_TIMED = ("leased", "scheduled", "backing_off")
_MOST_STEPS = 3000


@dataclass
class Hold:
    """A delivery that a consumer handles; ``ends`` once it is being acked, as the answer to that may get lost."""

    process: str
    delivery: Delivery
    beats: bool
    jumps: int
    ends: bool = False


class Quiet:
    """Wakes no consumer: when a notification comes is chance, and so that one comes at all is tested elsewhere."""

    tells = False
    row_unchanged_since = math.inf

    def arm(self) -> bool:
        return True

    def wait(self, seconds: float, stop: Any) -> bool:
        return stop.wait(seconds)

    def disarm(self) -> None:
        """Nothing to do: no writer notifies."""

    def close(self) -> None:
        """Nothing to give back."""


class Stage:
    """A database on which one run is played after another, with the processes that take part.

    Opening a database takes as long as a run, so processes keep theirs, and what they keep in memory is reset.

    Parameters
    ----------
    url
        The database.
    ledgers
        Folder for the ledger files of topics.
    """

    def __init__(self, url: str, ledgers: Path) -> None:
        self.url, self.ledgers = url, ledgers
        self.now: Callable[[], int] = lambda: START
        self._clock = self._read  # one object for all processes, since statements are built for a clock
        self._open = ExitStack()
        self._databases: dict[str, Database] = {}
        self._tables: dict[str, MessageTable] = {}
        self._topics: dict[str, Topic] = {}
        self._topic: Mapping[str, Any] = {}  # its row when it was made
        self._options: dict[str, Any] = {}
        limits = (
            (routing, "_ROUTED_AT_ONCE"),
            (routing, "_AT_ONCE"),
            (group_consumers, "_RELEASED_AT_ONCE"),
            (key_routing, "_ROUTED_AT_ONCE"),
        )
        for module, name in limits:
            self._open.enter_context(patch.object(module, name, SMALL))
        self._open.enter_context(patch.object(group_state, "NAMED_AT_ONCE", SMALL))
        per_database_cache.forget_built()
        self._open.callback(per_database_cache.forget_built)
        self.database = self._database("operator")
        sql = self._any_table().context.sql
        self._open.enter_context(patch.object(type(sql), "changes", lambda *_: Quiet()))
        self.kind = (
            "sqlite" if url.startswith("sqlite") else "postgresql" if url.startswith("postgresql") else "mariadb"
        )
        if self.kind == "postgresql":  # which has no key of groups: so a group that is added twice is noticed
            with self.database.backend.engine.begin() as connection:
                connection.exec_driver_sql("CREATE UNIQUE INDEX one_row ON waterclock_groups (table_id, group_id)")
        self.waits = waits_of(self.database.backend.engine)
        self._open.callback(self.waits.close)

    def _any_table(self) -> MessageTable:
        return self.database.create_table("orders", groups="sequenced", payload="text", exist_ok=True)

    def limit(self, module: Any, name: str, limit: int) -> None:
        """Let the product do less at once for as long as the stage is there."""
        if getattr(module, name) != limit:
            self._open.enter_context(patch.object(module, name, limit))

    def _database(self, process: str) -> Database:
        if process not in self._databases:
            database = self._open.enter_context(connect(self.url, self.ledgers, clock=self._clock))
            database.backend._turns = None  # the scheduler knows who writes
            self._databases[process] = database
        return self._databases[process]

    def _read(self) -> int:
        return self.now()

    def table(self, process: str) -> MessageTable:
        """Give the table as a process has it."""
        if process not in self._tables:
            self._tables[process] = self._database(process).table("orders")
        return self._tables[process]

    def callers_engine(self, isolation: str) -> sa.Engine:
        """Give an engine of a caller's own, with sessions as the server has them but for their isolation."""
        return sa.create_engine(self.database.backend.engine.url, isolation_level=isolation, poolclass=sa.NullPool)

    def topic(self, process: str) -> Topic:
        """Give the topic as a process has it."""
        if process not in self._topics:
            self._topics[process] = self._database(process).topic("telemetry")
        return self._topics[process]

    def reset_topic(self, **options: Any) -> None:
        """Empty the topic, or make it where there is none, and let every process begin anew."""
        if not self._topic:
            self.database.create_topic("telemetry")
        with self.database.backend.engine.begin() as connection:
            self._empty(connection, [entries, ledgers, files, producers, subscriptions])
            self._topic = self._topic or dict(connection.execute(sa.select(topics)).mappings().one())
            connection.execute(sa.update(topics).values(self._topic | options))
        for file in self.ledgers.rglob("*.parquet*"):
            file.unlink()
        self._forget_all()

    def reset(self, **options: Any) -> None:
        """Empty the table, or make another one, and let every process begin anew."""
        if options != self._options:
            for name in ("orders", "orders_dead"):
                with suppress(NotFoundError):
                    self.database.table(name).drop()
            self.database.create_table("orders", **options)
            self._tables, self._options = {}, options
        table = self.table("operator").context
        with self.database.backend.engine.begin() as connection:
            dead = [] if table.dead is None else [table.dead.rows]
            states = groups, consumers, heartbeats, schedules, unique_keys, message_keys
            self._empty(connection, [table.rows, *dead, *states])
            connection.execute(sa.update(totals).values(purged=0, rate_next=0))
        self._forget_all()
        for one in self._tables.values():
            context = one.context
            for field in fields(context):
                if field.default_factory is not MISSING:  # what it remembers in memory
                    getattr(context, field.name).__init__()
            one._row._looked_at = moments.monotonic()

    def _empty(self, connection: sa.Connection, tables: Sequence[sa.Table]) -> None:
        """Delete all rows, where it can be done in one round trip."""
        statements = [_deleting(table.name) for table in tables]
        for text in ["; ".join(statements)] if self.kind == "postgresql" else statements:
            connection.exec_driver_sql(text)

    def _forget_all(self) -> None:
        for name, database in self._databases.items():
            per_database_cache.forget(database.backend)
            database.backend.session = sum(name.encode()) * 7919

    def leave(self, process: str) -> None:
        """Open a process anew for the next run, because the server has ended connections that it keeps."""
        self._databases.pop(process, None)
        self._tables.pop(process, None)
        self._topics.pop(process, None)

    def forget(self) -> None:
        """Make another table for the next run, because this one altered it."""
        self._options = {}

    def close(self) -> None:
        """Close every database."""
        self._open.close()


@cache
def _deleting(name: str) -> str:
    return str(sa.delete(sa.table(name)))


class World:
    """One run: what its callers did and saw."""

    def __init__(self, stage: Stage, scheduler: Scheduler, options: dict[str, Any]) -> None:
        self.stage, self.scheduler = stage, scheduler
        self.is_grouped = options.get("groups") is not None
        self.takes_turns = not {"fair_by", "limit", "rate"}.isdisjoint(options)
        self.closing = self.ending = self.altered = False
        self.faults: list[str] = []
        self.put: dict[Any, tuple[str, str]] = {}  # group and putter of each message that was committed
        self.acked: dict[Any, str] = {}
        self.buried: set[Any] = set()
        self.order: dict[str, list[Any]] = defaultdict(list)
        self.holds: dict[Any, list[Hold]] = defaultdict(list)
        self.had: dict[str | None, set[str]] = defaultdict(set)  # which processes learnt that a group is new to them
        self.closers: set[Any] = set()  # messages that close their groups
        self.closed: set[str | None] = set()  # groups whose closing message was acked before a later one was sent
        self.due_at: dict[Any, int] = {}  # of those that back off
        self.expires: dict[Any, int] = {}
        self.lets_all_end = False  # whether nothing ends a lease before its time
        self.apart = 0  # ns between two messages at the least, where the table has a rate limit
        self.is_apart_by_key = False  # whether messages of different keys, which are their groups, do not count
        self._sent_at: dict[str | None, int] = {}
        self.priorities: dict[str, int] = {}  # of the messages of some groups
        self.kept: set[str] = set()  # groups that a caller's own transaction has for as long as it likes
        self.mine: dict[Any, set[int]] = defaultdict(set)  # claims whose acks were said to be lost
        self._said: dict[Any, Explanation] = {}
        self._infos: dict[str, GroupInfo] = {}
        self._said_at = 0
        self.began: int | None = None
        self._kept_open = ExitStack()
        self._stops: list[Callable[[], object]] = []
        self.processes: set[str] = set()
        self.callers: set[str] = set()  # processes whose transactions are their own

    def enter(self, kept: AbstractContextManager[_T]) -> _T:
        """Keep a transaction of a caller's open until the run has ended."""
        return self._kept_open.enter_context(kept)

    def give_up_locks(self) -> None:
        """Roll back what callers have open still."""
        self._kept_open.close()

    def give_up(self) -> None:
        """Close nothing more."""

    @staticmethod
    def prepare(stage: Stage, options: dict[str, Any]) -> None:
        """Empty what the last run has left."""
        stage.reset(**options)

    def is_quiet(self) -> bool:
        """Whether all is done that is to be done."""
        self._look_at_keys()
        working = [one for one in self.scheduler.actors if one.state != "over" and not (one.dead or one.frozen)]
        return not self.missing() and all(one.state == "asleep" for one in working)

    def _look_at_keys(self) -> None:
        """After a commit, compare the rows of keys with the messages."""
        if self.takes_turns and self.scheduler.history and self.scheduler.history[-1][1] == "COMMIT":
            self.faults += contradictions([self.table("operator").context], self.now)[: not self.faults]

    def refresh(self) -> None:
        """Add a consumer that no harm was done to, for the rest."""
        self.note_reasons()
        self.add("fresh", self.receives("fresh", "fresh", limit=10))

    @contextmanager
    def transaction(self, process: str) -> Generator[sa.Connection]:
        """Open a caller's own transaction."""
        self.callers.add(process)
        with self.table(process).context.backend.engine.begin() as connection:
            yield connection

    @property
    def now(self) -> int:
        return self.scheduler.now

    def table(self, process: str) -> MessageTable:
        return self.stage.table(process)

    def add(self, name: str, work: Callable[[], object], process: str | None = None) -> None:
        """Add an actor, in a process of its own where none is named."""
        self.processes.add(process or name)
        self.table(process or name)  # opened before the run, not in it
        self.scheduler.add(name, process or name, work)

    def step(self, label: str) -> None:
        """Pass a gate of a handler's own."""
        self.scheduler.gate(label)

    # What actors do

    def puts(
        self, process: str, batches: Sequence[Sequence[str]], *, every: float = 0, closes: bool = False
    ) -> Callable[[], None]:
        """Put messages of these groups, each list in one transaction, with a pause of some seconds before it.

        Parameters
        ----------
        closes
            Whether the last message of each list closes its group.
        """

        def work() -> None:
            table = self.table(process)
            for names in batches:
                if every:
                    moments.sleep(every)
                rows = [self._row(name) for name in names]
                rows[-1]["closes_group"] = closes
                ids = table.put_many(rows)
                self.note_put(process, ids, names)
                self.closers |= {ids[-1]} if closes else set()

        return work

    def _row(self, name: str) -> dict[str, Any]:
        return {"payload": "x", "group": name, "priority": self.priorities.get(name, 0)}

    def note_put(self, process: str, ids: Sequence[Any], names: Sequence[str]) -> None:
        """Note what was put and committed, with the groups."""
        self.began = min(ids) - 1 if self.began is None else self.began
        self.put |= {one: (name, process) for one, name in zip(ids, names, strict=True)}

    def starts_with(self, *names: str, expiring: int | None = None) -> list[Any]:
        """Have messages of these groups before the run begins, which expire after so many ns."""
        expires_at = None if expiring is None else self.now + expiring
        rows = [self._row(name) | {"expires_at": expires_at} for name in names]
        ids = self.table("operator").put_many(rows)
        self.note_put("operator", ids, names)
        if expires_at is not None:
            self.expires |= dict.fromkeys(ids, expires_at)
        return list(ids)

    def has_expired(self, message: Any) -> bool:
        return message in self.expires and self.expires[message] <= self.now

    def receives(
        self,
        process: str,
        consumer: str | None,
        *,
        limit: int = 2,
        rounds: int | None = None,
        every: float = SHORT,
        fails: int = 0,
    ) -> Callable[[], None]:
        """Receive, handle and ack, until the world closes or for some rounds; where nothing is due, ask again later.

        It fails to handle some messages at first.
        """

        def work() -> None:
            table, left, failures = self.table(process), rounds, fails
            pause = every
            while not self.closing and left != 0:
                left = None if left is None else left - 1
                try:
                    deliveries = table.receive(limit, consumer=consumer)
                    self.note_received(process, deliveries)
                    for delivery in deliveries:
                        if process == "fresh":
                            self.judge_reason(delivery.id)
                        failures -= 1
                        self._handle(process, delivery, fails=failures >= 0)
                except UnavailableError:
                    if not self.scheduler.seen["answer lost"]:
                        raise
                    continue
                if deliveries:
                    pause = every
                    continue
                moments.sleep(POLL if self.ending else pause)
                pause = min(2 * pause, max(every, POLL))  # so that a run comes to where leases end in a few steps

        return work

    def subscribes(
        self,
        process: str,
        consumer: str,
        *,
        limit: int = 2,
        takes: int | None = None,
        handling: float = 0,
        rest: float = 0,
    ) -> Callable[[], None]:
        """Subscribe, and handle each message for some seconds, until the world closes or for some messages.

        It rests for some seconds before it leaves.
        """

        def work() -> None:
            left = takes
            with self.table(process).subscribe(limit=limit, consumer=consumer) as deliveries:
                self._when_closed(deliveries.stop)
                for delivery in deliveries:
                    self.note_received(process, [delivery], beats=True)
                    with suppress(LeaseLostError), delivery:
                        moments.sleep(handling)
                        self._handle(process, delivery)
                    left = None if left is None else left - 1
                    if left == 0 or self.closing:
                        break
                moments.sleep(rest)
            for holds in self.holds.values():  # what it had it gave back
                holds[:] = [one for one in holds if one.process != process]

        return work

    def works(
        self, process: str, consumer: str, *, slots: int = 2, handling: float = 0, fails: int = 0
    ) -> Callable[[], None]:
        """Run a worker, whose handler takes some seconds and fails at first, until the world closes."""
        failures = fails

        def handle(delivery: Delivery) -> None:
            nonlocal failures
            self.note_received(process, [delivery], beats=True)
            self.step(f"handle {self.number(delivery.id)}")
            moments.sleep(handling)
            delivery.when_over(lambda: self._note_over(process, delivery))
            for hold in self.holds[delivery.id]:
                hold.ends = hold.ends or hold.delivery is delivery
            failures -= 1
            if failures >= 0:
                self._let_go(process, delivery)
                raise Retry(f"{_BACK_OFF}s")

        def work() -> None:
            worker = Worker(self.table(process), handle, concurrency=slots, consumer=consumer, grace="1s")
            self._when_closed(worker.stop)
            worker.run(signals=False)

        return work

    def _note_over(self, process: str, delivery: Delivery) -> None:
        """Note what became of a message that a worker's handler has handled."""
        if delivery.over and not (delivery.given_back or delivery.lost):
            self.note_acked(process, delivery)
        self.holds[delivery.id] = [one for one in self.holds[delivery.id] if one.delivery is not delivery]

    def _handle(self, process: str, delivery: Delivery, *, fails: bool = False) -> None:
        self.step(f"handle {self.number(delivery.id)}")
        for hold in self.holds[delivery.id]:
            hold.ends = hold.ends or hold.delivery is delivery
        began = self.now
        try:
            if fails:
                self._let_go(process, delivery)
                delivery.nack(f"{_BACK_OFF}s")
            else:
                delivery.ack()
        except (LeaseLostError, OrderError) as error:
            is_early = isinstance(error, LeaseLostError) and self.now < delivery.lease_until
            if is_early and (self.has_expired(delivery.id) or self.lets_all_end):
                self.faults.append(f"{self.number(delivery.id)} was taken from {process}, though its lease lasts")
            self.scheduler.seen["lease lost"] += 1
            self.mine[delivery.id].add(delivery.leased.claim_id)
        else:
            if fails:
                self.due_at[delivery.id] = began + _BACK_OFF * SECOND
            else:
                self.note_acked(process, delivery)
        finally:
            self.holds[delivery.id] = [one for one in self.holds[delivery.id] if one.delivery is not delivery]

    def _let_go(self, process: str, delivery: Delivery) -> None:
        """Note that what is behind a message in its group goes back with it."""
        for message, holds in self.holds.items():
            if self._group(message) == delivery.group:
                holds[:] = [one for one in holds if one.process != process]

    def number(self, message: Any) -> int:
        """Number messages from one on, so that runs can be compared."""
        return message - (self.began or 0)

    def note_received(self, process: str, deliveries: Sequence[Delivery], *, beats: bool = False) -> None:
        """Check that no other consumer holds a message that is handed out, nor its group."""
        for delivery in deliveries:
            if delivery.epoch > 1:
                self.scheduler.seen["sent again"] += 1
            self._judge_rate(delivery)
            if delivery.lease_until - LEASE >= self.expires.get(delivery.id, MAX_NS) and not self.altered:
                self.faults.append(f"{process} got {self.number(delivery.id)} after it had expired")
            lasts = delivery.lease_until > self.now  # what was claimed so long ago that it is lost does no harm
            if lasts and self.now < self.due_at.pop(delivery.id, 0):
                self.faults.append(f"{process} got {self.number(delivery.id)} too early")
            if lasts:
                (self._judge_order if self.is_grouped else self._judge_limit)(process, delivery)
            if delivery.context.options.groups == "exclusive":
                self._judge_first(process, delivery, lasts=lasts)
                self._judge_closed(process, delivery, lasts=lasts)
            for message, holds in self.holds.items():
                for one in holds:  # with its group then, because an operator may have moved it since it was put
                    same = message == delivery.id or (self.is_grouped and one.delivery.group == delivery.group)
                    if same and lasts and one.process != process and self._is_held(one):
                        self.faults.append(
                            f"{process} got {self.number(delivery.id)} of {delivery.group!r} while {one.process} had"
                            f" {self.number(message)}"
                        )
            self.holds[delivery.id].append(Hold(process, delivery, beats, self.scheduler.seen["jump"]))

    def _judge_limit(self, process: str, delivery: Delivery) -> None:
        """Check that consumers have no more messages of a key, which is the group, than its limit."""
        most = delivery.context.options.limit_of_a_key
        others = [
            message
            for message, holds in self.holds.items()
            if message != delivery.id and self._group(message) == delivery.group and any(map(self._is_held, holds))
        ]
        if most is not None and len(others) >= most and delivery.group:
            numbers = [self.number(one) for one in others]
            self.faults.append(f"{process} got {self.number(delivery.id)} of {delivery.group!r} besides {numbers}")

    def _judge_first(self, process: str, delivery: Delivery, *, lasts: bool) -> None:
        """Check that a process learns that a group is new to it, unless it was the last one to learn that."""
        if delivery.first_for_consumer:
            self.had[delivery.group] = {process, *(() if lasts else self.had[delivery.group])}
        elif lasts and process not in self.had[delivery.group]:
            self.faults.append(
                f"{process} got {self.number(delivery.id)} of {delivery.group!r}, not said to be new to it"
            )

    def _judge_closed(self, process: str, delivery: Delivery, *, lasts: bool) -> None:
        """Check that a group is new to whoever gets it after a producer closed it."""
        if delivery.group in self.closed:
            self.closed.discard(delivery.group)
            if lasts and not delivery.first_for_consumer:
                self.faults.append(
                    f"{process} got {self.number(delivery.id)} of {delivery.group!r}, not said to be new"
                )

    def _judge_order(self, process: str, delivery: Delivery) -> None:
        """Check that who gets a message of a group has those before it, as far as they are not acked."""
        passed = [
            one
            for one in self._earlier(delivery)
            if not any(hold.process == process and not hold.delivery.lost for hold in self.holds[one])
        ]
        if passed := self._unacked(passed, delivery):
            numbers = [self.number(one) for one in passed]
            self.faults.append(f"{process} got {self.number(delivery.id)} of {delivery.group!r} before {numbers}")

    def _unacked(self, messages: Sequence[Any], delivery: Delivery) -> list[Any]:
        """Choose those of messages that the table has and that are not acked there, or were so after a delivery."""
        if not messages:
            return []
        rows = self.table("operator").context.rows
        acked_at = sa.select(rows.c.time_acked).where(rows.c.id == delivery.id).scalar_subquery()
        is_left = rows.c.time_acked.is_(None) | (rows.c.time_acked > acked_at)
        left = sa.select(rows.c.id).where(rows.c.id.in_(messages), is_left)
        with self.scheduler.apart(), self.stage.database.backend.engine.connect() as connection:
            return sorted(connection.scalars(left))

    def _earlier(self, delivery: Delivery) -> list[Any]:
        """Give the messages that must go before one, as far as callers know."""
        return [
            one
            for one, (name, putter) in self.put.items()
            if name == (delivery.group or "")
            and one < delivery.id
            and one not in self.acked
            and one not in self.buried
            and not self.has_expired(one)
            and putter == self._putter(delivery.id)
        ]

    def _judge_rate(self, delivery: Delivery) -> None:
        """Check that a message was not sent sooner after the last one than the rate allows."""
        key = delivery.group if self.is_apart_by_key else None
        sent_at = delivery.lease_until - LEASE
        before = self._sent_at.get(key, 0)
        if self.apart and sent_at - before < self.apart:
            self.faults.append(f"{self.number(delivery.id)} was sent {sent_at - before} ns after another one")
        self._sent_at[key] = max(before, sent_at)

    def _group(self, message: Any) -> str | None:
        return self.put.get(message, (None, ""))[0]

    def _is_held(self, hold: Hold) -> bool:
        actors = [one for one in self.scheduler.actors if one.process == hold.process]
        beats = hold.beats and hold.jumps == self.scheduler.seen["jump"]
        beats = beats and not any(one.dead or one.frozen or one.stalled_until for one in actors)
        if hold.ends and self.scheduler.seen["answer lost"]:
            return False
        return not (hold.delivery.over or hold.delivery.lost) and (beats or hold.delivery.lease_until > self.now)

    def note_acked(self, process: str, delivery: Delivery) -> None:
        """Check that a message is acked once, and after those before it."""
        for other in self.holds[delivery.id]:
            if other.delivery is not delivery and self._is_held(other):
                self.faults.append(f"{process} acked {self.number(delivery.id)} while {other.process} had it")
        self.note_done(delivery.id, process)
        if not self.is_grouped:
            return
        if delivery.id in self.closers:
            later = [one for one in self.put if one > delivery.id and self._group(one) == delivery.group]
            if not any(one in self.holds or one in self.acked for one in later):
                self.closed.add(delivery.group)
        if earlier := self._unacked(self._earlier(delivery), delivery):
            numbers = [self.number(one) for one in earlier]
            self.faults.append(f"{self.number(delivery.id)} of {delivery.group!r} was acked before {numbers}")

    def _putter(self, message: Any) -> str:
        return self.put.get(message, ("", ""))[1]

    def note_done(self, message: Any, process: str) -> None:
        """Note that a message was acked."""
        if message in self.acked:
            self.faults.append(f"{self.number(message)} was acked by {self.acked[message]} and by {process}")
        self.acked[message] = process
        self.holds.pop(message, None)

    def _when_closed(self, stop: Callable[[], object]) -> None:
        self._stops.append(stop)
        if self.closing:  # its actor has begun only now
            stop()

    def close(self) -> None:
        """Let consumers end."""
        self.closing = True
        for stop in self._stops:
            stop()

    def missing(self) -> list[Any]:
        """Give the messages that were put and not acked."""
        left = set(self.put) - set(self.acked) - self.buried
        return sorted(one for one in left if self._group(one) not in self.kept and not self.has_expired(one))

    def reasons(self) -> list[str]:
        """Say what the product says of what waits."""
        table, said = self.table("operator"), []
        for message in self.missing():
            try:
                said.append(f"{self.number(message)} of {self._group(message)!r}: {table.explain(message).reason}")
            except NotFoundError:
                said.append(f"{self.number(message)} is gone")
            except WaterclockError as error:
                said.append(f"{self.number(message)}: {error}")
        return said

    def note_commands(self) -> None:
        """Note what an operator's commands have made of messages: those that are gone or skipped, and other groups."""
        rows = self.table("operator").context.rows
        with self.scheduler.apart(), self.stage.database.backend.engine.connect() as connection:
            found = {
                row.id: row for row in connection.execute(sa.select(rows.c.id, rows.c.group_id, rows.c.last_error))
            }
        for message, (group, _) in list(self.put.items()):
            row = found.get(message)
            if row is None or row.last_error == "skipped by an operator":
                self.buried.add(message)
            elif row.group_id != group:
                self.put[message] = row.group_id, "reroute"

    # What must be true in the end

    def judge(self) -> None:
        """Check what remains against what callers saw."""
        self.judge_expired()
        self.judge_rows()

    def note_reasons(self) -> None:
        """Note what the product says of what waits, once all consumers have ended."""
        table = self.table("operator")
        self._said_at = self.now
        for message in self.missing():
            with suppress(NotFoundError):
                self._said[message] = table.explain(message)
        waits = [message for message, said in self._said.items() if said.state not in _OVER]
        for group in sorted({self._group(message) or "" for message in waits}) if self.is_grouped else ():
            self._infos[group] = table.groups.info(group)
            self.judge_counts(self._infos[group])
        self.judge_kept(table)

    def judge_kept(self, table: MessageTable) -> None:
        """Check what is said of what a caller's own transaction keeps: that no consumer gets it."""
        its = [one for one, (group, _) in self.put.items() if group in self.kept and one not in self.acked]
        for message in its:
            said = table.explain(message)
            if said.state == "ready":
                self.faults.append(f"{self.number(message)} is kept, but explain said untruly: {said.reason}")
        for group in sorted(self.kept) if self.is_grouped else ():
            info = table.groups.info(group)
            if info.blocked_by is None:
                self.faults.append(f"{group!r} is kept, but its info said untruly: {info}")

    def judge_counts(self, info: GroupInfo) -> None:
        """Check how many messages a group is said to have, and which is its first one."""
        rows = self.table("operator").context.rows
        its = sa.select(rows.c.id).where(rows.c.group_id == info.group, rows.c.time_acked.is_(None))
        with self.stage.database.backend.engine.connect() as connection:
            found = list(connection.scalars(its.order_by(rows.c.position.is_(None), rows.c.position, rows.c.seq)))
        if info.in_flight + info.waiting + info.held != len(found):
            self.faults.append(f"{info.group!r} has {len(found)} messages, but its info said untruly: {info}")
        if info.head_id is not None and info.head_id != found[0] and info.hold is None:
            self.faults.append(f"{info.group!r} begins with {found[0]}, but its info said untruly: {info}")

    def judge_info(self, group: str) -> None:
        """Check what was said of a group of which a fresh consumer has got the first message now."""
        info = self._infos.pop(group, None)
        if info is None:
            return
        late = self.now - max(info.due_at or 0, self._said_at) > _SOON
        early = info.due_at is not None and self.now < info.due_at
        never = info.due_at is None and info.state != "unrouted"
        late &= info.blocked_by is None and info.owner in (None, "fresh")
        if info.hold is None and (early or never or late):
            when = (self.now - self._said_at) / SECOND
            self.faults.append(f"{group!r} came after {when} s, but its info said untruly: {info}")

    def judge_reason(self, message: Any) -> None:
        """Check what was said of a message that a fresh consumer has got now."""
        if self.is_grouped:
            self.judge_info(self._group(message) or "")
        said = self._said.pop(message, None)
        if said is None:
            return
        late = self.now - max(said.due_at or 0, self._said_at) > _SOON
        early = said.due_at is not None and said.state in _TIMED and self.now < said.due_at
        if early or (late and said.state == "ready" and "any consumer" in said.reason):
            when = (self.now - self._said_at) / SECOND
            self.faults.append(f"{self.number(message)} came after {when} s, but explain said untruly: {said.reason}")

    def judge_rows(self) -> None:
        """Check what the table says of each message against what callers saw."""
        context = self.table("operator").context
        rows = context.rows
        with self.stage.database.backend.engine.connect() as connection:
            found = {row.id: row for row in connection.execute(sa.select(rows))}
            dead = set[Any]() if context.dead is None else set(connection.scalars(sa.select(context.dead.rows.c.id)))
            purged = connection.scalar(sa.select(totals.c.purged).where(totals.c.table_id == context.table_id))
        gone = [one for one in self.acked if one not in found]
        if (purged or 0) != len(gone):
            self.faults.append(f"{purged or 0} count as purged, but {len(gone)} are")
        places = Counter((row.group_id, row.position) for row in found.values() if row.time_acked is None)
        self.faults += [
            f"{count} messages stand at place {place[1]} of {place[0]!r}"
            for place, count in places.items()
            if count > 1 and place[1] is not None
        ]
        for message in self.put:
            row = found.get(message)
            is_acked = row is None or row.time_acked is not None
            if message in self.acked and (not is_acked or message in dead):
                self.faults.append(f"the ack of {self.number(message)} is undone")
            if message in dead and row is not None:
                self.faults.append(f"{self.number(message)} is buried, and there")
            if row is None and message not in dead and message not in self.acked and message not in self.buried:
                self.faults.append(f"{self.number(message)} is gone")
            if row is not None and row.time_acked is not None and row.acked_by == EXPIRED:
                if message in self.acked:
                    self.faults.append(f"the ack of {self.number(message)} is undone: it was dropped")
                elif row.time_acked < row.expires_at:
                    self.faults.append(f"{self.number(message)} was dropped, though it lasts")
            if row is not None and row.acked_by in self.mine[message]:
                self.faults.append(f"the ack of {self.number(message)} was called lost")

    def judge_expired(self) -> None:
        """Check that what has expired is removed by a purge."""
        if not self.expires:
            return
        table = self.table("operator")
        table.purge()
        rows = table.context.rows
        left = sa.select(rows.c.id).where(is_expired(rows, self.now), rows.c.time_acked.is_(None))
        with self.stage.database.backend.engine.connect() as connection:
            self.faults += [f"{self.number(one)} expired and was not removed" for one in connection.scalars(left)]

    def look_for_dead(self) -> None:
        """Count what is in the dead-letter table as done."""
        dead = self.table("operator").context.dead
        if dead is not None:
            with self.stage.database.backend.engine.connect() as connection:
                self.buried |= set(connection.scalars(sa.select(dead.rows.c.id)))


@dataclass(frozen=True)
class Scenario:
    """A small world.

    Attributes
    ----------
    name
        Its own.
    set_up
        Puts what is there before the run, and adds the actors.
    options
        Of the table.
    harms, victims
        What may be done to whom.
    ending
        ``"healed"``: all thaw, consumers end, and a fresh one gets the rest; ``"living"``: those who live go on;
        ``"frozen"``: those that are frozen stay so, the server ends what they have open, and a fresh one gets the rest.
    sometimes
        What some of its runs must meet.
    world
        What is played in it.
    """

    name: str
    set_up: Callable[[World], None]
    options: dict[str, Any]
    harms: tuple[str, ...] = ()
    victims: tuple[str, ...] = ()
    ending: str = "healed"
    sometimes: tuple[str, ...] = ()
    most_steps: int = 400
    world: type[Any] = World


@dataclass
class Outcome:
    """What a run was, and what was wrong with it."""

    faults: list[str]
    history: list[tuple[str, str]]
    runs: Runs
    seen: dict[str, int]
    steps: int


def play(stage: Stage, scenario: Scenario, strategy: Choosing, rewrite: Rewrite = str) -> Outcome:
    """Play one run to its end, and check it."""
    scheduler = Scheduler(stage.waits)
    stage.now = scheduler.monotonic_ns
    with moments.replaced(scheduler), _no_chance():
        within_time(lambda: scenario.world.prepare(stage, scenario.options), "the next run")
        world = scenario.world(stage, scheduler, scenario.options)
        with gates(scheduler, stage.database.backend.engine, rewrite):
            try:
                scenario.set_up(world)
                scheduler.run(strategy, scenario.most_steps, world.is_quiet)
                runs, steps = as_runs(scheduler.decisions), len(scheduler.decisions)
                _end(world, scenario)
            finally:
                world.give_up_locks()  # else who waits for them would do so until the server gives up
                scheduler.end()
                world.give_up()
        within_time(world.judge, "the checks")
    if world.altered:
        stage.forget()
    for one in scheduler.actors:
        if one.error is not None and not one.dead:
            world.faults.append(f"{one.name}: {one.error!r}")
    return Outcome(world.faults, scheduler.history, runs, dict(scheduler.seen), steps)


def _end(world: Any, scenario: Scenario) -> None:
    stage, scheduler = world.stage, world.scheduler
    scheduler.thaw(frozen=scenario.ending != "frozen")
    world.ending = True
    if scenario.ending != "living":
        world.close()
        for one in scheduler.actors:
            if one.frozen and one.connection and one.process not in world.callers:
                stage.waits.end(one.connection)
                stage.leave(one.process)
        mine = [one for one in scheduler.actors if "'s " not in one.name and not one.frozen]
        scheduler.run(InTurn(), _MOST_STEPS, lambda: all(one.state == "over" for one in mine))
        stuck = [f"{one.name} {one.state} at {one.label}" for one in mine if one.state != "over"]
        if stuck:
            world.faults.append(f"do not end: {stuck}")
        world.closing = False
        world.refresh()
    until = scheduler.now + HEALED_WITHIN
    scheduler.run(InTurn(), _MOST_STEPS, lambda: not world.missing() or scheduler.now > until)
    world.look_for_dead()
    if world.missing():
        world.faults.append(f"never got: {world.reasons()}")
    world.close()


_runs = itertools.count(1)


_lent = deadlines.lent


def _lent_with_a_deadline_of_the_thread(connection: Any, _seconds: float | None = None) -> None:
    _lent(connection)


@contextmanager
def _no_chance() -> Generator[None]:
    """Let what is drawn by chance be the same in every run."""
    chance = random.Random(1)  # noqa: S311  # not a secret
    state = random.getstate()
    random.seed(1)
    numbers = itertools.count(next(_runs) << 32)  # a name that was used in another run may be remembered
    tokens = lambda size: f"{next(numbers):0{2 * size}x}"[-2 * size :]  # noqa: E731
    with (
        patch("secrets.randbits", chance.getrandbits),
        patch("secrets.token_hex", tokens),
        patch.object(deadlines, "_watch", deadlines._DeadlineWatch()),  # whose thread was an actor of another run
        # A deadline for each statement would make that thread an actor of every run, though no server is silent here.
        patch.object(deadlines, "_start_statement", lambda *_: None),
        patch.object(deadlines, "lent", _lent_with_a_deadline_of_the_thread),
        patch.object(driver_fast_path, "lent", _lent_with_a_deadline_of_the_thread),
    ):
        yield
    random.setstate(state)
