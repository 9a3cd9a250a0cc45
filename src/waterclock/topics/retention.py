"""Retention: deleting whole ledgers from the start of a topic, as far as every subscription has read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from waterclock.database.topic_catalogue import files, ledgers, subscriptions, topics
from waterclock.message import Position
from waterclock.time import MIN_NS
from waterclock.topics.counter import Counter
from waterclock.topics.finding import find_first
from waterclock.topics.ledgers import close_ledger, ledger_from, write_counter
from waterclock.topics.peaks import lower_peaks, note_deletion
from waterclock.topics.sizes import resizing
from waterclock.topics.storage import Storage
from waterclock.topics.sweeping import delete_rows

GRACE = 3_600_000_000_000
"""How long the files of deleted ledgers stay, ns: Spark reads what it planned to read some time ago."""

_LEDGERS_AT_ONCE = 500


def enforce_retention(storage: Storage, *, force: bool = False) -> int:
    """Delete the ledgers of which all messages are older than the topic's retention; give how many."""
    with storage.backend.snapshot() as connection:
        retention = storage.row(connection)["retention"]
    if retention is None:
        return 0
    cutoff = max(storage.backend.now() - retention, MIN_NS)
    return delete_before(storage, find_first(storage, "effective_time", cutoff).position, force=force)


def delete_before(storage: Storage, position: Position, *, force: bool = False, grace: int | None = None) -> int:
    """Delete the ledgers that lie wholly before a position; give how many.

    Parameters
    ----------
    position
        Where nothing of the open ledger lies behind it, that one is closed, to be deleted too.
    force
        Also what a subscription has not read yet.
    grace
        How long their files stay, ns; None: `GRACE`.
    """
    deleted = 0
    stay = GRACE if grace is None else grace
    while batch := _delete_some(storage, position, force=force, grace=stay):
        for ledger in batch:
            delete_rows(storage, ledger)
        deleted += len(batch)
    lower_peaks(storage)
    return deleted


def _delete_some(storage: Storage, position: Position, *, force: bool, grace: int) -> list[int]:
    def work(connection: sa.Connection) -> list[int]:
        row, now = storage.lock(connection)
        counter = Counter.of_row(row)
        end = position
        if counter.entries and position >= counter.position:
            counter = close_ledger(storage, connection, counter, now)
            write_counter(storage, connection, counter)
            end = counter.position
        statement = (
            sa.select(ledgers.c.ledger, ledgers.c.path, ledgers.c.first_ordinal, ledgers.c.messages)
            .where(ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger < end.ledger)
            .order_by(ledgers.c.ledger)
            .limit(_LEDGERS_AT_ONCE)
        )
        slowest = None if force else _slowest(storage, connection)
        if slowest is not None:
            statement = statement.where(ledgers.c.first_ordinal + ledgers.c.messages <= slowest)
        rows = connection.execute(statement).all()
        if not rows:
            return []
        with resizing(storage, connection, rows[0].ledger, rows[-1].ledger):
            _forget(storage, connection, [row.ledger for row in rows])
        _begin_after(storage, connection, rows[-1])
        note_deletion(storage, connection, row)
        paths = {row.path: row.ledger for row in rows if row.path}
        paths.pop(_path_of_first(storage, connection), None)  # ledgers that are left share it
        leave_for_sweep(storage, connection, paths, now + grace)
        return [row.ledger for row in rows]

    return storage.backend.transact(work)


def _slowest(storage: Storage, connection: sa.Connection) -> int | None:
    statement = sa.select(sa.func.min(subscriptions.c.ordinal)).where(subscriptions.c.topic_id == storage.topic_id)
    return connection.execute(statement).scalar()


def _forget(storage: Storage, connection: sa.Connection, numbers: list[int]) -> None:
    chosen = (ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger.in_(numbers))
    connection.execute(sa.delete(ledgers).where(*chosen))


def _begin_after(storage: Storage, connection: sa.Connection, last: Any) -> None:
    """Record that what comes before was deleted on purpose, so that readers tell it from a hole."""
    values = {"first_ledger": last.ledger + 1, "first_ordinal": last.first_ordinal + last.messages}
    connection.execute(sa.update(topics).where(topics.c.id == storage.topic_id).values(values))


def _path_of_first(storage: Storage, connection: sa.Connection) -> str | None:
    row = ledger_from(storage, connection, 0)
    return None if row is None else row["path"]


def leave_for_sweep(storage: Storage, connection: sa.Connection, paths: Mapping[str, int], until: int) -> None:
    """Record files that no ledger has any more, each with a ledger that it held, to be deleted after some time."""
    values = [
        {"path": path, "topic_id": storage.topic_id, "ledger": ledger, "state": "deleted", "owner": "", "until": until}
        for path, ledger in paths.items()
    ]
    if values:
        connection.execute(sa.insert(files), values)
