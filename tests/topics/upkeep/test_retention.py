from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import sqlalchemy as sa
from tests.support.killed import Killed
from tests.topics.conftest import MovableClock
from tests.topics.flows import append_ledgers, ledger_path, published

from waterclock.database.schema.topic_catalogue import entries, files
from waterclock.errors import NotFoundError
from waterclock.message import Message, Position
from waterclock.topics.catalogue.creating import topic_names
from waterclock.topics.model.topic_options import TopicOptions
from waterclock.topics.store import sealed_file
from waterclock.topics.topic import Topic
from waterclock.topics.upkeep import retention, sealing

FLOW = [[[0, 1], [2]], [[3, 4, 5]], [[6], [7, 8]]]
HOUR = 3_600_000_000_000


def times(topic: Topic) -> list[int | None]:
    return [message.publish_time for message in topic.read()]


def rows(topic: Topic, table: sa.Table) -> int:
    with topic.storage.backend.snapshot() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def test_truncating_deletes_whole_ledgers_and_the_rest_is_found(topic: Topic) -> None:
    append_ledgers(topic, [[[i] for i in range(5)], [[i] for i in range(5, 10)]])
    assert topic.find(0).position == Position(0, 0, 0)
    assert topic.truncate(Position(0, 4, 0)) == 0  # not the whole of a ledger
    assert topic.truncate(5) == 1
    assert topic.find(0).position == Position(1, 0, 0)
    assert times(topic) == [5, 6, 7, 8, 9]
    assert topic.truncate(topic.head) == 1
    assert topic.find(0) == (Position(2, 0, 0), False)
    assert times(topic) == []
    topic.append(published([10]))
    assert topic.find(0) == (Position(2, 0, 0), True)


def test_truncating_stops_at_the_slowest_subscription_unless_forced(topic: Topic) -> None:
    append_ledgers(topic, FLOW)
    topic.seal()
    slow, fast = topic.subscribe("slow", start=Position(1, 0, 1)), topic.subscribe("fast", start="latest")
    assert topic.truncate(topic.head) == 1
    assert slow.read(limit=1)[0].publish_time == 4
    assert fast.read() == []
    assert topic.truncate(topic.head, force=True) == 2
    assert times(topic) == []


def test_a_subscription_that_has_read_a_closed_ledger_to_its_end_does_not_keep_it(topic: Topic) -> None:
    append_ledgers(topic, FLOW)
    reader = topic.subscribe("s")
    reader.read()
    reader.commit()
    assert topic.truncate(topic.head) == 3


@pytest.mark.one_database
def test_files_of_deleted_ledgers_stay_for_their_grace_time(clocked_topic: Topic, clock: MovableClock) -> None:
    append_ledgers(clocked_topic, FLOW)
    clocked_topic.seal()
    path = ledger_path(clocked_topic, 0)
    plan = clocked_topic.plan()
    clocked_topic.truncate(3)
    assert path.exists()
    assert plan[0].path is not None
    clock.now += HOUR
    assert clocked_topic.sweep() == 0
    clock.now += 1
    assert clocked_topic.sweep() == 1
    assert not path.exists()
    assert rows(clocked_topic, files) == 0


def test_retention_deletes_ledgers_of_which_every_message_is_too_old(clocked_topic: Topic, clock: MovableClock) -> None:
    storage = clocked_topic.storage
    topic = Topic.create(
        storage.backend,
        storage.files.root,
        "short",
        TopicOptions.check(roll_after=None, retention=100),
    )
    append_ledgers(topic, [[[10], [20]], [[30]], [[40]]])
    clock.now = 120
    assert topic.enforce_retention() == 0
    clock.now = 131
    assert topic.enforce_retention() == 2
    assert times(topic) == [40]
    append_ledgers(clocked_topic, FLOW)
    assert clocked_topic.enforce_retention() == 0
    clock.now = 1000
    assert topic.seal() == 0  # sealing looks after retention first
    assert times(topic) == []


