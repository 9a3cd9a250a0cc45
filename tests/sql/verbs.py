"""The calls that run often, each made ready as a consumer or producer makes it that has been busy for a while."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from tests.sql.recording import usual_statements

from waterclock.connection import Database
from waterclock.database.schema.table_catalogue import consumers as consumers_table
from waterclock.message import Message
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.groups import consumers
from waterclock.tables.groups.group_state import lock_groups, settle
from waterclock.tables.groups.routing import route
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.rows.process_heartbeat import process_heartbeat
from waterclock.tables.messages.upkeep.reconcile import heal
from waterclock.tables.model.days import DAY, Days
from waterclock.tables.model.schema import message_rows
from waterclock.tables.model.timing.sweeps import LARGEST_CHUNK
from waterclock.time import to_time
from waterclock.topics.topic import Topic

_MESSAGE = Message("press-01", "load", "2026-07-01T12:00:00Z", b"17")
_TODAY = to_time("2026-07-01T12:00:00Z") // DAY


class Scene:
    """What the calls are made on: a table without groups, one with them, and a topic.

    Parameters
    ----------
    database
        One that is empty.
    """

    def __init__(self, database: Database) -> None:
        self._backend = database.backend
        self._groups = itertools.count()
        self.orders: MessageTable = database.create_table("orders", payload="text", purge_after="0s")
        self.calls: MessageTable = database.create_table("calls", payload="text", groups="sequenced")
        self.jobs: MessageTable = database.create_table("jobs", payload="text", groups="exclusive")
        self._visits = message_rows(
            "visits", "bigint", "text", [], self.orders.context.sql.id_items("visits", "bigint")
        )
        self.telemetry: Topic = database.create_topic("telemetry")

    @property
    def days(self) -> Days | None:
        """The partitions of message tables; None where the database has none."""
        return self.orders.context.sql.days

    def claimed(self, count: int = 1) -> Sequence[Delivery]:
        """Claim so many messages of the table without groups, of which more are left."""
        self.orders.put_many([{"payload": "x"}] * (count + 5))
        return self.orders.receive(count)

    def claimed_of_groups(self) -> Delivery:
        """Claim a message of a group that has further ones."""
        self._put_in_groups()
        [delivery] = self.calls.receive(1)
        return delivery

    def ready_to_put(self) -> Callable[[], Any]:
        """One message without an id, headers or a group."""
        self.orders.put("x")
        return lambda: self.orders.put("x")

    def ready_to_put_many(self) -> Callable[[], Any]:
        """Two messages in one call."""
        rows = [{"payload": "x"}, {"payload": "y"}]
        self.orders.put_many(rows)
        return lambda: self.orders.put_many(rows)

    def ready_to_put_after_a_pause(self) -> Callable[[], Any]:
        """One message, where no number is drawn ahead."""
        self.orders.put("x")
        self.orders.context.drawn_ids.__init__()
        return lambda: self.orders.put("x")

    def ready_to_put_by_id(self) -> Callable[[], Any]:
        """Two messages with ids that the caller chose."""
        rows = [{"id": 2**40 + next(self._groups), "payload": "x"} for _ in range(2)]
        return lambda: self.orders.put_many(rows)

    def ready_to_claim(self) -> Callable[[], Any]:
        """A consumer that has claimed already, and finds more."""
        self.claimed()
        return lambda: self.orders.receive(1)

    def ready_to_ack(self) -> Callable[[], Any]:
        """One delivery."""
        first, second = self.claimed(2)
        first.ack()
        return second.ack

    def ready_to_nack(self) -> Callable[[], Any]:
        """One delivery, without a delay of its own."""
        first, second = self.claimed(2)
        first.nack()
        return second.nack

    def ready_to_extend(self) -> Callable[[], Any]:
        """One delivery."""
        first, second = self.claimed(2)
        first.extend("1min")
        return lambda: second.extend("1min")

    def ready_to_purge(self) -> Callable[[], Any]:
        """Three messages that were acked."""
        self.orders.purge()
        self.orders.ack(self.claimed(3))
        return self.orders.purge

    def ready_to_route(self) -> Callable[[], Any]:
        """Messages of two groups that no consumer has seen."""
        context = self.calls.context
        self._backend.transact(lambda own: route(context, own), indexed=True)
        self.calls.put_many([{"payload": "x", "group": group} for group in self._new_groups(2) for _ in range(10)])
        return lambda: self._backend.transact(lambda own: route(context, own), indexed=True)

    def ready_to_claim_of_groups(self) -> Callable[[], Any]:
        """A consumer that has claimed already, and finds more; all messages are routed."""
        self._put_in_groups()
        self.calls.receive(1)
        return lambda: self.calls.receive(1)

    def ready_to_ack_in_a_group(self) -> Callable[[], Any]:
        """The first message of a group that has further ones."""
        self.claimed_of_groups().ack()
        return self.claimed_of_groups().ack

    def ready_to_settle(self) -> Callable[[], Any]:
        """One group."""
        group = self.claimed_of_groups().group or ""
        context = self.calls.context

        def settle_one(connection: Any) -> None:
            lock_groups(context, connection, [group])
            settle(context, connection, [group])

        return lambda: self._backend.transact(settle_one, indexed=True)

    def ready_to_heal(self) -> Callable[[], Any]:
        """A look that is due, and finds nothing wrong."""
        context = self.calls.context
        self._put_in_groups()
        heal(context, idle=True)
        context.sweeps.due_at = 0
        while context.sweeps.after is not None:  # a busy machine checks fewer groups at once
            heal(context)
            context.sweeps.due_at = 0
        context.sweeps.chunk = LARGEST_CHUNK
        context.reached.saved.checked_whole_at = context.backend.now_about()  # no round is whole soon after another
        return lambda: heal(context)

    def ready_to_claim_exclusively(self) -> Callable[[], Any]:
        """A consumer that has groups already, and finds more messages in them and in others."""
        self._put_jobs()
        self.jobs.receive(1, consumer="ann")
        self.jobs.context.reached.forget()  # as once a second
        return lambda: self.jobs.receive(1, consumer="ann")

    def ready_to_renew(self) -> Callable[[], Any]:
        """A consumer that is alive."""
        context = self._consumed_by("ann")
        its = (consumers_table.c.table_id == context.table_id) & (consumers_table.c.name == "ann")
        self._backend.transact(lambda own: own.execute(sa.update(consumers_table).where(its).values(lease_until=1)))
        return lambda: self._backend.transact(lambda own: consumers.renew_all(context, own, ["ann"]))

    def ready_to_beat(self) -> Callable[[], Any]:
        """A process that has taken messages."""
        self.claimed()
        heartbeat = process_heartbeat(self.orders.context)
        heartbeat.beat()
        return heartbeat.beat

    def ready_to_release(self) -> Callable[[], Any]:
        """A consumer whose lease has ended, with a message out."""
        context = self._consumed_by("ben")
        of_ben = (consumers_table.c.table_id == context.table_id) & (consumers_table.c.name == "ben")
        self._backend.transact(
            lambda own: own.execute(sa.update(consumers_table).where(of_ben).values(lease_until=1)), indexed=True
        )
        now = self._backend.now()
        return lambda: self._backend.transact(lambda own: consumers.release_lapsed(context, own, now), indexed=True)

    def ready_to_create_partitioned(self) -> Callable[[], Any]:
        """A name that no table has."""
        self._drop_visits()
        return self._create_visits

    def ready_to_add_a_day(self) -> Callable[[], Any]:
        """A table whose partitions end the day before."""
        self._drop_visits()
        self._create_visits()
        self._change_days(lambda days, own: days.add(own, "visits", [_TODAY]))
        return lambda: self._change_days(lambda days, own: days.add(own, "visits", [_TODAY + 1]))

    def ready_to_drop_a_day(self) -> Callable[[], Any]:
        """A table with a day that is over."""
        self.ready_to_add_a_day()()
        return lambda: self._change_days(lambda days, own: days.drop_day(own, "visits", _TODAY))

    def ready_to_append(self) -> Callable[[], Any]:
        """One message."""
        self.telemetry.append([_MESSAGE])
        return lambda: self.telemetry.append([_MESSAGE])

    def ready_to_find(self) -> Callable[[], Any]:
        """In a topic that has been found in already."""
        self.telemetry.append([_MESSAGE])
        self.telemetry.find(_MESSAGE.event_time)
        return lambda: self.telemetry.find(_MESSAGE.event_time)

    def _new_groups(self, count: int) -> list[str]:
        return [str(next(self._groups)) for _ in range(count)]

    def _put_jobs(self) -> None:
        """Begin two groups of five messages each in the table with exclusive groups."""
        self.jobs.put_many([{"payload": "x", "group": group} for group in self._new_groups(2) for _ in range(5)])

    def _consumed_by(self, consumer: str) -> TableContext:
        self._put_jobs()
        self.jobs.receive(1, consumer=consumer)
        return self.jobs.context

    def _create_visits(self) -> None:
        self._change_days(lambda days, own: days.create(own, self._visits, "bigint", grouped=False, free=True))

    def _drop_visits(self) -> None:
        self._backend.transact(lambda own: self.orders.context.sql.drop(own, self._visits))

    def _change_days(self, change: Callable[[Days, Any], Any]) -> None:
        days = self.days
        assert days is not None
        self._backend.transact(lambda own: change(days, own))

    def _put_in_groups(self) -> None:
        """Begin three groups of ten messages each, and route them."""
        context = self.calls.context
        self.calls.put_many([{"payload": "x", "group": group} for group in self._new_groups(3) for _ in range(10)])
        self._backend.transact(lambda own: route(context, own), indexed=True)


@dataclass(frozen=True)
class Verb:
    """A call, as the page shows it.

    Attributes
    ----------
    title, python
        What it does, and how a program calls it.
    text
        What a reader has to know.
    ready
        Makes it ready in a scene.
    is_of_days
        Whether only databases with partitions can do it.
    """

    title: str
    python: str
    text: str
    ready: Callable[[Scene], Callable[[], Any]]
    is_of_days: bool = False


MESSAGE_TABLES = (
    Verb(
        "Put",
        'orders.put("x")',
        "Inserts the message. A message with a time, headers or a priority sets more columns. On a database server, a"
        " program that puts often reserves numbers for its next messages, so that it needs no query for them.",
        Scene.ready_to_put,
    ),
    Verb(
        "Put after a pause",
        'orders.put("x")',
        "If a program has no reserved numbers left, it first draws some from the table's sequence: one at first, then"
        " twice as many each time while it puts often. So it knows the message's id before the insert, and can repeat"
        " the insert if the response is lost. On SQLite, each put gets its number from the insert.",
        Scene.ready_to_put_after_a_pause,
    ),
    Verb(
        "Put with ids",
        'orders.put_many([{"id": 7, "payload": "x"}, {"id": 8, "payload": "y"}])',
        "The caller has chosen the ids. A message whose id already exists changes nothing.",
        Scene.ready_to_put_by_id,
    ),
    Verb(
        "Put many",
        'orders.put_many([{"payload": "x"}, {"payload": "y"}])',
        "Inserts many messages, in as few statements as the database allows.",
        Scene.ready_to_put_many,
    ),
    Verb(
        "Claim",
        "orders.receive(1)",
        "Takes due messages, highest priority first. From its last claim, the consumer knows which priorities exist"
        " and where to begin ([why](concepts/message-tables.md#where-a-claim-begins)).",
        Scene.ready_to_claim,
    ),
    Verb(
        "Ack",
        "delivery.ack()",
        "Sends one statement for each claim whose messages are acked, for any number of messages. If a message has"
        " been delivered again since, the statement does not change its row, and the ack is refused.",
        Scene.ready_to_ack,
    ),
    Verb(
        "Nack",
        "delivery.nack()",
        "Gives the message back. It is delivered again after its back-off.",
        Scene.ready_to_nack,
    ),
    Verb(
        "Extend",
        'delivery.extend("1min")',
        "Makes the lease longer, never shorter. Heartbeats extend the leases of many messages in one statement.",
        Scene.ready_to_extend,
    ),
    Verb(
        "Purge",
        "orders.purge()",
        "Deletes messages that were acked more than `purge_after` ago, a few thousand per transaction.",
        Scene.ready_to_purge,
    ),
)
"""Those of a table without groups."""

GROUPS = (
    Verb(
        "Route",
        "calls.receive(1)",
        "Before a consumer claims, it assigns new messages their places in their groups ([decision"
        " 9](adr/0009-consumers-route-groups.md)). This section shows only the statements of this step.",
        Scene.ready_to_route,
    ),
    Verb(
        "Claim from groups",
        "calls.receive(1)",
        "Takes the first messages of due groups: highest priority first, then the groups that have been due the"
        " longest.",
        Scene.ready_to_claim_of_groups,
    ),
    Verb(
        "Ack in a group",
        "delivery.ack()",
        "Locks the group, acks the message, and records which message of the group is now the first.",
        Scene.ready_to_ack_in_a_group,
    ),
    Verb(
        "Settle",
        "calls.nack([delivery])",
        "After any change except an ack of its first messages, Waterclock updates the group's row, and deletes the"
        " row if the group has no messages. This section shows only the statements of this step.",
        Scene.ready_to_settle,
    ),
    Verb(
        "Search for wrong groups",
        "calls.receive(1)",
        "Once per `poll_interval`, consumers search for groups whose rows contradict their messages, or whose owner"
        " is gone, a few thousand groups at a time. The search takes no locks. The groups that it finds are then"
        " locked, checked again and corrected. This section shows only the statements of the search.",
        Scene.ready_to_heal,
    ),
)
"""Those of a table with `groups="sequenced"`."""

EXCLUSIVE_GROUPS = (
    Verb(
        "Claim from exclusive groups",
        'jobs.receive(1, consumer="ann")',
        "Takes messages of the consumer's groups, and of groups without an owner. The consumer becomes the owner of"
        " these groups.",
        Scene.ready_to_claim_exclusively,
    ),
    Verb(
        "Renew a consumer's lease",
        'jobs.subscribe("ann")',
        "The heartbeat of a process renews the leases of all its consumers of a table four times per `ack_wait`. If"
        " another process has taken over a consumer's name, the lease is not renewed.",
        Scene.ready_to_renew,
    ),
    Verb(
        "Release the groups of a dead consumer",
        'jobs.receive(1, consumer="ann")',
        "Every claim looks for consumers whose leases have ended. It takes back their messages, and releases and"
        " updates their groups. This section shows only the statements of this step. Closing a subscription sends"
        " almost the same statements.",
        Scene.ready_to_release,
    ),
    Verb(
        "Heartbeat of a process",
        "orders.subscribe()",
        "Every ten seconds, a process with subscriptions writes how many subscriptions it has and how many messages"
        " it took. `stats()` reads these rows. The statement is the same for tables with and without groups.",
        Scene.ready_to_beat,
    ),
)
"""Those of a table with `groups="exclusive"`, and of the processes that consume."""

PARTITIONS = (
    Verb(
        "Create a table",
        'database.create_table("visits", purge_by="partition")',
        "Creates one partition for unacked messages, and one for messages acked on a day without a partition of its"
        " own. Then Waterclock inserts a row into the catalogue and creates the partitions of the first days.",
        Scene.ready_to_create_partitioned,
        is_of_days=True,
    ),
    Verb(
        "Add a day",
        "visits.purge()",
        "A purge creates the partitions of today and of the next seven days. Day 20636 since 1970 is 2026-07-02.",
        Scene.ready_to_add_a_day,
        is_of_days=True,
    ),
    Verb(
        "Drop a day",
        "visits.purge()",
        "Drops the partition of a day that ended `purge_after` ago, and adds its messages to the totals.",
        Scene.ready_to_drop_a_day,
        is_of_days=True,
    ),
)
"""Those of a table with `purge_by="partition"`."""

TOPICS = (
    Verb(
        "Append",
        "telemetry.append([message])",
        "Reads the topic's counter, inserts the entry and stores the new counter, in one transaction.",
        Scene.ready_to_append,
    ),
    Verb(
        "Find",
        'telemetry.find("2026-07-01T12:00:00Z")',
        "Sends one statement, whatever the size of the topic. If the message is in a sealed ledger, a read of the"
        " ledger's file follows.",
        Scene.ready_to_find,
    ),
)
"""Those of topics."""


def statements_of(database: Database, verbs: Iterable[Verb]) -> dict[str, list[str]]:
    """Make each call in a database that is empty, and give the statements by the verb's title."""
    scene = Scene(database)
    possible = [verb for verb in verbs if scene.days is not None or not verb.is_of_days]
    return {verb.title: usual_statements(lambda verb=verb: verb.ready(scene)) for verb in possible}
