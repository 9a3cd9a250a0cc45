"""Acked messages move into a topic once each, also when a process is killed in between."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.killed import Killed

import waterclock as wc
from waterclock import archive_to_topic
from waterclock.connection import Database
from waterclock.errors import ProducerFencedError
from waterclock.tables.message_table import MessageTable
from waterclock.topics.topic import Topic


class Clock:
    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        self.now += 1
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(connect: Callable[..., Database], clock: Clock) -> Database:
    return connect(clock=clock)


@pytest.fixture
def topic(database: Database) -> Topic:
    return database.create_topic("done", roll_after=None)


def work_off(table: MessageTable, count: int, **options: Any) -> None:
    for number in range(count):
        table.put(f"no {number}", **options)
    while deliveries := table.receive(limit=100):
        for delivery in deliveries:
            delivery.ack()


def payloads(topic: Topic) -> list[bytes]:
    return [message.payload for message in topic.read()]


def test_an_archived_message_keeps_its_columns(database: Database, topic: Topic) -> None:
    table = database.create_table("orders", payload="text", groups="sequenced", columns={"amount": "bigint"})
    put = table.put("hello", headers={"trace": "7"}, group="ada", priority=3, amount=12)
    delivery = table.receive()[0]
    delivery.ack()
    assert database.archive("orders", "done") == 1
    message = next(topic.read())
    assert (message.source, message.stream, message.payload) == ("ada", "orders", b"hello")
    assert message.publish_time == delivery.time_created
    assert message.event_time == delivery.time_scheduled
    acked = message.headers["waterclock.acked"]
    assert int(acked) > delivery.time_created
    assert dict(message.headers) == {
        "trace": "7",
        "waterclock.id": str(put),
        "waterclock.acked": acked,
        "waterclock.group": "ada",
        "waterclock.epoch": "1",
        "waterclock.priority": "3",
        "waterclock.columns": '{"amount": 12}',
    }
    assert table.receive() == []
    assert (table.stats().acked, table.stats().purged, table.stats().sent) == (0, 1, 1)


def test_only_old_acked_messages_are_archived(database: Database, topic: Topic, clock: Clock) -> None:
    table = database.create_table("orders", payload="text")
    work_off(table, 2)
    clock.now += 10_000
    work_off(table, 1)
    table.put("open")
    assert database.archive("orders", "done", older_than=5_000) == 2
    assert payloads(topic) == [b"no 0", b"no 1"]
    assert database.archive("orders", "done") == 1
    assert table.receive()[0].payload == "open"


def test_expired_messages_are_not_archived(database: Database, topic: Topic, clock: Clock) -> None:
    table = database.create_table("orders", payload="text")
    table.put("stale", expires_at=clock.now + 5_000)
    clock.now += 10_000
    work_off(table, 1)
    assert table.stats().expired == 1
    assert database.archive("orders", "done") == 1
    assert payloads(topic) == [b"no 0"]
    assert table.stats().expired == 1


@pytest.mark.both_servers
@pytest.mark.parametrize("id_type", ["bigint", "text", "uuid"])
@pytest.mark.parametrize("moment", ["append", "delete"])
def test_an_archiver_killed_at_any_step_leaves_each_message_once(
    database: Database, topic: Topic, monkeypatch: pytest.MonkeyPatch, moment: str, id_type: Any
) -> None:
    table = database.create_table("orders", payload="text", id_type=id_type)
    for number in range(5):
        table.put(f"no {number}", id={"bigint": number, "text": f"id {number}", "uuid": uuid.UUID(int=number)}[id_type])
    for delivery in table.receive(limit=10):
        delivery.ack()
    monkeypatch.setattr(archive_to_topic, "_ROWS", 2)
    with monkeypatch.context() as patch:
        calls: list[int] = []

        def killing(do: Callable[..., Any]) -> Callable[..., Any]:
            def killed(*arguments: Any, **options: Any) -> Any:
                calls.append(1)
                if len(calls) == 3:  # of the second piece; the first call of delete finds nothing to finish
                    raise Killed
                return do(*arguments, **options)

            return killed

        if moment == "append":
            patch.setattr(Topic, "append", killing(Topic.append))
        else:
            calls.append(1)
            patch.setattr(archive_to_topic, "delete_acked", killing(archive_to_topic.delete_acked))
        with pytest.raises(Killed):
            database.archive("orders", "done")
    table.put("later", id={"bigint": 9, "text": "id 9", "uuid": uuid.UUID(int=9)}[id_type])
    table.receive()[0].ack()
    database.archive("orders", "done")
    assert sorted(payloads(topic)) == [b"later", *(f"no {number}".encode() for number in range(5))]
    assert table.stats().acked == 0


@pytest.mark.both_servers
def test_an_id_that_is_used_again_after_its_archiver_died_is_archived_again(
    database: Database, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = database.create_table("orders", payload="text")
    work_off(table, 1, id=7)
    with monkeypatch.context() as patch:

        def die(*_: object) -> int:
            raise Killed

        patch.setattr(archive_to_topic, "delete_acked", die)
        with pytest.raises(Killed):
            database.archive("orders", "done")
    table.alter(purge_after=0)
    assert table.purge() == 1
    table.alter(purge_after=None)
    work_off(table, 1, id=7)
    assert database.archive("orders", "done") == 1
    assert [message.headers["waterclock.id"] for message in topic.read()] == ["7", "7"]


@pytest.mark.both_servers
def test_of_two_archivers_the_older_one_is_fenced(
    database: Database, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = database.create_table("orders", payload="text")
    work_off(table, 3)
    message = archive_to_topic._message

    def message_while_another_comes(*arguments: Any) -> wc.Message:
        with monkeypatch.context() as patch:
            patch.setattr(archive_to_topic, "_message", message)
            database.archive("orders", "done")
        return message(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(archive_to_topic, "_message", message_while_another_comes)
        with pytest.raises(ProducerFencedError):
            database.archive("orders", "done")
    assert payloads(topic) == [b"no 0", b"no 1", b"no 2"]


def test_large_payloads_are_appended_a_few_at_a_time(
    database: Database, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_to_topic, "_BYTES", 5)
    work_off(database.create_table("orders", payload="text"), 5)
    assert database.archive("orders", "done") == 5
    assert topic.ledgers()[-1].entries == 3


def test_json_payloads_stay_json(database: Database, topic: Topic) -> None:
    table = database.create_table("orders", payload="json")
    table.put({"a": [1, None]})
    table.put("text")
    for delivery in table.receive():
        delivery.ack()
    database.archive("orders", "done")
    assert sorted(payloads(topic)) == [b'"text"', b'{"a": [1, null]}']


def test_messages_that_the_topic_rejects_stay_in_the_table(
    database: Database, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    topic = database.create_topic("strict", max_ahead="1us")
    table = database.create_table("orders", payload="text")
    work_off(table, 3)
    ahead = sa.text("UPDATE orders SET time_created = 1000000 WHERE message = 'no 1'")
    database.backend.transact(lambda connection: connection.execute(ahead))
    assert database.archive("orders", "strict") == 2
    assert payloads(topic) == [b"no 0", b"no 2"]
    assert table.stats().acked == 1
    assert "because the topic rejected it: publish_time" in caplog.text
    assert database.archive("orders", "strict") == 0
    clock.now = 1_000_000
    assert database.archive("orders", "strict") == 1
    assert payloads(topic) == [b"no 0", b"no 2", b"no 1"]
