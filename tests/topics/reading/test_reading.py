from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from tests.topics.conftest import MakeTopic
from tests.topics.flows import FORMS, append_ledgers, bring_to, ledger_path, on_counting_files, published

from waterclock.arrow import POSITIONED_SCHEMA
from waterclock.errors import InvalidArgumentError, UnavailableError
from waterclock.message import Message, Position
from waterclock.topics.finding import looking_up
from waterclock.topics.format.entries import Decoded, decode_entries
from waterclock.topics.reading import contiguity
from waterclock.topics.store import sealed_file
from waterclock.topics.topic import Topic

FLOW = [[[0, 1], [2]], [[3, 4, 5]], [[6], [7, 8]]]


def times(messages: Any) -> list[int | None]:
    return [message.publish_time for message in messages]


@pytest.fixture(params=FORMS)
def flow(make_topic: MakeTopic, request: pytest.FixtureRequest) -> tuple[Topic, list[tuple[int, Position]]]:
    topic = make_topic()
    placed = append_ledgers(topic, FLOW)
    bring_to(topic, request.param)
    return topic, placed


def test_any_range_of_positions_is_read_exactly(flow: tuple[Topic, list[tuple[int, Position]]]) -> None:
    topic, placed = flow
    marks = [*(position for _, position in placed), topic.head, Position(1, 7, 0), Position(0, 1, 9), Position(9, 0, 0)]
    for start in marks:
        for stop in marks:
            expected = [time for time, position in placed if start <= position < stop]
            assert times(topic.read(start, stop)) == expected, (start, stop)


def test_a_time_range_begins_at_since_and_stops_before_until(flow: tuple[Topic, list[tuple[int, Position]]]) -> None:
    topic, _ = flow
    assert times(topic.read(since=3, until=7)) == [3, 4, 5, 6]
    assert times(topic.read(since=-5, until=2)) == [0, 1]
    assert times(topic.read(since=8)) == [8]
    assert times(topic.read(since=9)) == []
    assert times(topic.read(until=100)) == list(range(9))


def test_a_limit_ends_reading_at_the_message(flow: tuple[Topic, list[tuple[int, Position]]]) -> None:
    topic, placed = flow
    for limit in (1, 2, 4, 9, 20):
        assert times(topic.read(limit=limit)) == list(range(9))[:limit]
    assert times(topic.read(placed[4][1], limit=3)) == [4, 5, 6]


def test_columns_can_be_chosen_and_come_in_the_order_asked_for(flow: tuple[Topic, list[tuple[int, Position]]]) -> None:
    topic, placed = flow
    batches = list(topic.read_arrow(columns=["publish_time", "ledger", "source", "index"]))
    table = pa.Table.from_batches(batches)
    assert table.schema.names == ["publish_time", "ledger", "source", "index"]
    assert table["publish_time"].to_pylist() == list(range(9))
    assert table["ledger"].to_pylist() == [position.ledger for _, position in placed]
    assert pa.Table.from_batches(topic.read_arrow()).schema == POSITIONED_SCHEMA
    assert pa.Table.from_batches(topic.read_arrow(columns=["entry"]))["entry"].to_pylist() == [
        position.entry for _, position in placed
    ]


@pytest.mark.parametrize("columns", [["nonsense"], []])
def test_columns_that_do_not_exist_are_refused(sqlite_topic: Topic, columns: list[str]) -> None:
    with pytest.raises(InvalidArgumentError, match="columns"):
        list(sqlite_topic.read_arrow(columns=columns))


def test_arguments_that_contradict_each_other_are_refused(sqlite_topic: Topic) -> None:
    with pytest.raises(InvalidArgumentError, match="since"):
        next(sqlite_topic.read(Position(0, 0, 0), since=1))
    with pytest.raises(InvalidArgumentError, match="until"):
        next(sqlite_topic.read(stop=Position(0, 0, 0), until=1))
    with pytest.raises(InvalidArgumentError, match="limit"):
        next(sqlite_topic.read(limit=0))
    with pytest.raises(InvalidArgumentError, match="start must be a Position, got 5"):
        next(sqlite_topic.read(5))  # type: ignore[arg-type]


BEYOND = 2**63


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda topic: list(topic.read(limit=BEYOND)), f"limit must be at most {BEYOND - 1}, got {BEYOND}"),
        (lambda topic: topic.ledgers(limit=BEYOND), f"limit must be at most {BEYOND - 1}, got {BEYOND}"),
        (lambda topic: topic.ledgers(start=BEYOND), f"start must be at most {BEYOND - 1}, got {BEYOND}"),
        (lambda topic: topic.ledgers(start=-1), "start must be an integer ≥ 0, got -1"),
        (lambda topic: topic.at(BEYOND), f"index must be at most {BEYOND - 1}, got {BEYOND}"),
        (
            lambda topic: topic.index(Position(BEYOND, 0, 0)),
            f"the numbers in position must be from 0 to {BEYOND - 1}, got ",
        ),
        (
            lambda topic: topic.truncate(Position(BEYOND, 0, 0)),
            f"the numbers in before must be from 0 to {BEYOND - 1}, got",
        ),
        (
            lambda topic: topic.truncate(Position(0, 0, -1)),
            f"the numbers in before must be from 0 to {BEYOND - 1}, got ",
        ),
        (lambda topic: list(topic.read(Position(0, BEYOND, 0))), "the numbers in start must be from 0 to "),
        (lambda topic: topic.subscribe("s").seek(Position(BEYOND, 0, 0)), "the numbers in start must be from 0 to "),
        (lambda topic: topic.alter(roll_size=2**70), f"roll_size must be at most {BEYOND - 1}, got {2**70}"),
        (lambda topic: topic.compact(file_bytes=BEYOND), f"file_bytes must be at most {BEYOND - 1}, got {BEYOND}"),
    ],
)
def test_integers_beyond_64_bits_are_refused_by_name(
    sqlite_topic: Topic, call: Callable[[Topic], Any], said: str
) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        call(sqlite_topic)
    assert str(refused.value).startswith(said)


