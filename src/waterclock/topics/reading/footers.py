"""Reads the footers of ledger files, which hold the offsets of all other parts.

Each footer has two copies, in the file and in the catalogue, so that either can replace the other. If ledgers share a
file, the row of the last ledger holds the catalogue's copy, because retention deletes ledgers from the start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa

from waterclock.database.schema.topic_catalogue import ledgers
from waterclock.errors import DamagedError, UnavailableError
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.format.file_checksums import MAGIC, MARK_BYTES, footer_checksum, footer_mark
from waterclock.topics.store.ledger_files import LedgerFiles

_END = 8  # bytes after the metadata: its length and the magic
_AT_ONCE = 64 << 10

_log = logging.getLogger(__name__)


def checked_footer(
    files: LedgerFiles,
    path: str,
    copy: bytes | None,
    expected: int,
    fallback: Callable[[], bytes | None] | None = None,
) -> pq.FileMetaData:
    """Check and parse a file's footer.

    Raises `DamagedError` if both copies are corrupt. LostFileError If the file's own is needed, and the file is gone.

    Parameters
    ----------
    files, path
        The file. Its own footer is read if the copy is missing or damaged, which is rare.
    copy
        The catalogue's copy, if the caller has it.
    expected
        The footer's checksum.
    fallback
        Fetches the catalogue's copy; called if the file's own footer is corrupt.
    """
    name = files.name(path)
    if copy is not None:
        try:
            return _checked_and_parsed(copy, expected, f"the catalogue's copy of the footer of {name}")
        except DamagedError as error:
            _log.warning("%s; using the footer in the file", error)
    try:
        return _own(files, path, expected)
    except DamagedError as error:
        other = None if fallback is None else fallback()
        if other is None:
            raise
        _log.warning("%s; using the catalogue's copy", error)
        return _checked_and_parsed(other, expected, f"the footer of {name}, as well as the catalogue's copy of it,")


def footer_in_catalogue(storage: Storage, path: str) -> bytes | None:
    """Fetch the catalogue's copy of the footer of a file, whichever ledger keeps it."""
    copy = sa.func.coalesce(ledgers.c.footer, ledgers.c.shared_footer)
    statement = sa.select(copy).where(ledgers.c.topic_id == storage.topic_id, ledgers.c.path == path, copy.is_not(None))
    with storage.backend.snapshot() as connection:
        return connection.execute(statement.limit(1)).scalar()


@lru_cache(maxsize=16)
def _own(files: LedgerFiles, path: str, expected: int) -> pq.FileMetaData:
    # A file never changes under its name, so a footer stays valid.
    return _checked_and_parsed(read_footer(files, path), expected, f"the footer of {files.name(path)}")


def read_footer(files: LedgerFiles, path: str) -> bytes:
    """Read a file's footer, in the form in which the catalogue keeps its copy.

    Raises `DamagedError` if the file does not end like a Parquet file. Raises `LostFileError` if it is gone. Raises
    `UnavailableError` if it cannot be reached now.
    """
    return MAGIC + _end_of_file(files, path)[MARK_BYTES:]


def checked_unknown_footer(files: LedgerFiles, path: str) -> pq.FileMetaData:
    """Check and parse the footer of an unknown file by the checksum in front of it.

    Raises
    ------
    DamagedError, LostFileError, UnavailableError
        As `read_footer`, and if it is not the footer of a ledger file.
    """
    end = _end_of_file(files, path)
    footer = MAGIC + end[MARK_BYTES:]
    if footer_mark(footer) != end[:MARK_BYTES]:
        raise DamagedError(f"the footer of {files.name(path)} is corrupt, or the file is not a ledger file")
    return _checked_and_parsed(footer, footer_checksum(footer), f"the footer of {files.name(path)}")


def _end_of_file(files: LedgerFiles, path: str) -> bytes:
    """Read the mark of a footer, and the footer."""
    with files.open(path) as file:
        try:
            size = file.size()
            end = _tail(file, size, min(size, _AT_ONCE))
            length = MARK_BYTES + int.from_bytes(end[-_END:-4], "little") + _END
            if end[-4:] != MAGIC or length > size:
                raise DamagedError(f"the footer of {files.name(path)} is corrupt: it does not end like a Parquet file")
            return end[-length:] if length <= len(end) else _tail(file, size, length)
        except OSError as error:
            raise UnavailableError(f"cannot read {files.name(path)}: {error}") from error


def _tail(file: pa.NativeFile, size: int, length: int) -> bytes:
    file.seek(size - length)
    return file.read(length)


def _checked_and_parsed(data: bytes, expected: int, name: str) -> pq.FileMetaData:
    if footer_checksum(data) != expected:
        raise DamagedError(f"{name} is corrupt: the bytes do not match their checksum")
    try:
        return pq.read_metadata(pa.BufferReader(data))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedError(f"{name} is corrupt: {error}") from error
