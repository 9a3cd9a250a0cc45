"""The files of sealed ledgers, on any filesystem that pyarrow knows: written whole or not at all, read in ranges."""

from __future__ import annotations

import posixpath
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from waterclock.durable import durable_file, unfinished
from waterclock.errors import InvalidArgumentError, UnavailableError


class LostFileError(UnavailableError):
    """The file of a sealed ledger is gone, cut short or damaged: trying again will not help."""


class LedgerFiles:
    """A folder of ledger files, local or on an object store.

    Parameters
    ----------
    root
        A folder, or a filesystem URL such as ``s3://bucket/folder``.
    filesystem
        Stands in for the one that ``root`` names; ``root`` is then a path on it.

    Raises
    ------
    InvalidArgumentError
        Where ``root`` is no URL of a filesystem that pyarrow knows.
    """

    def __init__(self, root: str, filesystem: fs.FileSystem | None = None) -> None:
        self.root = root
        if filesystem is not None:
            self._filesystem, self._base = filesystem, root
        elif "://" in root:
            try:
                self._filesystem, self._base = fs.FileSystem.from_uri(root)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise InvalidArgumentError(
                    f"ledgers: {root!r} is no filesystem URL: {error}; give a folder or a URL such as s3://bucket/folder"
                ) from None
        else:
            self._filesystem, self._base = fs.LocalFileSystem(), str(Path(root).absolute())
        self._is_local = isinstance(self._filesystem, fs.LocalFileSystem)

    def name(self, path: str) -> str:
        """Give the full name of a file, as Spark or DuckDB want it."""
        return posixpath.join(self.root, path)

    @contextmanager
    def create(self, path: str) -> Generator[Any]:
        """Open a new file for writing; it is there, durable and whole, when the block ends without an error.

        Raises
        ------
        UnavailableError
            Where the disk is full or the store cannot be reached.
        """
        full = posixpath.join(self._base, path)
        try:
            if self._is_local:
                with durable_file(Path(full)) as sink:
                    yield sink
            else:
                # A store shows an object only when it is whole, and the name is used once: no renaming.
                with self._filesystem.open_output_stream(full) as sink:
                    yield sink
        except OSError as error:
            raise UnavailableError(f"cannot write {self.name(path)}: {error}; is the disk full?") from error

    def open(self, path: str) -> Any:
        """Open a file for reading, as a ``pyarrow.NativeFile``.

        Raises
        ------
        LostFileError
            Where it is gone.
        UnavailableError
            Where it cannot be reached now.
        """
        try:
            return self._filesystem.open_input_file(posixpath.join(self._base, path))
        except FileNotFoundError as error:
            raise LostFileError(f"the ledger file {self.name(path)} is gone") from error
        except OSError as error:
            raise UnavailableError(f"cannot read {self.name(path)}: {error}") from error

    def read_range(self, path: str, size: int, offset: int, length: int) -> pa.Buffer:
        """Read some bytes of a file of ``size`` bytes in one request.

        Raises
        ------
        LostFileError
            Where the file is gone or has another size.
        UnavailableError
            Where it cannot be reached now.
        """
        with self.open(path) as file:
            try:
                found = file.size()
                file.seek(offset)
                data = file.read_buffer(length if found == size else 0)
            except OSError as error:
                raise UnavailableError(f"cannot read {self.name(path)}: {error}") from error
        if len(data) < length:
            raise LostFileError(f"the ledger file {self.name(path)} has {found} bytes; {size} were written")
        return data

    def size(self, path: str) -> int:
        """Give a file's length in bytes; LostFileError where it is gone."""
        try:
            info = self._filesystem.get_file_info(posixpath.join(self._base, path))
        except OSError as error:
            raise UnavailableError(f"cannot reach {self.name(path)}: {error}") from error
        if info.type != fs.FileType.File:
            raise LostFileError(f"the ledger file {self.name(path)} is gone")
        return info.size

    def is_empty(self) -> bool:
        """Say whether nothing is in the folder, or there is none; UnavailableError where it cannot be reached."""
        try:
            return not self._filesystem.get_file_info(fs.FileSelector(self._base, allow_not_found=True))
        except OSError as error:
            raise UnavailableError(f"cannot list {self.root}: {error}") from error

    def delete(self, path: str) -> None:
        """Remove a file and what an interrupted writer left of it; nothing to do where there is none."""
        full = posixpath.join(self._base, path)
        for name in (full, unfinished(full)) if self._is_local else (full,):
            try:
                self._filesystem.delete_file(name)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise UnavailableError(f"cannot delete {name}: {error}") from error


def ledgers_beside(database: str) -> str:
    """Name the folder of an SQLite database's ledgers, where no other one is given."""
    return f"{Path(database).absolute()}-ledgers"
