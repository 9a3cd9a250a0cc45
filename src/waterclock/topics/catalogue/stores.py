"""Which store a topic's ledger files lie in: its identity, how it is made and adopted, and how it is found again.

A store is known by its identity and never by its name: a folder may be renamed, mounted elsewhere or spelled otherwise,
and another folder may come to have its name.
"""

from __future__ import annotations

import logging
import secrets
from typing import Any

import sqlalchemy as sa

from waterclock.database.backend import Backend
from waterclock.database.schema.topic_catalogue import stores, topics
from waterclock.errors import ConstraintError, InvalidArgumentError
from waterclock.topics.store.ledger_files import LedgerFiles, StoreError, UnreachableStoreError
from waterclock.topics.store.ledger_root import LedgerRoot

_found: set[LedgerFiles] = set()  # stores on other machines in which this process has seen the marker

_log = logging.getLogger(__name__)


def new_store(backend: Backend, place: LedgerRoot) -> LedgerFiles:
    """Give the store of a new topic, which is made where none lies there yet.

    Raises
    ------
    StoreError
        Where a store that topics use should lie there, and does not: it may be mounted later, and be two stores then.
    UnavailableError
        Where it cannot be reached or written.
    """
    files = place.needed(backend)
    identity = files.marker()
    if identity is None:
        in_use = sa.select(stores.c.identity).where(
            stores.c.root == files.place, stores.c.id.in_(sa.select(topics.c.store_id))
        )
        with backend.snapshot() as connection:
            known = connection.execute(in_use).scalars().first()
        if known is not None:
            files.at_identity(known).check()
        identity = files.write_marker(secrets.token_hex(16))
    return files.at_identity(identity)


def record_store(backend: Backend, files: LedgerFiles) -> int:
    """Give the catalogue's key of a store, which is written down where it is new."""
    statement = sa.select(stores.c.id).where(stores.c.identity == files.identity)

    def insert_if_unknown(connection: sa.Connection) -> int:
        known = connection.execute(statement).scalar()
        if known is not None:
            return known
        values = {"identity": files.identity, **place_columns(files), "created_at": backend.now(connection)}
        connection.execute(sa.insert(stores), values)
        return connection.execute(statement).scalar_one()

    try:
        return backend.transact(insert_if_unknown)
    except ConstraintError:
        return backend.transact(insert_if_unknown)  # another process was faster, and its row is there now


def place_columns(files: LedgerFiles) -> dict[str, object]:
    """Write down where a store lies, without what is secret."""
    return {"root": files.place, "is_complete": int(files.is_complete)}


def recorded_store(identity: str, root: str, is_complete: int, what: str) -> LedgerFiles:
    """Give a store where the catalogue says that it lies.

    Raises
    ------
    InvalidArgumentError
        Where the catalogue does not know enough to open it.
    """
    if not is_complete:
        raise InvalidArgumentError(
            f"ledgers must be given for {what}: its store {root} was opened with credentials, options or a"
            " filesystem, which the catalogue does not keep"
        )
    return LedgerFiles(root, identity=identity, recorded=root)


def files_of_topic(name: str, row: sa.Row[*tuple[Any, ...]], place: LedgerRoot) -> LedgerFiles:
    """Give the store of a topic, where the caller or else the catalogue says that it lies.

    A store that cannot be reached now keeps no caller from opening the topic, so that producers can append: what
    needs the store fails until it is back.

    Parameters
    ----------
    row
        ``id`` and ``store_id`` of the topic, and ``identity``, ``root`` and ``is_complete`` of its store.

    Raises
    ------
    StoreError
        Where no store or another one lies there; the text names both places.
    InvalidArgumentError
        Where no place is given and the catalogue does not know enough.
    """
    if place.root is not None:
        files = LedgerFiles(place.root, place.filesystem, identity=row.identity, recorded=row.root)
    elif (beside := _beside(row, place)) is not None:
        return beside
    else:
        files = recorded_store(row.identity, row.root, row.is_complete, f"topic {name!r}")
    _look(files)
    return files


def _beside(row: sa.Row[*tuple[Any, ...]], place: LedgerRoot) -> LedgerFiles | None:
    """Give the folder beside the database where that is the topic's store: the two may have been moved together."""
    if place.default is None:
        return None
    files = LedgerFiles(place.default, identity=row.identity, recorded=row.root)
    try:
        return files if files.marker() == row.identity else None
    except StoreError:
        return None


def _look(files: LedgerFiles) -> None:
    if files in _found:
        return
    try:
        files.check()
    except UnreachableStoreError as error:
        _log.warning("%s; appends continue, but operations on the store fail until it can be reached", error)
        return
    if not files.is_local:  # looking there again costs a request, and here next to nothing
        _found.add(files)
