"""Every operation names the data that is missing without a deliberate deletion."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import sqlalchemy as sa
from tests.topics.conftest import MakeTopic
from tests.topics.flows import CountedStatements, append_ledgers

from waterclock.database.schema.topic_catalogue import entries, ledgers, topics
from waterclock.errors import DamagedError, NotFoundError
from waterclock.message import Position
from waterclock.topics.catalogue.damage_policy import Damage
from waterclock.topics.finding.positions import entry_boundary, position_of
from waterclock.topics.reading import contiguity
from waterclock.topics.reading.slicing import read_slice
from waterclock.topics.topic import Topic

SIX = [[[10 * ledger + entry * 2, 10 * ledger + entry * 2 + 1] for entry in range(5)] for ledger in range(6)]


def write(topic: Topic, statement: Any) -> None:
    topic.storage.backend.transact(lambda connection: connection.execute(statement))


def lose_ledgers(topic: Topic, *numbers: int) -> None:
    write(topic, sa.delete(ledgers).where(ledgers.c.ledger.in_(numbers)))


def lose_entries(topic: Topic, ledger: int, *numbers: int) -> None:
    write(topic, sa.delete(entries).where(entries.c.ledger == ledger, entries.c.entry.in_(numbers)))


def times(messages: Any) -> list[int]:
    return [message.publish_time for message in messages]


@pytest.fixture(params=["rows", "files"])
def six(make_sqlite_topic: MakeTopic, request: pytest.FixtureRequest) -> Topic:
    topic = make_sqlite_topic()
    append_ledgers(topic, SIX)
    if request.param == "files":
        topic.seal()
    return topic


def test_holes_are_noticed_on_each_database(topic: Topic) -> None:
    append_ledgers(topic, SIX)
    lose_ledgers(topic, 3)
    lose_entries(topic, 5, 1, 2)
    with pytest.raises(DamagedError, match="ledger 3 is missing: messages 30 to 39"):
        topic.plan()
    with pytest.raises(DamagedError, match="entries 1 to 2 of ledger 5 are missing: messages 52 to 55"):
        list(topic.read(Position(4, 0, 0)))
    assert times(topic.read(on_damage="skip")) == [*range(30), *range(40, 52), *range(56, 60)]
    with pytest.raises(DamagedError, match="ledger 3"):
        position_of(topic.storage, 31)


def test_missing_ledgers_are_named_with_their_messages(six: Topic, caplog: pytest.LogCaptureFixture) -> None:
    lose_ledgers(six, 2, 3)
    expected = r"ledgers 2 to 3 are missing: messages 20 to 39"
    with pytest.raises(DamagedError, match=expected) as caught:
        list(six.read())
    assert caught.value.ledger == 2
    with pytest.raises(DamagedError, match=expected):
        six.plan()
    with pytest.raises(DamagedError, match=expected):
        list(six.read(Position(3, 1, 1)))
    assert times(six.read(on_damage="skip")) == [*range(20), *range(40, 60)]
    assert "skips 20 messages" in caplog.text
    assert times(six.read(stop=Position(2, 0, 0))) == list(range(20))
    assert times(six.read(Position(4, 0, 0))) == list(range(40, 60))


@pytest.mark.parametrize(
    ("missing", "name"), [((0,), "ledger 0 is"), ((0, 1), "ledgers 0 to 1 are"), ((4,), "ledger 4 is")]
)
def test_a_gap_at_the_beginning_or_before_the_open_ledger_is_reported(
    six: Topic, missing: tuple[int, ...], name: str
) -> None:
    lose_ledgers(six, *missing)
    for read in (lambda: list(six.read()), six.plan):
        with pytest.raises(DamagedError, match=name):
            read()
    left = [time for time in range(60) if time // 10 not in missing]
    assert times(six.read(on_damage="skip")) == left
    slices = six.plan(on_damage="skip", max_messages=7)
    assert [t for part in slices for b in read_slice(part) for t in b["publish_time"].to_pylist()] == left


def test_ledgers_deleted_on_purpose_are_not_a_gap(six: Topic) -> None:
    reader = six.read_arrow(columns=["publish_time"])
    assert next(reader)["publish_time"][0].as_py() == 0
    assert six.truncate(Position(3, 0, 0)) == 3
    read = [time for batch in reader for time in batch["publish_time"].to_pylist()]
    assert read[-30:] == list(range(30, 60))
    assert times(six.read()) == list(range(30, 60))
    assert times(six.read(stop=Position(2, 0, 0))) == []
    assert len(six.plan(Position(1, 0, 0))) >= 1
    lose_ledgers(six, 3)
    with pytest.raises(DamagedError, match="ledger 3 is missing: messages 30 to 39"):
        list(six.read())


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(
    ("missing", "name"),
    [
        ((1, 2), "entries 1 to 2 of ledger 1 are missing: messages 12 to 15"),
        ((0,), "entry 0 of ledger 1 is missing: messages 10 to 11"),
        ((4,), "entry 4 of ledger 1 is missing: messages 18 to 19"),
        ((0, 1, 2, 3, 4), "entries 0 to 4 of ledger 1 are missing: messages 10 to 19"),
    ],
)
def test_missing_entries_are_named_with_their_messages(
    sqlite_topic: Topic, closed: bool, missing: tuple[int, ...], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = sqlite_topic
    append_ledgers(topic, SIX[:2])
    if closed:
        topic.roll()
    lose_entries(topic, 1, *missing)
    for chunk in (4096, 1):
        monkeypatch.setattr(contiguity, "CHUNK_ENTRIES", chunk)
        with pytest.raises(DamagedError, match=name) as caught:
            list(topic.read())
        assert (caught.value.ledger, caught.value.entry) == (1, missing[0])
        left = [time for time in range(20) if time < 10 or (time - 10) // 2 not in missing]
        assert times(topic.read(on_damage="skip")) == left
    with pytest.raises(DamagedError, match=name):
        topic.plan(max_messages=3)
    slices = topic.plan(max_messages=3, on_damage="skip")
    assert [t for part in slices for b in read_slice(part) for t in b["publish_time"].to_pylist()] == left
    assert topic.plan(stop=Position(1, missing[0], 0))
    assert topic.plan(Position(1, 5, 0)) == []
    stop = Position(1, missing[0], 0)
    assert times(topic.read(stop=stop)) == list(range(10 + 2 * missing[0]))


def test_a_reader_that_has_begun_notices_what_goes_missing_before_it(
    sqlite_topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contiguity, "CHUNK_ENTRIES", 1)
    append_ledgers(sqlite_topic, SIX)
    reader = sqlite_topic.read()
    assert next(reader).publish_time == 0
    lose_entries(sqlite_topic, 0, 3)
    with pytest.raises(DamagedError, match="entry 3 of ledger 0"):
        list(reader)


@pytest.mark.parametrize("sealed", [True, False])
def test_ledgers_whose_numbers_do_not_add_up_are_damage(make_sqlite_topic: MakeTopic, sealed: bool) -> None:
    topic = make_sqlite_topic()
    append_ledgers(topic, SIX)
    if sealed:
        topic.seal()
    write(topic, sa.update(ledgers).where(ledgers.c.ledger == 3).values(first_ordinal=31))
    with pytest.raises(DamagedError, match="begins with message 31"):
        list(topic.read())
    with pytest.raises(DamagedError, match="ledger 3 begins with message 31, expected 30"):
        topic.plan()
    assert times(topic.read(on_damage="skip")) == list(range(60))


def test_an_entry_with_another_number_of_messages_than_the_catalogue_says_is_damage(sqlite_topic: Topic) -> None:
    topic = sqlite_topic
    append_ledgers(topic, [[[0], [1, 2], [3]]])
    with topic.storage.backend.snapshot() as connection:
        other = connection.execute(sa.select(entries.c.data).where(entries.c.entry == 0)).scalar_one()
    write(topic, sa.update(entries).where(entries.c.entry == 1).values(data=other))
    with pytest.raises(DamagedError, match="entry 1 of ledger 0 is corrupt: it holds 1 messages instead of 2"):
        list(topic.read())
    assert times(topic.read(on_damage="skip")) == [0, 3]


def test_a_subscription_meets_a_hole_too_or_counts_on_behind_it(six: Topic) -> None:
    lose_ledgers(six, 1)
    with six.subscribe("strict") as strict:
        assert times(strict.read()) == list(range(10))
        with pytest.raises(DamagedError, match="ledger 1 is missing"):
            strict.read()
        strict.commit()
        assert strict.info.unread == 50
    with six.subscribe("lenient", on_damage="skip") as lenient:
        assert times(lenient.read(15)) == [*range(10), *range(20, 25)]
        lenient.commit()
        assert lenient.info.unread == 35
        assert times(lenient.read()) == list(range(25, 60))
        lenient.commit()
        assert lenient.info.unread == 0


def test_a_ledger_with_a_hole_is_not_sealed_and_the_others_are(sqlite_topic: Topic) -> None:
    topic = sqlite_topic
    append_ledgers(topic, SIX)
    lose_entries(topic, 1, 2)
    lose_entries(topic, 2, 4)
    with pytest.raises(DamagedError, match=r"ledgers 1, 2 of topic.*others sealed: 3.*entry 2 of ledger 1 is missing"):
        topic.seal()
    assert [info.state for info in topic.ledgers()] == ["sealed", "closed", "closed", "sealed", "sealed", "open"]


def test_entries_whose_ledger_is_missing_are_kept(sqlite_topic: Topic) -> None:
    topic = sqlite_topic
    append_ledgers(topic, SIX)
    with topic.storage.backend.snapshot() as connection:
        row = dict(connection.execute(sa.select(ledgers).where(ledgers.c.ledger == 2)).mappings().one())
    lose_ledgers(topic, 2)
    topic.seal()
    topic.sweep()
    write(topic, sa.insert(ledgers).values(row))
    assert times(topic.read()) == list(range(60))


def test_looking_up_distinguishes_a_gap_from_deleted_messages(six: Topic) -> None:
    six.truncate(Position(1, 0, 0))
    lose_ledgers(six, 2)
    write(six, sa.delete(entries).where(entries.c.ledger == 2))
    with pytest.raises(NotFoundError, match="0:1:0"):
        six.messages_at([Position(0, 1, 0)], ["payload"])
    with pytest.raises(DamagedError, match="ledger 2 is missing"):
        six.messages_at([Position(1, 1, 0), Position(2, 1, 0)], ["payload"])
    lose_entries(six, 5, 3)
    with pytest.raises(DamagedError, match="entry 3 of ledger 5 is missing"):
        six.messages_at([Position(5, 3, 1)], ["payload"])
    with pytest.raises(NotFoundError, match="5:9:0"):
        six.messages_at([Position(5, 9, 0)], ["payload"])


def test_counting_on_over_a_hole_names_it_or_continues_behind_it(six: Topic) -> None:
    lose_ledgers(six, 2)
    storage = six.storage
    with pytest.raises(DamagedError, match="ledger 2 is missing: messages 20 to 29"):
        position_of(storage, 25)
    skip = Damage(six.name, "skip")
    assert position_of(storage, 25, skip) == Position(3, 0, 0)
    assert entry_boundary(storage, Position(1, 0, 0), 15, skip) == Position(3, 0, 0)
    assert position_of(storage, 31) == Position(3, 0, 1)


def test_a_hole_elsewhere_costs_readers_no_further_queries(sqlite_topic: Topic) -> None:
    append_ledgers(sqlite_topic, SIX)
    sqlite_topic.seal()
    with CountedStatements(sqlite_topic.storage.backend.engine) as counted:
        assert len(list(sqlite_topic.read())) == 60
    assert (
        len([text for text in counted.selects if "waterclock_" in text]) <= 6 + 5
    )  # one a ledger; the open one, the head


def test_a_gap_of_the_topic_itself_is_found_where_the_beginning_is_missing(sqlite_topic: Topic) -> None:
    append_ledgers(sqlite_topic, SIX)
    sqlite_topic.truncate(Position(2, 0, 0))
    write(sqlite_topic, sa.update(topics).values(first_ledger=1, first_ordinal=10))
    with pytest.raises(DamagedError, match="ledger 1 is missing: messages 10 to 19"):
        list(sqlite_topic.read())


def test_warnings_name_the_topic_and_come_once(six: Topic, caplog: pytest.LogCaptureFixture) -> None:
    lose_ledgers(six, 3)
    assert len(list(six.read(on_damage="skip"))) == 50
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "telemetry" in warnings[0].message


def test_looking_up_leaves_out_messages_whose_errors_may_be_skipped(six: Topic) -> None:
    six.truncate(Position(1, 0, 0))
    lose_ledgers(six, 2)
    write(six, sa.delete(entries).where(entries.c.ledger == 2))
    places = [Position(3, 2, 1), Position(0, 1, 0), Position(2, 0, 1), Position(3, 9, 0), Position(3, 2, 1)]
    found = six.messages_at(places, ["publish_time"], pass_over=(NotFoundError, DamagedError))
    assert found["publish_time"].to_pylist() == [35, None, None, None, 35]
    with pytest.raises(DamagedError, match="ledger 2 is missing"):
        six.messages_at(places, ["publish_time"], pass_over=(NotFoundError,))
    with pytest.raises(NotFoundError, match="0:1:0"):
        six.messages_at(places, ["publish_time"], pass_over=(DamagedError,))
    assert six.messages_at(places[1:2], pass_over=(NotFoundError,)).to_pylist()[0]["source"] is None
    lose_entries(six, 5, 3)
    beside = [Position(5, 2, 0), Position(5, 3, 1), Position(5, 4, 0)]
    found = six.messages_at(beside, ["publish_time"], pass_over=(DamagedError,))
    assert found["publish_time"].to_pylist() == [54, None, 58]


def test_a_deleted_ledger_is_not_searched_entry_by_entry(make_sqlite_topic: MakeTopic) -> None:
    topic = make_sqlite_topic()
    append_ledgers(topic, [[[n] for n in range(50)], [[50]]])
    topic.truncate(Position(1, 0, 0))
    with CountedStatements(topic.storage.backend._reader) as counted:
        found = topic.messages_at([Position(0, n, 0) for n in range(50)], pass_over=(NotFoundError,))
    assert found["source"].null_count == 50
    assert len(counted.selects) < 10
