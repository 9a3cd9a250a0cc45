"""Reads the exported figures of topics, subscriptions and upkeep from the catalogue, in a few statements."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from waterclock.database.schema.topic_catalogue import ledgers, subscriptions, topics
from waterclock.database.schema.upkeep_catalogue import upkeep


def _of_topic(state: str, value: sa.ColumnElement[int]) -> sa.ScalarSelect[int]:
    # Correlated, so that the index of states is used for each topic.
    of_it = sa.select(value).where(ledgers.c.topic_id == topics.c.id, ledgers.c.state == state)
    return of_it.correlate(topics).scalar_subquery()


# Built once: building a statement takes longer than running it.
_TOPICS = sa.select(
    *(topics.c[name] for name in ("id", "name", "ordinal", "first_ordinal", "ledger", "first_ledger")),
    (topics.c.stored_bytes + topics.c.bytes).label("size"),
    _of_topic("closed", sa.func.count()).label("closed"),
    _of_topic("lost", sa.func.count()).label("lost"),
    _of_topic("lost", sa.func.coalesce(sa.func.sum(ledgers.c.messages), 0)).label("lost_messages"),
).order_by(topics.c.id)
_DAMAGED = (
    sa.select(sa.func.max(ledgers.c.topic_id), sa.func.sum(ledgers.c.lost_in_file))
    .where(ledgers.c.lost_in_file > 0)
    # An expression: SQLite would read all ledgers in the order of another index rather than sort the few found ones.
    .group_by(ledgers.c.topic_id + sa.literal_column("0"))
)
_SUBSCRIPTIONS = (
    sa.select(
        topics.c.name.label("topic"),
        subscriptions.c.name,
        subscriptions.c.ordinal,
        topics.c.first_ordinal,
        topics.c.ordinal.label("head"),
    )
    .join(topics, topics.c.id == subscriptions.c.topic_id)
    .order_by(subscriptions.c.topic_id, subscriptions.c.created_at, subscriptions.c.name)
)
_UPKEEP = sa.select(upkeep.c.kind, upkeep.c.name, upkeep.c.task, upkeep.c.ran_at, upkeep.c.error.is_not(None))


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """The catalogue's record of a topic."""

    name: str
    # Messages ever appended, remaining messages, and their bytes.
    appended: int
    messages: int
    size: int
    ledgers: dict[str, int]  # the number of ledgers by state; the open one is there even if it is empty
    lost: int  # messages that a repair has recorded as lost


@dataclass(frozen=True, slots=True)
class SubscriptionRecord:
    """The backlog of a subscription, in messages."""

    topic: str
    name: str
    backlog: int


@dataclass(frozen=True, slots=True)
class UpkeepRecord:
    """The last run of a task of upkeep."""

    kind: str
    name: str
    task: str
    ran_at: int | None  # when it ended last, ns; None: never
    failed: bool  # whether it failed then


def topic_records(connection: sa.Connection) -> list[TopicRecord]:
    """Read the catalogue's records of all topics, the oldest topic first."""
    rows = connection.execute(_TOPICS).all()
    damaged = {topic_id: int(lost) for topic_id, lost in connection.execute(_DAMAGED)}
    return [
        TopicRecord(
            row.name,
            row.ordinal,
            row.ordinal - row.first_ordinal,
            int(row.size),
            # The numbers of ledgers have no holes, so sealed ones need not be counted.
            {
                "open": 1,
                "closed": row.closed,
                "sealed": max(row.ledger - row.first_ledger - row.closed - row.lost, 0),
                "lost": row.lost,
            },
            int(row.lost_messages) + damaged.get(row.id, 0),
        )
        for row in rows
    ]


def subscription_records(connection: sa.Connection) -> list[SubscriptionRecord]:
    """Read the backlog of every subscription, as `Subscription.backlog` counts it."""
    return [
        SubscriptionRecord(row.topic, row.name, max(row.head - max(row.ordinal, row.first_ordinal), 0))
        for row in connection.execute(_SUBSCRIPTIONS)
    ]


def upkeep_records(connection: sa.Connection) -> list[UpkeepRecord]:
    """Read the last run of every task of upkeep."""
    return [UpkeepRecord(*row) for row in connection.execute(_UPKEEP)]
