"""Copies files and measures existing files: returns the size and the checksum of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from waterclock.backup.manifest import Kept
from waterclock.checksum import checksum
from waterclock.errors import DamagedError, UnavailableError

Report = Callable[[str, int, int], None]
"""Called with the current step, how many of its bytes are done, and their total."""

_PIECE = 4 << 20


def no_report(what: str, done: int, total: int) -> None:
    """Report nothing."""


def copy(source: Any, sink: Any, path: str) -> Kept:
    """Copy a stream to its end; return the size and checksum of the copy."""
    size = crc = 0
    while piece := source.read(_PIECE):
        sink.write(piece)
        size += len(piece)
        crc = checksum(piece, crc)
    return Kept(path, size, crc)


class _Nowhere:
    def write(self, data: bytes) -> None:
        """Discard it."""


def measure(file: Path, path: str) -> Kept:
    """Measure a file, under the name that it has in the backup; OSError if it cannot be read."""
    with file.open("rb") as source:
        return copy(source, _Nowhere(), path)


def expect(found: Kept, expected: Kept, file: Path) -> None:
    """Raise DamagedError unless a file of a backup has the expected size and checksum."""
    if found.size != expected.size:
        raise DamagedError(f"{file} is corrupt: expected {expected.size} bytes, found {found.size}")
    if found.crc != expected.crc:
        raise DamagedError(f"{file} is corrupt: its {found.size} bytes do not match their checksum")


def copy_checked(file: Path, sink: Any, expected: Kept) -> None:
    """Copy a file of a backup.

    Raises `DamagedError` if it is gone, or differs from its written form. Raises `UnavailableError` if it cannot be
    read now.
    """
    try:
        with file.open("rb") as source:
            found = copy(source, sink, expected.path)
    except FileNotFoundError:
        raise DamagedError(f"{file} is missing") from None
    expect(found, expected, file)


def check(file: Path, expected: Kept) -> None:
    """Check that a file of a backup exists and is intact; errors as in `copy_checked`."""
    try:
        copy_checked(file, _Nowhere(), expected)
    except OSError as error:
        raise UnavailableError(f"cannot read {file}: {error}") from error
