"""Producers whose clocks are wrong: seeking by a time that they cannot forge, and refusing what is too far ahead."""

from __future__ import annotations

import pytest
from tests.topics.conftest import MakeTopic, SettableClock

from waterclock.errors import InvalidArgumentError
from waterclock.message import Message, Position
from waterclock.topics.topic import Topic


def test_a_subscription_with_a_wild_clock_in_its_topic_seeks_by_a_time_that_is_not_forged(
    clocked_topic: Topic, clock: SettableClock
) -> None:
    hour = 3_600_000_000_000
    for i in range(1, 6):
        clock.now = i * hour
        publish = clock.now + 26_280 * hour if i == 2 else clock.now
        clocked_topic.append([Message("a", "b", i, publish_time=publish, receive_time=clock.now)])
        clocked_topic.roll()
    reader = clocked_topic.subscribe("billing")
    assert reader.seek(4 * hour) == Position(1, 0, 0)  # of three years ahead
    assert reader.seek(4 * hour, by="effective_time") == Position(3, 0, 0)
    assert reader.seek("2h", by="receive_time") == Position(2, 0, 0)
    assert reader.seek(4, by="event_time") == Position(3, 0, 0)
    assert list(clocked_topic.read(since=3 * hour, until=5 * hour)) == []
    read = clocked_topic.read(since=3 * hour, until=5 * hour, by="effective_time")
    assert [message.event_time for message in read] == [3, 4]
    batches = clocked_topic.read_arrow(since="1h", by="receive_time", columns=["event_time"])
    assert [batch.column(0).to_pylist() for batch in batches] == [[4], [5]]
    assert clocked_topic.subscribe("late", 4 * hour, by="effective_time").position == Position(3, 0, 0)
    for call in (reader.seek, clocked_topic.find, clocked_topic.subscribe):
        with pytest.raises(InvalidArgumentError, match="by: 'offset_time'"):
            call("late", by="offset_time")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidArgumentError, match="by: 'offset_time'"):
        next(clocked_topic.read(by="offset_time"))


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("publish_time", [10, 30, 40]),
        ("event_time", [10, 20, 30]),
        ("receive_time", [10, 20, 40]),
        ("effective_time", [10, 40]),
    ],
)
def test_what_is_older_by_the_time_that_was_sought_is_left_out(
    make_sqlite_topic: MakeTopic, by: str, expected: list[int]
) -> None:
    topic = make_sqlite_topic()
    times = {10: (70, 70, 70), 20: (70, 10, 70), 30: (70, 70, 10), 40: (10, 70, 70)}
    for name, (event, publish, receive) in times.items():
        message = Message("a", str(name), event, publish_time=publish, receive_time=receive)
        topic.append([message])
    with topic.subscribe("billing") as reader:
        reader.seek(60, by=by, filter_older=True)
    with topic.subscribe("billing") as another:  # it is kept in the catalogue
        assert [int(message.stream) for message in another.read()] == expected
        another.seek(60, by=by)
        assert len(another.read()) == 4
