"""The calls that run often, each made ready as a consumer or producer makes it that has been busy for a while."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.sql.recording import usual_statements

from waterclock.connection import Database
from waterclock.message import Message
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.groups.heads import lock_groups, settle
from waterclock.tables.groups.routing import route
from waterclock.tables.message_table import MessageTable
from waterclock.topics.topic import Topic

_MESSAGE = Message("press-01", "load", "2026-07-01T12:00:00Z", b"17")


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
        self.telemetry: Topic = database.create_topic("telemetry")

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
    """

    title: str
    python: str
    text: str
    ready: Callable[[Scene], Callable[[], Any]]


MESSAGE_TABLES = (
    Verb(
        "Put",
        'orders.put("x")',
        "Inserts the message. A message with a time, headers or a priority has more columns. A program that puts"
        " often draws the numbers for its messages ahead on a server.",
        Scene.ready_to_put,
    ),
    Verb(
        "Put many",
        'orders.put_many([{"payload": "x"}, {"payload": "y"}])',
        "The same for many messages, in as few statements as the database takes.",
        Scene.ready_to_put_many,
    ),
    Verb(
        "Claim",
        "orders.receive(1)",
        "Takes the messages that are due, highest priority first. The consumer knows from its last claim which"
        " priorities there are and where to begin ([why](concepts/message-tables.md#where-a-claim-begins)).",
        Scene.ready_to_claim,
    ),
    Verb(
        "Ack",
        "delivery.ack()",
        "One statement for each claim that the acked messages come from, however many messages they are. It changes no"
        " row where the message has been sent again since: the ack is then refused.",
        Scene.ready_to_ack,
    ),
    Verb(
        "Nack", "delivery.nack()", "Gives the message back, to be sent again after its back-off.", Scene.ready_to_nack
    ),
    Verb(
        "Extend",
        'delivery.extend("1min")',
        "Makes the lease longer, never shorter. Heartbeats do the same for many messages at once.",
        Scene.ready_to_extend,
    ),
    Verb(
        "Purge",
        "orders.purge()",
        "Deletes acked messages that are older than `purge_after`, some thousands in a transaction.",
        Scene.ready_to_purge,
    ),
)
"""Those of a table without groups."""

GROUPS = (
    Verb(
        "Route",
        "calls.receive(1)",
        "A consumer gives new messages their places in their groups before it claims"
        " ([decision 9](adr/0009-consumers-route-groups.md)). These are the statements of that alone.",
        Scene.ready_to_route,
    ),
    Verb(
        "Claim of a group",
        "calls.receive(1)",
        "Takes the first messages of the groups that have been due the longest, of the highest priority.",
        Scene.ready_to_claim_of_groups,
    ),
    Verb(
        "Ack in a group",
        "delivery.ack()",
        "Locks the group, acks, and notes which message of the group is now the first.",
        Scene.ready_to_ack_in_a_group,
    ),
    Verb(
        "Settle",
        "calls.nack([delivery])",
        "After any change but the ack of the first messages, a group is noted anew, and ends where it has no message."
        " These are the statements of that alone.",
        Scene.ready_to_settle,
    ),
)
"""Those of a table with `groups="sequenced"`."""

TOPICS = (
    Verb(
        "Append",
        "telemetry.append([message])",
        "Counts, inserts the entry and keeps the new count, in one transaction.",
        Scene.ready_to_append,
    ),
    Verb(
        "Find",
        'telemetry.find("2026-07-01T12:00:00Z")',
        "One statement, for a topic of any size; where the message is in a sealed ledger, a read of its file follows.",
        Scene.ready_to_find,
    ),
)
"""Those of topics."""


def statements_of(database: Database, verbs: Iterable[Verb]) -> dict[str, list[str]]:
    """Make each call in a database that is empty, and give the statements by the verb's title."""
    scene = Scene(database)
    return {verb.title: usual_statements(lambda verb=verb: verb.ready(scene)) for verb in verbs}
