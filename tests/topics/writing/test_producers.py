from __future__ import annotations

import json
from typing import Any

import pytest
import sqlalchemy as sa
from tests.topics.flows import published

from waterclock.arrow import to_arrow
from waterclock.database.schema.topic_catalogue import producers
from waterclock.errors import InvalidArgumentError, ProducerFencedError
from waterclock.message import Message, Position
from waterclock.topics.topic import Topic
from waterclock.topics.writing import appending, producing
from waterclock.topics.writing.appending import Appended
from waterclock.topics.writing.producers import forget_producers, take_over


def times(topic: Topic) -> list[int | None]:
    return [message.publish_time for message in topic.read()]


def test_a_repeated_append_gives_the_original_position_and_writes_nothing(topic: Topic) -> None:
    first = topic.append(published([1, 2]), producer="p", sequence=0)
    second = topic.append(published([3]), producer="p", sequence=2)
    assert topic.append(published([1, 2]), producer="p", sequence=0) == first._replace(duplicate=True)
    assert topic.append(published([3]), producer="p", sequence=2) == second._replace(duplicate=True)
    assert times(topic) == [1, 2, 3]


def test_a_repeat_is_recognised_after_its_ledger_was_sealed(topic: Topic) -> None:
    topic.append(published([1, 2]), producer="p", sequence=0)
    topic.roll()
    topic.seal()
    assert topic.append(published([1, 2]), producer="p", sequence=0) == Appended(Position(0, 0, 0), 2, duplicate=True)


def test_each_producer_numbers_its_own_messages(topic: Topic) -> None:
    topic.append(published([1]), producer="p", sequence=0)
    assert topic.append(published([2]), producer="q", sequence=0).duplicate is False
    assert topic.append(published([3])).duplicate is False
    assert times(topic) == [1, 2, 3]


def test_the_last_five_appends_are_remembered_and_older_ones_have_no_position(topic: Topic) -> None:
    for sequence in range(7):
        topic.append(published([sequence]), producer="p", sequence=sequence)
    assert topic.append(published([1]), producer="p", sequence=1) == Appended(None, 1, duplicate=True)
    assert topic.append(published([2]), producer="p", sequence=2) == Appended(Position(0, 2, 0), 1, duplicate=True)
    assert times(topic) == list(range(7))


@pytest.mark.parametrize(("sequence", "count"), [(1, 1), (1, 2), (2, 1), (0, 1), (0, 4), (3, 3)])
def test_repeating_a_part_of_an_append_is_an_error(sqlite_topic: Topic, sequence: int, count: int) -> None:
    sqlite_topic.append(published([1, 1]), producer="p", sequence=0)
    sqlite_topic.append(published([2, 2]), producer="p", sequence=2)
    with pytest.raises(InvalidArgumentError, match="which end at 3"):
        sqlite_topic.append(published([9] * count), producer="p", sequence=sequence)
    assert times(sqlite_topic) == [1, 1, 2, 2]


def test_numbers_may_leave_gaps_but_are_never_appended_later(topic: Topic) -> None:
    topic.append(published([1]), producer="p", sequence=10)
    assert topic.append(published([2]), producer="p", sequence=100).duplicate is False
    for sequence in (50, 3, 0):
        with pytest.raises(InvalidArgumentError, match=f"{sequence} to {sequence} .* never appended.* after 100"):
            topic.append(published([3]), producer="p", sequence=sequence)
    assert times(topic) == [1, 2]


def test_messages_of_numbers_that_were_forgotten_and_never_sent_are_an_error_and_not_dropped(topic: Topic) -> None:
    for sequence in range(100, 110):
        topic.append(published([sequence]), producer="p", sequence=sequence)
    assert topic.append(published([100]), producer="p", sequence=100) == Appended(None, 1, duplicate=True)
    with pytest.raises(InvalidArgumentError, match=r"7 to 7 .* never appended"):
        topic.append(published([7]), producer="p", sequence=7)
    with pytest.raises(InvalidArgumentError, match="overlap"):
        topic.append(published([99, 100]), producer="p", sequence=99)
    assert times(topic) == list(range(100, 110))


