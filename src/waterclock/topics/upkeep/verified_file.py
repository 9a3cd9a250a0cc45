"""Reads back a ledger file that was just written, and compares each byte and each value with the original.

Comparing bytes is not enough: if a bit flips in memory before the file is written, the file matches its checksum but
holds other messages. Comparing values is not enough either: another reader may use a bit that this reader ignores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from waterclock.checksum import checksum
from waterclock.errors import DamagedError, UnavailableError
from waterclock.topics.format.file_checksums import MAGIC, footer_checksum, footer_mark
from waterclock.topics.format.fingerprints import fingerprint
from waterclock.topics.reading.footers import checked_footer, read_footer
from waterclock.topics.store.ledger_files import LedgerFiles
from waterclock.topics.store.sealed_file import SealedFile


class HashedSink:
    """Forwards writes and computes their checksum. Has the methods that pyarrow calls.

    Parameters
    ----------
    sink
        The file that the bytes go to.
    """

    closed = False

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._written = 0
        self.checksum = 0

    def write(self, data: bytes) -> int:
        """Write some bytes; return how many."""
        self._sink.write(data)
        self.checksum = checksum(data, self.checksum)
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._written

    def flush(self) -> None:
        """Flush the underlying file."""
        self._sink.flush()


def read_back(
    files: LedgerFiles, path: str, size: int, footer: bytes, fingerprints: Sequence[int], written: int
) -> Iterator[tuple[int, pa.Table, list[int]]]:
    """Read a new file whole; return each row group's number, its table, and the checksums of its column chunks.

    The checksums are those of the very bytes from which the table was decoded that equals the original.

    Raises `UnavailableError` if the file cannot be read, or differs from the original.

    Parameters
    ----------
    files, path, size
        The file, and its length in bytes.
    footer
        The footer as the writer has it.
    fingerprints
        Of the row groups as they were written (`waterclock.topics.format.fingerprints`).
    written
        The checksum of all bytes as they were written.
    """
    try:
        if read_footer(files, path) != footer:
            raise reads_differently(files, path)
        metadata = checked_footer(files, path, footer, footer_checksum(footer))
        file = SealedFile(files, path, size, metadata, None)
        if file.row_groups != len(fingerprints):
            raise reads_differently(files, path)
        whole = checksum(files.read_range(path, size, 0, len(MAGIC)))
        for number, expected in enumerate(fingerprints):
            table, sums, whole = file.read_back(number, whole)
            if fingerprint(table) != expected:
                raise reads_differently(files, path)
            yield number, table, sums
        whole = checksum(footer_mark(footer), whole)
        if checksum(memoryview(footer)[len(MAGIC) :], whole) != written:
            raise reads_differently(files, path)
    except DamagedError as error:
        raise reads_differently(files, path) from error


def reads_differently(files: LedgerFiles, path: str) -> UnavailableError:
    """Return the error for a file that reads back differently."""
    return UnavailableError(
        f"{files.name(path)} differs from the data that was written to it. Check the disk or the store"
    )
