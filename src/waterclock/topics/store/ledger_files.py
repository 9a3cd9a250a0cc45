"""Stores the files of sealed ledgers on any filesystem that pyarrow or fsspec knows.

A file is either complete or missing. A folder of ledger files is a *store*, with an identity in the object `MARKER` at
its root. The marker is checked before a file is created or removed, and when a file is missing. An unmounted, renamed
or different folder counts as a fault of the whole store, not as a lost file.
"""

from __future__ import annotations

import errno
import json
import os
import posixpath
import re
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from waterclock._support.closing import closing_writer
from waterclock._support.durable import durable_file, make_folder, sync, unfinished
from waterclock._support.quoting import quoted
from waterclock.errors import DamagedError, UnavailableError
from waterclock.topics.store import roots

MARKER = "waterclock-store.json"
"""Name of the object at a store's root that holds its identity."""

FORMAT = 1
_LARGEST_MARKER = 4096
_IDENTITY = re.compile(r"[0-9a-f]{32}")
_UNSAFE = re.compile(r"[\\\x00-\x1f]")  # a backslash separates folders on Windows
_FAILURES = (OSError, pa.ArrowException)
_FULL = (errno.ENOSPC, errno.EDQUOT)


class LostFileError(UnavailableError):
    """The file of a sealed ledger is missing: a retry does not help."""


class StoreError(UnavailableError):
    """The store of a topic's ledger files is missing, or its place holds another store."""


class UnreachableStoreError(StoreError):
    """The store cannot be reached now, so it is unknown whether it exists."""