@pytest.mark.parametrize("count", [2, 200])
def test_a_number_that_was_used_for_other_messages_is_an_error(topic: Topic, count: int) -> None:
    given = [Message("press", "load", number, b"x") for number in range(count)]
    first = topic.append(given, producer="p", sequence=0)
    others = [*given[:-1], given[-1].replace(payload=b"y")]
    with pytest.raises(InvalidArgumentError, match=r"0 to .* were already used for other messages"):
        topic.append(others, producer="p", sequence=0)
    # The clock has moved on, which fills in other times; and a table is no other message.
    assert topic.append(given, producer="p", sequence=0) == first._replace(duplicate=True)
    assert topic.append(to_arrow(given), producer="p", sequence=0) == first._replace(duplicate=True)
    assert len(list(topic.read())) == count


def test_messages_that_a_producer_repeats_after_a_restart_must_have_been_stored(sqlite_topic: Topic) -> None:
    with sqlite_topic.producer("p") as first:
        first.send(published([5])[0], sequence=5)
    with sqlite_topic.producer("p") as second:
        assert second.send(published([5])[0], sequence=5) is False
        for sequence, word in (
            (4, "was never appended"),
            (-1, "must be from 0 to .* in an append of 1 message, got -1"),
            ("4", "must be an int"),
        ):
            with pytest.raises(InvalidArgumentError, match=word):
                second.send(published([4])[0], sequence=sequence)  # type: ignore[arg-type]
    forgotten = sa.update(producers).values(covered=json.dumps([[None, 5]]))
    sqlite_topic.storage.backend.transact(lambda connection: connection.execute(forgotten))
    with sqlite_topic.producer("p") as third, pytest.raises(InvalidArgumentError, match="may never have been"):
        third.send(published([5])[0], sequence=5)
    assert times(sqlite_topic) == [5]


@pytest.mark.parametrize("arguments", [{"sequence": -1}, {"sequence": 2**63}, {"sequence": "1"}, {"epoch": "x"}])
def test_an_invalid_number_or_epoch_is_refused_by_name(sqlite_topic: Topic, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(arguments))):
        sqlite_topic.append(published([1]), **{"producer": "p", "sequence": 0, **arguments})


def test_producers_are_forgotten_by_the_beginning_of_their_names(topic: Topic) -> None:
    for name in ("spark-1-0", "spark-1-1", "spark_1-0", "spark-2-0"):
        topic.append(published([1]), producer=name, sequence=0)
    assert forget_producers(topic.storage, "spark-1-") == 2
    assert [
        topic.append(published([1]), producer=name, sequence=0).duplicate
        for name in ("spark-1-0", "spark-1-1", "spark_1-0", "spark-2-0")
    ] == [False, False, True, True]


@pytest.mark.both_servers
def test_a_producer_with_a_lower_epoch_is_fenced(topic: Topic) -> None:
    old, *_ = take_over(topic.storage, "p")
    topic.append(published([1]), producer="p", sequence=0, epoch=old)
    new, last, _ = take_over(topic.storage, "p")
    assert (new, last) == (old + 1, 0)
    with pytest.raises(ProducerFencedError, match=f"epoch {new} has replaced this instance, .* epoch {old}"):
        topic.append(published([2]), producer="p", sequence=1, epoch=old)
    topic.append(published([3]), producer="p", sequence=1, epoch=new)
    assert times(topic) == [1, 3]


@pytest.mark.parametrize("arguments", [{"producer": "p"}, {"sequence": 3}])
def test_producer_and_sequence_must_be_passed_together(sqlite_topic: Topic, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="together"):
        sqlite_topic.append(published([1]), **arguments)


