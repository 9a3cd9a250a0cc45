from __future__ import annotations

import errno
import gc
import io
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from tests.support.killed import Killed, killing
from tests.topics.conftest import MakeTopic, MovableClock
from tests.topics.flows import append_ledgers, ledger_files_in, ledger_path, on_counting_files, published

from waterclock._support.durable import durable_file
from waterclock.connection import connect
from waterclock.database.engines import sqlite as sqlite_engine
from waterclock.database.engines.sqlite import PAGE_SIZE
from waterclock.database.schema.topic_catalogue import entries, files
from waterclock.errors import UnavailableError
from waterclock.message import Message
from waterclock.topics.catalogue import pending_files
from waterclock.topics.model.topic_options import TopicOptions
from waterclock.topics.store import ledger_files, sealed_file
from waterclock.topics.topic import Topic
from waterclock.topics.upkeep import compacting, sealing, sweeping

FLOW = [[[0, 1], [2]], [[3, 4, 5]], [[6], [7, 8]]]
STEPS = ("_begin", "_write", "_commit", "delete_rows")


def times(topic: Topic) -> list[int | None]:
    return [message.publish_time for message in topic.read()]


def count(topic: Topic, table: sa.Table) -> int:
    with topic.storage.backend.snapshot() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


def all_files(folder: Path) -> set[Path]:
    return ledger_files_in(folder / "ledgers")


def test_sealing_turns_every_closed_ledger_into_one_file(topic: Topic, tmp_path: Path) -> None:
    placed = append_ledgers(topic, FLOW)
    assert topic.seal() == 2
    assert topic.seal() == 0
    assert [info.state for info in topic.ledgers()] == ["sealed", "sealed", "open"]
    assert all_files(tmp_path) == {ledger_path(topic, 0), ledger_path(topic, 1)}
    assert count(topic, entries) == 2  # those of the open ledger
    assert count(topic, files) == 0
    assert [(message.publish_time, message.position) for message in topic.read()] == placed


def test_a_ledger_file_is_plain_parquet_with_int64_times_and_places(sqlite_topic: Topic) -> None:
    sqlite_topic.append([Message("a", "b", 2**63 - 1, b"x", publish_time=-(2**63), receive_time=0, headers={"k": "v"})])
    sqlite_topic.append(published([1, 2]))
    sqlite_topic.roll()
    sqlite_topic.seal()
    path = ledger_path(sqlite_topic, 0)
    table = pq.read_table(path)
    for name in ("event_time", "publish_time", "receive_time", "entry"):
        assert str(table.schema.field(name).type) == "int64"
    assert table["event_time"].to_pylist() == [2**63 - 1, 7, 7]
    assert table["publish_time"].to_pylist() == [-(2**63), 1, 2]
    assert list(zip(table["entry"].to_pylist(), table["index"].to_pylist(), strict=True)) == [(0, 0), (1, 0), (1, 1)]
    assert b"pandas" not in (pq.read_schema(path).metadata or {})
    assert pq.read_metadata(path).row_group(0).column(0).compression == "ZSTD"


def test_row_groups_hold_65536_messages_and_the_catalogue_has_their_bounds(sqlite_topic: Topic) -> None:
    for first in range(0, 150_000, 50_000):
        sqlite_topic.append(published(range(first, first + 50_000)))
    sqlite_topic.roll()
    sqlite_topic.seal()
    groups = sqlite_topic.ledgers()[0].row_groups
    assert [(group.messages, group.entry, group.index) for group in groups] == [
        (65_536, 0, 0),
        (65_536, 1, 15_536),
        (18_928, 2, 31_072),
    ]
    assert [group.bounds.begin["publish_time"] for group in groups] == [0, 65_536, 131_072]
    assert [group.peak["publish_time"] for group in groups] == [65_535, 131_071, 149_999]


