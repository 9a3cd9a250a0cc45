"""Messages recorded as lost are skipped without an error, and all later ones keep their numbers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.topics.conftest import MakeTopic
from tests.topics.flows import append_ledgers, first_at_or_after, published

from waterclock.checksum import framed
from waterclock.database.schema.topic_catalogue import entries, ledgers
from waterclock.errors import DamagedError, InvalidArgumentError, NotFoundError
from waterclock.message import Position
from waterclock.topics.catalogue.ledgers import LedgerState
from waterclock.topics.catalogue.tombstones import LOST, record_lost_entries, record_lost_ledger
from waterclock.topics.finding.positions import place_of, position_of
from waterclock.topics.reading.slicing import read_slice
from waterclock.topics.topic import Topic

FLOW = [[[0, 9], [2, 3]], [[4, 30], [6, 7], [8]], [[5], [10, 11]], [[12, 13], [14]]]
COUNT = itertools.count()


def write(topic: Topic, statement: Any) -> None:
    topic.storage.backend.transact(lambda connection: connection.execute(statement))


def lose_ledger(topic: Topic, ledger: int) -> int:
    def work(connection: sa.Connection) -> int:
        topic.storage.lock(connection)
        return record_lost_ledger(topic.storage, connection, ledger)

    return topic.storage.backend.transact(work)


def lose_entries(topic: Topic, ledger: int, *numbers: int) -> int:
    def work(connection: sa.Connection) -> int:
        topic.storage.lock(connection)
        return record_lost_entries(topic.storage, connection, ledger, numbers)

    return topic.storage.backend.transact(work)


def check(topic: Topic, placed: list[tuple[int, Position]], gone: set[Position]) -> None:
    """Compare every answer of a topic with what remains of its messages, each under its first number and place."""
    left = [(number, time, place) for number, (time, place) in enumerate(placed) if place not in gone]
    assert [(message.publish_time, message.position) for message in topic.read()] == [
        (t, place) for _, t, place in left
    ]
    slices = topic.plan(max_messages=2)
    read = [time for part in slices for batch in read_slice(part) for time in batch["publish_time"].to_pylist()]
    assert read == [time for _, time, _ in left]
    for number, _, place in left:
        assert place_of(topic.storage, place) == (place, number)
        assert position_of(topic.storage, number) == place
    places = [place for _, _, place in left]
    assert topic.messages_at(places, ["publish_time"])["publish_time"].to_pylist() == [time for _, time, _ in left]
    every = [place for _, place in placed]
    found = topic.messages_at(every, ["publish_time"], pass_over=(NotFoundError,))["publish_time"].to_pylist()
    assert found == [None if place in gone else time for time, place in placed]
    for time in (-1, 0, 3, 9, 10, 13, 29, 31):
        found = first_at_or_after([(time, place) for _, time, place in left], time)
        assert topic.find(time) == (found or topic.head, found is not None), time
    for place in sorted(gone)[::3]:
        with pytest.raises(NotFoundError):
            topic.messages_at([place])
        following = next((number for number, _, other in left if other > place), len(placed))
        assert place_of(topic.storage, place).ordinal <= following
    with topic.subscribe("reader") as subscription:
        read = []
        while messages := subscription.read(2):
            read += [message.publish_time for message in messages]
            subscription.commit()
        assert read == [time for _, time, _ in left]
        assert subscription.backlog == (0, 0)
    topic.unsubscribe("reader")


def test_recorded_losses_are_what_the_format_says() -> None:
    assert framed(b"WCL1", b"") == LOST
    assert "lost" in LedgerState.__args__


def test_losses_are_skipped_on_each_database(topic: Topic) -> None:
    placed = append_ledgers(topic, FLOW)
    lose_ledger(topic, 2)
    lose_entries(topic, 1, 1)
    write(topic, sa.delete(entries).where(entries.c.ledger == 3, entries.c.entry == 0))
    lose_entries(topic, 3, 0)
    gone = {place for _, place in placed if place.ledger == 2 or place[:2] in ((1, 1), (3, 0))}
    check(topic, placed, gone)
    topic.roll()
    assert topic.seal() == 3
    assert topic.compact() == 1
    check(topic, placed, gone)


@pytest.mark.parametrize(
    ("how", "lost"),
    [("rows", 1), ("sealed", 0), ("compacted", 1), pytest.param("compacted", 3, marks=pytest.mark.slow)],
)
def test_a_lost_ledger_is_skipped(sqlite_topic: Topic, how: str, lost: int) -> None:
    topic = sqlite_topic
    placed = append_ledgers(topic, FLOW)
    topic.roll()
    topic.append(published([31]))
    placed.append((31, Position(4, 0, 0)))
    if how != "rows":
        topic.seal()
    if how == "compacted":
        topic.compact()
    assert lose_ledger(topic, lost) == sum(len(entry) for entry in FLOW[lost])
    gone = {place for _, place in placed if place.ledger == lost}
    check(topic, placed, gone)
    info = topic.ledgers()[lost]
    assert (info.state, info.file, info.size, info.row_groups) == ("lost", None, 0, ())
    topic.seal()
    topic.sweep()
    check(topic, placed, gone)
    topic.compact()
    check(topic, placed, gone)
    assert topic.truncate(Position(4, 0, 0)) == 4
    check(topic, placed, {place for _, place in placed[:-1]})


@pytest.mark.parametrize(
    "lost",
    [
        [(1, 1)],
        [(0, 0), (2, 0), (3, 1)],
        *(pytest.param(each, marks=pytest.mark.slow) for each in ([(0, 0)], [(1, 2)], [(1, 0), (1, 1)])),
    ],
)
def test_lost_entries_are_skipped_before_and_after_sealing(sqlite_topic: Topic, lost: list[tuple[int, int]]) -> None:
    topic = sqlite_topic
    placed = append_ledgers(topic, FLOW)
    gone = {place for _, place in placed if place[:2] in lost}
    for ledger, entry in lost:
        lose_entries(topic, ledger, entry)
    check(topic, placed, gone)
    topic.roll()
    check(topic, placed, gone)
    assert topic.seal() == 4
    check(topic, placed, gone)
    assert [info.state for info in topic.ledgers()] == ["sealed"] * 4 + ["open"]
    assert topic.compact() == 3
    check(topic, placed, gone)


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_losses_are_skipped(make_sqlite_topic: MakeTopic, data: st.DataObject) -> None:
    topic = make_sqlite_topic(f"topic {next(COUNT)}")
    placed = append_ledgers(topic, FLOW)
    numbers = [(ledger, entry) for ledger, each in enumerate(FLOW) for entry in range(len(each))]
    first = data.draw(st.sets(st.sampled_from(numbers)))
    for ledger, entry in first:
        lose_entries(topic, ledger, entry)
    topic.roll()
    for step in data.draw(st.lists(st.sampled_from(["seal", "compact"]), max_size=2)):
        getattr(topic, step)()
    whole = data.draw(st.sets(st.integers(0, 3), max_size=2))
    for ledger in whole:
        lose_ledger(topic, ledger)
    check(topic, placed, {place for _, place in placed if place[:2] in first or place.ledger in whole})


def test_a_wholly_lost_ledger_has_no_file_and_expires_with_the_others(sqlite_topic: Topic) -> None:
    topic = sqlite_topic
    placed = append_ledgers(topic, FLOW)
    assert lose_entries(topic, 1, 0, 1, 2) == 5
    assert topic.seal() == 3
    assert [info.state for info in topic.ledgers()] == ["sealed", "lost", "sealed", "open"]
    check(topic, placed, {place for _, place in placed if place.ledger == 1})
    assert topic.ledgers()[1].bounds is not None
    assert topic.truncate(Position(2, 0, 0)) == 2


def test_a_reader_with_only_lost_messages_left_moves_past_them_for_good(sqlite_topic: Topic) -> None:
    topic = sqlite_topic
    append_ledgers(topic, [[[0], [1, 2]], [[3]]])
    with topic.subscribe("reader") as subscription:
        assert len(subscription.read(1)) == 1
        subscription.commit()
        lose_entries(topic, 0, 1)
        lose_entries(topic, 1, 0)
        while subscription.read():
            subscription.commit()
        assert subscription.backlog == (0, 0)
    topic.append(published([4]))
    with topic.subscribe("reader") as subscription:
        assert [message.publish_time for message in subscription.read()] == [4]
        assert subscription.info.unread == 1  # what was delivered counts only once it is committed
        assert subscription.read() == []
        assert subscription.info.unread == 1


def test_entries_that_are_missing_can_be_recorded_as_lost(sqlite_topic: Topic) -> None:
    topic = sqlite_topic
    placed = append_ledgers(topic, FLOW)
    write(topic, sa.delete(entries).where(entries.c.ledger == 1, entries.c.entry < 2))
    with pytest.raises(DamagedError, match="entries 0 to 1 of ledger 1"):
        list(topic.read())
    assert lose_entries(topic, 1, 0, 1) == 4
    write(topic, sa.delete(entries).where(entries.c.ledger == 3, entries.c.entry == 1))  # the end of the open ledger
    assert lose_entries(topic, 3, 1) == 1
    gone = {place for _, place in placed if place[:2] in ((1, 0), (1, 1), (3, 1))}
    check(topic, placed, gone)
    topic.roll()
    assert topic.seal() == 4
    check(topic, placed, gone)


@pytest.mark.parametrize("missing", [(0,), (1, 2), (3,)])
def test_ledgers_that_are_missing_can_be_recorded_as_lost(sqlite_topic: Topic, missing: tuple[int, ...]) -> None:
    topic = sqlite_topic
    placed = append_ledgers(topic, FLOW)
    topic.roll()
    topic.seal()
    write(topic, sa.delete(ledgers).where(ledgers.c.ledger.in_(missing)))
    with pytest.raises(DamagedError, match="missing"):
        list(topic.read())
    counts = [lose_ledger(topic, ledger) for ledger in missing]
    assert sum(counts) == sum(1 for _, place in placed if place.ledger in missing)
    check(topic, placed, {place for _, place in placed if place.ledger in missing})


def test_an_open_ledger_that_lost_entries_is_appended_to_and_found_in(sqlite_topic: Topic) -> None:
    topic = sqlite_topic
    placed = append_ledgers(topic, [[[1, 50], [2], [60]]])
    lose_entries(topic, 0, 0, 2)
    assert topic.ledgers()[0].end_publish_time == 2
    assert topic.find(3) == (topic.head, False)
    topic.append(published([4]))
    placed.append((4, Position(0, 3, 0)))
    check(topic, placed, {place for _, place in placed if place.entry in (0, 2)})


def test_a_lost_ledger_without_bounds_gets_those_of_its_neighbours(sqlite_topic: Topic) -> None:
    topic = sqlite_topic
    placed = append_ledgers(topic, FLOW)
    topic.seal()
    bounds = {column.name: None for column in ledgers.c if column.name.startswith(("begin_", "end_", "peak_"))}
    for ledger in (0, 2):
        write(topic, sa.update(ledgers).where(ledgers.c.ledger == ledger).values(bounds))
        lose_ledger(topic, ledger)
        assert topic.ledgers()[ledger].bounds is not None
    # As a row that was made by hand may be.
    write(topic, sa.update(ledgers).where(ledgers.c.ledger == 2).values(bounds))
    check(topic, placed, {place for _, place in placed if place.ledger in (0, 2)})


def test_ledgers_and_entries_that_cannot_be_lost_are_refused(sqlite_topic: Topic) -> None:
    append_ledgers(sqlite_topic, FLOW)
    sqlite_topic.seal()
    sqlite_topic.truncate(Position(1, 0, 0))
    for ledger in (-1, 0, 3, 4):
        with pytest.raises(InvalidArgumentError, match="ledger"):
            lose_ledger(sqlite_topic, ledger)
    with pytest.raises(InvalidArgumentError, match="ledger must name a ledger with missing entries, got 1"):
        lose_entries(sqlite_topic, 1, 0)
    with pytest.raises(InvalidArgumentError, match=r"less than 2 \(the number of entries of ledger 3\), got 2"):
        lose_entries(sqlite_topic, 3, 0, 2)


def test_a_loss_with_a_flipped_bit_is_damage_again(sqlite_topic: Topic) -> None:
    append_ledgers(sqlite_topic, [[[0], [1]]])
    lose_entries(sqlite_topic, 0, 1)
    for bit in range(8 * len(LOST)):
        changed = bytearray(LOST)
        changed[bit // 8] ^= 1 << bit % 8
        write(sqlite_topic, sa.update(entries).where(entries.c.entry == 1).values(data=bytes(changed)))
        with pytest.raises(DamagedError, match="entry 1 of ledger 0"):
            list(sqlite_topic.read())


def test_a_file_stays_although_the_first_ledger_in_it_that_is_left_is_lost(
    make_sqlite_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    from waterclock.topics.upkeep import retention  # noqa: PLC0415

    monkeypatch.setattr(retention, "GRACE", -1)
    topic = make_sqlite_topic()
    append_ledgers(topic, FLOW)
    topic.seal()
    topic.compact()
    lose_ledger(topic, 1)
    topic.truncate(Position(1, 0, 0))
    topic.sweep()
    assert [message.publish_time for message in topic.read()] == [5, 10, 11, 12, 13, 14]
