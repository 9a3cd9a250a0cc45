"""Finds ledger files that were moved or renamed within the store, or whose path in the catalogue is wrong.

A file is recognized by its length and the checksum of its footer, which covers the topic and the ledgers of the file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import sqlalchemy as sa

from waterclock._support.durable import unfinished
from waterclock.database.schema.topic_catalogue import files as file_rows
from waterclock.database.schema.topic_catalogue import ledgers
from waterclock.errors import DamagedError
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.format.file_checksums import footer_checksum
from waterclock.topics.reading.footers import read_footer
from waterclock.topics.reading.sealed_ledger import checked_row_groups
from waterclock.topics.store.ledger_files import LostFileError


def find_moved(storage: Storage, numbers: Collection[int]) -> list[int]:
    """Correct the paths of those of these ledgers whose file lies elsewhere in the store.

    Returns the ledgers whose path was corrected.
    """
    moved: list[int] = []
    listing: list[tuple[str, int]] | None = None
    for row in _sealed(storage, numbers):
        try:
            footer = checked_row_groups(row)[1].footer
        except DamagedError:
            continue  # its file is unknown
        if _has_footer(storage, row["path"], row["file_bytes"], footer):
            continue
        listing = _candidates(storage) if listing is None else listing
        same = (path for path, size in listing if size == row["file_bytes"])
        found = next((path for path in same if _has_footer(storage, path, row["file_bytes"], footer)), None)
        if found is not None and _correct(storage, row, found):
            moved.append(row["ledger"])
    return moved


def _sealed(storage: Storage, numbers: Collection[int]) -> Iterator[sa.RowMapping]:
    for number in sorted(numbers):
        key = (ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == number, ledgers.c.state == "sealed")
        with storage.backend.snapshot() as connection:
            row = connection.execute(sa.select(ledgers).where(*key)).mappings().one_or_none()
        if row is not None:
            yield row


def _candidates(storage: Storage) -> list[tuple[str, int]]:
    """List the files of the store, without those that are being written or wait for their deletion."""
    found = [(path, size) for path, size in storage.files.listing() if not path.endswith(unfinished(""))]
    with storage.backend.snapshot() as connection:
        pending = set(connection.execute(sa.select(file_rows.c.path)).scalars())
    return sorted((path, size) for path, size in found if path not in pending)


def _has_footer(storage: Storage, path: str | None, size: int, checksum: int) -> bool:
    if path is None:
        return False
    try:
        return storage.files.size(path) == size and footer_checksum(read_footer(storage.files, path)) == checksum
    except (DamagedError, LostFileError):
        return False


def _correct(storage: Storage, row: sa.RowMapping, path: str) -> bool:
    here = (ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == row["ledger"], ledgers.c.state == "sealed")
    # Marked as imported to protect it from deletion: a copy of this database may use it.
    statement = sa.update(ledgers).where(*here, ledgers.c.path == row["path"]).values(path=path, imported=1)
    return storage.backend.transact(lambda connection: connection.execute(statement).rowcount == 1)