def test_large_payloads_end_a_row_group_early(make_sqlite_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_file, "ROW_GROUP_BYTES", 100_000)
    topic = make_sqlite_topic()
    for i in range(5):
        topic.append([Message("a", "b", i, os.urandom(60_000), publish_time=i)])
    topic.roll()
    topic.seal()
    assert [group.messages for group in topic.ledgers()[0].row_groups] == [1] * 5  # two would be 120,000 bytes
    assert times(topic) == list(range(5))


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_sealer_killed_at_any_step_loses_nothing_and_the_next_one_completes(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, moment: str
) -> None:
    append_ledgers(topic, FLOW)
    monkeypatch.setattr(pending_files, "LEASE", 0)  # the dead owner's lease has ended by the time the next one comes
    with monkeypatch.context() as patch:
        patch.setattr(sealing, step, killing(getattr(sealing, step), moment))
        with pytest.raises(Killed):
            topic.seal()
    assert times(topic) == list(range(9))
    topic.seal()
    assert [info.state for info in topic.ledgers()] == ["sealed", "sealed", "open"]
    topic.seal()  # a lease of nothing ends only when time has passed
    assert times(topic) == list(range(9))
    assert all_files(tmp_path) == {ledger_path(topic, 0), ledger_path(topic, 1)}
    assert count(topic, files) == 0
    assert count(topic, entries) == 2


