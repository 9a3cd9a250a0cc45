from __future__ import annotations

import pytest
from tests.topics.conftest import MakeTopic, MovableClock
from tests.topics.flows import append_ledgers, published

from waterclock.errors import InvalidArgumentError, LeaseLostError, NotFoundError, UnavailableError
from waterclock.message import Message, Position
from waterclock.topics.subscription import Backlog, Subscription
from waterclock.topics.topic import Topic

FLOW = [[[0, 1], [2]], [[3, 4, 5]], [[6], [7, 8]]]


def times(messages: list[Message]) -> list[int | None]:
    return [message.publish_time for message in messages]


def test_a_subscription_reads_on_from_what_was_committed(topic: Topic) -> None:
    append_ledgers(topic, FLOW)
    first = topic.subscribe("billing")
    assert times(first.read(limit=4)) == [0, 1, 2, 3]
    first.commit()
    assert times(first.read(limit=3)) == [4, 5, 6]
    first.close()
    topic.seal()
    with topic.subscribe("billing", start="latest") as second:
        assert second.position == Position(1, 0, 1)
        assert times(second.read()) == [4, 5, 6, 7, 8]
        second.commit()
        assert second.position == topic.head
        assert second.read() == []
        topic.append(published([9]))
        assert times(second.read()) == [9]


@pytest.mark.one_database
def test_reading_one_by_one_passes_every_boundary(topic: Topic) -> None:
    append_ledgers(topic, FLOW)
    topic.seal()
    with topic.subscribe("billing") as subscription:
        for expected in range(9):
            assert times(subscription.read(limit=1)) == [expected]
            subscription.commit()
            assert subscription.backlog.messages == 8 - expected
        assert subscription.read(limit=1) == []
        assert subscription.position == topic.head


@pytest.mark.parametrize(
    ("start", "expected"),
    [("earliest", 0), ("latest", 9), (4, 4), (99, 9), (Position(1, 0, 2), 5), (Position(0, 7, 0), 3)],
)
def test_a_new_subscription_begins_where_the_caller_says(
    make_sqlite_topic: MakeTopic, start: int | str | Position, expected: int
) -> None:
    topic = make_sqlite_topic()
    append_ledgers(topic, FLOW)
    subscription = topic.subscribe("billing", start=start)
    assert subscription.backlog.messages == 9 - expected
    assert times(subscription.read()) == list(range(expected, 9))


def test_the_backlog_is_counted_in_messages_and_in_age(clocked_topic: Topic, clock: MovableClock) -> None:
    subscription = clocked_topic.subscribe("billing")
    assert subscription.backlog == Backlog(0, 0)
    for clock.now in (100, 200, 300):
        clocked_topic.append([Message("a", "b", 1), Message("a", "b", 1)])
    clock.now = 1000
    assert subscription.backlog == Backlog(6, 900)
    subscription.read(limit=3)
    subscription.commit()
    assert subscription.backlog == Backlog(3, 800)
    subscription.read()
    subscription.commit()
    assert subscription.backlog == Backlog(0, 0)


def test_the_second_reader_learns_who_holds_the_subscription(clocked_topic: Topic, clock: MovableClock) -> None:
    append_ledgers(clocked_topic, FLOW)
    first, second = clocked_topic.subscribe("billing", lease="10s"), clocked_topic.subscribe("billing", lease="10s")
    first.read(limit=1)
    with pytest.raises(UnavailableError, match=rf"'billing'.*read by {first._holder} until 1970-01-01T00:00:10\.001Z"):
        second.read()
    assert first.info.holder == first._holder
    first.close()
    assert first.info.holder is None
    assert times(second.read(limit=1)) == [0]


def test_a_reader_that_fell_silent_is_replaced_and_cannot_commit(clocked_topic: Topic, clock: MovableClock) -> None:
    append_ledgers(clocked_topic, FLOW)
    first, second = clocked_topic.subscribe("billing", lease="10s"), clocked_topic.subscribe("billing", lease="10s")
    first.read(limit=4)
    clock.now += 10_000_000_001
    assert times(second.read(limit=2)) == [0, 1]
    with pytest.raises(LeaseLostError, match=second._holder):
        first.commit()
    second.commit()
    assert second.position == Position(0, 1, 0)


def test_a_silent_reader_that_was_not_replaced_can_still_commit(clocked_topic: Topic, clock: MovableClock) -> None:
    append_ledgers(clocked_topic, FLOW)
    subscription = clocked_topic.subscribe("billing", lease="10s")
    subscription.read(limit=4)
    clock.now += 60_000_000_000
    subscription.commit()
    assert subscription.position == Position(1, 0, 1)


