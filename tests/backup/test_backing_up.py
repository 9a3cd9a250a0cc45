"""What a backup holds, what it refuses, and what it does where files are lost, go away, or cannot be written."""

from __future__ import annotations

import json
import os
import resource
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from pyarrow import fs
from tests.backup.conftest import NOW
from tests.backup.contents import groups, messages, rows, sent_from
from tests.topics.flows import CountingFiles, ledger_path

import waterclock as wc
from waterclock._support.durable import durable_file
from waterclock.backup import backing_up, snapshot
from waterclock.backup.backing_up import LOCK, BackedUp, back_up
from waterclock.backup.manifest import read_manifest
from waterclock.backup.restoring import check_backup
from waterclock.errors import InvalidArgumentError, NotFoundError, UnavailableError
from waterclock.message import Message
from waterclock.topics.store.ledger_files import LedgerFiles
from waterclock.topics.upkeep import retention


def restored(folder: Path) -> wc.Database:
    url = f"sqlite:///{folder.parent / 'copy.db'}"
    wc.restore(folder, url)
    return wc.connect(url, clock=lambda: NOW)


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_every_message_row_and_group_comes_back(source: wc.Database, folder: Path) -> None:
    done = source.backup(folder)
    assert (done.ledger_files, done.copied, done.faults) == (2, 2, ())
    with restored(folder) as copy:
        assert messages(copy) == messages(source)
        assert rows(copy.backend.engine) == rows(source.backend.engine)
        assert groups(copy) == groups(source)
        for name in source.tables():
            # How fast messages are sent is known to each process alone.
            copied, original = (replace(each.table(name).stats(), sent_rate=0) for each in (copy, source))
            assert copied == original
        for name in ("billing", "accounts"):
            assert (
                copy.topic("telemetry").subscribe(name).position == source.topic("telemetry").subscribe(name).position
            )
        repeated = copy.topic("telemetry").append(sent_from(70), producer="p", sequence=70)
        assert repeated.duplicate


def test_a_database_of_message_tables_alone_is_backed_up(sqlite_url: str, folder: Path) -> None:
    with wc.connect(sqlite_url, clock=lambda: NOW) as database:
        database.create_table("orders", payload="text").put("one")
        assert database.backup(folder).ledger_files == 0
    with restored(folder) as copy:
        assert [delivery.payload for delivery in copy.table("orders").receive()] == ["one"]
        assert not Path(copy.ledgers).exists()


def test_nothing_at_the_source_changes(source: wc.Database, folder: Path, tmp_path: Path) -> None:
    before = rows(source.backend.engine), files_of(tmp_path / "ledgers")
    source.backup(folder)
    assert (rows(source.backend.engine), files_of(tmp_path / "ledgers")) == before


def test_a_second_backup_copies_new_files_and_removes_old_ones(
    source: wc.Database, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "GRACE", -1)
    source.backup(folder)
    topic = source.topic("telemetry")
    assert topic.truncate(wc.Position(2, 0, 0), force=True) == 2
    topic.seal()  # the fourth, and sweeps what the first two had
    done = source.backup(folder)
    assert (done.copied, done.ledger_files) == (1, 2)
    written = read_manifest(folder)
    named = {f"ledgers/{kept.path}" for kept in written.ledgers} | {written.database.path}
    assert files_of(folder) == named | {"waterclock-backup.json", "waterclock-backup.lock"}
    with restored(folder) as copy:
        assert messages(copy) == messages(source)


def test_a_folder_with_something_else_is_refused_by_name(source: wc.Database, folder: Path, sqlite_url: str) -> None:
    folder.mkdir()
    (folder / "precious").touch()
    with pytest.raises(InvalidArgumentError, match=f"must be a new folder, an empty folder, or .*, got {folder}"):
        source.backup(folder)
    with pytest.raises(InvalidArgumentError, match=r"got the file .*precious"):
        source.backup(folder / "precious")
    with pytest.raises(InvalidArgumentError, match="must be a folder"):
        source.backup("s3://bucket/backup")
    assert [path.name for path in folder.iterdir()] == ["precious"]


def test_the_backup_of_another_database_is_not_replaced(source: wc.Database, folder: Path, tmp_path: Path) -> None:
    source.backup(folder)
    before = files_of(folder)
    with (
        wc.connect(f"sqlite:///{tmp_path}/other.db") as other,
        pytest.raises(InvalidArgumentError, match="a backup of another database"),
    ):
        other.backup(folder)
    assert files_of(folder) == before


