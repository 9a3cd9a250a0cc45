from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.topics.conftest import MakeTopic, MovableClock
from tests.topics.flows import published

from waterclock.connection import connect
from waterclock.database.backend import Backend
from waterclock.database.schema.topic_catalogue import ledgers
from waterclock.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from waterclock.message import Position
from waterclock.topics.catalogue.creating import topic_names
from waterclock.topics.topic import Topic


def test_an_existing_topic_is_opened_or_refused_as_requested(make_topic: MakeTopic) -> None:
    made = make_topic("telemetry")
    with pytest.raises(AlreadyExistsError, match="'telemetry'"):
        make_topic("telemetry")
    assert make_topic("telemetry", exist_ok=True).storage.topic_id == made.storage.topic_id


def test_an_existing_topic_with_other_options_is_returned_with_a_warning(sqlite_url: str) -> None:
    with connect(sqlite_url) as database:
        database.create_topic("telemetry", retention="1d")
        with pytest.warns(UserWarning, match="already exists and keeps its options") as warned:
            topic = database.create_topic("telemetry", retention="2d", roll_size=1 << 20, exist_ok=True)
        assert [str(each.message) for each in warned] == [
            "topic 'telemetry' already exists and keeps its options: roll_size is 67108864, not 1048576;"
            " retention is '1d', not '2d'. To change them, call alter()"
        ]
        assert warned[0].filename == __file__
        assert topic.info.retention == 86_400 * 10**9


def test_no_warning_about_options_that_are_equal_or_defaults(sqlite_url: str) -> None:
    with connect(sqlite_url) as database, warnings.catch_warnings():
        warnings.simplefilter("error")
        database.create_topic("telemetry", retention="1d", roll_after="10m", on_ahead="keep")
        database.create_topic("telemetry", retention="24h", exist_ok=True)


def test_a_topic_that_does_not_exist_is_not_opened(backend: Backend, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="'telemetry'"):
        Topic.open(backend, str(tmp_path), "telemetry")


def test_topics_are_named_in_alphabetical_order(backend: Backend, make_topic: MakeTopic) -> None:
    for name in ("b", "a", "ä", "A"):
        make_topic(name)
    assert topic_names(backend) == ["A", "a", "b", "ä"]


@pytest.mark.parametrize("name", ["x" * 255, "a b", "größe", "../../etc", "%41", "🙂"])
def test_any_printable_name_names_a_topic(make_topic: MakeTopic, backend: Backend, name: str) -> None:
    topic = make_topic(name)
    assert topic.name == name
    assert topic_names(backend) == [name]


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "a\0b", "\ud800", "a ", " a", 7])
def test_a_name_that_looks_like_another_is_refused(make_sqlite_topic: MakeTopic, name: object) -> None:
    with pytest.raises(InvalidArgumentError, match="name"):
        make_sqlite_topic(name)


@pytest.mark.parametrize(
    ("option", "value"),
    [("roll_size", 0), ("roll_size", 1.5), ("roll_size", True), ("roll_after", "0s"), ("retention", "-1s")],
)
def test_invalid_options_are_refused(make_sqlite_topic: MakeTopic, option: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError, match=option):
        make_sqlite_topic(**{option: value})


def test_an_empty_topic_begins_at_zero_and_has_one_open_ledger(topic: Topic) -> None:
    assert topic.head == Position(0, 0, 0)
    assert [(info.ledger, info.state, info.messages, info.bounds) for info in topic.ledgers()] == [(0, "open", 0, None)]
    assert list(topic.read()) == []


def test_two_topics_do_not_see_each_other(make_topic: MakeTopic) -> None:
    first, second = make_topic("first"), make_topic("second")
    first.append(published([1, 2]))
    second.append(published([5]))
    first.roll()
    first.seal()
    assert [message.publish_time for message in second.read()] == [5]
    assert [message.publish_time for message in first.read()] == [1, 2]
    assert first.find(3).found is False


def test_altered_options_take_effect_and_the_others_stay(clocked_topic: Topic, clock: MovableClock) -> None:
    topic = clocked_topic
    topic.append(published([1]))
    topic.alter(roll_size=1, retention="1h", on_ahead="keep")
    info = topic.info
    assert (info.roll_after, info.roll_size, info.retention, info.max_ahead) == (None, 1, 3600 * 10**9, None)
    assert info.on_ahead == "keep"
    topic.append(published([2]))
    assert topic.head == Position(1, 1, 0)
    clock.now += 2 * 3600 * 10**9
    topic.alter(roll_size=1 << 20)
    assert topic.info.retention == 3600 * 10**9
    assert topic.enforce_retention() == 2
    topic.alter(retention=None)
    assert topic.info.retention is None


@pytest.mark.parametrize(
    ("option", "value"), [("roll_size", 0), ("retention", "-1s"), ("name", "x"), ("on_ahead", "?")]
)
def test_alter_refuses_invalid_options_and_changes_nothing(sqlite_topic: Topic, option: str, value: Any) -> None:
    before = sqlite_topic.info
    with pytest.raises(InvalidArgumentError, match=option):
        sqlite_topic.alter(roll_after="5m", **{option: value})
    assert sqlite_topic.info == before


def test_a_removed_topic_cannot_be_altered(sqlite_topic: Topic) -> None:
    sqlite_topic.remove()
    with pytest.raises(NotFoundError, match="'telemetry'"):
        sqlite_topic.alter(retention="1d")


def test_a_renamed_topic_is_found_by_its_new_name_and_open_ones_continue(make_topic: MakeTopic) -> None:
    topic, other = make_topic("telemetry"), make_topic("alarms")
    elsewhere = Topic.open(topic.storage.backend, None, "telemetry")
    reading = topic.subscribe("billing")
    topic.append(published([1]))
    topic.rename("measurements")
    assert (topic.name, topic.info.name) == ("measurements", "measurements")
    elsewhere.append(published([2]))
    assert [message.publish_time for message in reading.read()] == [1, 2]
    reading.commit()
    assert topic.subscriptions()[0].name == "billing"
    assert topic_names(topic.storage.backend) == ["alarms", "measurements"]
    with pytest.raises(AlreadyExistsError, match="cannot rename topic 'measurements': a topic named 'alarms' exists"):
        topic.rename("alarms")
    with pytest.raises(InvalidArgumentError, match="name"):
        topic.rename("")
    assert topic.name == "measurements"
    other.remove()
    with pytest.raises(NotFoundError, match="'alarms'"):
        other.rename("measurements 2")


def test_files_written_before_a_topic_was_renamed_are_its_own(make_sqlite_topic: MakeTopic) -> None:
    topic = make_sqlite_topic("telemetry")
    topic.append(published([1]))
    topic.roll()
    topic.seal()
    topic.rename("measurements")
    topic.append(published([2]))
    topic.roll()
    topic.seal()
    with topic.storage.backend._writer.begin() as connection:
        connection.execute(sa.delete(ledgers).where(ledgers.c.ledger == 0))
    again = make_sqlite_topic("telemetry")
    assert again.repair().imported == ()
    assert again.verify().is_whole
    assert topic.repair().imported == (0,)
    assert [message.publish_time for message in topic.read()] == [1, 2]
