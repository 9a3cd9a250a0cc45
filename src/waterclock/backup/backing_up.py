"""Backs up an SQLite database and its ledger files into a folder, while others append, seal, compact and expire.

1. Copy the ledger files that the catalogue names. These are most of the data, and never change.
2. Take a snapshot of the database, and copy the few ledger files that only the snapshot names. If one of them was
   deleted meanwhile because its grace time had ended, repeat this step: the next snapshot names the file that replaced
   it.
3. Write the manifest, which makes the backup complete.
4. Remove files of an earlier backup that the new backup does not need.

The folder holds the earlier backup until step 3, and the new backup afterwards, even if the run is interrupted. After
an error or Ctrl-C, step 4 removes the copied files that no backup needs; after a kill, the next backup removes them.
The backup only reads the source: it neither locks, marks nor deletes anything there.
"""

from __future__ import annotations

import fcntl
import logging
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from waterclock._support import moments
from waterclock._support.durable import durable_file, make_folder
from waterclock._support.quoting import quoted
from waterclock._support.urls import without_secrets
from waterclock.backup import manifest as manifests
from waterclock.backup.copying import Report, copy, measure, no_report
from waterclock.backup.manifest import Kept, Manifest, read_manifest, write_manifest
from waterclock.backup.snapshot import Named, database_file, named_files, take_snapshot
from waterclock.database.backend import Backend
from waterclock.errors import InvalidArgumentError, NotFoundError, UnavailableError
from waterclock.topics.catalogue.creating import open_topic
from waterclock.topics.store.ledger_files import LedgerFiles, LostFileError
from waterclock.topics.store.ledger_root import LedgerRoot

LOCK = "waterclock-backup.lock"
"""The file in the folder that marks it as one for backups, and that is locked while one is made."""

_SNAPSHOTS = 10  # at most; each but the first follows the copying of new files
_AT_ONCE = 4  # files; each waits for the disk, or for a remote store

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BackedUp:
    """The outcome of a backup.

    Attributes
    ----------
    folder
        Its folder.
    taken_at
        The moment that it shows, ns: it contains everything committed before.
    ledger_files, size
        How many ledger files it has, and bytes in all.
    copied
        How many of the ledger files were copied; the others were in an earlier backup in the folder.
    faults
        Ledger files that are lost or cut short at the source, each in words. The backup contains everything else.
    """

    folder: Path
    taken_at: int
    ledger_files: int
    size: int
    copied: int
    faults: tuple[str, ...]


def back_up(backend: Backend, ledgers: LedgerRoot, destination: str | Path, report: Report = no_report) -> BackedUp:
    """Back up an SQLite database and its ledger files.

    Parameters
    ----------
    backend, ledgers
        The database, and where its ledgers lie.
    destination
        A folder that is new or empty, or that holds an earlier backup of the same database: then ledger files that it
        has are not copied again, and the earlier backup is replaced once this one is whole.
    report
        Called with how far it is.

    Raises
    ------
    InvalidArgumentError
        For a database on a server, and for a folder that holds something else.
    UnavailableError
        If the folder cannot be written, or the database or a store not be read.
    """
    source = str(database_file(backend.url))
    folder = _folder(destination)
    with _locked(folder):
        earlier = _earlier(folder, source)
        with _without_remains(folder):
            copier = _Copier(backend, ledgers, folder / manifests.LEDGERS, report)
            if earlier is not None:
                copier.take_over(earlier.ledgers)
            copier.copy(named_files(backend))
            number = 1 if earlier is None else earlier.number + 1
            file = folder / f"database-{number}.db"
            taken_at, named, faults = _consistent(backend, copier, file, report)
            written = Manifest(
                source=source,
                taken_at=taken_at,
                number=number,
                database=measure(file, file.name),
                ledgers=tuple(copier.kept[each.path] for each in named if each.path in copier.kept),
                faults=faults,
            )
            write_manifest(folder, written)
    copied = sum(kept.path in copier.copied for kept in written.ledgers)
    return BackedUp(folder, taken_at, len(written.ledgers), written.size, copied, faults)


def holds_backup(destination: str | Path) -> Manifest | None:
    """Read the manifest of a folder for backups; None if it holds no whole backup."""
    try:
        return read_manifest(Path(destination))
    except NotFoundError:
        return None


def _folder(destination: str | Path) -> Path:
    if "://" in str(destination):
        text = without_secrets(str(destination))
        raise InvalidArgumentError(f"destination must be a folder on this machine, got the URL {quoted(text)}")
    folder = Path(destination).absolute()
    if folder.exists() and not folder.is_dir():
        raise InvalidArgumentError(f"destination must be a folder, got the file {folder}")
    ours = (folder / manifests.NAME, folder / LOCK)
    if folder.exists() and any(folder.iterdir()) and not any(each.exists() for each in ours):
        raise InvalidArgumentError(
            f"destination must be a new folder, an empty folder, or an earlier backup, got {folder}"
        )
    return folder


def _earlier(folder: Path, source: str) -> Manifest | None:
    earlier = holds_backup(folder)
    if earlier is not None and earlier.source != source:
        raise InvalidArgumentError(
            f"destination must not hold a backup of another database, got {folder}, which holds a"
            f" backup of {earlier.source}"
        )
    return earlier


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    try:
        make_folder(folder)
        lock = (folder / LOCK).open("wb")
    except OSError as error:
        raise UnavailableError(f"cannot write {folder}: {error}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UnavailableError(
                f"cannot back up into {folder}: another backup into this folder is running. Wait until it ends"
            ) from None
        yield


