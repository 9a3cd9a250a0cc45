"""Pickling: databases, topics and tables are opened again; what belongs to one process is refused by name."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark import cloudpickle
from tests.topics.flows import published

from waterclock.connection import Database, connect
from waterclock.tables.message_table import MessageTable
from waterclock.topics.model.topic_options import TopicOptions
from waterclock.topics.topic import Topic
from waterclock.work.upkeep import Upkeep
from waterclock.work.worker import Worker


def again(one: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # URLs of servers hold passwords
        return pickle.loads(pickle.dumps(one))  # noqa: S301  # our own


def test_a_database_its_topics_and_tables_are_opened_again(database: Database, tmp_path: Path) -> None:
    topic = Topic.create(
        database.backend,
        str(tmp_path / "ledgers"),
        "telemetry",
        TopicOptions.check(roll_after=None, roll_size=1 << 20, retention=None),
    )
    table = database.create_table("orders", payload="text")
    copies: tuple[Database, Topic, MessageTable] = again((database, topic, table))
    assert copies[0].backend is copies[1].storage.backend
    assert copies[0].backend is not database.backend
    assert copies[0].topics() == ["telemetry"]
    copies[1].append(published([1]))
    copies[1].roll()
    assert copies[1].seal() == 1
    copies[2].put("tea")
    assert [message.publish_time for message in topic.read()] == [1]
    assert [delivery.payload for delivery in table.receive()] == ["tea"]
    copies[0].close()


def test_an_sqlite_file_and_its_ledgers_are_found_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with connect("sqlite:///factory.db", ledgers="own-ledgers") as database:
        database.create_topic("telemetry").append(published([1]))
        data = pickle.dumps(database)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pickle.loads(data) as copy:  # noqa: S301  # our own
        assert copy.ledgers == str(tmp_path / "own-ledgers")
        topic = copy.topic("telemetry")
        topic.roll()
        topic.seal()
    assert list((tmp_path / "own-ledgers").rglob("*.parquet"))
    assert not list(tmp_path.glob("elsewhere/*"))


def test_a_function_of_spark_may_use_a_topic(sqlite_url: str) -> None:
    with connect(sqlite_url) as database:
        topic = database.create_topic("telemetry")
        topic.append(published([1, 2]))
        use = pickle.loads(cloudpickle.dumps(lambda: topic.info.messages))  # noqa: S301  # our own
        assert use() == 2


def test_a_password_in_the_url_is_warned_of(monkeypatch: pytest.MonkeyPatch, sqlite_url: str) -> None:
    with connect(sqlite_url) as database:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pickle.dumps(database)
        monkeypatch.setattr(database.backend, "_file", None)
        monkeypatch.setattr(database.backend, "url", sa.make_url("postgresql+psycopg://u:geheim@db/factory"))
        with pytest.warns(UserWarning, match="contains the credentials of") as warned:
            pickle.dumps(database)
        assert "geheim" not in str(warned[0].message)


def test_objects_of_one_process_are_refused_by_name(sqlite_url: str) -> None:
    with connect(sqlite_url) as database:
        topic, table = database.create_topic("telemetry"), database.create_table("orders", payload="text")
        table.put("tea")
        (delivery,) = table.receive()
        with topic.subscribe("billing") as reading, table.subscribe() as deliveries, topic.producer("p") as producer:
            refused = [reading, deliveries, producer, delivery, Worker(table, print), Upkeep(database)]
            for one in refused:
                with pytest.raises(TypeError, match=f"cannot pickle {type(one).__name__}: it belongs to the process"):
                    pickle.dumps(one)
