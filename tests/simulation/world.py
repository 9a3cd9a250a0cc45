"""A world of one message table: its processes, what their callers saw, and what must be true of that."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import MISSING, dataclass, fields
from typing import Any
from unittest.mock import patch

import sqlalchemy as sa
from tests.simulation.gate import Rewrite, gates
from tests.simulation.scheduler import SECOND, START, Choosing, Scheduler
from tests.simulation.strategies import InTurn, Runs, as_runs
from tests.simulation.waits import waits_of

from waterclock import moments
from waterclock.connection import Database, connect
from waterclock.database import kept
from waterclock.database.table_catalogue import consumers, groups, heartbeats
from waterclock.errors import LeaseLostError, NotFoundError, OrderError, UnavailableError, WaterclockError
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.groups import consumers as group_consumers
from waterclock.tables.groups import heads, routing
from waterclock.tables.message_table import MessageTable

LEASE = 10 * SECOND
SHORT, POLL = 0.003, 2.0
"""After how many seconds consumers ask again: while the run is explored, and at its end."""

SMALL = 2
"""What is routed, released and settled at once."""

HEALED_WITHIN = 6 * LEASE
_MOST_STEPS = 3000


@dataclass
class Hold:
    """A delivery that a consumer handles; ``ends`` once it is being acked, as the answer to that may get lost."""

    process: str
    delivery: Delivery
    beats: bool
    ends: bool = False


class Quiet:
    """Wakes no consumer: when a notification comes is chance, and so that one comes at all is tested elsewhere."""

    def arm(self) -> bool:
        return True

    def wait(self, seconds: float, stop: Any) -> None:
        stop.wait(seconds)

    def close(self) -> None:
        """Nothing to give back."""


class Stage:
    """A database on which one run is played after another, with the processes that take part.

    Opening a database takes as long as a run, so processes keep theirs, and what they keep in memory is reset.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.now = lambda: START
        self._open = ExitStack()
        self._databases: dict[str, Database] = {}
        self._tables: dict[str, MessageTable] = {}
        self._options: dict[str, Any] = {}
        for module, name in ((routing, "_ROUTED_AT_ONCE"), (group_consumers, "_RELEASED_AT_ONCE")):
            self._open.enter_context(patch.object(module, name, SMALL))
        self._open.enter_context(patch.object(heads, "_SETTLED_AT_ONCE", SMALL))
        self._forget_statements()
        self._open.callback(self._forget_statements)
        self.database = self._database("operator")
        sql = self._any_table().context.sql
        self._open.enter_context(patch.object(type(sql), "changes", lambda *_: Quiet()))
        self.waits = waits_of(self.database.backend.engine)
        self._open.callback(self.waits.close)

    @staticmethod
    def _forget_statements() -> None:
        for module in (routing, group_consumers, heads):
            for one in vars(module).values():
                if hasattr(one, "cache_clear"):
                    one.cache_clear()

    def _any_table(self) -> MessageTable:
        return self.database.create_table("orders", groups="sequenced", payload="text", exist_ok=True)

    def _database(self, process: str) -> Database:
        if process not in self._databases:
            database = self._open.enter_context(connect(self.url, "unused", clock=self._clock))
            database.backend._turns = None  # the scheduler knows who writes
            self._databases[process] = database
        return self._databases[process]

    def _clock(self) -> int:
        return self.now()

    def table(self, process: str) -> MessageTable:
        """Give the table as a process has it."""
        if process not in self._tables:
            self._tables[process] = self._database(process).table("orders")
        return self._tables[process]

    def reset(self, **options: Any) -> None:
        """Empty the table, or make another one, and let every process begin anew."""
        if options != self._options:
            self.database.table("orders").drop()
            self.database.create_table("orders", **options)
            self._tables, self._options = {}, options
        table = self.table("operator").context
        with self.database.backend.engine.begin() as connection:
            for each in (table.rows, groups, consumers, heartbeats):
                connection.execute(sa.delete(each))
        for name, database in self._databases.items():
            kept.forget(database.backend)
            database.backend._sessions = (database.backend._sessions[0], sum(name.encode()) * 7919)
        for one in self._tables.values():
            context = one.context
            for field in fields(context):
                if field.default_factory is not MISSING:  # what it remembers in memory
                    getattr(context, field.name).__init__()
            one._row._looked_at = moments.monotonic()

    def forget(self) -> None:
        """Make another table for the next run, because this one altered it."""
        self._options = {}

    def close(self) -> None:
        """Close every database."""
        self._open.close()


