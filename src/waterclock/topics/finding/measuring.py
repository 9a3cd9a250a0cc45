"""Computes the time bounds of a ledger from its messages, if the catalogue lacks the bounds."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from waterclock.database.schema.topic_catalogue import TIMES, entries, ledgers, topics
from waterclock.topics.catalogue.running_max import peak_before, raise_later
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.catalogue.tombstones import is_lost, standing_in
from waterclock.topics.format.entries import decode_entries
from waterclock.topics.format.file_checksums import FileChecksums
from waterclock.topics.format.row_groups import bounds_of, row_groups_to_json
from waterclock.topics.model.bounds import Bounds, peak_columns, peak_of_row, raised
from waterclock.topics.reading.sealed_ledger import SealedLedger


def measure_ledger(storage: Storage, ledger: int) -> None:
    """Scan one ledger and write its bounds, and the running maxima of later ledgers, into the catalogue.

    Raises `LostFileError` if its file is gone. Raises `DamagedError` if that, or an entry, is corrupt.
    """
    key = (ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == ledger)
    with storage.backend.snapshot() as connection:
        row = connection.execute(sa.select(ledgers).where(*key)).mappings().one_or_none()
        if row is None:
            return  # deleted since
        measured = {} if row["state"] == "sealed" else _measure_rows(storage, connection, ledger)
    if row["state"] == "sealed":
        measured = _measure_file(storage, row)
    bounds: Bounds | None = measured.pop("bounds")

    def write_bounds(connection: sa.Connection) -> None:
        topic, _ = storage.lock(connection)
        if bounds is None:  # all of it is recorded as lost
            connection.execute(sa.update(ledgers).where(*key).values(standing_in(storage, connection, ledger, row)))
            return
        peak = raised(peak_before(storage, connection, ledger), bounds.end)
        values = {**measured, **bounds.columns(), **peak_columns(peak)}
        connection.execute(sa.update(ledgers).where(*key).values(values))
        raise_later(storage, connection, ledger, peak)
        total = raised(peak_of_row(topic), peak)
        connection.execute(sa.update(topics).where(topics.c.id == storage.topic_id).values(peak_columns(total)))

    storage.backend.transact(write_bounds)


def _measure_rows(storage: Storage, connection: sa.Connection, ledger: int) -> dict[str, Any]:
    statement = sa.select(entries.c.entry, entries.c.data).where(
        entries.c.topic_id == storage.topic_id, entries.c.ledger == ledger
    )
    bounds: Bounds | None = None
    for row in connection.execute(statement.execution_options(yield_per=1)):
        if not is_lost(row.data):
            bounds = Bounds.of_messages(decode_entries(ledger, [(row.entry, row.data)], TIMES).batch).joined(bounds)
    return {"bounds": bounds}


def _measure_file(storage: Storage, row: sa.RowMapping) -> dict[str, Any]:
    ledger = SealedLedger(storage, row)
    if row["row_groups"]:
        return {"bounds": bounds_of(ledger.groups)}
    row_groups = row_groups_to_json(ledger.groups)
    measured = {"bounds": bounds_of(ledger.groups), "footer": ledger.footer, "row_groups": row_groups}
    if row["checksums"] is not None:
        checksums = FileChecksums.from_bytes(row["checksums"], f"ledger {ledger.number}")
        measured["checksums"] = checksums.of_text(row_groups).to_bytes()
    return measured