def test_two_backups_do_not_write_into_one_folder(source: wc.Database, folder: Path) -> None:
    def report(*_: object) -> None:
        with pytest.raises(UnavailableError, match="another backup"):
            source.backup(folder)

    source.backup(folder, report)


def test_a_lost_file_is_named_and_the_rest_is_saved(source: wc.Database, folder: Path) -> None:
    ledger_path(source.topic("telemetry"), 2).unlink()
    done = source.backup(folder)
    assert len(done.faults) == 1
    assert "is missing" in done.faults[0]
    assert done.ledger_files == 1
    assert read_manifest(folder).faults == done.faults
    with restored(folder) as copy:
        assert rows(copy.backend.engine) == rows(source.backend.engine)
        assert list(copy.topic("telemetry").read(stop=wc.Position(2, 0, 0)))


def test_a_file_that_an_earlier_backup_has_is_not_lost(source: wc.Database, folder: Path) -> None:
    everything = messages(source)
    source.backup(folder)
    ledger_path(source.topic("telemetry"), 2).unlink()
    assert source.backup(folder).faults == ()
    with restored(folder) as copy:
        assert messages(copy) == everything


def test_a_file_that_was_cut_short_is_named_each_time(source: wc.Database, folder: Path) -> None:
    path = ledger_path(source.topic("telemetry"), 2)
    os.truncate(path, 100)
    for _ in range(2):
        [fault] = source.backup(folder).faults
        assert "has 100 bytes" in fault
    check_backup(folder)


def compact_when_snapshot_is_taken(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[], object], times: int = 1
) -> list[int]:
    """Let files go away between a snapshot and the copying of what it names."""
    monkeypatch.setattr(retention, "GRACE", -1)
    taken: list[int] = []
    take = backing_up.take_snapshot

    def then_work(*arguments: Any) -> Any:
        result = take(*arguments)
        if len(taken) < times:
            work()
        taken.append(1)
        return result

    monkeypatch.setattr(backing_up, "take_snapshot", then_work)
    monkeypatch.setattr(
        backing_up, "named_files", lambda backend, real=backing_up.named_files: real(backend) if taken else []
    )
    return taken