class LedgerFiles:
    """A store of ledger files, local or on an object store. Can be pickled; opens its filesystem on first use.

    Parameters
    ----------
    root
        A folder, or a filesystem URL such as ``s3://bucket/folder``.
    filesystem
        Used instead of the one that ``root`` names; ``root`` is then a path on it.
    identity
        The required identity of the store; None: any.
    recorded
        Its root in the catalogue, for errors.
    """

    def __init__(
        self,
        root: str,
        filesystem: fs.FileSystem | None = None,
        *,
        identity: str | None = None,
        recorded: str | None = None,
    ) -> None:
        is_path = filesystem is None or isinstance(filesystem, fs.LocalFileSystem)
        self.root = roots.absolute(root) if is_path else root.rstrip("/")
        self.filesystem = filesystem
        self.identity = identity
        self.place = roots.shown(self.root, filesystem)
        self.recorded = recorded or self.place

    @property
    def is_complete(self) -> bool:
        """Whether `place` alone opens the store, without credentials, options or a filesystem."""
        is_path = self.filesystem is None or isinstance(self.filesystem, fs.LocalFileSystem)
        return is_path and self.place == self.root.rstrip("/")

    @property
    def is_local(self) -> bool:
        """Whether the files are on this machine."""
        return isinstance(self._opened[0], fs.LocalFileSystem)

    def name(self, path: str) -> str:
        """Return the full name of a file, as Spark or DuckDB want it, without credentials and options."""
        return posixpath.join(self.place, path)

    def marker(self) -> str | None:
        """Read the identity of the store at the root; None if the root holds no store.

        Raises `UnreachableStoreError` if the place does not answer. Raises `StoreError` if the marker there cannot be
        read by this version.
        """
        try:
            filesystem, base = self._opened
            with filesystem.open_input_file(posixpath.join(base, MARKER)) as file:
                data = file.read(_LARGEST_MARKER)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except UnavailableError as error:
            raise UnreachableStoreError(str(error)) from error
        except _FAILURES as error:
            raise UnreachableStoreError(
                f"cannot reach the ledger store {self.place}: {roots.first_line(error, self.root)}"
            ) from error
        return self._identity_in(data)

    def check(self) -> None:
        """Check that the store exists and is the right one.

        Raises `StoreError` if it is missing or another one (the text names both places), or if it cannot be reached.
        """
        if self.identity is None:
            return
        found = self.marker()
        if found == self.identity:
            return
        wrong = f"it is another store ({found})" if found else f"{MARKER} is missing"
        raise StoreError(
            f"cannot use the ledger store {self.place}: {wrong}. The files of the topic are in store"
            f" {self.identity}, last known at {self.recorded}. Is this store mounted, and does ledgers= name it? If the"
            " store was moved, run 'waterclock topic relocate'"
        )

    def write_marker(self, identity: str, *, replace: bool = False) -> str:
        """Create a store at the root, with its folder, and return its identity, which may be another maker's.

        Raises `UnavailableError` if it cannot be written.

        Parameters
        ----------
        identity
            The new identity.
        replace
            Overwrite the marker of an existing store: a restored copy must not keep the original's identity.
        """
        data = json.dumps({"identity": identity, "format": FORMAT}).encode()
        base = self._opened[1]
        try:
            if self.is_local:
                make_folder(Path(base))
                if replace:
                    with durable_file(Path(base) / MARKER) as sink:
                        sink.write(data)
                else:
                    _write_once(Path(base) / MARKER, data)
            else:
                with closing_writer(self._output(posixpath.join(base, MARKER))) as sink:
                    sink.write(data)
        except _FAILURES as error:
            raise UnavailableError(f"cannot create a ledger store at {self.place}: {self._reason(error)}") from error
        # An object store has no "create if missing": of two creators, the last one wins.
        return self.marker() or identity

    @contextmanager
    def create(self, path: str) -> Generator[Any]:
        """Open a new file for writing; it exists, durable and complete, when the block ends without an error.

        Raises `StoreError` if the store is missing or another one: nothing is written, and no folder is created
        instead. Raises `UnavailableError` if the disk is full, or it cannot be written for another reason, which the
        text names.
        """
        _, full = self._inside(path)
        self.check()
        base = self._opened[1]
        try:
            if self.is_local:
                _make_folders(Path(full).parent, Path(base))
                with durable_file(Path(full)) as sink:
                    yield sink
            else:
                # An object appears only once it is complete, and its name is used once, so no renaming is needed.
                with closing_writer(self._output(full)) as sink:
                    yield sink
        except _FAILURES as error:
            raise UnavailableError(f"cannot write {self.name(path)}: {self._reason(error)}") from error
        if self.is_local:
            self.check()  # if a folder is unmounted during a write, its path then leads to another folder

    def open(self, path: str) -> Any:
        """Open a file for reading, as a ``pyarrow.NativeFile``.

        Raises `LostFileError` if the store is there and the file is gone. Raises `UnavailableError` if it cannot be
        reached now.
        """
        try:
            filesystem, full = self._inside(path)
            return filesystem.open_input_file(full)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._gone(path) from error
        except _FAILURES as error:
            raise UnavailableError(f"cannot read {self.name(path)}: {self._reason(error)}") from error

    def read_range(self, path: str, size: int, offset: int, length: int) -> pa.Buffer:
        """Read some bytes of a file of ``size`` bytes in one request.

        Raises `LostFileError` if the file is gone. Raises `DamagedError` if it has another size. Raises
        `UnavailableError` if it cannot be reached now.
        """
        with self.open(path) as file:
            try:
                found = file.size()
                file.seek(offset)
                data = file.read_buffer(length if found == size else 0)
            except FileNotFoundError as error:
                raise self._gone(path) from error  # some stores report that only on the first read
            except _FAILURES as error:
                raise UnavailableError(f"cannot read {self.name(path)}: {self._reason(error)}") from error
        if len(data) < length:
            raise DamagedError(f"the ledger file {self.name(path)} is corrupt: expected {size} bytes, found {found}")
        return data

    def size(self, path: str) -> int:
        """Return a file's length in bytes; LostFileError if the store is there and the file is gone."""
        size = self.size_if_there(path)
        if size is None:
            raise self._gone(path)
        return size

    def size_if_there(self, path: str) -> int | None:
        """Return a file's length in bytes; None if it does not exist.

        Raises `UnavailableError` if it cannot be reached now.
        """
        try:
            filesystem, full = self._inside(path)
            info = filesystem.get_file_info(full)
        except _FAILURES as error:
            raise UnavailableError(f"cannot reach {self.name(path)}: {self._reason(error)}") from error
        return info.size if info.type == fs.FileType.File else None

    def listing(self, folder: str | None = None) -> Iterator[tuple[str, int]]:
        """List the files of a folder of the store, or of all its folders: names, and lengths in bytes.

        Raises `StoreError` if the store is absent or another one. Raises `UnavailableError` if it cannot be reached
        now.
        """
        self.check()
        filesystem, base = self._opened
        at = self._inside(folder)[1] if folder else base
        try:
            if self.is_local:
                found = list(_local_files(at))
            else:
                infos = filesystem.get_file_info(fs.FileSelector(at, allow_not_found=True, recursive=True))
                found = [(info.path, info.size) for info in infos if info.type == fs.FileType.File]
        except _FAILURES as error:
            raise UnavailableError(f"cannot list {self.place}: {self._reason(error)}") from error
        for full, size in found:
            yield posixpath.relpath(full, base), size

    def is_empty(self) -> bool:
        """Return whether the folder is empty or missing; UnavailableError if it cannot be reached."""
        try:
            filesystem, base = self._opened
            return not filesystem.get_file_info(fs.FileSelector(base, allow_not_found=True))
        except _FAILURES as error:
            raise UnavailableError(f"cannot list {self.place}: {self._reason(error)}") from error

    def clear(self) -> None:
        """Remove everything in the folder; only for one that was empty before. UnavailableError if that fails."""
        try:
            filesystem, base = self._opened
            filesystem.delete_dir_contents(base, missing_dir_ok=True)
        except _FAILURES as error:
            raise UnavailableError(f"cannot delete {self.place}: {self._reason(error)}") from error

    def delete(self, path: str) -> None:
        """Remove a file and the remains of an interrupted writer; does nothing if it does not exist.

        Raises `StoreError` if the store is absent or another one. Raises `UnavailableError` if the file cannot be
        removed now.
        """
        filesystem, full = self._inside(path)
        self.check()
        for name in (full, unfinished(full)) if self.is_local else (full,):
            try:
                filesystem.delete_file(name)
            except FileNotFoundError:
                continue
            except _FAILURES as error:
                raise UnavailableError(f"cannot delete {self.name(path)}: {self._reason(error)}") from error

    def at_identity(self, identity: str) -> LedgerFiles:
        """Return the same place, with this required identity."""
        return LedgerFiles(self.root, self.filesystem, identity=identity, recorded=self.recorded)

    @cached_property
    def _opened(self) -> tuple[fs.FileSystem, str]:
        return roots.opened(self.root) if self.filesystem is None else (self.filesystem, self.root)

    def _inside(self, path: str) -> tuple[fs.FileSystem, str]:
        """Return the filesystem and the path on it of a file in the store.

        Raises
        ------
        DamagedError
            For a path that no ledger file has. Paths come from the catalogue, which others may write to, and one with
            ``..``, or through a symlink, would read, overwrite or delete a file outside the store.
        """
        filesystem, base = self._opened
        full = posixpath.join(base, path)
        if (
            path == MARKER
            or _UNSAFE.search(path)
            or any(part in ("", ".", "..") for part in path.split("/"))
            or (self.is_local and not _leads_into(base, full))
        ):
            raise DamagedError(
                f"ledger file {quoted(path)} in the catalogue must lie inside the store {self.place}. Correct"
                " its path in the tables waterclock_ledgers and waterclock_files"
            )
        return filesystem, full

    def _output(self, full: str) -> Any:
        filesystem = self._opened[0]
        try:
            return filesystem.open_output_stream(full)
        except FileNotFoundError:
            # Unlike an object store, this one has folders. The root exists: its marker was read.
            filesystem.create_dir(posixpath.dirname(full), recursive=True)
            return filesystem.open_output_stream(full)

    def _gone(self, path: str) -> LostFileError:
        self.check()  # if the store is missing, the file is not lost
        return LostFileError(f"the ledger file {self.name(path)} is missing")

    def _identity_in(self, data: bytes) -> str:
        try:
            marker = json.loads(data)
            identity, version = marker["identity"], marker["format"]
        except (ValueError, TypeError, KeyError):
            identity, version = "", FORMAT
        if version != FORMAT:
            raise StoreError(
                f"cannot read {self.name(MARKER)}: its format is {version!r}, and this version of Waterclock reads"
                f" format {FORMAT}. Update waterclock"
            )
        if not isinstance(identity, str) or not is_identity(identity):
            raise StoreError(f"{self.name(MARKER)} is corrupt: it holds no store identity")
        return identity

    def _reason(self, error: BaseException) -> str:
        text = roots.first_line(error, self.root)
        return f"{text}; is the disk full?" if getattr(error, "errno", None) in _FULL else text

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.root, self.filesystem, self.identity, self.recorded)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LedgerFiles) and self.__reduce__()[1] == other.__reduce__()[1]

    def __hash__(self) -> int:
        return hash((self.root, self.identity))

    def __repr__(self) -> str:
        return f"<LedgerFiles {self.place}>"


