"""Reading back a ledger file that was just written: what was read is compared with what was written, value by value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from waterclock.errors import DamagedError, UnavailableError
from waterclock.topics.fingerprints import fingerprint
from waterclock.topics.footers import parsed_footer, read_footer
from waterclock.topics.ledger_files import LedgerFiles
from waterclock.topics.sealed_file import SealedFile


def read_back(
    files: LedgerFiles, path: str, size: int, footer: bytes, fingerprints: Sequence[int]
) -> Iterator[tuple[int, pa.Table, list[int]]]:
    """Read a new file whole; give each row group's number, its table, and the checksums of its column chunks.

    The checksums are those of the very bytes from which the table was decoded that equals what was written.

    Parameters
    ----------
    files, path, size
        The file, and its length in bytes.
    footer
        The footer as the writer has it.
    fingerprints
        Of the row groups as they were written (`waterclock.topics.fingerprints`).

    Raises
    ------
    UnavailableError
        Where the file cannot be read, or is not what was written.
    """
    try:
        if read_footer(files, path) != footer:
            raise reads_differently(files, path)
        file = SealedFile(files, path, size, parsed_footer(files, path, footer, None), None)
        if file.row_groups != len(fingerprints):
            raise reads_differently(files, path)
        for number, expected in enumerate(fingerprints):
            table, sums = file.read_back(number)
            if fingerprint(table) != expected:
                raise reads_differently(files, path)
            yield number, table, sums
    except DamagedError as error:
        raise reads_differently(files, path) from error


def reads_differently(files: LedgerFiles, path: str) -> UnavailableError:
    """Say that a file is not what was written."""
    return UnavailableError(
        f"{files.name(path)} reads back differently from what was written; its disk or store is not to be trusted"
    )
