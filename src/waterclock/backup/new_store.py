"""Assigns a new store identity to a restored copy, so that the copy never touches the files of the original."""

from __future__ import annotations

import secrets

import sqlalchemy as sa

from waterclock.backup.snapshot import Named, named_files
from waterclock.database.backend import Backend
from waterclock.database.schema.topic_catalogue import stores, topics
from waterclock.errors import InvalidArgumentError, UnavailableError
from waterclock.topics.catalogue.stores import place_columns
from waterclock.topics.store.ledger_files import LedgerFiles, LostFileError


def found_store(backend: Backend, files: LedgerFiles) -> None:
    """Assign all topics of a database to one store at this root, under an identity that no other store has.

    Writes the marker with the new identity. Then one transaction writes the store's row, which replaces all others, and
    ``store_id`` of every topic. A process that still has the database open with the former identity is refused from
    then on. Works on every database; does nothing if there are no topics.
    """
    identity = secrets.token_hex(16)
    with backend.snapshot() as connection:
        if connection.execute(sa.select(sa.func.count()).select_from(topics)).scalar_one() == 0:
            return
    files.write_marker(identity, replace=True)

    def write_identity(connection: sa.Connection) -> None:
        connection.execute(sa.delete(stores))
        values = {"identity": identity, **place_columns(files), "created_at": backend.now(connection)}
        connection.execute(sa.insert(stores), values)
        number = sa.select(stores.c.id).where(stores.c.identity == identity).scalar_subquery()
        connection.execute(sa.update(topics).values(store_id=number))

    backend.transact(write_identity)


def make_independent(backend: Backend, ledgers: str) -> int:
    """Assign a new identity to a copy of a database and its ledger files that was made with other tools.

    Returns how many ledger files the copy has. Raises `InvalidArgumentError` if ``ledgers`` is the folder that the
    catalogue knows: the original's, if this is a copy. Raises `UnavailableError` if a ledger file that the catalogue
    names is not there.
    """
    files = LedgerFiles(ledgers)
    with backend.snapshot() as connection:
        known = connection.execute(sa.select(stores.c.root)).scalars().all()
    if files.place in known:
        raise InvalidArgumentError(
            f"ledgers must be a copy of the ledger files, got {files.place!r}, which the original database uses"
        )
    named = named_files(backend)
    if missing := [each for each in named if not _is_there(files, each)]:
        raise UnavailableError(
            f"{len(missing)} of {len(named)} ledger files are missing in {files.place}, such as {missing[0].path}."
            " Nothing was changed"
        )
    found_store(backend, files)
    return len(named)


def _is_there(files: LedgerFiles, each: Named) -> bool:
    try:
        return files.size(each.path) == each.size
    except LostFileError:
        return False
