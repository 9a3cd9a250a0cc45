"""Walks a message table through its verbs, and notes from which state to which each moves messages and groups."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa
from tests.tables.conftest import MovableClock
from tests.tables.states.steps import Verb

from waterclock.connection import Database
from waterclock.database.schema.table_catalogue import consumers, groups
from waterclock.errors import InvalidArgumentError, LeaseLostError, OrderError
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.groups.routing import route
from waterclock.tables.message_table import MessageTable
from waterclock.tables.model.row_conditions import CANCELLED, EXPIRED
from waterclock.tables.model.states import GroupState, MessageColumns, MessageState, state_of

MessageMove = tuple[MessageState, Verb, MessageState]
GroupMove = tuple[GroupState, Verb, GroupState]

POLICIES: dict[str, dict[str, Any]] = {
    "plain": {"max_attempts": 2},
    "sequenced": {"groups": "sequenced", "max_attempts": 2, "on_exhausted": "block"},
    "hold": {"groups": "sequenced", "ack_order": "hold", "max_attempts": 2, "on_exhausted": "block"},
    "lenient": {"groups": "sequenced", "ack_order": "lenient", "max_attempts": 2, "on_exhausted": "block"},
    "exclusive": {"groups": "exclusive", "max_attempts": 2, "on_exhausted": "block", "group_idle": "20s"},
    "exclusive_hold": {
        "groups": "exclusive",
        "ack_order": "hold",
        "max_attempts": 2,
        "on_exhausted": "dead_letter",
        "on_expired": "dead_letter",
    },
}
"""The options of tables that walks are made in, by the name that `WALKS` has for them."""

WALKS = Path(__file__).with_name("states_walks.txt")
"""Walks that together make every step: a policy, and verbs with the two numbers that choose what they do."""

EXPIRING = 5
"""What is put with a number above this one expires."""

GROUPS = ("a", "b")
CONSUMERS = ("x", "y")


def kept_walks() -> list[tuple[str, list[tuple[Verb, int, int]]]]:
    """Read the kept walks, each a policy and steps."""
    walks: list[tuple[str, list[tuple[Verb, int, int]]]] = []
    for line in WALKS.read_text("utf-8").splitlines():
        policy, steps = line.split(": ")
        words = [step.split() for step in steps.split(", ")]
        walks.append((policy, [(cast("Verb", verb), int(one), int(other)) for verb, one, other in words]))
    return walks


class Walk:
    """One message table, and the moves that were seen in it."""

    def __init__(self, database: Database, clock: MovableClock, name: str = "walked", **options: Any) -> None:
        self.database, self.clock = database, clock
        fixed: dict[str, Any] = {"payload": "text", "jitter": 0, "ack_wait": "10s", "purge_after": "1s"}
        self.table: MessageTable = database.create_table(name, **{**fixed, **options})
        self.other: MessageTable = database.create_table(f"{name}_other", **fixed, groups="sequenced")
        self.as_made = self.table.options
        self.ids: list[int] = []
        self.out: dict[int, Delivery] = {}
        self.messages: set[MessageMove] = set()
        self.groups: set[GroupMove] = set()
        self.seen: tuple[dict[int, MessageState], dict[str, GroupState]] = ({}, {})

    def begin_anew(self) -> None:
        """Empty the table; making another one would compile every statement anew."""
        context = self.table._context
        emptied = [context.rows, self.other._context.rows, groups, consumers]
        emptied += [] if context.dead is None else [context.dead.rows]
        with self.database.backend.engine.begin() as connection:
            for table in emptied:
                connection.execute(sa.delete(table))
        if self.table.options != self.as_made:  # a table that is altered compiles its statements anew, too
            self.table.alter(max_attempts=self.as_made.max_attempts, on_exhausted=self.as_made.on_exhausted)
        context = self.table._context
        context.marks.forget()
        context.reached.forget()
        self.ids, self.out, self.seen = [], {}, ({}, {})

    # What is there

    def look(self) -> tuple[dict[int, MessageState], dict[str, GroupState]]:
        """Say what each message is by its columns, its group and the clock; and each group."""
        context = self.table._context
        infos = self.table.groups.list() if context.options.groups else []
        noted = {info.group or "": info.state for info in infos}
        with self.database.backend.snapshot() as connection:
            rows = connection.execute(sa.select(context.rows)).all()
            dead_rows = [] if context.dead is None else connection.scalars(sa.select(context.dead.rows.c.id)).all()
        found: dict[int, MessageState] = dict.fromkeys(self.ids, "absent") | dict.fromkeys(dead_rows, "dead")
        for row in rows:
            grouped = context.options.groups is not None and not (
                context.options.ungrouped == "free" and not row.group_id
            )
            group = [other for other in rows if grouped and (other.group_id or "") == (row.group_id or "")]
            drains = noted.get(row.group_id or "") == "draining"
            found[row.id] = state_of(
                MessageColumns(
                    row.time_acked,
                    row.ack_held_at,
                    row.claim_id is not None,
                    row.time_next or 0,
                    row.epoch,
                    row.expires_at,
                    dropped=row.acked_by == EXPIRED,
                    cancelled=row.expires_at == CANCELLED,
                ),
                self.clock.now,
                blocked=any(self.blocks(other, row, drains) for other in group),
                most=context.options.blocking_attempts if grouped else None,
            )
        return found, noted

    def blocks(self, other: Any, row: Any, drains: bool) -> bool:
        """Say whether a message of a group must be acked before another one of it goes out."""
        if row.position is None:
            earlier = other.position is not None or other.seq < row.seq
        else:
            earlier = other.position is not None and other.position < row.position
        if not earlier or other.time_acked is not None or other.ack_held_at is not None:
            return False
        out = other.claim_id is not None and other.time_next > self.clock.now
        if not out and other.expires_at is not None and other.expires_at <= self.clock.now:
            return False
        return not out or self.table.options.groups != "exclusive" or drains

    # What happens

    def do(self, verb: Verb, action: Callable[[], Any]) -> Any:
        """Do something, and note what moved."""
        before, groups_before = self.seen
        try:
            result = action()
        except (LeaseLostError, OrderError):
            result = None  # what is refused changes nothing
        after, groups_after = self.seen = self.look()
        for message_id, state in after.items():
            was = before.get(message_id, "absent")
            if was != state or (verb == "extend" and state == "leased"):
                self.messages.add((was, verb, state))
        for group in groups_before.keys() | groups_after.keys():
            pair = groups_before.get(group, "absent"), groups_after.get(group, "absent")
            if pair[0] != pair[1]:
                self.groups.add((pair[0], verb, pair[1]))
        return result

    def put(self, count: int = 1, *, group: str | None = None, after: int = 0, expires: int | None = None) -> list[int]:
        """Put messages that are due in some seconds, and expire so long after."""
        at = self.clock.now + after * 1_000_000_000
        expires_at = None if expires is None else at + expires * 1_000_000_000
        rows = [{"payload": "x", "group": group, "at": at, "expires_at": expires_at} for _ in range(count)]
        ids = [int(str(one)) for one in self.do("put", lambda: self.table.put_many(rows))]
        self.ids += ids
        return ids

    def receive(self, limit: int = 1, consumer: str = "x") -> list[Delivery]:
        taken = self.do("receive", lambda: self.table.receive(limit, consumer=consumer))
        self.out |= {int(str(one.id)): one for one in taken}
        return taken

    def route(self) -> None:
        context = self.table._context
        self.do("route", lambda: context.backend.transact(lambda own: route(context, own)))

    def ack(self, *messages: int | Delivery) -> None:
        self.do("ack", lambda: self.table.ack(messages))

    def nack(self, one: Delivery, seconds: int = 0) -> None:
        self.do("nack", lambda: one.nack(f"{seconds}s"))

    def extend(self, one: Delivery) -> None:
        self.do("extend", lambda: one.extend("20s"))

    def bury(self, one: Delivery) -> None:
        self.do("dead_letter", lambda: one.dead_letter("given up"))

    def reschedule(self, *ids: int, after: int = 0, epoch: int | None = None) -> None:
        at = self.clock.now + after * 1_000_000_000
        self.do("reschedule", lambda: self.table.reschedule(ids, at, epoch))

    def retry(self, *ids: int) -> None:
        self.do("retry", lambda: self.table.retry(ids or None))

    def cancel(self, *ids: int) -> None:
        self.do("cancel", lambda: self.table.cancel(ids))

    def redrive(self) -> None:
        self.do("redrive", self.table.redrive)

    def purge(self) -> None:
        """Purge what was acked, here and in the dead-letter table."""

        def both() -> None:
            self.table.purge()
            dead = self.table.options.dead_letter
            if dead is not None:
                self.database.table(dead).purge()

        self.do("purge", both)

    def alter(self, **options: Any) -> None:
        self.do("alter", lambda: self.table.alter(**options))

    def wait(self, seconds: int) -> None:
        self.do("time", lambda: self.clock.move(f"{seconds}s"))

    def close(self, consumer: str = "x", limit: int = 2, begun: int = 0) -> None:
        """Close a subscription that has claimed messages and handed out some of them."""
        subscription = self.table.subscribe(consumer, limit)
        subscription._waiting.extend(self.receive(limit, consumer))
        for _ in range(min(begun, len(subscription._waiting))):
            subscription._hand_out(subscription._waiting.popleft())
        self.do("close", subscription.close)

    def command(self, verb: Verb, *words: Any, **options: Any) -> None:
        """Run a command of the table's groups."""
        self.do(verb, lambda: getattr(self.table.groups, verb.removeprefix("groups."))(*words, **options))

    def step(self, verb: Verb, one: int, other: int) -> None:
        """Do a verb to what two numbers choose; nothing where there is nothing to do it to."""
        ids = [self.ids[(one + more) % len(self.ids)] for more in range(1 + other % 2)] if self.ids else []
        given = list(self.out.values())
        group, consumer, seconds = GROUPS[one % len(GROUPS)], CONSUMERS[one % len(CONSUMERS)], (0, 7, 30)[other % 3]
        expires = 5 if one > EXPIRING else None
        force = bool(other % 2)
        changes = {"max_attempts": (1, 2, 9)[one % 3], "on_exhausted": ("block", "dead_letter")[other % 2]}
        doing: dict[Verb, Callable[[], object]] = {
            "put": lambda: self.put(1 + one % 3, group=(*GROUPS, None)[one % 3], after=seconds, expires=expires),
            "receive": lambda: self.receive(1 + other % 4, consumer),
            "retry": lambda: self.retry(*(ids if force else ())),
            "close": lambda: self.close(consumer, begun=other % 2),
            "time": lambda: self.wait(1 + seconds),
            "redrive": self.redrive,
            "purge": self.purge,
        }
        if ids:
            doing["ack"] = lambda: self.ack(*ids)
            doing["cancel"] = lambda: self.cancel(*ids)
            doing["reschedule"] = lambda: self.reschedule(*ids, after=seconds, epoch=(None, 0, 3)[one % 3])
        if given:
            delivery = given[one % len(given)]
            doing["nack"] = lambda: self.nack(delivery, seconds)
            doing["extend"] = lambda: self.extend(delivery)
            doing["dead_letter"] = lambda: self.bury(delivery)
        if verb == "ack" and force:
            doing["ack"] = lambda: self.ack(*given[one % len(given) :][:1])
            if not given:
                del doing["ack"]
        if self.table.options.groups:
            doing["route"] = self.route
            doing["alter"] = lambda: self.alter(**changes)
            if verb.startswith("groups."):
                doing[verb] = lambda: self._command_group(verb, group, consumer, seconds, force=force)
        doing.get(verb, lambda: None)()

    def _command_group(self, verb: Verb, group: str, consumer: str, seconds: int, *, force: bool) -> None:
        if verb == "groups.pause":
            self.command(verb, group, self.clock.now + (1 + seconds) * 1_000_000_000)
        elif verb in ("groups.purge", "groups.release", "groups.skip_head"):
            self.command(verb, group, force=force)
        elif verb == "groups.move":
            self.command(verb, group, self.other, force=force, count=1)
        elif verb == "groups.reroute":
            self.command(verb, group, GROUPS[group == GROUPS[0]], force=force, count=1)
        elif verb == "groups.rebalance":
            self.command(verb)
        elif verb == "groups.pin":
            self.command(verb, group, consumer)
        elif verb == "groups.close":
            with suppress(InvalidArgumentError):  # the group is pinned
                self.command(verb, group)
        else:
            self.command(verb, group)
