"""The checksums of a sealed ledger's file, as the catalogue stores them. They are compared before anything is decoded.

Each part that can be read separately has a checksum: the footer, the catalogue's text about the ledger's row groups,
and each column chunk of a row group. A chunk reaches from its first page (the dictionary, if it has one) to the end of
its last page, page headers included. So a reader of two columns checks two chunks, and nothing between them. The
footer's checksum covers the file's last bytes: the metadata in Thrift, its length, and the magic ``PAR1``. The
catalogue's copy of the footer has the same bytes after another ``PAR1``, so one checksum verifies both.

A file that the catalogue does not know can still be checked: the footer's checksum is also stored in front of the
footer (`footer_mark`), where Parquet readers do not look.

The checksums are stored in a frame (`waterclock.checksum`) as little-endian unsigned numbers of 32 bits: the checksums
of the footer and of the text, the number of row groups, the number of chunks of each, the numbers of the row groups in
the file, and the checksums of their chunks. If ledgers share a file, each stores the checksums of its own row groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from waterclock.checksum import FRAME_BYTES, checksum, framed, trailer, unframed
from waterclock.errors import DamagedError

_FORM = b"WCF1"
MAGIC = b"PAR1"
"""The magic at both ends of a Parquet file, and before a copy of a footer."""

_MARK = b"WCM1"
MARK_BYTES = FRAME_BYTES
"""Bytes of `footer_mark`."""

_HEAD = 4  # numbers before those of the row groups


@dataclass(frozen=True, slots=True)
class FileChecksums:
    """The checksums for a reader of one or more ledgers of a file."""

    footer: int  # checksum of the file's footer
    row_groups: int  # checksum of the text that describes the ledger's row groups in the catalogue
    chunks: Mapping[int, Sequence[int]]
    """Checksums of the column chunks, in the order of the file's columns, by number of the row group in the file."""

    @classmethod
    def of(cls, footer: bytes, row_groups: str, chunks: Mapping[int, Sequence[int]]) -> Self:
        """Build them from those of the chunks, a copy of the footer, and the text."""
        return cls(footer_checksum(footer), checksum(row_groups.encode()), chunks)

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Self:
        """Parse the output of `to_bytes`; ``name`` names the ledgers in an error.

        Raises `DamagedError` if the bytes are not those that were written.
        """
        numbers = np.frombuffer(unframed(_FORM, data, f"the catalogue's checksums of {name}"), dtype="<u4").tolist()
        footer, row_groups, count, columns = numbers[:_HEAD]
        rest = numbers[_HEAD + count :]
        chunks = {
            number: rest[at * columns : (at + 1) * columns] for at, number in enumerate(numbers[_HEAD : _HEAD + count])
        }
        return cls(footer, row_groups, chunks)

    def to_bytes(self) -> bytes:
        """Write them as the catalogue keeps them."""
        columns = len(next(iter(self.chunks.values()), ()))
        numbers = [self.footer, self.row_groups, len(self.chunks), columns, *self.chunks]
        numbers += [number for each in self.chunks.values() for number in each]
        return framed(_FORM, np.array(numbers, dtype="<u4").tobytes())

    def of_text(self, row_groups: str) -> FileChecksums:
        """Return a copy for another text of row groups."""
        return replace(self, row_groups=checksum(row_groups.encode()))


def joined(parts: Iterable[FileChecksums]) -> FileChecksums:
    """Join the checksums of one or more ledgers that share a file."""
    every = list(parts)
    chunks = {number: each for part in every for number, each in part.chunks.items()}
    return replace(every[0], chunks=chunks)


def footer_checksum(footer: bytes) -> int:
    """Return the checksum of a copy of a footer, which begins with a magic of its own."""
    return checksum(memoryview(footer)[len(MAGIC) :])


def footer_mark(footer: bytes) -> bytes:
    """Return the checksum that precedes the footer in a ledger file, given a copy of the footer."""
    return trailer(_MARK, memoryview(footer)[len(MAGIC) :])


def check_text(checksums: FileChecksums, row_groups: str, name: str) -> None:
    """Compare the catalogue's text of row groups with its checksum.

    Raises `DamagedError` if they do not match.
    """
    if checksum(row_groups.encode()) != checksums.row_groups:
        raise DamagedError(f"{name} is corrupt: its row groups in the catalogue do not match their checksum")
