"""Removes unfinished files whose writers have died, files of deleted ledgers, and the rows of sealed ledgers."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from itertools import accumulate, takewhile

import sqlalchemy as sa

from waterclock.database.schema.topic_catalogue import entries, files, ledgers, stores
from waterclock.errors import DamagedError, InvalidArgumentError, UnavailableError
from waterclock.topics.catalogue.running_max import lower_peaks
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.catalogue.stores import recorded_store
from waterclock.topics.store.ledger_files import LedgerFiles, StoreError, is_identity

CLAIM = 60_000_000_000
"""How long other processes skip a file that is being removed, ns."""

_CHUNK = 256
"""Entries that one transaction deletes at most, so that appends get their turn in between."""

_CHUNK_BYTES = 4 << 20
"""Bytes of entries that one transaction deletes at most; a single entry may be larger."""

_log = logging.getLogger(__name__)


def sweep(storage: Storage, *, strict: bool = False, at_hand: Mapping[str, LedgerFiles] | None = None) -> int:
    """Remove files whose owner's lease or whose grace time has ended, and rows left over; return how many files.

    Running maxima that a killed deletion has left too high are lowered.

    A file that cannot be deleted now is left to the next sweep with a warning in the log; with ``strict`` it is an
    UnavailableError, and a path outside the store is forgotten with a warning. If a store is absent, is another one
    or is down, no file of it is tried and none forgotten.

    Parameters
    ----------
    strict
        Whether a file that cannot be deleted is an error.
    at_hand
        Open stores that the topic has moved out of, by identity; others are opened at their place in the catalogue.
    """
    known = {"": storage.files, **(at_hand or {})}
    removed = 0
    unusable: set[str] = set()
    for path in _dead_files(storage):
        identity, name = _store_and_name(path)
        if identity in unusable:
            continue
        try:
            if identity not in known:
                known[identity] = _store_left(storage, identity)
            removed += _remove(storage, path, known[identity], name)
        except (UnavailableError, DamagedError) as error:
            if strict and isinstance(error, DamagedError):  # no retry can fix this path
                _forget(storage, path)
                _log.warning("cannot delete a file of topic %r, removing the topic anyway: %s", storage.name, error)
                continue
            if strict:
                raise
            if isinstance(error, StoreError):
                unusable.add(identity)
            _log.warning("the sweep of topic %r failed and will be retried: %s", storage.name, error)
    for ledger in _ledgers_with_rows(storage):
        delete_rows(storage, ledger)
    lower_peaks(storage)
    return removed


def delete_rows(storage: Storage, first: int, last: int | None = None) -> None:
    """Delete the entries of a ledger, or of several up to ``last``, that are sealed or deleted."""
    here = (entries.c.topic_id == storage.topic_id, entries.c.ledger.between(first, first if last is None else last))

    def delete_chunk(connection: sa.Connection) -> int:
        sizes = sa.select(entries.c.ledger, entries.c.entry, entries.c.bytes).where(*here)
        rows = connection.execute(sizes.order_by(entries.c.ledger, entries.c.entry).limit(_CHUNK)).all()
        if not rows:
            return 0
        totals = accumulate(row.bytes for row in rows)
        fitting = sum(1 for _ in takewhile(lambda total: total <= _CHUNK_BYTES, totals))
        ledger, entry, _ = rows[max(fitting, 1) - 1]
        until = sa.or_(entries.c.ledger < ledger, sa.and_(entries.c.ledger == ledger, entries.c.entry <= entry))
        return connection.execute(sa.delete(entries).where(*here, until)).rowcount

    while storage.backend.transact(delete_chunk):
        pass
    storage.backend.give_back_space()


def _dead_files(storage: Storage) -> list[str]:
    statement = sa.select(files.c.path).where(
        files.c.topic_id == storage.topic_id, files.c.until < storage.backend.now_sql()
    )
    with storage.backend.snapshot() as connection:
        return list(connection.execute(statement).scalars())


def _store_and_name(path: str) -> tuple[str, str]:
    """Split a path into the identity of the store that the topic has left, empty for its own, and the file's name."""
    identity, _, name = path.rpartition(":")
    return (identity, name) if is_identity(identity) else ("", path)


def _forget(storage: Storage, path: str) -> None:
    statement = sa.delete(files).where(files.c.topic_id == storage.topic_id, files.c.path == path)
    storage.backend.transact(lambda connection: connection.execute(statement))


def _store_left(storage: Storage, identity: str) -> LedgerFiles:
    """Return a store that the topic has moved out of."""
    statement = sa.select(stores.c.root, stores.c.is_complete).where(stores.c.identity == identity)
    with storage.backend.snapshot() as connection:
        row = connection.execute(statement).one_or_none()
    try:
        if row is not None:
            return recorded_store(identity, row.root, row.is_complete, "a file to be deleted")
    except InvalidArgumentError as error:
        raise StoreError(str(error)) from error
    raise StoreError(
        f"cannot delete a file of topic {storage.name!r}: the catalogue has no location for its former store {identity}"
    )


def _remove(storage: Storage, path: str, left_in: LedgerFiles, name: str) -> bool:
    owner = secrets.token_hex(8)

    def claim(connection: sa.Connection) -> int:
        # From here on the former owner cannot commit the file any more.
        if path == name:
            storage.refuse_moved(connection)  # otherwise the file in the new store would be forgotten, and would stay
        now = storage.backend.now(connection)
        dead = (files.c.path == path, files.c.until < now)
        values = {"state": "deleted", "owner": owner, "until": now + CLAIM}
        return connection.execute(sa.update(files).where(*dead).values(values)).rowcount

    if storage.backend.transact(claim) == 0:
        return False
    left_in.delete(name)
    mine = (files.c.path == path, files.c.owner == owner)
    storage.backend.transact(lambda connection: connection.execute(sa.delete(files).where(*mine)))
    return True


def _ledgers_with_rows(storage: Storage) -> list[int]:
    """Name the ledgers that have entries but are sealed, lost, or deleted on purpose."""
    found: list[int] = []
    last = -1
    while True:
        with storage.backend.snapshot() as connection:
            topic = storage.row(connection)
            following = sa.select(sa.func.min(entries.c.ledger)).where(
                entries.c.topic_id == storage.topic_id, entries.c.ledger > last, entries.c.ledger < topic["ledger"]
            )
            ledger = connection.execute(following).scalar()
            if ledger is None:
                return found
            state = sa.select(ledgers.c.state).where(ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == ledger)
            is_state = connection.execute(state).scalar()
            # A ledger without a row is not necessarily deleted: if it was lost, its entries restore it.
            if is_state in ("sealed", "lost") or (is_state is None and ledger < topic["first_ledger"]):
                found.append(ledger)
        last = ledger
