"""Sweeping: removing files of dead owners and of deleted ledgers, and the rows of sealed ones."""

from __future__ import annotations

import logging
import secrets
from itertools import accumulate, takewhile

import sqlalchemy as sa

from waterclock.database.topic_catalogue import entries, files, ledgers
from waterclock.errors import UnavailableError
from waterclock.topics.storage import Storage

CLAIM = 60_000_000_000
"""How long a file that is being removed is left alone by others, ns."""

_CHUNK = 256
"""Entries that one transaction deletes at the most, so that appends get their turn in between."""

_CHUNK_BYTES = 4 << 20
"""Bytes of entries that one transaction deletes at the most; a single entry may be larger."""

_log = logging.getLogger(__name__)


def sweep(storage: Storage, *, strict: bool = False) -> int:
    """Remove files whose owner's lease or whose grace time has ended, and rows left over; give how many files.

    A file that cannot be deleted now is left to the next sweep with a warning in the log; with ``strict`` it is an
    UnavailableError.
    """
    removed = sum(_remove(storage, path, strict=strict) for path in _dead_files(storage))
    for ledger in _ledgers_with_rows(storage):
        delete_rows(storage, ledger)
    return removed


def delete_rows(storage: Storage, ledger: int) -> None:
    """Delete the entries of a ledger that is sealed or deleted; nothing to do where none are left."""
    here = (entries.c.topic_id == storage.topic_id, entries.c.ledger == ledger)

    def work(connection: sa.Connection) -> int:
        sizes = sa.select(entries.c.entry, entries.c.bytes).where(*here).order_by(entries.c.entry).limit(_CHUNK)
        rows = connection.execute(sizes).all()
        if not rows:
            return 0
        totals = accumulate(row.bytes for row in rows)
        fitting = sum(1 for _ in takewhile(lambda total: total <= _CHUNK_BYTES, totals))
        last = rows[max(fitting, 1) - 1].entry
        return connection.execute(sa.delete(entries).where(*here, entries.c.entry <= last)).rowcount

    while storage.backend.transact(work):
        pass


def _dead_files(storage: Storage) -> list[str]:
    statement = sa.select(files.c.path).where(
        files.c.topic_id == storage.topic_id, files.c.until < storage.backend.now_sql()
    )
    with storage.backend.snapshot() as connection:
        return list(connection.execute(statement).scalars())


def _remove(storage: Storage, path: str, *, strict: bool) -> bool:
    owner = secrets.token_hex(8)

    def claim(connection: sa.Connection) -> int:
        # From here on the former owner cannot commit the file any more.
        now = storage.backend.now(connection)
        dead = (files.c.path == path, files.c.until < now)
        values = {"state": "deleted", "owner": owner, "until": now + CLAIM}
        return connection.execute(sa.update(files).where(*dead).values(values)).rowcount

    if storage.backend.transact(claim) == 0:
        return False
    try:
        storage.files.delete(path)
    except UnavailableError as error:
        if strict:
            raise
        _log.warning("sweep of topic %r will try again: %s", storage.name, error)
        return False
    mine = (files.c.path == path, files.c.owner == owner)
    storage.backend.transact(lambda connection: connection.execute(sa.delete(files).where(*mine)))
    return True


def _ledgers_with_rows(storage: Storage) -> list[int]:
    """Name the ledgers that have entries but are sealed or gone."""
    found: list[int] = []
    last = -1
    while True:
        with storage.backend.snapshot() as connection:
            open_ledger = storage.row(connection)["ledger"]
            following = sa.select(sa.func.min(entries.c.ledger)).where(
                entries.c.topic_id == storage.topic_id, entries.c.ledger > last, entries.c.ledger < open_ledger
            )
            ledger = connection.execute(following).scalar()
            if ledger is None:
                return found
            state = sa.select(ledgers.c.state).where(ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == ledger)
            if connection.execute(state).scalar() != "closed":
                found.append(ledger)
        last = ledger