@contextmanager
def _without_remains(folder: Path) -> Generator[None]:
    """At the end, remove files that the folder's backup, the earlier or the new one, does not have."""
    try:
        yield
    finally:
        _remove_others(folder, holds_backup(folder))


class _Copier:
    """Copies ledger files into the folder of a backup, each once."""

    def __init__(self, backend: Backend, ledgers: LedgerRoot, folder: Path, report: Report) -> None:
        self.kept: dict[str, Kept] = {}
        self.copied: set[str] = set()
        self.faults: dict[str, str] = {}
        self._backend = backend
        self._ledgers = ledgers
        self._folder = folder
        self._report = report

    def take_over(self, files: Iterable[Kept]) -> None:
        """Count those files of an earlier backup as copied that are still there."""
        for kept in files:
            file = self._folder / kept.path
            if file.is_file() and file.stat().st_size == kept.size:  # their bytes are checked by a restore
                self.kept[kept.path] = kept

    def copy(self, named: list[Named]) -> list[Named]:
        """Copy the missing files; return those that are gone."""
        stores: dict[str, LedgerFiles] = {}
        work: list[tuple[LedgerFiles, Named]] = []
        gone: list[Named] = []
        for each in named:
            kept = self.kept.get(each.path)
            if kept is not None and kept.size == each.size:
                continue
            try:
                store = stores.get(each.topic) or open_topic(self._backend, self._ledgers, each.topic).files
            except NotFoundError:
                gone.append(each)  # together with its topic
                continue
            stores[each.topic] = store
            work.append((store, each))
        total, done = sum(each.size for _, each in work), 0
        with closing(_at_once(self._copy, work)) as copied:  # after this, no file is being written
            for each, kept in copied:
                done += each.size
                self._report("ledger files", done, total)
                if kept is None:
                    gone.append(each)
                else:
                    self.kept[each.path] = kept
                    self.copied.add(each.path)
        return gone

    def _copy(self, store: LedgerFiles, each: Named) -> tuple[Named, Kept | None]:
        file = self._folder / each.path
        try:
            with store.open(each.path) as source, durable_file(file) as sink:
                kept = copy(source, sink, each.path)
        except LostFileError:
            return each, None
        except OSError as error:
            if _is_gone(store, each.path):
                return each, None
            raise UnavailableError(f"cannot copy {store.name(each.path)} into {file}: {error}") from error
        if kept.size != each.size:
            self.faults[each.path] = f"{store.name(each.path)} has {kept.size} bytes instead of {each.size}"
        return each, kept


def _at_once(
    work_off: Callable[[LedgerFiles, Named], tuple[Named, Kept | None]], work: list[tuple[LedgerFiles, Named]]
) -> Generator[tuple[Named, Kept | None]]:
    pool, under_way = ThreadPoolExecutor(_AT_ONCE), _UnderWay()

    def work_off_one(arguments: tuple[LedgerFiles, Named]) -> tuple[Named, Kept | None]:
        with under_way.one_more():
            return work_off(*arguments)

    try:
        yield from pool.map(work_off_one, work)
    finally:
        # The pool does not join a thread that it was starting at the time of Ctrl-C.
        pool.shutdown(wait=False, cancel_futures=True)
        under_way.end()


class _UnderWay:
    """Counts the copies under way, to wait for them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._has_ended = False

    @contextmanager
    def one_more(self) -> Generator[None]:
        with self._changed:
            if self._has_ended:
                raise CancelledError
            self._count += 1
        try:
            yield
        finally:
            with self._changed:
                self._count -= 1
                self._changed.notify()

    def end(self) -> None:
        """Prevent new copies, and wait for those under way."""
        with self._changed:
            self._has_ended = True
            moments.wait_for(self._changed, lambda: not self._count)


def _is_gone(store: LedgerFiles, path: str) -> bool:
    try:
        store.size(path)
    except LostFileError:
        return True
    return False


def _consistent(
    backend: Backend, copier: _Copier, file: Path, report: Report
) -> tuple[int, list[Named], tuple[str, ...]]:
    """Take snapshots until one has all the files that it names; return its moment, the files, and the faults."""
    gone: list[Named] = []
    for _ in range(_SNAPSHOTS):
        taken_at, named = take_snapshot(backend, file, report)
        gone = copier.copy(named)
        # A file is created before the catalogue names it, and deleted after its name is removed. So a missing file that
        # is still named is lost.
        lost = set(gone).intersection(named_files(backend)) if gone else set[Named]()
        if lost.issuperset(gone):
            faults = dict(copier.faults) | {
                each.path: f"{each.path} of topic {each.topic!r}, which the catalogue names, is missing"
                for each in lost
            }
            return taken_at, named, tuple(faults[each.path] for each in named if each.path in faults)
    raise UnavailableError(
        f"cannot back up: ledger files such as {gone[0].path} were deleted before they could be copied, in each of"
        f" {_SNAPSHOTS} attempts. Pause compaction and expiry while the backup runs"
    )


def _remove_others(folder: Path, whole: Manifest | None) -> None:
    """Remove files that do not belong to the complete backup, if any: those of an earlier or interrupted one."""
    ledgers = folder / manifests.LEDGERS
    keep = set[Path]()
    if whole is not None:
        keep = {folder / whole.database.path, *(ledgers / kept.path for kept in whole.ledgers)}
    try:
        for file in [*folder.glob("database-*.db"), *sorted(ledgers.rglob("*"), reverse=True)]:
            if file.is_dir():
                with suppress(OSError):  # it is not empty
                    file.rmdir()
            elif file not in keep:
                file.unlink()
    except OSError as error:
        _log.warning("cannot delete files that the backup in %s does not need: %s", folder, error)