def test_retention_goes_by_the_time_that_no_producer_can_forge(clocked_topic: Topic, clock: MovableClock) -> None:
    storage = clocked_topic.storage
    topic = Topic.create(
        storage.backend,
        storage.files.root,
        "short",
        TopicOptions.check(roll_after=None, retention="1h"),
    )
    far = 240 * HOUR
    for _ in range(2):
        topic.append([Message("a", "b", 0, publish_time=far, receive_time=0)])
        topic.roll()
    clock.now = 2 * HOUR
    assert topic.enforce_retention() == 2


def test_a_reader_continues_after_ledgers_that_were_deleted_under_it(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed_file, "ROW_GROUP_MESSAGES", 1)
    append_ledgers(topic, FLOW)
    topic.seal()
    reader = topic.read()
    read = list(islice(reader, 1))
    monkeypatch.setattr(retention, "GRACE", -1)
    assert topic.truncate(6) == 2
    topic.sweep()
    read += reader
    assert [message.publish_time for message in read] == [0, 6, 7, 8]


def test_many_ledgers_are_deleted_in_small_transactions(sqlite_topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_LEDGERS_AT_ONCE", 3)
    append_ledgers(sqlite_topic, [[[i]] for i in range(10)])
    assert sqlite_topic.truncate(8) == 8
    assert times(sqlite_topic) == [8, 9]
    assert rows(sqlite_topic, entries) == 2


def test_sealing_a_ledger_that_is_deleted_meanwhile_leaves_nothing_behind(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_ledgers(topic, FLOW)
    commit = sealing._commit

    def delete_first(*arguments: Any) -> None:
        topic.truncate(6)
        commit(*arguments)

    monkeypatch.setattr(sealing, "_commit", delete_first)
    assert topic.seal() == 0
    assert times(topic) == [6, 7, 8]
    assert list(tmp_path.rglob("*.parquet*")) == []
    assert (rows(topic, files), rows(topic, entries)) == (0, 2)


def test_removing_a_topic_removes_all_it_holds(topic: Topic, tmp_path: Path) -> None:
    append_ledgers(topic, FLOW)
    topic.seal()
    topic.subscribe("s").read()
    topic.append(published([9]), producer="p", sequence=0)
    topic.remove()
    assert topic_names(topic.storage.backend) == []
    assert (rows(topic, files), rows(topic, entries)) == (0, 0)
    assert list(tmp_path.rglob("*.parquet")) == []
    with pytest.raises(NotFoundError, match="removed"):
        topic.remove()


def test_removing_a_topic_does_not_wait_for_the_lease_of_a_dead_sealer(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_ledgers(topic, FLOW)
    monkeypatch.setattr(sealing, "_commit", Mock(side_effect=Killed))
    with pytest.raises(Killed):
        topic.seal()
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
    topic.remove()
    assert list(tmp_path.rglob("*.parquet")) == []
    assert topic_names(topic.storage.backend) == []


@pytest.mark.parametrize("path", ["../victim.parquet", "file:///elsewhere/victim.parquet"])
def test_a_topic_is_removed_although_a_file_to_delete_lies_outside_its_store(
    sqlite_topic: Topic, tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    topic = sqlite_topic
    append_ledgers(topic, FLOW)
    topic.seal()
    gone = {"path": path, "topic_id": topic.storage.topic_id, "ledger": 0, "state": "deleted", "owner": "", "until": 0}
    topic.storage.backend.transact(lambda connection: connection.execute(sa.insert(files), gone))
    topic.remove()
    assert f"removing the topic anyway: ledger file {path!r}" in caplog.text
    assert topic_names(topic.storage.backend) == []
    assert rows(topic, files) == 0
    assert list(tmp_path.rglob("*.parquet")) == []


@pytest.mark.both_servers
def test_a_removal_that_was_killed_can_be_completed(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    append_ledgers(topic, FLOW)
    topic.seal()
    delete = topic.storage.files.delete
    calls: list[str] = []

    def die_at_the_second(path: str) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise KeyboardInterrupt
        delete(path)

    monkeypatch.setattr(topic.storage.files, "delete", die_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        topic.remove()
    monkeypatch.undo()
    topic.remove()
    assert topic_names(topic.storage.backend) == []
    assert list(tmp_path.rglob("*.parquet")) == []
