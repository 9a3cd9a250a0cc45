from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy import event
from tests.topics.conftest import MakeTopic, MovableClock
from tests.topics.flows import published

from waterclock import arrow
from waterclock.arrow import to_arrow
from waterclock.batching.batch import Batch
from waterclock.batching.event_time.batcher import EventTimeBatcher
from waterclock.database.backend import Backend
from waterclock.database.schema.topic_catalogue import entries, topics
from waterclock.errors import DamagedError, InvalidArgumentError, NotFoundError, SchemaError, UnavailableError
from waterclock.message import Message, Position
from waterclock.topics.format import entries as topic_entries
from waterclock.topics.model.topic_options import TopicOptions
from waterclock.topics.topic import Topic
from waterclock.topics.writing.appending import Appended


def test_appended_messages_are_read_back_field_by_field(topic: Topic) -> None:
    messages = [
        Message(
            "press", "load", -(2**63), b"\x00\xff", publish_time=3, receive_time=2**63 - 1, headers={"k": "v", "ä": ""}
        ),
        Message("größe", "heat", 2**63 - 1, b"", publish_time=-1, receive_time=0, headers={}),
        Message("press", "load", 0, b"x" * 100_000, publish_time=4, receive_time=5),
    ]
    appended = topic.append(messages)
    assert appended == Appended(Position(0, 0, 0), 3, duplicate=False)
    expected = [message.replace(position=Position(0, 0, i)) for i, message in enumerate(messages)]
    assert list(topic.read()) == expected
    topic.roll()
    topic.seal()
    assert list(topic.read()) == expected


def test_a_table_is_appended_like_messages_and_may_lack_the_optional_columns(topic: Topic) -> None:
    topic.append(pa.table({"event_time": [1, 2], "stream": ["a", "b"], "source": ["s", "s"], "other": [0, 0]}))
    topic.append(to_arrow(published([5])))
    first, second, third = topic.read()
    assert (first.source, first.stream, first.event_time, first.payload, first.headers) == ("s", "a", 1, b"", None)
    assert second.position == Position(0, 0, 1)
    assert third.publish_time == 5


def test_times_that_are_missing_are_filled_in_with_the_databases_clock(
    clocked_topic: Topic, clock: MovableClock
) -> None:
    clock.now = 42
    clocked_topic.append(
        [Message("a", "b", 1), Message("a", "b", 1, publish_time=7), Message("a", "b", 1, receive_time=8)]
    )
    assert [(message.publish_time, message.receive_time) for message in clocked_topic.read()] == [
        (42, 42),
        (7, 42),
        (42, 8),
    ]


def test_a_servers_clock_fills_in_times_near_its_own(topic: Topic, backend: Backend) -> None:
    before = backend.now()
    topic.append([Message("a", "b", 1)])
    message = next(topic.read())
    assert message.receive_time is not None
    assert before <= message.receive_time <= backend.now()


@pytest.mark.parametrize("nothing", [[], pa.table({"source": [], "stream": [], "event_time": []}), (m for m in ())])
def test_an_empty_append_is_refused(sqlite_topic: Topic, nothing: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="must not be empty"):
        sqlite_topic.append(nothing)


def test_an_invalid_message_is_refused_by_name(sqlite_topic: Topic) -> None:
    with pytest.raises(InvalidArgumentError, match="got str in "):
        sqlite_topic.append(["text"])  # type: ignore[list-item]
    with pytest.raises(InvalidArgumentError, match=r"Message objects or dicts, or a table of .*, got int"):
        sqlite_topic.append(7)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="no column named 'stream'"):
        sqlite_topic.append(pa.table({"source": ["a"], "event_time": [1]}))
    assert list(sqlite_topic.read()) == []


