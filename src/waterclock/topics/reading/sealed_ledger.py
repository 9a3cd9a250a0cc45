"""Reads the messages of one sealed ledger by row group, from its own file or from one that several ledgers share."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa

from waterclock._support.quoting import counted
from waterclock.errors import DamagedError
from waterclock.topics.catalogue.damage_policy import located
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.format.file_checksums import FileChecksums, check_text
from waterclock.topics.format.row_groups import RowGroup, row_groups_from_json
from waterclock.topics.reading.decoded_groups import DecodedGroups
from waterclock.topics.reading.footers import checked_footer, footer_in_catalogue
from waterclock.topics.store.sealed_file import SealedFile


class SealedLedger:
    """A sealed ledger that can be read by row group, each with one ranged read, and checked before it is decoded.

    Raises `DamagedError` if its row in the catalogue, or every copy of its file's footer, is corrupt. Raises
    `LostFileError` if it shares its file with other ledgers, and the file is gone.

    Parameters
    ----------
    storage
        Its topic.
    row
        Its row of the catalogue.

    Attributes
    ----------
    number
        Which ledger it is.
    groups
        Its row groups, in order.
    """

    def __init__(self, storage: Storage, row: sa.RowMapping) -> None:
        self.number: int = row["ledger"]
        self._topic = storage.name
        try:
            path = self._path = _path_of(row)
            self.groups, checksums = checked_row_groups(row)
            shared = ledgers_share_a_file(self.groups)
            footer = checked_footer(
                storage.files,
                path,
                None if shared else row["footer"],  # in a shared file only the last ledger has a copy, which is large
                checksums.footer,
                partial(footer_in_catalogue, storage, path) if shared else None,
            )
            self._file = SealedFile(storage.files, path, row["file_bytes"], footer, checksums.chunks)
        except DamagedError as error:
            raise located(error, storage.name, ledger=self.number) from error

    @property
    def footer(self) -> bytes:
        """The footer of its file, in the catalogue's form."""
        return self._file.footer

    @property
    def metadata(self) -> pq.FileMetaData:
        """The footer of its file, parsed, including other ledgers in the file."""
        return self._file.metadata

    def read(self, group: int, columns: Collection[str], decoded: DecodedGroups | None = None) -> pa.Table:
        """Read some columns of the messages of one row group, in the order of the file.

        Raises `DamagedError` if they are corrupt; it names the ledger, and the row group's first entry. Raises
        `LostFileError` if the file is gone. Raises `UnavailableError` if it cannot be reached now.

        Parameters
        ----------
        decoded
            A cache to look in first, for a reader that always reads the same columns.
        """
        piece = self.groups[group]
        number = group if piece.number is None else piece.number
        try:
            decode = partial(self._file.read, number, columns)
            table = decode() if decoded is None else decoded.get(self._path, number, decode)
        except DamagedError as error:
            raise located(error, self._topic, ledger=self.number, entry=piece.entry) from error
        rows = piece.row + piece.messages
        if table.num_rows < rows or (piece.number is None and table.num_rows != rows):
            error = DamagedError(
                f"row group {number} holds {counted(table.num_rows, 'message')}, but the catalogue has {rows}"
            )
            raise located(error, self._topic, ledger=self.number, entry=piece.entry)
        return table if piece.number is None else table.slice(piece.row, piece.messages)

    def read_whole(self, number: int) -> pa.Table:
        """Read a row group of the file with all its columns, even if it holds other ledgers' messages.

        Raises
        ------
        DamagedError, LostFileError, UnavailableError
            As `read`.
        """
        return self._file.read(number, self._file.columns)


def _path_of(row: sa.RowMapping) -> str:
    if row["path"] is None or row["file_bytes"] is None:
        raise DamagedError(f"the catalogue does not name the file of ledger {row['ledger']}")
    return row["path"]


def checked_row_groups(row: sa.RowMapping) -> tuple[list[RowGroup], FileChecksums]:
    """Read the row groups and checksums of a sealed ledger's row.

    Raises `DamagedError` if they are missing, do not match each other, or cannot be read.
    """
    name = f"ledger {row['ledger']}"
    if row["checksums"] is None or row["row_groups"] is None:
        raise DamagedError(f"the catalogue lacks the row groups of {name} or their checksums")
    checksums = FileChecksums.from_bytes(row["checksums"], name)
    check_text(checksums, row["row_groups"], name)
    return row_groups_from_json(row["row_groups"]), checksums


def ledgers_share_a_file(groups: Iterable[RowGroup]) -> bool:
    """Return whether the file of a ledger with these row groups holds other ledgers, too."""
    return any(group.number is not None for group in groups)
