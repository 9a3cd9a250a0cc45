"""Deletes whole ledgers from the start of a topic, if every subscription has read them.

The catalogue's bounds alone decide which ledgers may be deleted. Files are not read: if one is missing, perhaps in an
unmounted folder, it cannot show how old its messages are.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock.database.schema.topic_catalogue import files, ledgers, subscriptions, topics
from waterclock.errors import DamagedError, SchemaError, UnavailableError
from waterclock.message import Position
from waterclock.time import MIN_NS
from waterclock.topics.catalogue.ledgers import close_ledger, write_counter
from waterclock.topics.catalogue.running_max import lower_peaks, note_deletion
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.catalogue.stored_bytes import resizing
from waterclock.topics.finding.measuring import measure_ledger
from waterclock.topics.model.counter import Counter
from waterclock.topics.upkeep.sweeping import delete_rows

GRACE = 3_600_000_000_000
"""How long the files of deleted ledgers stay, ns, so that Spark can finish reads that it planned before."""

_LEDGERS_AT_ONCE = 1000

_log = logging.getLogger(__name__)


def enforce_retention(storage: Storage, *, force: bool = False) -> int:
    """Delete the ledgers whose messages are all older than the topic's retention; return how many."""
    with storage.backend.snapshot() as connection:
        retention = storage.row(connection)["retention"]
    if retention is None:
        return 0
    cutoff = max(storage.backend.now() - retention, MIN_NS)
    return delete_before(storage, end_of_older(storage, "effective_time", cutoff), force=force)


def end_of_older(storage: Storage, by: str, cutoff: int) -> Position:
    """Return the beginning of the first ledger that may hold a message with ``by`` at or after ``cutoff``.

    If none may, return the topic's head. A ledger without bounds is measured; if that fails, it may hold one.
    """
    unmeasurable = -1
    while True:
        with storage.backend.snapshot() as connection:
            row = connection.execute(_first_reaching(storage, by, cutoff)).one_or_none()
            counter = Counter.of_row(storage.row(connection))
        if row is None:
            reaches = counter.bounds is not None and counter.bounds.end[by] >= cutoff
            return Position(counter.ledger, 0, 0) if reaches else counter.position
        if row.end is not None or row.ledger == unmeasurable:
            return Position(row.ledger, 0, 0)
        unmeasurable = row.ledger
        try:
            measure_ledger(storage, row.ledger)
        except (UnavailableError, DamagedError, SchemaError) as error:
            _log.warning(
                "ledger %d of topic %r has no bounds, so its age is unknown. This ledger and later ledgers are kept:"
                " %s",
                row.ledger,
                storage.name,
                error,
            )


def _first_reaching(storage: Storage, by: str, cutoff: int) -> sa.Select[*tuple[Any, ...]]:
    # A lost ledger cannot be measured any more, but all of it had been received when it was closed.
    end = sa.case(
        (ledgers.c.state == "lost", sa.func.coalesce(ledgers.c[f"end_{by}"], ledgers.c.closed_at)),
        else_=ledgers.c[f"end_{by}"],
    )
    return (
        sa.select(ledgers.c.ledger, end.label("end"))
        .where(ledgers.c.topic_id == storage.topic_id, ledgers.c.messages > 0, sa.or_(end >= cutoff, end.is_(None)))
        .order_by(ledgers.c.ledger)
        .limit(1)
    )


def delete_before(storage: Storage, position: Position, *, force: bool = False, grace: int | None = None) -> int:
    """Delete the ledgers that lie wholly before a position; return how many.

    Raises `StoreError` if there are files among them, and their store is absent or another one: nothing is deleted
    then.

    Parameters
    ----------
    position
        If the whole open ledger lies before it, that ledger is closed and deleted, too.
    force
        Also delete messages that a subscription has not read yet.
    grace
        How long their files stay, ns; None: `GRACE`.
    """
    deleted = 0
    stay = GRACE if grace is None else grace
    if _has_files(storage, position):
        storage.files.check()
    while batch := _delete_some(storage, position, force=force, grace=stay):
        delete_rows(storage, batch.first, batch.last)  # one query if all were sealed
        deleted += batch.ledgers
    lower_peaks(storage)
    return deleted