def test_commits_of_what_was_read_before_a_seek_are_refused(topic: Topic) -> None:
    append_ledgers(topic, FLOW)
    reader = topic.subscribe("billing")
    reader.read(limit=7)
    assert topic.subscribe("billing").seek(2) == Position(0, 1, 0)
    with pytest.raises(LeaseLostError, match="moved"):
        reader.commit()
    assert reader.position == Position(0, 1, 0)
    assert times(reader.read(limit=2)) == [2, 3]
    reader.commit()
    assert reader.position == Position(1, 0, 1)


def test_seeking_goes_to_a_position_a_time_or_either_end(topic: Topic) -> None:
    append_ledgers(topic, FLOW)
    topic.seal()
    reader = topic.subscribe("billing")
    for to, expected in ((Position(1, 0, 2), 5), (7, 7), ("earliest", 0), (3, 3), ("latest", 9), (-1, 0), (1000, 9)):
        reader.seek(to)
        assert reader.backlog.messages == 9 - expected
        assert times(reader.read()) == list(range(expected, 9))


def test_seeking_may_deliver_older_messages_again_unless_they_are_filtered(topic: Topic) -> None:
    append_ledgers(topic, [[[10, 50, 20], [60]], [[30, 40], [70, 35, 80]]])
    reader = topic.subscribe("billing")
    reader.seek(50)
    assert times(reader.read()) == [50, 20, 60, 30, 40, 70, 35, 80]
    reader.seek(50, filter_older=True)
    assert times(reader.read(limit=3)) == [50, 60, 70]
    reader.commit()
    assert times(reader.read(limit=3)) == [80]
    reader.commit()
    assert reader.backlog == Backlog(0, 0)
    topic.append(published([45, 90]))
    assert times(reader.read()) == [90]
    reader.seek("earliest")
    assert len(reader.read()) == 11


@pytest.mark.one_database
def test_a_filtered_read_stops_at_the_last_message_it_gave(topic: Topic) -> None:
    append_ledgers(topic, [[[10, 50, 20, 60, 30]]])
    reader = topic.subscribe("billing")
    reader.seek(40, filter_older=True)
    assert times(reader.read(limit=1)) == [50]
    reader.commit()
    assert reader.position == Position(0, 0, 2)
    assert times(reader.read(limit=1)) == [60]


def test_commits_do_not_change_what_is_found(topic: Topic) -> None:
    append_ledgers(topic, FLOW)
    reader = topic.subscribe("billing")
    before = [topic.find(time) for time in range(10)]
    reader.read()
    reader.commit()
    assert [topic.find(time) for time in range(10)] == before


def test_subscriptions_are_listed_and_removed(topic: Topic) -> None:
    append_ledgers(topic, FLOW)
    topic.subscribe("b", start=6)
    reader = topic.subscribe("a")
    reader.read(limit=1)
    infos = topic.subscriptions()
    assert [(info.name, info.position, info.unread, info.holder) for info in infos] == [
        ("a", Position(0, 0, 0), 9, reader._holder),
        ("b", Position(2, 0, 0), 3, None),
    ]
    topic.unsubscribe("a")
    assert [info.name for info in topic.subscriptions()] == ["b"]
    with pytest.raises(NotFoundError, match="'a'"):
        topic.unsubscribe("a")
    with pytest.raises(NotFoundError, match="'a'"):
        reader.read()


def test_invalid_arguments_are_refused(sqlite_topic: Topic) -> None:
    with pytest.raises(InvalidArgumentError, match="name"):
        sqlite_topic.subscribe("")
    with pytest.raises(InvalidArgumentError, match="start"):
        sqlite_topic.subscribe("s", start="soon")
    with pytest.raises(InvalidArgumentError, match="limit"):
        sqlite_topic.subscribe("s").read(limit=0)


def test_a_subscription_behind_a_deleted_part_continues_with_the_first_remaining_message(topic: Topic) -> None:
    append_ledgers(topic, FLOW)
    reader: Subscription = topic.subscribe("billing")
    assert topic.truncate(3) == 0
    assert topic.truncate(3, force=True) == 1
    assert reader.backlog.messages == 6
    assert times(reader.read()) == [3, 4, 5, 6, 7, 8]
    reader.commit()
    assert reader.backlog == Backlog(0, 0)