def test_while_one_seals_a_ledger_another_leaves_it_alone(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    append_ledgers(topic, FLOW)
    write = sealing._write
    others: list[int] = []

    def write_while_another_tries(*arguments: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(sealing, "_write", write)
            others.append(topic.seal())
        return write(*arguments)

    monkeypatch.setattr(sealing, "_write", write_while_another_tries)
    assert topic.seal() == 1
    assert others == [1]  # it left ledger 0 and took ledger 1, which the first one then found sealed
    assert times(topic) == list(range(9))


@pytest.mark.both_servers
def test_a_sealer_that_was_thought_dead_gives_way(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_ledgers(topic, FLOW)
    monkeypatch.setattr(pending_files, "LEASE", 0)
    write = sealing._write

    def write_slowly(*arguments: Any) -> Any:
        written = write(*arguments)
        with monkeypatch.context() as patch:
            patch.setattr(sealing, "_write", write)
            assert topic.seal() >= 1
        return written

    monkeypatch.setattr(sealing, "_write", write_slowly)
    assert topic.seal() == 0
    assert times(topic) == list(range(9))
    assert all_files(tmp_path) == {ledger_path(topic, 0), ledger_path(topic, 1)}
    assert count(topic, files) == 0


def test_a_sweep_leaves_a_file_alone_whose_lease_was_prolonged_after_it_looked(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_ledgers(topic, FLOW)
    commit = sealing._commit

    def commit_after_a_sweep(*arguments: Any) -> None:
        pending = arguments[1]
        with monkeypatch.context() as patch:
            patch.setattr(sweeping, "_dead_files", lambda _: [pending.path])  # what it saw a moment ago
            assert topic.sweep() == 0
        commit(*arguments)

    monkeypatch.setattr(sealing, "_commit", commit_after_a_sweep)
    assert topic.seal() == 2
    assert times(topic) == list(range(9))


@pytest.mark.both_servers
def test_a_commit_whose_answer_is_lost_keeps_the_file(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    append_ledgers(topic, FLOW)
    commit = sealing._commit

    def commit_then_fail(*arguments: Any) -> None:
        commit(*arguments)
        raise UnavailableError("the answer got lost")

    monkeypatch.setattr(sealing, "_commit", commit_then_fail)
    with pytest.raises(UnavailableError, match="the answer"):
        topic.seal()
    assert ledger_path(topic, 0).exists()
    assert times(topic) == list(range(9))


def test_a_full_disk_is_named_with_its_file_and_leaves_the_ledger_as_it_was(
    sqlite_topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_ledgers(sqlite_topic, FLOW)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(sealing, "write_ledger", full)
        with pytest.raises(UnavailableError, match=r"0000000000-.*\.parquet.*No space left"):
            sqlite_topic.seal()
    assert all_files(tmp_path) == set()
    assert count(sqlite_topic, files) == 0
    assert times(sqlite_topic) == list(range(9))
    assert sqlite_topic.seal() == 2


class FullDisk(io.BytesIO):
    """Takes two row groups of `test_a_disk_that_fills_up_while_sealing_or_compacting_is_named`."""

    left = 250_000

    def write(self, data: Any) -> int:
        self.left -= len(data)
        if self.left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


@pytest.mark.filterwarnings("error")  # a failed writer that its finalizer closes again would warn
def test_a_disk_that_fills_up_while_sealing_or_compacting_is_named(
    sqlite_topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.freeze()  # garbage of earlier tests would warn here, too
    for module in sealed_file, compacting:
        monkeypatch.setattr(module, "ROW_GROUP_BYTES", 1000)
    for _ in range(2):
        for _ in range(3):
            sqlite_topic.append([Message("a", "b", 0, os.urandom(100_000))])
        sqlite_topic.roll()
    for act, done in (sqlite_topic.seal, 2), (sqlite_topic.compact, 1):
        before = all_files(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(ledger_files, "durable_file", lambda _: FullDisk())
            with pytest.raises(UnavailableError, match=r"0000000000-.*\.parquet: .*No space left.*is the disk full\?"):
                act()
            gc.collect()
        assert all_files(tmp_path) == before
        assert act() == done


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
def test_an_error_while_writing_is_not_hidden_by_a_close_that_fails(tmp_path: Path) -> None:
    (tmp_path / "file.part").symlink_to("/dev/full")

    def pieces() -> Iterator[bytes]:
        yield b"held back until the file is closed"
        raise ValueError("the cause")

    with pytest.raises(ValueError, match="the cause"), durable_file(tmp_path / "file") as sink:
        sink.writelines(pieces())
    assert [*tmp_path.iterdir()] == []


def test_a_file_that_reads_back_differently_is_rejected(
    sqlite_topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = os.urandom(1000)  # does not compress, so that its bytes stand in the file as they are
    sqlite_topic.append([Message("a", "b", 0, payload, publish_time=0)])
    sqlite_topic.roll()
    fsync = os.fsync

    def damage(handle: int) -> None:
        fsync(handle)
        name = Path(f"/proc/self/fd/{handle}").readlink()
        if name.suffix == ".part":
            data = bytearray(name.read_bytes())
            data[data.index(payload[500:510])] ^= 0xFF
            name.write_bytes(data)

    monkeypatch.setattr(os, "fsync", damage)
    with pytest.raises(UnavailableError, match=r"\.parquet"):
        sqlite_topic.seal()
    assert [message.payload for message in sqlite_topic.read()] == [payload]
    assert all_files(tmp_path) == set()


@pytest.mark.one_database
def test_an_object_store_is_written_straight_to_the_unique_name(topic: Topic, tmp_path: Path) -> None:
    topic, _ = on_counting_files(topic, tmp_path / "bucket")
    append_ledgers(topic, FLOW)
    assert topic.seal() == 2
    names = sorted(path.name for path in (tmp_path / "bucket").rglob("*.*"))
    assert [name[:10] for name in names] == ["0000000000", "0000000001"]
    assert all(name.endswith(".parquet") for name in names)
    assert times(topic) == list(range(9))


def test_a_ledger_that_is_old_enough_is_closed_and_sealed_without_further_appends(
    clocked_topic: Topic, clock: MovableClock, make_topic: MakeTopic
) -> None:
    topic = Topic.create(
        clocked_topic.storage.backend,
        clocked_topic.storage.files.root,
        "t",
        TopicOptions.check(roll_after="1s", roll_size=1 << 30, retention=None),
    )
    clock.now = 0
    topic.append(published([1]))
    clock.now = 999_999_999
    assert topic.seal() == 0
    clock.now = 1_000_000_000
    assert topic.seal() == 1


def test_an_sqlite_file_gives_back_what_was_sealed(
    make_sqlite_topic: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_engine, "PAGES_AT_ONCE", 10)  # the entries take 80 pages
    topic = make_sqlite_topic("telemetry")
    file = tmp_path / "waterclock.db"
    backend = topic.storage.backend
    backend.close()
    before = file.stat().st_size
    for _ in range(4):
        topic.append([Message("a", "temperature", 1, os.urandom(300_000))])
    backend.close()
    assert file.stat().st_size > before + 1_200_000
    topic.roll()
    topic.seal()
    backend.close()
    assert file.stat().st_size < before + 10 * PAGE_SIZE


def test_a_file_of_another_program_is_sealed_without_giving_back_space(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "own.db")) as connection:
        connection.execute("CREATE TABLE own (id INTEGER)")
    with connect(f"sqlite:///{tmp_path / 'own.db'}") as database:
        topic = database.create_topic("telemetry")
        topic.append([Message("a", "temperature", 1, os.urandom(300_000))])
        topic.roll()
        assert topic.seal() == 1
