"""Small files become one, and nothing else changes: no position, no answer, no message of a reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from tests.support.killed import Killed, killing
from tests.topics.conftest import MakeTopic
from tests.topics.flows import append_ledgers, ledger_files_in, ledger_path, published

from waterclock.database.schema.topic_catalogue import files
from waterclock.errors import UnavailableError
from waterclock.message import Position
from waterclock.topics.catalogue import pending_files
from waterclock.topics.finding.positions import place_of, position_of
from waterclock.topics.reading.pruning import ReadFilter
from waterclock.topics.reading.slicing import read_slice
from waterclock.topics.store import sealed_file
from waterclock.topics.topic import Topic
from waterclock.topics.upkeep import compacting, retention, sweeping

FLOW = [[[0, 9], [2]], [[3, 4, 5]], [[6], [1, 8]], [[7]], [[10, 11]]]
STEPS = ("_begin", "_write", "_commit")


@pytest.fixture
def sealed(topic: Topic) -> Topic:
    """Four sealed ledgers, one file each, and an open one."""
    append_ledgers(topic, FLOW)
    topic.seal()
    return topic


def answers(topic: Topic) -> dict[str, object]:
    """Everything that may not change."""
    messages = list(topic.read())
    positions = [message.position or Position(0, 0, 0) for message in messages]
    return {
        "messages": messages,
        "found": [topic.find(time) for time in range(-1, 13)],
        "places": [place_of(topic.storage, position) for position in positions],
        "positions": [position_of(topic.storage, ordinal) for ordinal in range(13)],
        "payloads": topic.messages_at(positions[::-1], ["payload"])["payload"].to_pylist(),
        "bounds": [(info.ledger, info.entries, info.messages, info.bounds) for info in topic.ledgers()],
    }


def files_of(topic: Topic) -> set[str | None]:
    return {info.file for info in topic.ledgers() if info.file}


def on_disk(folder: Path) -> set[str]:
    return {str(path) for path in ledger_files_in(folder / "ledgers")}


def waiting(topic: Topic) -> int:
    with topic.storage.backend.snapshot() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(files)).scalar_one()


def let_grace_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "GRACE", -1)


def test_small_files_become_one_and_nothing_else_changes(sealed: Topic) -> None:
    before = answers(sealed)
    assert sealed.compact() == 3
    assert answers(sealed) == before
    assert len(files_of(sealed)) == 1
    assert sealed.compact() == 0


def test_compacted_ledgers_are_compacted_again_with_newer_ones(sealed: Topic) -> None:
    sealed.compact()
    sealed.roll()
    sealed.append(published([12]))
    sealed.seal()
    before = answers(sealed)
    assert sealed.compact() == 1
    assert answers(sealed) == before


@pytest.mark.one_database
def test_a_file_that_ledgers_share_is_plain_parquet_with_their_numbers(sealed: Topic) -> None:
    sealed.compact()
    table = pq.read_table(ledger_path(sealed, 0))
    places = zip(*(table[name].to_pylist() for name in ("ledger", "entry", "index")), strict=True)
    assert [Position(*place) for place in places] == [m.position for m in sealed.read(stop=Position(4, 0, 0))]
    assert pq.read_metadata(ledger_path(sealed, 0)).num_row_groups == 1


def test_the_sizes_of_ledgers_that_share_a_file_add_up_to_it(sealed: Topic) -> None:
    sealed.compact()
    size = ledger_path(sealed, 0).stat().st_size
    assert size - 4 <= sum(info.size for info in sealed.ledgers() if info.file) <= size


@pytest.mark.one_database
def test_large_files_stay_and_small_ones_are_joined_up_to_the_size_asked_for(sealed: Topic) -> None:
    small = max(info.size for info in sealed.ledgers() if info.file)
    assert sealed.compact(small) == 0  # each is more than half of that
    assert sealed.compact(2 * small + 2) == 2  # two and two
    assert len(files_of(sealed)) == 2


def test_row_groups_end_with_a_ledger_once_they_are_large_enough(
    make_sqlite_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compacting, "SHARED_GROUP_MESSAGES", 3)
    topic = make_sqlite_topic()
    append_ledgers(topic, [[[0]], [[1]], [[2]], [[3]], [[4, 5, 6, 7]], [[8]], [[9]]])
    topic.seal()
    topic.compact()
    where = [[(group.number, group.row) for group in info.row_groups] for info in topic.ledgers() if info.file]
    assert where == [[(0, 0)], [(0, 1)], [(0, 2)], [(1, 0)], [(2, 0)], [(3, 0)]]
    assert [message.publish_time for message in topic.read()] == list(range(10))


@pytest.mark.one_database
def test_a_slice_spans_ledgers_that_share_a_file(sealed: Topic) -> None:
    sealed.compact()
    sealed_part, tail = sealed.plan()
    assert (sealed_part.start, sealed_part.stop) == (Position(0, 0, 0), Position(4, 0, 0))
    rows = [row for batch in read_slice(sealed_part, ["ledger", "publish_time"]) for row in batch.to_pylist()]
    assert rows == [{"ledger": n, "publish_time": t} for n, ledger in enumerate(FLOW[:4]) for e in ledger for t in e]
    assert tail.start == Position(4, 0, 0)


@pytest.mark.one_database
def test_row_groups_without_a_wanted_source_are_left_out(sealed: Topic) -> None:
    sealed.compact()
    assert [part.start.ledger for part in sealed.plan(wanted=ReadFilter(sources=["unknown"]))] == [4]


def test_a_file_goes_when_the_last_ledger_in_it_is_deleted(
    sealed: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_grace_end(monkeypatch)
    sealed.compact()
    shared = files_of(sealed)
    assert sealed.truncate(Position(2, 0, 0)) == 2
    sealed.sweep()
    assert on_disk(tmp_path) == shared
    assert next(sealed.read()).position == Position(2, 0, 0)
    sealed.truncate(Position(4, 0, 0))
    sealed.sweep()
    assert on_disk(tmp_path) == set()


@pytest.mark.one_database
def test_readers_under_way_read_on_in_the_former_files(sealed: Topic) -> None:
    whole = list(sealed.read())
    chunks, parts = sealed.read_arrow(columns=["publish_time"]), sealed.plan()
    times = next(chunks)["publish_time"].to_pylist()
    sealed.compact()
    sealed.sweep()
    times += [time for batch in chunks for time in batch["publish_time"].to_pylist()]
    assert times == [message.publish_time for message in whole]
    assert times == [t for part in parts for b in read_slice(part) for t in b["publish_time"].to_pylist()]


@pytest.mark.one_database
def test_readers_whose_files_are_gone_after_the_grace_time_continue_in_the_new_one(
    make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_grace_end(monkeypatch)
    monkeypatch.setattr(sealed_file, "ROW_GROUP_MESSAGES", 2)
    topic = make_topic()
    append_ledgers(topic, [[[0, 1, 2, 3]], [[4, 5, 6]], [[7]]])
    topic.seal()
    chunks, parts = topic.read_arrow(columns=["publish_time"]), topic.plan()
    reading = read_slice(parts[0], ["publish_time"])
    times, sliced = next(chunks)["publish_time"].to_pylist(), next(reading)["publish_time"].to_pylist()
    assert topic.compact() == 1
    topic.sweep()
    assert times + [time for batch in chunks for time in batch["publish_time"].to_pylist()] == list(range(8))
    assert sliced + [time for batch in reading for time in batch["publish_time"].to_pylist()] == list(range(4))


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_compaction_killed_at_any_step_changes_nothing_and_the_next_one_completes(
    sealed: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, moment: str
) -> None:
    before = answers(sealed)
    let_grace_end(monkeypatch)
    monkeypatch.setattr(pending_files, "LEASE", -1)
    monkeypatch.setattr(sweeping, "CLAIM", -1)
    with monkeypatch.context() as patch:
        patch.setattr(compacting, step, killing(getattr(compacting, step), moment))
        with pytest.raises(Killed):
            sealed.compact()
    assert answers(sealed) == before
    sealed.compact()
    sealed.sweep()
    assert answers(sealed) == before
    assert on_disk(tmp_path) == files_of(sealed)
    assert len(files_of(sealed)) == 1
    assert waiting(sealed) == 0


@pytest.mark.one_database
def test_an_interrupted_compaction_leaves_no_file(
    sealed: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = answers(sealed)
    with monkeypatch.context() as patch:
        patch.setattr(compacting, "_commit", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            sealed.compact()
    assert answers(sealed) == before
    assert on_disk(tmp_path) == files_of(sealed)
    assert waiting(sealed) == 0


def test_one_of_two_concurrent_compactions_gives_way(
    sealed: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = answers(sealed)
    monkeypatch.setattr(pending_files, "LEASE", -1)
    write = compacting._write

    def write_slowly(*arguments: Any) -> Any:
        written = write(*arguments)
        with monkeypatch.context() as patch:
            patch.setattr(compacting, "_write", write)
            assert sealed.compact() == 3
        return written

    monkeypatch.setattr(compacting, "_write", write_slowly)
    assert sealed.compact() == 0
    assert answers(sealed) == before
    let_grace_end(monkeypatch)
    assert files_of(sealed) <= on_disk(tmp_path)


def test_ledgers_that_retention_deletes_meanwhile_are_not_brought_back(
    sealed: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = compacting._write

    def write_while_ledgers_go(*arguments: Any) -> Any:
        written = write(*arguments)
        sealed.truncate(Position(1, 0, 0))
        return written

    with monkeypatch.context() as patch:
        patch.setattr(compacting, "_write", write_while_ledgers_go)
        assert sealed.compact() == 0
    assert [info.ledger for info in sealed.ledgers()] == [1, 2, 3, 4]
    assert sealed.compact() == 2


@pytest.mark.one_database
def test_a_file_that_reads_back_differently_is_rejected(sealed: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    before = answers(sealed)

    def measured(*_: object) -> object:
        return {}, {}

    with monkeypatch.context() as patch:
        patch.setattr(compacting, "_measured", measured)
        with pytest.raises(UnavailableError, match="differs from the data"):
            sealed.compact()
    assert answers(sealed) == before
    assert waiting(sealed) == 0
