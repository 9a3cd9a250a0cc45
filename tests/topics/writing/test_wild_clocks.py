"""Producers whose clocks are wrong: seeking by a time that they cannot forge, and refusing what is too far ahead."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest
from tests.topics.conftest import MakeTopic, MovableClock

from waterclock._support import moments
from waterclock.arrow import to_arrow
from waterclock.connection import Database
from waterclock.errors import InvalidArgumentError
from waterclock.message import Message, Position
from waterclock.topics.model.clock_skew_limit import LOOK_EVERY, AheadLimit, ClockTimes
from waterclock.topics.store.ledger_root import LedgerRoot
from waterclock.topics.topic import Topic
from waterclock.topics.writing.appending import Appended

SECOND = 1_000_000_000


@pytest.mark.both_servers
def test_a_subscription_with_a_wild_clock_in_its_topic_seeks_by_a_time_that_is_not_forged(
    clocked_topic: Topic, clock: MovableClock
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
        with pytest.raises(InvalidArgumentError, match=r"'by' must be one of .* got 'offset_time'"):
            call("late", by="offset_time")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidArgumentError, match=r"'by' must be one of .* got 'offset_time'"):
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
def test_messages_older_by_the_sought_time_are_left_out(
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


def limited(topic: Topic, name: str = "limited", on_ahead: str = "reject") -> Topic:
    """Make a topic beside another one, on the same database and clock, that takes messages up to 10 s ahead."""
    backend, root = topic.storage.backend, topic.storage.files.root
    return Database(backend, LedgerRoot(root)).create_topic(name, max_ahead="10s", on_ahead=on_ahead)  # pyright: ignore[reportArgumentType]


def sent(*seconds: int | None) -> list[Message]:
    """Make messages that were published at these seconds; the event_time says which of them each is."""
    return [
        Message("a", "b", i, publish_time=None if second is None else second * SECOND)
        for i, second in enumerate(seconds)
    ]


def held(topic: Topic) -> list[int]:
    return [message.event_time for message in topic.read()]


@pytest.mark.one_database
def test_a_message_too_far_ahead_is_left_out_and_named_with_its_reason(
    clocked_topic: Topic, clock: MovableClock
) -> None:
    topic = limited(clocked_topic)
    clock.now = 100 * SECOND
    appended = topic.append(sent(90, 111, 110, None, 200))
    assert (appended.first, appended.count, appended.duplicate) == (Position(0, 0, 0), 3, False)
    assert [each.index for each in appended.rejected] == [1, 4]
    assert appended.rejected[1].reason == (
        "publish_time 1970-01-01T00:03:20Z is 100s ahead of the clock,"
        " and topic 'limited' takes at most 10s (max_ahead)"
    )
    assert held(topic) == [0, 2, 3]
    clock.now = 101 * SECOND
    assert topic.append(sent(111)).rejected == ()


def test_an_append_with_all_messages_rejected_writes_nothing(clocked_topic: Topic, clock: MovableClock) -> None:
    topic = limited(clocked_topic)
    appended = topic.append(sent(50, 60))
    assert (appended.first, appended.count, len(appended.rejected)) == (None, 0, 2)
    assert topic.head == Position(0, 0, 0)
    assert topic.info.messages == 0


@pytest.mark.one_database
def test_a_message_kept_although_ahead_is_a_warning(
    clocked_topic: Topic, clock: MovableClock, caplog: pytest.LogCaptureFixture
) -> None:
    topic = limited(clocked_topic, on_ahead="keep")
    with caplog.at_level(logging.WARNING):
        assert topic.append(sent(1, 2)) == Appended(Position(0, 0, 0), 2)
        assert caplog.text == ""
        assert topic.append(sent(20, 1, 30)) == Appended(Position(0, 1, 0), 3)
    assert "'limited': an append keeps 2 messages" in caplog.text
    assert "publish_time 1970-01-01T00:00:20Z" in caplog.text
    assert (topic.info.max_ahead, topic.info.on_ahead) == (10 * SECOND, "keep")


def test_a_repeat_is_recognised_and_answered_as_the_first_time_although_the_clock_went_on(
    clocked_topic: Topic, clock: MovableClock
) -> None:
    topic = limited(clocked_topic)
    first = topic.append(sent(0, 15, 99), producer="p", sequence=0)
    assert [each.index for each in first.rejected] == [1, 2]
    clock.now = 50 * SECOND
    assert topic.append(sent(0, 15, 99), producer="p", sequence=0) == first._replace(duplicate=True)
    assert topic.append(sent(50), producer="p", sequence=3).first == Position(0, 1, 0)  # the rejected ones are counted
    assert topic.append(sent(0, 15, 99), producer="p", sequence=0) == first._replace(duplicate=True)
    assert topic.info.messages == 2


def test_a_repeat_of_a_rejected_append_is_recognised(clocked_topic: Topic, clock: MovableClock) -> None:
    topic = limited(clocked_topic)
    first = topic.append(sent(98, 99), producer="p", sequence=0)
    assert (first.first, first.count, first.duplicate) == (None, 0, False)
    clock.now = 99 * SECOND  # now they would be taken, but their producer knows that they are not
    assert topic.append(sent(98, 99), producer="p", sequence=0) == first._replace(duplicate=True)
    assert topic.append(sent(98, 99), producer="p", sequence=2).count == 2
    assert held(topic) == [0, 1]


def test_a_repeat_of_an_accepted_append_rejects_nothing(clocked_topic: Topic, clock: MovableClock) -> None:
    topic = limited(clocked_topic)
    clock.now = 20 * SECOND
    topic.append(sent(25), producer="p", sequence=0)
    clock.now = 0  # a clock that was set back
    assert topic.append(sent(25), producer="p", sequence=0) == Appended(Position(0, 0, 0), 1, duplicate=True)


def test_a_batching_producer_counts_rejections_and_continues(
    clocked_topic: Topic, clock: MovableClock, caplog: pytest.LogCaptureFixture
) -> None:
    topic = limited(clocked_topic)
    with caplog.at_level(logging.WARNING), topic.producer("p") as producer:
        for message in sent(1, 99, 2):
            producer.send(message)
        producer.flush()
        assert (producer.rejected, producer.last_sequence) == (1, 2)
        producer.send(Message("a", "b", 7, publish_time=99 * SECOND))
        producer.flush()
        assert (producer.rejected, producer.last_sequence) == (2, 3)
    assert "producer 'p'" in caplog.text
    assert "ahead of the clock" in caplog.text
    assert held(topic) == [0, 2]
    with topic.producer("p") as successor:
        assert not successor.send(Message("a", "b", 7, publish_time=99 * SECOND), sequence=3)


def test_an_altered_limit_reaches_topics_that_are_open_elsewhere_within_a_second(
    clocked_topic: Topic, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(moments, "monotonic", lambda: now[0])
    topic = limited(clocked_topic)
    other = Topic.open(topic.storage.backend, topic.storage.files.root, "limited")
    topic.alter(max_ahead="1m")
    assert topic.append(sent(50)).rejected == ()
    assert len(other.append(sent(50)).rejected) == 1
    now[0] = LOOK_EVERY
    assert other.append(sent(50)).rejected == ()
    other.alter(max_ahead=None)
    assert other.append(sent(10**9)).rejected == ()
    now[0] += LOOK_EVERY
    assert topic.append(sent(10**9)).rejected == ()


@pytest.mark.parametrize("altered", ["1s", "10m", None])
def test_a_repeat_is_judged_by_the_limit_of_the_first_time(clocked_topic: Topic, altered: str | None) -> None:
    topic = limited(clocked_topic)
    first = topic.append(sent(5, 99), producer="p", sequence=0)
    whole = topic.append(sent(6), producer="p", sequence=2)
    topic.alter(max_ahead=altered)
    assert topic.append(sent(5, 99), producer="p", sequence=0) == first._replace(duplicate=True)
    assert topic.append(sent(6), producer="p", sequence=2) == whole._replace(duplicate=True)


@pytest.mark.one_database
def test_a_topic_without_a_limit_takes_any_publish_time(clocked_topic: Topic) -> None:
    assert clocked_topic.append(sent(10**9)) == Appended(Position(0, 0, 0), 1)
    assert clocked_topic.info.max_ahead is None


def test_the_limit_applies_up_to_the_largest_time() -> None:
    limit = AheadLimit("t", 2**63 - 1, "reject")
    times = ClockTimes(pa.array([2**63 - 1, None], pa.int64()), pa.array([None, None], pa.int64()))
    assert limit.rejected(times, lambda: 2**62) == ()
    now_only = AheadLimit("t", 0, "reject")
    assert [each.index for each in now_only.rejected(times, lambda: -5)] == [0]


@pytest.mark.one_database
@pytest.mark.parametrize("as_table", [False, True])
def test_a_receive_time_too_far_ahead_is_rejected_as_a_publish_time_is(clocked_topic: Topic, as_table: bool) -> None:
    topic = limited(clocked_topic)
    messages = [
        Message("a", "b", 1, receive_time=99 * SECOND),
        Message("a", "b", 2, publish_time=99 * SECOND, receive_time=99 * SECOND),
        Message("a", "b", 3, receive_time=1 * SECOND),
    ]
    appended = topic.append(to_arrow(messages) if as_table else messages)
    assert appended.count == 1
    assert [each.index for each in appended.rejected] == [0, 1]
    assert [each.reason.split()[0] for each in appended.rejected] == ["receive_time", "publish_time"]


@pytest.mark.one_database
def test_a_limit_must_be_one(clocked_topic: Topic) -> None:
    database = Database(clocked_topic.storage.backend, LedgerRoot(clocked_topic.storage.files.root))
    with pytest.raises(InvalidArgumentError, match=r"max_ahead must be a duration .* got '5 parsecs'"):
        database.create_topic("t", max_ahead="5 parsecs")
    with pytest.raises(InvalidArgumentError, match="on_ahead must be one of reject, keep, got 'drop'"):
        database.create_topic("t", on_ahead="drop")  # pyright: ignore[reportArgumentType]


def test_a_rejected_message_repeated_with_another_publish_time_is_not_a_repeat(
    clocked_topic: Topic, clock: MovableClock
) -> None:
    topic = limited(clocked_topic)

    def send(published: int) -> Appended:
        return topic.append([Message("a", "b", 1, publish_time=published)], producer="p", sequence=1)

    assert send(clock.now + 3600 * 10**9).count == 0
    assert send(clock.now + 3600 * 10**9).duplicate
    with pytest.raises(InvalidArgumentError, match="other event or receive times, and 1 of them were rejected"):
        send(clock.now)