def is_identity(text: str) -> bool:
    """Check whether a text is the identity of a store."""
    return _IDENTITY.fullmatch(text) is not None


def _rebuilt(root: str, filesystem: fs.FileSystem | None, identity: str | None, recorded: str) -> LedgerFiles:
    return LedgerFiles(root, filesystem, identity=identity, recorded=recorded)


def _leads_into(root: str, path: str) -> bool:
    """Check whether a path lies below the root after symlinks are resolved; the root itself may be one."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


def _local_files(folder: str) -> Iterator[tuple[str, int]]:
    """List the files of a folder and its folders. Symlinks are left out: they may lead outside, or in a circle."""

    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for at, _, names in os.walk(folder, onerror=fail):
        for name in names:
            full = posixpath.join(at, name)
            try:
                found = os.lstat(full)
            except FileNotFoundError:
                continue  # removed meanwhile
            if stat.S_ISREG(found.st_mode):
                yield full, found.st_size


def _write_once(path: Path, data: bytes) -> None:
    """Write a small file, durable and complete, unless it exists."""
    own = path.with_name(f"{path.name}.{os.urandom(8).hex()}.part")
    try:
        with closing_writer(own.open("wb")) as sink:
            sink.write(data)
            sink.flush()
            os.fsync(sink.fileno())
        try:
            path.hardlink_to(own)
        except FileExistsError:
            return
        except OSError:
            if not path.exists():
                own.rename(path)  # a filesystem without links: the last writer wins, as on an object store
    finally:
        own.unlink(missing_ok=True)
    sync(path.parent)


def _make_folders(folder: Path, root: Path) -> None:
    """Create the missing folders below the root, never the root itself."""
    for each in reversed([folder, *folder.parents]):
        if root in each.parents and not each.exists():
            each.mkdir(exist_ok=True)
            sync(each.parent)
