from __future__ import annotations

import pytest
from tests.support.killed import Killed
from tests.topics.conftest import MovableClock
from tests.topics.flows import append_ledgers, ledger_path, published

from waterclock.errors import UnavailableError
from waterclock.message import Message, Position
from waterclock.topics.finding.positions import Place
from waterclock.topics.topic import Topic
from waterclock.topics.upkeep import expiring
from waterclock.topics.upkeep.expiring import Expired

DAY = 86_400_000_000_000


def times(messages: list[Message]) -> list[int | None]:
    return [message.publish_time for message in messages]


def test_strictly_older_messages_expire_and_those_exactly_as_old_do_not(
    clocked_topic: Topic, clock: MovableClock
) -> None:
    for time in (10, 20, 30):
        clocked_topic.append(published([time]))
    subscription = clocked_topic.subscribe("s")
    clock.now = 120
    assert subscription.expire(100) == Expired(Position(0, 1, 0), 1)
    clock.now = 121
    assert subscription.expire(100) == Expired(Position(0, 2, 0), 1)
    assert subscription.expire(100) == Expired(Position(0, 2, 0), 0)
    assert times(subscription.read()) == [30]


def test_one_call_skips_all_expired_messages_up_to_the_end(clocked_topic: Topic, clock: MovableClock) -> None:
    append_ledgers(clocked_topic, [[[1], [2]], [[3]], [[4], [5]]])
    subscription = clocked_topic.subscribe("s")
    clock.now = 10 * DAY
    assert subscription.expire("1d") == Expired(clocked_topic.head, 5)
    assert subscription.expire("1d") == Expired(clocked_topic.head, 0)
    clocked_topic.append(published([clock.now]))
    assert times(subscription.read()) == [clock.now]


def test_expiry_never_moves_backwards(clocked_topic: Topic, clock: MovableClock) -> None:
    append_ledgers(clocked_topic, [[[10, 20, 30, 40]]])
    subscription = clocked_topic.subscribe("s", start=Position(0, 0, 3))
    clock.now = 125
    assert subscription.expire(100) == Expired(Position(0, 0, 3), 0)


def test_a_producer_with_a_clock_ten_days_ahead_does_not_stop_expiry(clocked_topic: Topic, clock: MovableClock) -> None:
    ahead = Message("a", "b", 0, publish_time=10 * DAY, receive_time=15)
    clocked_topic.append([*published([10]), ahead, *published([20])])
    clocked_topic.append(published([2 * DAY]))
    subscription = clocked_topic.subscribe("s")
    clock.now = 2 * DAY
    assert subscription.expire("1d") == Expired(Position(0, 1, 0), 3)


def test_expired_messages_behind_a_fresh_one_that_was_read_are_passed_too(
    clocked_topic: Topic, clock: MovableClock
) -> None:
    # Disorder: the first message is fresh and read already; the search begins at the subscription, not at the start.
    clocked_topic.append(published([500, 10]))
    clocked_topic.append(published([20]))
    clocked_topic.roll()
    clocked_topic.append(published([30]))
    clocked_topic.roll()
    clocked_topic.append(published([40, 510]))
    clock.now = 600
    for sealed in (False, True):
        if sealed:
            clocked_topic.seal()
        subscription = clocked_topic.subscribe(f"s{sealed}", start=Position(0, 0, 1))
        assert subscription.expire(100) == Expired(Position(2, 0, 1), 4)
        rest = clocked_topic.subscribe(f"rest{sealed}", start=Position(2, 0, 0))
        assert rest.expire(100) == Expired(Position(2, 0, 1), 1)
    clock.now = 605
    assert rest.expire(100).position == Position(2, 0, 1)
    clock.now = 700
    assert rest.expire(100).position == clocked_topic.head