class World:
    """One run: what its callers did and saw."""

    def __init__(self, stage: Stage, scheduler: Scheduler) -> None:
        self.stage, self.scheduler = stage, scheduler
        self.closing = self.ending = self.altered = False
        self.faults: list[str] = []
        self.put: dict[Any, tuple[str, str]] = {}  # group and putter of each message that was committed
        self.acked: dict[Any, str] = {}
        self.buried: set[Any] = set()
        self.order: dict[str, list[Any]] = defaultdict(list)
        self.holds: dict[Any, list[Hold]] = defaultdict(list)
        self.began: int | None = None
        self._stops: list[Callable[[], object]] = []
        self.processes: set[str] = set()

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

    def puts(self, process: str, batches: Sequence[Sequence[str]], *, every: float = 0) -> Callable[[], None]:
        """Put messages of these groups, each list in one transaction, with a pause of some seconds before it."""

        def work() -> None:
            table = self.table(process)
            for names in batches:
                if every:
                    moments.sleep(every)
                ids = table.put_many([{"payload": "x", "group": name} for name in names])
                self.note_put(process, ids, names)

        return work

    def note_put(self, process: str, ids: Sequence[Any], names: Sequence[str]) -> None:
        """Note what was put and committed, with the groups."""
        self.began = min(ids) - 1 if self.began is None else self.began
        self.put |= {one: (name, process) for one, name in zip(ids, names, strict=True)}

    def starts_with(self, *names: str) -> list[Any]:
        """Have messages of these groups before the run begins."""
        ids = self.table("operator").put_many([{"payload": "x", "group": name} for name in names])
        self.note_put("operator", ids, names)
        return list(ids)

    def receives(
        self, process: str, consumer: str, *, limit: int = 2, rounds: int | None = None, every: float = SHORT
    ) -> Callable[[], None]:
        """Receive, handle and ack, until the world closes or for some rounds; where nothing is due, ask again later."""

        def work() -> None:
            table, left = self.table(process), rounds
            while not self.closing and left != 0:
                left = None if left is None else left - 1
                try:
                    deliveries = table.receive(limit, consumer=consumer)
                    self.note_received(process, deliveries)
                    for delivery in deliveries:
                        self._handle(process, delivery)
                except UnavailableError:
                    if not self.scheduler.seen["answer lost"]:
                        raise
                    continue
                if not deliveries:
                    moments.sleep(POLL if self.ending else every)

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
                self._stops.append(deliveries.stop)
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

    def _handle(self, process: str, delivery: Delivery) -> None:
        self.step(f"handle {self.number(delivery.id)}")
        for hold in self.holds[delivery.id]:
            hold.ends = hold.ends or hold.delivery is delivery
        try:
            delivery.ack()
        except (LeaseLostError, OrderError):
            self.scheduler.seen["lease lost"] += 1
        else:
            self.note_acked(process, delivery)
        finally:
            self.holds[delivery.id] = [one for one in self.holds[delivery.id] if one.delivery is not delivery]

    def number(self, message: Any) -> int:
        """Number messages from one on, so that runs can be compared."""
        return message - (self.began or 0)

    def note_received(self, process: str, deliveries: Sequence[Delivery], *, beats: bool = False) -> None:
        """Check that no other consumer holds a message that is handed out, nor its group."""
        for delivery in deliveries:
            if delivery.epoch > 1:
                self.scheduler.seen["sent again"] += 1
            for message, holds in self.holds.items():
                same = message == delivery.id or self._group(message) == delivery.group
                for one in holds:
                    if same and one.process != process and self._is_held(one):
                        self.faults.append(
                            f"{process} got {self.number(delivery.id)} of {delivery.group!r} while {one.process} had"
                            f" {self.number(message)}"
                        )
            self.holds[delivery.id].append(Hold(process, delivery, beats))

    def _group(self, message: Any) -> str | None:
        return self.put.get(message, (None, ""))[0]

    def _is_held(self, hold: Hold) -> bool:
        actors = [one for one in self.scheduler.actors if one.process == hold.process]
        beats = hold.beats and not any(one.dead or one.frozen or one.stalled_until for one in actors)
        if hold.ends and self.scheduler.seen["answer lost"]:
            return False
        return not (hold.delivery.over or hold.delivery.lost) and (beats or hold.delivery.lease_until > self.now)

    def note_acked(self, process: str, delivery: Delivery) -> None:
        """Check that a message is acked once, and after those before it."""
        self.note_done(delivery.id, process)
        group = delivery.group or ""
        earlier = [
            self.number(one)
            for one, (name, putter) in self.put.items()
            if name == group
            and one < delivery.id
            and one not in self.acked
            and one not in self.buried
            and putter == self._putter(delivery.id)
        ]
        if earlier:
            self.faults.append(f"{self.number(delivery.id)} of {group!r} was acked before {earlier}")

    def _putter(self, message: Any) -> str:
        return self.put.get(message, ("", ""))[1]

    def note_done(self, message: Any, process: str) -> None:
        """Note that a message was acked."""
        if message in self.acked:
            self.faults.append(f"{self.number(message)} was acked by {self.acked[message]} and by {process}")
        self.acked[message] = process
        self.holds.pop(message, None)

    def close(self) -> None:
        """Let consumers end."""
        self.closing = True
        for stop in self._stops:
            stop()

    def missing(self) -> list[Any]:
        """Give the messages that were put and not acked."""
        return sorted(set(self.put) - set(self.acked) - self.buried)

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
        ``"healed"``: all thaw, consumers end, and a fresh one gets the rest; ``"living"``: those who live go on.
    sometimes
        What some of its runs must meet.
    """

    name: str
    set_up: Callable[[World], None]
    options: dict[str, Any]
    harms: tuple[str, ...] = ()
    victims: tuple[str, ...] = ()
    ending: str = "healed"
    sometimes: tuple[str, ...] = ()
    most_steps: int = 400


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
        stage.reset(**scenario.options)
        world = World(stage, scheduler)
        with gates(scheduler, stage.database.backend.engine, rewrite):
            try:
                scenario.set_up(world)
                scheduler.run(strategy, scenario.most_steps, lambda: _is_quiet(world))
                runs, steps = as_runs(scheduler.decisions), len(scheduler.decisions)
                _end(world, scenario)
            finally:
                scheduler.end()
    if world.altered:
        stage.forget()
    for one in scheduler.actors:
        if one.error is not None:
            world.faults.append(f"{one.name}: {one.error!r}")
    return Outcome(world.faults, scheduler.history, runs, dict(scheduler.seen), steps)


def _is_quiet(world: World) -> bool:
    working = [one for one in world.scheduler.actors if one.state != "over" and not one.dead]
    return not world.missing() and all(one.state == "asleep" for one in working)


def _end(world: World, scenario: Scenario) -> None:
    scheduler = world.scheduler
    scheduler.thaw()
    world.ending = True
    if scenario.ending == "healed":
        world.close()
        mine = [one for one in scheduler.actors if "'s " not in one.name]
        scheduler.run(InTurn(), _MOST_STEPS, lambda: all(one.state == "over" for one in mine))
        stuck = [f"{one.name} {one.state} at {one.label}" for one in mine if one.state != "over"]
        if stuck:
            world.faults.append(f"do not end: {stuck}")
        world.closing = False
        world.add("fresh", world.receives("fresh", "fresh", limit=10))
    until = scheduler.now + HEALED_WITHIN
    scheduler.run(InTurn(), _MOST_STEPS, lambda: not world.missing() or scheduler.now > until)
    if world.missing():
        world.faults.append(f"never got: {world.reasons()}")
    world.close()


@contextmanager
def _no_chance() -> Generator[None]:
    """Let what is drawn by chance be the same in every run."""
    chance = random.Random(1)  # noqa: S311  # not a secret
    state = random.getstate()
    random.seed(1)
    with patch("secrets.randbits", chance.getrandbits):
        yield
    random.setstate(state)