def test_sent_messages_are_collected_into_entries_and_all_stored_when_the_producer_closes(topic: Topic) -> None:
    messages = published(range(500))
    with topic.producer("p", linger="10s", max_bytes=10_000) as producer:
        for message in messages:
            assert producer.send(message) is True
    assert times(topic) == list(range(500))
    assert 2 <= topic.ledgers()[0].entries <= 50
    assert producer.last_sequence == 499


def test_flush_waits_until_what_was_sent_is_stored(sqlite_topic: Topic) -> None:
    with sqlite_topic.producer("p", linger="1h") as producer:
        producer.send(published([1])[0])
        producer.flush()
        assert times(sqlite_topic) == [1]
        producer.flush()


def test_a_message_waits_no_longer_than_it_may_linger(sqlite_topic: Topic) -> None:
    with sqlite_topic.producer("p", linger="1ms") as producer:
        producer.send(published([1])[0])
        with producer._changed:
            assert producer._changed.wait_for(lambda: producer.last_sequence == 0, timeout=30)
        assert times(sqlite_topic) == [1]


def test_a_restarted_producer_continues_after_the_last_stored_message_and_skips_stored_ones(topic: Topic) -> None:
    flow = published(range(10))
    with topic.producer("p") as first:
        for number, message in enumerate(flow[:6]):
            first.send(message, sequence=number)
    with topic.producer("p") as second:
        assert second.last_sequence == 5
        sent = [second.send(message, sequence=number) for number, message in enumerate(flow)]
    assert sent == [False] * 6 + [True] * 4
    assert times(topic) == list(range(10))


def test_numbers_that_leave_a_gap_begin_a_new_entry(sqlite_topic: Topic) -> None:
    with sqlite_topic.producer("p", linger="1h") as producer:
        for sequence in (0, 1, 5, 6):
            producer.send(published([sequence])[0], sequence=sequence)
        with pytest.raises(InvalidArgumentError, match=r"must be greater than 6 \(the last number sent\)"):
            producer.send(published([6])[0], sequence=6)
    assert sqlite_topic.ledgers()[0].entries == 2
    assert producer.last_sequence == 6


@pytest.mark.both_servers
def test_a_second_producer_of_the_same_name_fences_the_first(topic: Topic) -> None:
    first = topic.producer("p", linger="1h")
    first.send(published([1])[0])
    with topic.producer("p") as second:
        second.send(published([2])[0])
    with pytest.raises(ProducerFencedError):
        first.flush()
    with pytest.raises(ProducerFencedError):
        first.send(published([3])[0])
    with pytest.raises(ProducerFencedError):
        first.close()
    assert times(topic) == [2]


def test_nothing_can_be_sent_after_closing(sqlite_topic: Topic) -> None:
    producer = sqlite_topic.producer("p")
    producer.close()
    producer.close()
    with pytest.raises(InvalidArgumentError, match="closed"):
        producer.send(published([1])[0])


def test_an_error_in_the_background_reaches_the_next_caller(
    sqlite_topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the disk is on fire")

    monkeypatch.setattr(producing, "append_entry", fail)
    producer = sqlite_topic.producer("p")
    producer.send(published([1])[0])
    with pytest.raises(Exception, match="on fire"):
        producer.close()
    assert appending.append_entry is not fail


def test_headers_in_another_order_are_the_same_message(sqlite_topic: Topic) -> None:
    def send(headers: dict[str, str]) -> bool:
        return sqlite_topic.append([Message("a", "b", 1, headers=headers)], producer="p", sequence=0).duplicate

    assert not send({"a": "1", "b": "2"})
    assert send({"b": "2", "a": "1"})


def test_a_producer_refuses_what_is_not_a_message_and_continues(sqlite_topic: Topic) -> None:
    with sqlite_topic.producer("p") as producer:
        with pytest.raises(InvalidArgumentError, match="message must be a Message, got a str"):
            producer.send("load")  # type: ignore[arg-type]
        producer.send(published([5])[0])
    assert times(sqlite_topic) == [5]