def test_expiry_skips_expired_lost_files_and_stops_at_lost_files_of_unknown_age(
    clocked_topic: Topic, clock: MovableClock
) -> None:
    append_ledgers(clocked_topic, [[[10 * i], [10 * i + 5]] for i in range(10)])
    clocked_topic.roll()
    clocked_topic.seal()
    subscription = clocked_topic.subscribe("s")
    for ledger in (0, 4, 5, 9):
        ledger_path(clocked_topic, ledger).unlink()
    for now, expected in (
        (102, Position(0, 0, 0)),
        (112, Position(1, 1, 0)),
        (141, Position(4, 0, 0)),  # its second message may not be expired
        (151, Position(5, 0, 0)),
        (171, Position(7, 1, 0)),
        (191, Position(9, 0, 0)),
        (195, Position(9, 0, 0)),
        (196, clocked_topic.head),
    ):
        clock.now = now
        assert subscription.expire(100).position == expected


def test_expiring_a_topic_moves_every_subscription_and_deletes_wholly_expired_ledgers(
    clocked_topic: Topic, clock: MovableClock
) -> None:
    append_ledgers(clocked_topic, [[[10, 11]], [[20, 21]], [[30, 31]]])
    clocked_topic.seal()
    behind, ahead = clocked_topic.subscribe("behind"), clocked_topic.subscribe("ahead", start=31)
    clock.now = 121
    assert clocked_topic.expire(100) == Expired(Position(1, 0, 1), 3, ledgers=1)
    assert behind.position == Position(1, 0, 1)
    assert ahead.position == Position(2, 0, 1)
    assert [info.ledger for info in clocked_topic.ledgers()] == [1, 2]
    clock.now = 1000
    assert clocked_topic.expire(100).ledgers == 2
    assert list(clocked_topic.read()) == []
    assert clocked_topic.head.ledger == 3


def test_a_second_expiry_while_one_runs_says_so(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    append_ledgers(topic, [[[1], [2]]])
    subscription = topic.subscribe("s")
    find = expiring.first_left
    texts: list[str] = []

    def find_while_another_tries(*arguments: object) -> object:
        for second in (topic.expire, subscription.expire):
            with pytest.raises(UnavailableError, match="another expiry is running") as refused:
                second("1h")
            texts.append(str(refused.value))
        return find(*arguments)

    monkeypatch.setattr(expiring, "first_left", find_while_another_tries)
    assert topic.expire("1h").messages == 2
    assert len(texts) == 4  # for the subscription, and for the topic itself
    monkeypatch.undo()
    assert topic.expire("1h").messages == 0


@pytest.mark.both_servers
def test_an_expiry_that_died_does_not_keep_others_out_for_long(
    clocked_topic: Topic, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        # Not even the clean-up runs.
        monkeypatch.setattr(clocked_topic.storage.backend, "transact", die)
        raise Killed

    clocked_topic.append(published([1]))
    subscription = clocked_topic.subscribe("s")
    transact = clocked_topic.storage.backend.transact
    monkeypatch.setattr(expiring, "first_left", die)
    with pytest.raises(Killed):
        subscription.expire("1d")
    monkeypatch.undo()
    assert clocked_topic.storage.backend.transact == transact
    clock.now = 2 * DAY
    assert subscription.expire("1d").messages == 1


def test_an_expiry_that_races_a_commit_loses_neither(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    append_ledgers(topic, [[[1, 2], [3, 4, 5]], [[6]]])
    expirer, reader = topic.subscribe("s"), topic.subscribe("s")
    find = expiring.first_left
    answers = iter([Place(Position(0, 1, 0), 2), Place(Position(0, 1, 2), 4)])

    def commit_in_between(*arguments: object) -> object:
        reader.read(limit=reads)
        reader.commit()
        find(*arguments)
        return next(answers)

    monkeypatch.setattr(expiring, "first_left", commit_in_between)
    reads = 1
    expirer.expire("1h")
    assert reader.position == Position(0, 1, 0)  # the expiry went further than the commit
    reader.read(limit=1)
    reader.commit()
    assert reader.position == Position(0, 1, 1)  # and the reader went on from there, nothing lost to it
    reads = 2
    expirer.expire("1h")
    assert reader.position == Position(1, 0, 0)  # here the commit went further than the expiry
    topic.append(published([7]))
    assert times(reader.read()) == [6, 7]
