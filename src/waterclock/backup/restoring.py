"""Restores a backup as a new SQLite database with ledger files of its own.

1. Check the manifest and every checksum before writing anything.
2. Copy the database under a name that no command opens, and assign a ledger store of its own to the copy.
3. Copy the ledger files, and compare each copy with its checksum.
4. Rename the database to its final name, which makes the copy complete.

If the restore is interrupted before step 4, no database exists yet. An error or Ctrl-C also leaves no ledger files, but
a kill may leave some.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from waterclock._support.closing import closing_writer
from waterclock._support.durable import make_folder, sync, unfinished
from waterclock.backup import manifest as manifests
from waterclock.backup.copying import Report, check, copy_checked, no_report
from waterclock.backup.manifest import Kept, Manifest, read_manifest
from waterclock.backup.new_store import found_store
from waterclock.backup.snapshot import database_file
from waterclock.database.backend import Backend
from waterclock.errors import InvalidArgumentError, UnavailableError
from waterclock.topics.store.ledger_files import LedgerFiles
from waterclock.topics.store.ledger_root import ledgers_beside

_log = logging.getLogger(__name__)

_BESIDE = ("", "-wal", "-shm", "-journal")  # SQLite would use the remains of another database


@dataclass(frozen=True, slots=True)
class Restored:
    """The outcome of a restore.

    Attributes
    ----------
    database
        The new database's file.
    ledgers
        The root of its ledger files.
    taken_at
        The moment that it shows, ns.
    ledger_files, size
        How many ledger files there are, and bytes in all.
    faults
        Ledger files that were lost or cut short when the backup was made, each in words.
    """

    database: Path
    ledgers: str
    taken_at: int
    ledger_files: int
    size: int
    faults: tuple[str, ...]


def check_backup(source: str | Path, report: Report = no_report) -> Manifest:
    """Read every byte of a backup and compare it with its checksum; return the manifest.

    Raises
    ------
    NotFoundError
        If the folder holds no complete backup.
    DamagedError
        If a file of it is gone, or differs from its written form.
    UnavailableError
        If a file cannot be read now.
    """
    folder = Path(source).absolute()
    manifest = read_manifest(folder)
    done = 0
    for file, kept in [
        (folder / manifest.database.path, manifest.database),
        *((folder / manifests.LEDGERS / kept.path, kept) for kept in manifest.ledgers),
    ]:
        check(file, kept)
        done += kept.size
        report("checking", done, manifest.size)
    return manifest


def restore(source: str | Path, url: str, ledgers: str | Path | None = None, report: Report = no_report) -> Restored:
    """Restore a backup to a new database with its own ledger files; those of the original are never touched.

    Leases and claims that were held when the backup was made end by themselves: their holders work on the original.

    Parameters
    ----------
    source
        The folder of the backup.
    url
        The new database, ``sqlite:///FILE``; there must be no such file yet.
    ledgers
        Folder or filesystem URL for the ledger files, which must be new or empty; None: ``FILE-ledgers`` next to the
        file.
    report
        Called with how far it is.

    Raises
    ------
    InvalidArgumentError
        For a database on a server, and if the file or the folder is not new.
    NotFoundError, DamagedError
        If the folder holds no complete backup, or a file of it is corrupt; then nothing was written.
    UnavailableError
        If something cannot be read or written; then the partial result is removed.
    """
    database = _new_database(url)
    root = ledgers_beside(str(database)) if ledgers is None else str(ledgers)
    files = LedgerFiles(root)
    if not files.is_empty():
        raise InvalidArgumentError(
            f"ledgers must be a new or empty folder, got {root}. If a restore was interrupted, remove the folder"
        )
    folder = Path(source).absolute()
    manifest = check_backup(folder, report)
    try:
        _put_in_place(folder, manifest, database, files, report)
    except BaseException:
        if not database.exists():
            _remove_half(database, files)
        raise
    return Restored(database, root, manifest.taken_at, len(manifest.ledgers), manifest.size, manifest.faults)


def _new_database(url: str) -> Path:
    database = database_file(url)
    for suffix in _BESIDE:
        if (found := Path(f"{database}{suffix}")).exists():
            raise InvalidArgumentError(f"url must name a new database, got {found}, which already exists")
    return database


def _put_in_place(folder: Path, manifest: Manifest, database: Path, files: LedgerFiles, report: Report) -> None:
    part = Path(unfinished(str(database)))
    try:
        _remove_part(part)  # left by a killed restore
        make_folder(part.parent)
        with closing_writer(part.open("wb")) as sink:
            copy_checked(folder / manifest.database.path, sink, manifest.database)
        copied = Backend(f"sqlite:///{part}", create=True)
        try:
            found_store(copied, files)
        finally:
            copied.close()
        _copy_ledgers(folder / manifests.LEDGERS, manifest.ledgers, files, report)
        sync(part)
        part.rename(database)
        sync(database.parent)
    except OSError as error:
        raise UnavailableError(f"cannot restore {folder} into {database}: {error}") from error


def _remove_part(part: Path) -> None:
    for suffix in _BESIDE:
        Path(f"{part}{suffix}").unlink(missing_ok=True)


def _remove_half(database: Path, files: LedgerFiles) -> None:
    try:
        _remove_part(Path(unfinished(str(database))))
        files.clear()
    except (OSError, UnavailableError) as error:
        _log.warning("cannot remove %s: %s. Remove it before the next restore", files.place, error)


def _copy_ledgers(folder: Path, ledgers: tuple[Kept, ...], files: LedgerFiles, report: Report) -> None:
    total, done = sum(kept.size for kept in ledgers), 0
    for kept in ledgers:
        with files.create(kept.path) as sink:
            copy_checked(folder / kept.path, sink, kept)
        done += kept.size
        report("ledger files", done, total)