def test_a_file_that_goes_away_after_the_snapshot_makes_it_take_another(
    source: wc.Database, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = source.topic("telemetry")

    def work() -> None:
        topic.compact()
        topic.seal()

    taken = compact_when_snapshot_is_taken(monkeypatch, work)
    done = source.backup(folder)
    assert len(taken) == 2
    assert done.faults == ()
    with restored(folder) as copy:
        assert messages(copy) == messages(source)


def test_a_topic_that_is_removed_after_the_snapshot_is_not_in_the_backup(
    source: wc.Database, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compact_when_snapshot_is_taken(monkeypatch, source.topic("telemetry").remove)
    assert source.backup(folder).ledger_files == 0
    with restored(folder) as copy:
        assert copy.topics() == ["empty"]


def test_files_that_go_away_forever_end_the_backup_in_the_end(
    source: wc.Database, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = source.topic("telemetry")

    def work() -> None:
        topic.append([Message("press", "load", 1)])
        topic.roll()
        topic.seal()
        topic.compact()
        topic.seal()

    compact_when_snapshot_is_taken(monkeypatch, work, times=99)
    with pytest.raises(UnavailableError, match="Pause compaction and expiry"):
        source.backup(folder)
    with pytest.raises(NotFoundError):
        check_backup(folder)


def test_ledger_files_on_an_object_store_are_read_from_there(
    source: wc.Database, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = CountingFiles(tmp_path)
    store = LedgerFiles("ledgers", fs.PyFileSystem(handler))
    real = backing_up.open_topic
    monkeypatch.setattr(backing_up, "open_topic", lambda *arguments: _replaced(real(*arguments), store))
    assert source.backup(folder).copied == 2
    assert handler.reads
    with restored(folder) as copy:
        assert messages(copy) == messages(source)


def _replaced(storage: Any, files: LedgerFiles) -> Any:
    return type(storage)(storage.topic_id, storage.name, storage.backend, files)


@contextmanager
def largest_file(size: int) -> Generator[None]:
    """Let no file of this process grow beyond so many bytes: the filesystem's own error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, former)


@pytest.mark.parametrize("room", [100, 50_000])
def test_a_backup_without_room_fails_and_leaves_the_earlier_one(
    source: wc.Database, folder: Path, tmp_path: Path, room: int
) -> None:
    with largest_file(room), pytest.raises(UnavailableError, match="cannot copy"):
        source.backup(folder)
    with pytest.raises(NotFoundError):
        check_backup(folder)
    before = source.backup(folder)
    everything = messages(source)
    topic = source.topic("telemetry")
    topic.roll()
    topic.seal()
    with largest_file(room), pytest.raises(UnavailableError, match="cannot copy"):
        source.backup(folder)
    assert check_backup(folder).taken_at == before.taken_at
    with restored(folder) as copy:
        assert messages(copy) == everything


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupted_backup_leaves_only_the_earlier_one(source: wc.Database, folder: Path) -> None:
    def left() -> list[Path]:
        return sorted(each for each in folder.rglob("*") if each.is_file())

    with pytest.raises(KeyboardInterrupt):
        source.backup(folder, interrupt)
    assert left() == [folder / LOCK]
    source.backup(folder)
    before = left()
    topic = source.topic("telemetry")
    topic.roll()
    topic.seal()
    with pytest.raises(KeyboardInterrupt):
        source.backup(folder, interrupt)
    assert left() == before


def test_a_copy_that_was_starting_when_the_backup_was_interrupted_leaves_no_file(
    source: wc.Database, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, removed = threading.Event(), threading.Event()

    def open_after_removal(path: Path) -> AbstractContextManager[BinaryIO]:
        started.set()
        removed.wait(0.3)  # the removal must wait for this copy, which ends by itself
        return durable_file(path)

    def start_and_interrupt(thread: threading.Thread) -> None:
        start(thread)
        if thread.name.startswith("ThreadPoolExecutor"):
            assert started.wait(60)
            raise KeyboardInterrupt

    def remove(*arguments: Any) -> None:
        remove_others(*arguments)
        removed.set()

    start, remove_others = threading.Thread.start, backing_up._remove_others
    monkeypatch.setattr(backing_up, "durable_file", open_after_removal)
    monkeypatch.setattr(backing_up, "_remove_others", remove)
    monkeypatch.setattr(threading.Thread, "start", start_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        source.backup(folder)
    for thread in threading.enumerate():
        if thread.name.startswith("ThreadPoolExecutor"):
            thread.join()
    assert [each for each in folder.rglob("*") if each.is_file()] == [folder / LOCK]


def test_a_restore_without_room_leaves_no_database(source: wc.Database, folder: Path, tmp_path: Path) -> None:
    source.backup(folder)
    with largest_file(100), pytest.raises(UnavailableError, match="cannot"):
        restored(folder)
    assert not (tmp_path / "copy.db").exists()


def test_for_a_server_the_error_names_its_own_tools(tmp_path: Path) -> None:
    for url in ("postgresql+psycopg://u:secret@db/x", "mysql+pymysql://u:secret@db/x", "mariadb://u:secret@db/x"):
        with pytest.raises(InvalidArgumentError, match=r"run pg_dump.*back-up-and-restore") as raised:
            wc.restore(tmp_path, url)
        assert "secret" not in str(raised.value)


def test_progress_is_reported_to_the_caller(source: wc.Database, folder: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    back_up(source.backend, source.ledgers, folder, lambda *facts: reports.append(facts))
    assert {what for what, *_ in reports} == {"database", "ledger files"}
    assert all(done == total for what, done, total in [reports[-1]])


def test_the_manifest_says_what_is_in_it(source: wc.Database, folder: Path) -> None:
    done: BackedUp = source.backup(folder)
    text = json.loads((folder / "waterclock-backup.json").read_text())
    assert text["format"] == 1
    assert text["backup"]["taken_at"] == done.taken_at == NOW
    assert done.size == sum(path.stat().st_size for path in folder.rglob("*.*") if path.suffix in (".db", ".parquet"))


def test_a_commit_between_two_steps_neither_shows_nor_makes_it_begin_again(
    source: wc.Database, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_PAGES", 8)
    before = rows(source.backend.engine)
    done: list[int] = []

    def put_meanwhile(what: str, copied: int, _total: int) -> None:
        if what == "database" and len(done) < 100:
            done.append(copied)
            with wc.connect(source.backend.url.render_as_string()) as other:  # which is like another process
                other.table("orders").put({"n": 99}, group="g9")

    source.backup(folder, put_meanwhile)
    assert len(done) > 2
    assert done == sorted(set(done)), "each step goes on from the one before"
    with restored(folder) as copy:
        assert rows(copy.backend.engine) == before
    assert rows(source.backend.engine) != before
