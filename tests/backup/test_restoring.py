"""A restore is refused unless both places are new, checks all before it writes, and makes a store of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.backup.conftest import NOW
from tests.backup.contents import drained, messages, rows
from tests.support.catalogues import add_next_version
from tests.topics.flows import ledger_path

import waterclock as wc
from waterclock.backup.manifest import NAME
from waterclock.backup.new_store import make_independent
from waterclock.backup.restoring import check_backup
from waterclock.database.schema.topic_catalogue import stores, topics
from waterclock.errors import DamagedError, InvalidArgumentError, NotFoundError, SchemaError, UnavailableError
from waterclock.topics.catalogue import pending_files
from waterclock.topics.store.ledger_files import MARKER

HOUR = 3_600_000_000_000


@pytest.fixture
def backup(source: wc.Database, folder: Path) -> Path:
    source.backup(folder)
    return folder


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/copy.db"


def nothing_was_written(tmp_path: Path) -> bool:
    return not list(tmp_path.glob("copy.db*"))


def flipped(data: bytes) -> Iterator[bytes]:
    """Give the bytes with one bit changed, at twenty places."""
    for at in range(0, len(data), max(1, len(data) // 20)):
        yield data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]


def test_places_that_are_not_new_are_refused_by_name(backup: Path, url: str, tmp_path: Path) -> None:
    for name in ("copy.db", "copy.db-wal"):
        (tmp_path / name).touch()
        with pytest.raises(InvalidArgumentError, match=f"must name a new database, got .*{name}"):
            wc.restore(backup, url)
        (tmp_path / name).unlink()
    (tmp_path / "copy.db-ledgers").mkdir()
    (tmp_path / "copy.db-ledgers" / "precious").touch()
    with pytest.raises(InvalidArgumentError, match=r"a new or empty folder, got .*copy\.db-ledgers"):
        wc.restore(backup, url)
    with pytest.raises(InvalidArgumentError, match="a new or empty folder"):
        wc.restore(backup, url, tmp_path / "ledgers")
    assert not (tmp_path / "copy.db").exists()


def test_an_incomplete_backup_is_refused(backup: Path, url: str, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no complete backup found in"):
        wc.restore(tmp_path / "nowhere", url)
    (backup / NAME).unlink()
    with pytest.raises(NotFoundError, match="If the backup was interrupted"):
        wc.restore(backup, url)
    assert nothing_was_written(tmp_path)


def test_a_flipped_bit_anywhere_in_a_backup_is_found_before_anything_is_written(
    backup: Path, url: str, tmp_path: Path
) -> None:
    for file in [path for path in backup.rglob("*") if path.is_file() and path.suffix != ".lock"]:
        whole = file.read_bytes()
        for damaged in flipped(whole):
            file.write_bytes(damaged)
            with pytest.raises((DamagedError, SchemaError)):
                wc.restore(backup, url)
        for damaged in (whole[:-1], whole + b"\0", b""):
            file.write_bytes(damaged)
            with pytest.raises(DamagedError, match="is corrupt"):
                wc.restore(backup, url)
        file.write_bytes(whole)
    assert nothing_was_written(tmp_path)
    check_backup(backup)


def test_a_backup_that_lacks_a_file_is_refused(backup: Path, url: str, tmp_path: Path) -> None:
    next(backup.rglob("*.parquet")).unlink()
    with pytest.raises(DamagedError, match=r"\.parquet is missing"):
        wc.restore(backup, url)
    assert nothing_was_written(tmp_path)


@pytest.mark.parametrize("text", ["[]", "{}", "null", "[" * 100_000, '{"format": 1, "crc": 0, "backup": []}', "\0"])
def test_an_invalid_manifest_is_damaged(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / NAME).write_text(text)
    with pytest.raises(DamagedError, match=f"{NAME} is corrupt"):
        check_backup(folder)


def test_a_backup_of_a_newer_version_is_refused(backup: Path) -> None:
    written = json.loads((backup / NAME).read_text())
    (backup / NAME).write_text(json.dumps(written | {"format": 2}))
    with pytest.raises(SchemaError, match="Update waterclock"):
        check_backup(backup)


def test_the_copy_has_a_store_of_its_own(source: wc.Database, backup: Path, url: str, tmp_path: Path) -> None:
    identities = set[str]()
    for name in ("copy", "second"):
        wc.restore(backup, f"sqlite:///{tmp_path}/{name}.db", tmp_path / f"{name}-files")
        with wc.connect(f"sqlite:///{tmp_path}/{name}.db", tmp_path / f"{name}-files") as copy:
            with copy.backend.snapshot() as connection:
                [store] = connection.execute(sa.select(stores)).all()
                assert set(connection.execute(sa.select(topics.c.store_id)).scalars()) == {store.id}
            marker = json.loads((tmp_path / f"{name}-files" / MARKER).read_text())
            assert marker == {"identity": store.identity, "format": 1}
            assert store.root == str(tmp_path / f"{name}-files")
            identities.add(store.identity)
            copy.topic("telemetry").remove()
    assert len(identities) == 2
    assert sum(map(len, messages(source).values())) == 81, "the original keeps what the copies removed"


def test_leases_of_the_time_of_the_backup_end_and_everything_is_drained(
    backup: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wc.restore(backup, url)
    later = NOW + 3 * HOUR
    with wc.connect(url, clock=lambda: later) as copy:
        copy.table("orders").groups.resume("g2")
        copy.table("plain").resume()
        left = drained(copy, "orders")
        assert [payload["n"] for group, payload in left if group == "g0"] == [3, 6]
        assert sorted(payload["n"] for _, payload in left) == [1, 2, 3, 4, 5, 6, 7, 8]
        assert [payload for _, payload in drained(copy, "kept")] == [b"\x00\xff"]
        assert sorted(payload for _, payload in drained(copy, "plain")) == ["three", "two"]
        topic = copy.topic("telemetry")
        assert len(topic.subscribe("accounts").read()) == 66
        topic.append([wc.Message("press", "load", 81)])
        topic.roll()
        assert topic.seal() == 2


def test_files_that_were_being_written_during_the_backup_are_swept_in_the_copy(
    source: wc.Database, folder: Path, url: str
) -> None:
    storage = source.topic("telemetry").storage
    pending = pending_files.new_file(storage, 3, 3)

    def work(connection: sa.Connection) -> None:
        _, now = storage.lock(connection)
        assert pending_files.record(storage, connection, pending, now)

    source.backend.transact(work)
    source.backup(folder)
    wc.restore(folder, url)
    with wc.connect(url, clock=lambda: NOW + HOUR) as copy:
        assert copy.topic("telemetry").seal() == 1
        assert "waterclock_files" in rows(copy.backend.engine)
        with copy.backend.snapshot() as connection:
            assert pending.path not in set(connection.execute(sa.text("SELECT path FROM waterclock_files")).scalars())


def test_a_backup_whose_catalogue_is_older_is_brought_to_this_version(
    tmp_path: Path, folder: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with wc.connect(f"sqlite:///{tmp_path}/old.db") as old:
        old.create_table("orders", payload="text").put("one")
        old.backup(folder)
    add_next_version(tmp_path, monkeypatch)
    wc.restore(folder, url)
    with wc.connect(url) as copy:
        assert [delivery.payload for delivery in copy.table("orders").receive()] == ["one"]


def test_files_of_a_killed_restore_are_removed_by_the_next_one(backup: Path, url: str, tmp_path: Path) -> None:
    (tmp_path / "copy.db.part").write_bytes(b"half a database")
    (tmp_path / "copy.db.part-wal").write_bytes(b"and its log")
    wc.restore(backup, url)
    assert {path.name for path in tmp_path.glob("copy.db*")} == {"copy.db", "copy.db-ledgers"}


@pytest.mark.parametrize("step", ["checking", "ledger files"])
def test_a_restore_that_is_interrupted_leaves_no_file(backup: Path, url: str, tmp_path: Path, step: str) -> None:
    def interrupt(what: str, *_: int) -> None:
        if what == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wc.restore(backup, url, report=interrupt)
    assert not [path for path in tmp_path.rglob("copy.db*/**/*") if path.is_file()]
    assert not (tmp_path / "copy.db").exists()
    wc.restore(backup, url)


def test_a_copy_that_other_tools_made_becomes_independent(source: wc.Database, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="which the original database uses"):
        make_independent(source.backend, str(tmp_path / "ledgers"))
    shutil.copytree(tmp_path / "ledgers", tmp_path / "copied")
    lost = tmp_path / "copied" / ledger_path(source.topic("telemetry"), 2).relative_to(tmp_path / "ledgers")
    whole = lost.read_bytes()
    lost.unlink()
    before = rows(source.backend.engine)
    with pytest.raises(UnavailableError, match=r"1 of 2 ledger files are missing in .* Nothing was changed"):
        make_independent(source.backend, str(tmp_path / "copied"))
    assert rows(source.backend.engine) == before
    lost.write_bytes(whole)
    former = (tmp_path / "copied" / MARKER).read_text()
    assert make_independent(source.backend, str(tmp_path / "copied")) == 2
    assert (tmp_path / "copied" / MARKER).read_text() != former
    assert (tmp_path / "ledgers" / MARKER).read_text() == former