def test_an_append_that_is_too_large_for_the_database_is_refused_at_once(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = topic.storage.backend
    real = backend.largest_value
    if backend.dialect.name == "mysql":
        too_large = Message("a", "b", 1, secrets.token_bytes(real))
    else:
        assert real > 900_000_000
        monkeypatch.setitem(backend.__dict__, "largest_value", 10_000)
        too_large = Message("a", "b", 1, secrets.token_bytes(10_000))
    with pytest.raises(InvalidArgumentError, match="Append fewer at a time"):
        topic.append([too_large])
    topic.append(
        [Message("a", "b", 1, secrets.token_bytes(len(too_large.payload) - 20_000 if real < 10**8 else 5_000))]
    )
    assert len(list(topic.read())) == 1


def test_a_full_database_is_named_and_the_topic_stays_as_it_was(sqlite_topic: Topic) -> None:
    backend = sqlite_topic.storage.backend
    sqlite_topic.append(published([1]))

    def limit(connection: Any, _record: object) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages + 2}")

    event.listen(backend.engine, "connect", limit)
    backend.close()
    with pytest.raises(UnavailableError, match=r"cannot write to .*waterclock\.db.*full"):
        sqlite_topic.append([Message("a", "b", 1, secrets.token_bytes(100_000))])
    assert [message.publish_time for message in sqlite_topic.read()] == [1]


def test_a_ledger_rolls_when_it_has_reached_its_size(make_topic: MakeTopic) -> None:
    topic = make_topic(roll_size=1)
    places = [topic.append(published([time])).first for time in range(3)]
    assert places == [Position(0, 0, 0), Position(1, 0, 0), Position(2, 0, 0)]
    assert [info.state for info in topic.ledgers()] == ["closed", "closed", "open"]


def test_a_ledger_rolls_when_it_is_old_enough(clocked_backend: Backend, clock: MovableClock, tmp_path: Any) -> None:
    topic = Topic.create(
        clocked_backend, str(tmp_path), "t", TopicOptions.check(roll_after="1s", roll_size=1 << 30, retention=None)
    )
    places = []
    for now in (0, 999_999_999, 1_000_000_000, 1_500_000_000, 2_000_000_000):
        clock.now = now
        places.append(topic.append(published([1])).first)
    assert places == [Position(0, 0, 0), Position(0, 1, 0), Position(1, 0, 0), Position(1, 1, 0), Position(2, 0, 0)]


def test_rolling_an_empty_ledger_does_nothing(topic: Topic) -> None:
    topic.roll()
    assert topic.head == Position(0, 0, 0)
    topic.append(published([1]))
    topic.roll()
    topic.roll()
    assert topic.head == Position(1, 0, 0)


def test_appenders_at_the_same_time_leave_no_hole_and_no_message_out(make_topic: MakeTopic) -> None:
    topic = make_topic(roll_size=20_000)
    writers, appends = 4, 15
    start = threading.Barrier(writers)

    def write(writer: int) -> list[tuple[Position | None, str]]:
        start.wait()
        written = []
        for i in range(appends):
            source = f"{writer}-{i}"
            written.append((topic.append([Message(source, "s", j) for j in range(3)]).first, source))
        return written

    with ThreadPoolExecutor(writers) as pool:
        written = [pair for pairs in pool.map(write, range(writers)) for pair in pairs]
    messages = list(topic.read())
    assert len(messages) == writers * appends * 3
    assert {(m.position, m.source) for m in messages if m.position and m.position.index == 0} == set(written)
    for before, after in pairwise(messages):
        assert before.position is not None
        ledger, entry, index = before.position
        assert after.position in {(ledger, entry, index + 1), (ledger, entry + 1, 0), (ledger + 1, 0, 0)}
    ordinals = [info.first_ordinal for info in topic.ledgers()]
    sizes = [info.messages for info in topic.ledgers()]
    assert ordinals == [sum(sizes[:i]) for i in range(len(sizes))]


def test_appending_to_a_topic_that_was_removed_says_so(topic: Topic) -> None:
    topic.storage.backend.transact(lambda connection: connection.execute(sa.delete(topics)))
    with pytest.raises(NotFoundError, match="'telemetry' was removed"):
        topic.append(published([1]))


