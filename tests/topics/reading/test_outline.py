"""The outline of a topic: its ledgers with their running maxima, sampled if there are many."""

from __future__ import annotations

import sqlalchemy as sa
from tests.topics.flows import append_ledgers

from waterclock.database.schema.topic_catalogue import ledgers
from waterclock.topics.catalogue.outline import outline
from waterclock.topics.catalogue.tombstones import record_lost_ledger
from waterclock.topics.topic import Topic


def outlined(
    topic: Topic, since: int | None = None, until: int | None = None, most: int = 300
) -> list[tuple[object, ...]]:
    return [tuple(block) for block in outline(topic.storage, "publish_time", since, until, most=most).blocks]


def test_an_empty_topic_has_its_open_ledger(topic: Topic) -> None:
    assert outlined(topic) == [(0, 1, "open", 0, 0, None, None, None)]


def test_ledgers_have_their_own_bounds_and_the_running_maximum(topic: Topic) -> None:
    append_ledgers(topic, [[[10, 30]], [[20, 25]], [[40]]])
    assert [block[5:] for block in outlined(topic)] == [(10, 30, 30), (20, 25, 30), (40, 40, 40)]


def test_a_range_of_time_takes_the_ledgers_in_which_its_times_are_found(topic: Topic) -> None:
    append_ledgers(topic, [[[10 * n, 10 * n + 9]] for n in range(8)])
    assert [block[0] for block in outlined(topic, 25, 42)] == [2, 3, 4]
    assert [block[0] for block in outlined(topic, 100, 200)] == [7]


def test_samples_of_many_ledgers_represent_those_after_them(topic: Topic) -> None:
    append_ledgers(topic, [[[10 * n, 10 * n + 9]] for n in range(11)])
    found = outlined(topic, most=4)
    assert [block[:5] for block in found] == [
        (0, 3, "closed", 0, 6),
        (3, 3, "closed", 6, 6),
        (6, 3, "closed", 12, 6),
        (9, 1, "closed", 18, 2),
        (10, 1, "open", 20, 2),
    ]


def test_missing_and_lost_ledgers_are_named(sqlite_topic: Topic) -> None:
    topic = sqlite_topic
    append_ledgers(topic, [[[10 * n, 10 * n + 9]] for n in range(6)])
    topic.storage.backend.transact(lambda connection: record_lost_ledger(topic.storage, connection, 4))
    topic.storage.backend.transact(
        lambda connection: connection.execute(sa.delete(ledgers).where(ledgers.c.ledger.in_((1, 2))))
    )
    found = outline(topic.storage, "publish_time")
    assert [(block.ledger, block.stands_for, block.state, block.messages) for block in found.blocks] == [
        (0, 1, "closed", 2),
        (1, 2, "missing", 4),
        (3, 1, "closed", 2),
        (4, 1, "lost", 2),
        (5, 1, "open", 2),
    ]
    assert found.lost == [4]
