"""The messages of one sealed ledger, by row group: from a file of its own, or from one that several ledgers share."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pyarrow as pa
import sqlalchemy as sa

from waterclock.topics.ledger_files import LedgerFiles
from waterclock.topics.row_groups import RowGroup, row_groups_from_json
from waterclock.topics.sealed_file import SealedFile


class SealedLedger:
    """A sealed ledger that can be read by row group, each with one ranged read.

    Parameters
    ----------
    files
        Where its file lies.
    row
        Its row of the catalogue.

    Attributes
    ----------
    number
        Which ledger it is.
    groups
        Its row groups, in order.

    Raises
    ------
    LostFileError
        Where it shares its file with others and that is gone or damaged.
    SchemaError
        Where the catalogue's copy of the footer is damaged.
    """

    def __init__(self, files: LedgerFiles, row: sa.RowMapping) -> None:
        self.number: int = row["ledger"]
        self.groups = row_groups_from_json(row["row_groups"])
        self._file = SealedFile(files, row["path"], row["file_bytes"], row["footer"])

    def read(self, group: int, columns: Collection[str]) -> pa.Table:
        """Read some columns of the messages of one row group, in the order of the file.

        Raises
        ------
        LostFileError
            Where the file is gone or damaged.
        UnavailableError
            Where it cannot be reached now.
        """
        piece = self.groups[group]
        if piece.number is None:
            return self._file.read(group, columns)
        return self._file.read(piece.number, columns).slice(piece.row, piece.messages)


def ledgers_share_a_file(groups: Iterable[RowGroup]) -> bool:
    """Say whether the file of a ledger with these row groups holds other ledgers, too."""
    return any(group.number is not None for group in groups)