@pytest.mark.parametrize(("most", "pieces"), [(1, 5), (250_000, 3)])
def test_entries_that_compress_well_are_read_and_sealed_in_bounded_pieces(
    sqlite_topic: Topic, monkeypatch: pytest.MonkeyPatch, most: int, pieces: int
) -> None:
    monkeypatch.setattr(topic_entries, "DECODED_BYTES", most)
    for number in range(7):
        size = 100 if number in (2, 5) else 100_000  # small ones are packed, and lie between the others
        sqlite_topic.append([Message("a", "b", number, bytes(size))])
    batches = list(sqlite_topic.read_arrow())
    assert [time for batch in batches for time in batch["event_time"].to_pylist()] == [*range(7)]
    assert len(batches) >= pieces
    places = [Position(0, number, 0) for number in reversed(range(7))]
    assert sqlite_topic.messages_at(places)["event_time"].to_pylist() == [*reversed(range(7))]
    sqlite_topic.roll()
    assert sqlite_topic.seal() == 1
    assert [message.event_time for message in sqlite_topic.read()] == [*range(7)]


def test_damage_among_entries_that_are_read_in_pieces_costs_that_entry_alone(
    sqlite_topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_entries, "DECODED_BYTES", 250_000)
    for number in range(7):
        sqlite_topic.append([Message("a", "b", number, bytes(100_000))])
    broken = sa.update(entries).where(entries.c.entry == 4).values(data=b"WCA1 damaged")
    sqlite_topic.storage.backend.transact(lambda connection: connection.execute(broken))
    whole = [0, 1, 2, 3, 5, 6]
    assert [message.event_time for message in sqlite_topic.read(on_damage="skip")] == whole
    places = [Position(0, number, 0) for number in range(7)]
    found = sqlite_topic.messages_at(places, pass_over=(DamagedError,))["event_time"].drop_null()
    assert found.to_pylist() == whole


def test_more_payload_than_a_column_holds_is_refused_with_its_size(
    sqlite_topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow, "MOST_BYTES", 100_000)
    messages = [Message("a", "b", time, bytes(50_001), receive_time=2) for time in (1, 2)]
    batcher = EventTimeBatcher("1s", "1s")
    for message in messages:
        batcher.add(message)
    batch = Batch("a", 1, 2, 3, "timeout", tuple(messages))
    writes: list[Callable[[], object]] = [lambda: sqlite_topic.append(messages), batcher.state, batch.to_bytes]
    for write in writes:
        with pytest.raises(
            InvalidArgumentError, match="'payload' must hold at most 100000 bytes in one call, got 100002"
        ):
            write()
    assert list(sqlite_topic.read()) == []


def test_more_headers_than_a_column_holds_are_refused_with_their_size(
    sqlite_topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow, "MOST_BYTES", 100_000)
    headers = {"key": "ü" * 25_000}
    with pytest.raises(InvalidArgumentError, match="'headers' must hold at most 100000 bytes in one call, got 100006"):
        sqlite_topic.append([Message("a", "b", time, headers=headers) for time in (1, 2)])
    sqlite_topic.append([Message("a", "b", 1, headers=headers)])


def test_a_list_of_more_than_two_gigabytes_is_refused_before_its_payloads_are_copied(sqlite_topic: Topic) -> None:
    payload = bytes(16 << 20)  # one object, so that the list takes no more memory than this
    with pytest.raises(InvalidArgumentError, match=r"'payload' must hold at most 2147483646 bytes.*got 2147483648"):
        sqlite_topic.append([Message("a", "b", time, payload) for time in range(128)])


@pytest.mark.slow
def test_more_than_two_gigabytes_of_zeros_are_read_and_sealed(sqlite_topic: Topic) -> None:
    for number in range(140):
        sqlite_topic.append([Message("a", "b", number, bytes(16 << 20))])
    assert sum(len(message.payload) for message in sqlite_topic.read()) == 140 * (16 << 20)
    sqlite_topic.roll()
    assert sqlite_topic.seal() == 1
    assert sum(len(message.payload) for message in sqlite_topic.read()) == 140 * (16 << 20)
