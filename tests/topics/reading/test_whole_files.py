"""The files that a range covers completely: no row of such a file may be outside the range."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
import sqlalchemy as sa

import waterclock as wc
from waterclock.database.schema.topic_catalogue import ledgers
from waterclock.topics.catalogue.pending_files import ledgers_named, new_file
from waterclock.topics.reading.whole_files import whole_files
from waterclock.topics.topic import Topic


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topic]:
    """A topic for all tests that only read."""
    with filled(tmp_path_factory.mktemp("whole_files")) as topic:
        yield topic


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[Topic]:
    with filled(tmp_path) as topic:
        yield topic


@contextmanager
def filled(folder: Path) -> Iterator[Topic]:
    """Create six sealed ledgers of four messages in two entries, and an open one; ledgers 1 to 3 share a file."""
    with wc.connect(f"sqlite:///{folder}/f.db") as database:
        topic = database.create_topic("t")
        append(topic, 0, payload=Random(0).randbytes(20_000))  # noqa: S311  # large enough to keep its file
        topic.seal()
        big = topic.files()[0]
        for number in (1, 2, 3):
            append(topic, number)
        topic.seal()
        size = sum(Path(path).stat().st_size for path in topic.files()[1:])
        assert topic.compact(size + 1) == 2
        for number in (4, 5):
            append(topic, number)
        topic.seal()
        assert big in topic.files()
        append(topic, 6, roll=False)
        yield topic


def append(topic: Topic, number: int, *, roll: bool = True, payload: bytes = b"") -> None:
    for entry in (0, 2):
        topic.append([wc.Message("a", "s", number * 4 + entry + i, payload, publish_time=number) for i in range(2)])
    if roll:
        topic.roll()


def whole(
    topic: Topic, start: wc.Position | None = None, stop: wc.Position | None = None, most: int = 10
) -> list[list[int]]:
    slices = topic.plan(start, stop, max_messages=most)
    return [[*held] for held in whole_files(topic.storage, slices).values()]


@pytest.mark.parametrize("most", [1, 4, 8, 100])
def test_a_file_is_whole_however_it_is_cut_into_slices(topic: Topic, most: int) -> None:
    assert whole(topic, most=most) == [[0], [1, 2, 3], [4], [5]]


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (wc.Position(0, 1, 0), None, [[1, 2, 3], [4], [5]]),
        (wc.Position(1, 0, 0), wc.Position(5, 1, 1), [[1, 2, 3], [4]]),
        (wc.Position(2, 0, 0), wc.Position(5, 0, 0), [[4]]),
        (wc.Position(0, 0, 0), wc.Position(3, 0, 1), [[0]]),
        (wc.Position(3, 1, 0), wc.Position(3, 1, 1), []),
        (wc.Position(6, 0, 0), None, []),
    ],
)
def test_a_file_in_which_the_range_begins_or_ends_is_not(
    topic: Topic, start: wc.Position, stop: wc.Position | None, expected: list[list[int]]
) -> None:
    assert whole(topic, start, stop) == expected


def test_a_file_of_which_a_ledger_is_deleted_or_lost_is_not(changing: Topic) -> None:
    changing.truncate(wc.Position(2, 0, 0))
    assert whole(changing) == [[4], [5]]
    lost = sa.update(ledgers).where(ledgers.c.ledger == 4).values(lost_in_file=2)
    changing.storage.backend.transact(lambda connection: connection.execute(lost))
    assert whole(changing) == [[5]]


def test_no_file_is_whole_without_sealed_ledgers(tmp_path: Path) -> None:
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        topic = database.create_topic("t")
        assert whole(topic) == []
        append(topic, 0)
        assert whole(topic) == []


def test_a_files_name_says_which_ledgers_it_was_written_for(topic: Topic) -> None:
    for first, last in ((0, 0), (7, 12), (12_345_678_901, 12_345_678_901)):
        assert ledgers_named(new_file(topic.storage, first, last).path) == range(first, last + 1)
    for path in (
        "0000000000.parquet",
        "t-1/copy of 0000000000-0011223344556677.parquet",
        "t-1/0000000000-1.parquet",
        "",
    ):
        assert ledgers_named(path) is None