class _Deleted(NamedTuple):
    first: int
    last: int
    ledgers: int


def _has_files(storage: Storage, position: Position) -> bool:
    statement = sa.select(ledgers.c.path).where(
        ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger < position.ledger, ledgers.c.path.is_not(None)
    )
    with storage.backend.snapshot() as connection:
        return connection.execute(statement.limit(1)).one_or_none() is not None


def _delete_some(storage: Storage, position: Position, *, force: bool, grace: int) -> _Deleted | None:
    def delete_chunk(connection: sa.Connection) -> _Deleted | None:
        row, now = storage.lock(connection)
        counter = Counter.of_row(row)
        end = position
        if counter.entries and position >= counter.position:
            counter = close_ledger(storage, connection, counter, now)
            write_counter(storage, connection, counter)
            end = counter.position
        statement = (
            sa.select(
                *(ledgers.c[name] for name in ("ledger", "path", "first_ordinal", "messages", "imported")),
            )
            .where(ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger < end.ledger)
            .order_by(ledgers.c.ledger)
            .limit(_LEDGERS_AT_ONCE)
        )
        slowest = None if force else _slowest(storage, connection)
        if slowest is not None:
            statement = statement.where(ledgers.c.first_ordinal + ledgers.c.messages <= slowest)
        rows = connection.execute(statement).all()
        if not rows:
            return None
        with resizing(storage, connection, rows[0].ledger, rows[-1].ledger):
            _forget(storage, connection, rows[0].ledger, rows[-1].ledger)
        _begin_after(storage, connection, rows[-1])
        note_deletion(storage, connection, row)
        # Another database may still use an imported file.
        paths = {row.path: row.ledger for row in rows if row.path and not row.imported}
        paths.pop(_path_of_first(storage, connection), None)  # remaining ledgers share it
        leave_for_sweep(storage, connection, paths, now + grace)
        return _Deleted(rows[0].ledger, rows[-1].ledger, len(rows))

    return storage.backend.transact(delete_chunk)


def _slowest(storage: Storage, connection: sa.Connection) -> int | None:
    statement = sa.select(sa.func.min(subscriptions.c.ordinal)).where(subscriptions.c.topic_id == storage.topic_id)
    return connection.execute(statement).scalar()


def _forget(storage: Storage, connection: sa.Connection, first: int, last: int) -> None:
    chosen = (ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger.between(first, last))
    connection.execute(sa.delete(ledgers).where(*chosen))


def _begin_after(storage: Storage, connection: sa.Connection, last: Any) -> None:
    """Record that earlier ledgers were deleted on purpose, so that readers do not report a gap."""
    values = {"first_ledger": last.ledger + 1, "first_ordinal": last.first_ordinal + last.messages}
    connection.execute(sa.update(topics).where(topics.c.id == storage.topic_id).values(values))


def _path_of_first(storage: Storage, connection: sa.Connection) -> str | None:
    with_file = (ledgers.c.topic_id == storage.topic_id, ledgers.c.path.is_not(None))  # lost ledgers have no file
    return connection.execute(sa.select(ledgers.c.path).where(*with_file).order_by(ledgers.c.ledger).limit(1)).scalar()


def leave_for_sweep(storage: Storage, connection: sa.Connection, paths: Mapping[str, int], until: int) -> None:
    """Record files that no ledger uses any more, each with a ledger that it held, for deletion after some time."""
    values = [
        {"path": path, "topic_id": storage.topic_id, "ledger": ledger, "state": "deleted", "owner": "", "until": until}
        for path, ledger in paths.items()
    ]
    if values:
        connection.execute(sa.insert(files), values)
