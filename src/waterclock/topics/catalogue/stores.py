"""The store of a topic's ledger files: how it is created, adopted, and recognized later.

A store is recognized by its identity, never by its name: a folder may be renamed, mounted elsewhere or spelled
differently, and another folder may get its name.
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
    """Return the store of a new topic; create it if missing.

    Raises `StoreError` if a store that other topics use is missing from its place: it may be mounted later, and then
    there would be two. Raises `UnavailableError` if it cannot be reached or written.
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
    """Return the catalogue's key of a store; record the store if it is new."""
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
    """Record the location of a store, without secrets."""
    return {"root": files.place, "is_complete": int(files.is_complete)}


def recorded_store(identity: str, root: str, is_complete: int, what: str) -> LedgerFiles:
    """Return a store at its recorded location.

    Raises `InvalidArgumentError` if the catalogue does not know enough to open it.
    """
    if not is_complete:
        raise InvalidArgumentError(
            f"cannot open the files of {what} without ledgers=: their store {root} needs credentials, options or a"
            " filesystem, which the catalogue does not keep"
        )
    return LedgerFiles(root, identity=identity, recorded=root)


def files_of_topic(name: str, row: sa.Row[*tuple[Any, ...]], place: LedgerRoot) -> LedgerFiles:
    """Return the store of a topic, at the caller's location unless another store is there, or else the recorded one.

    A topic opens even if its store cannot be reached, so that producers can append: operations on the store fail until
    it is back.

    Raises `StoreError` if no store or another one is there; the text names both places. Raises `InvalidArgumentError`
    if no place was passed and the catalogue does not know enough to open it.

    Parameters
    ----------
    row
        ``id`` and ``store_id`` of the topic, and ``identity``, ``root`` and ``is_complete`` of its store.
    """
    given = _given(row, place)
    if given is not None and not (row.is_complete and _is_another(given)):
        files = given
    elif (next_to_database := _beside(row, place)) is not None:
        return next_to_database
    else:
        files = recorded_store(row.identity, row.root, row.is_complete, f"topic {name!r}")
    _look(files)
    return files


def _given(row: sa.Row[*tuple[Any, ...]], place: LedgerRoot) -> LedgerFiles | None:
    if place.root is None:
        return None
    return LedgerFiles(place.root, place.filesystem, identity=row.identity, recorded=row.root)


def _is_another(files: LedgerFiles) -> bool:
    """Return whether the root certainly holds another store, so that the catalogue's root is used instead."""
    try:
        return files not in _found and files.marker() not in (None, files.identity)
    except StoreError:
        return False


def _beside(row: sa.Row[*tuple[Any, ...]], place: LedgerRoot) -> LedgerFiles | None:
    """Return the folder next to the database if that is the topic's store: the two may have been moved together."""
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
        _log.warning("%s. Appends continue, but operations on the store fail until the store can be reached", error)
        return
    if not files.is_local:  # checking the root costs a request; this is nearly free
        _found.add(files)