def test_the_largest_integer_is_a_limit_and_a_position(sqlite_topic: Topic) -> None:
    append_ledgers(sqlite_topic, [[[1, 2]]])
    largest = BEYOND - 1
    assert len(list(sqlite_topic.read(limit=largest))) == 2
    assert list(sqlite_topic.read(Position(largest, largest, largest))) == []
    assert sqlite_topic.ledgers(start=largest, limit=largest) == []
    assert sqlite_topic.subscribe("s").read(limit=largest)
    assert sqlite_topic.at(largest) == sqlite_topic.head
    sqlite_topic.alter(roll_size=largest)


def test_reading_in_small_pieces_gives_the_same(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contiguity, "CHUNK_MESSAGES", 2)
    monkeypatch.setattr(contiguity, "CHUNK_ENTRIES", 2)
    monkeypatch.setattr(sealed_file, "ROW_GROUP_MESSAGES", 4)
    placed = append_ledgers(topic, [[[i] for i in range(7)], [[7, 8, 9, 10, 11], [12], [13, 14]], [[15], [16]]])
    for _ in range(2):
        assert [(message.publish_time, message.position) for message in topic.read()] == placed
        assert times(topic.read(Position(1, 0, 3), Position(1, 2, 1))) == [10, 11, 12, 13]
        topic.roll()
        topic.seal()


def test_payloads_that_are_not_asked_for_are_not_read(sqlite_topic: Topic, tmp_path: Path) -> None:
    topic, files = on_counting_files(sqlite_topic, tmp_path)
    topic.append([Message("a", "b", i, bytes([i % 256]) * 5000 + str(i).encode()) for i in range(1000)])
    topic.roll()
    topic.seal()
    files.reads.clear()
    assert sum(batch.num_rows for batch in topic.read_arrow(columns=["source", "event_time", "index"])) == 1000
    assert sum(length for _, length in files.reads) < 0.2 * topic.ledgers()[0].size


def test_a_reader_continues_while_its_ledgers_are_being_sealed(topic: Topic) -> None:
    append_ledgers(topic, FLOW)
    reader = topic.read()
    read = list(islice(reader, 1))
    topic.roll()
    assert topic.seal() == 3
    read += reader
    assert times(read) == list(range(9))


def test_readers_see_each_message_once_while_it_is_appended_sealed_and_deleted_around_them(
    make_topic: MakeTopic,
) -> None:
    topic = make_topic(roll_size=10_000)
    appends, done = 120, threading.Event()

    def write() -> None:
        for first in range(0, appends * 5, 5):
            topic.append(published(range(first, first + 5)))

    def seal() -> None:
        while not done.is_set():
            topic.seal()

    def read(delete: bool) -> list[int | None]:
        seen: list[int | None] = []
        at = Position(0, 0, 0)
        while len(seen) < appends * 5:
            for message in topic.read(at):
                seen.append(message.publish_time)
                assert message.position is not None
                at = message.position._replace(index=message.position.index + 1)
            if delete:
                topic.truncate(at)
        return seen

    with ThreadPoolExecutor(4) as pool:
        sealing = pool.submit(seal)
        writing = pool.submit(write)
        reading = pool.submit(read, delete=True)
        assert reading.result(timeout=120) == list(range(appends * 5))
        writing.result()
        done.set()
        sealing.result()


def test_reading_ends_where_the_topic_ended_when_it_began(topic: Topic) -> None:
    append_ledgers(topic, FLOW)
    reader = topic.read()
    read = list(islice(reader, 1))
    topic.append(published([99]))
    assert times([*read, *reader]) == list(range(9))
    assert times(topic.read()) == [*range(9), 99]


def test_a_lost_file_is_named_by_the_reader(sqlite_topic: Topic) -> None:
    append_ledgers(sqlite_topic, FLOW)
    sqlite_topic.roll()
    sqlite_topic.seal()
    path = ledger_path(sqlite_topic, 1)
    path.unlink()
    reader = sqlite_topic.read()
    assert times(islice(reader, 3)) == [0, 1, 2]
    with pytest.raises(UnavailableError, match=path.name):
        next(reader)


def test_entries_are_looked_up_some_bytes_at_a_time(make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = make_topic()
    random = Random(1)  # noqa: S311
    sizes = [1, 1, 5000, 20_000, 1, 1]
    for n, size in enumerate(sizes):
        topic.append([Message("press", "load", n, random.randbytes(size), publish_time=n)])
    monkeypatch.setattr(looking_up, "CHUNK_BYTES", 10_000)
    taken: list[int] = []

    def decoding(ledger: int, rows: Sequence[tuple[int, bytes]], columns: Sequence[str]) -> Decoded:
        taken.append(sum(len(data) for _, data in rows))
        return decode_entries(ledger, rows, columns)

    monkeypatch.setattr(looking_up, "decode_entries", decoding)
    found = topic.messages_at([Position(0, n, 0) for n in reversed(range(6))], ["payload"])
    assert [len(payload) for payload in found["payload"].to_pylist()] == sizes[::-1]
    assert [size < 10_000 for size in taken] == [True, False, True]
