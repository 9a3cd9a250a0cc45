"""Making topics, and opening those that are there."""

from __future__ import annotations

import secrets
from typing import Any

import sqlalchemy as sa

from waterclock.database.backend import Backend
from waterclock.database.topic_catalogue import stores, topics
from waterclock.errors import AlreadyExistsError, ConstraintError, NotFoundError
from waterclock.quoting import quoted
from waterclock.time import Duration, to_duration
from waterclock.topics.ahead import AheadLimit, check_on_ahead
from waterclock.topics.choices import OnAhead
from waterclock.topics.names import check_name, check_size
from waterclock.topics.places import LedgerRoot, as_root
from waterclock.topics.storage import Storage
from waterclock.topics.stores import files_of_topic, new_store, record_store


def create_topic(
    backend: Backend,
    ledgers: str | LedgerRoot | None,
    name: str,
    *,
    roll_after: Duration | None,
    roll_size: int,
    retention: Duration | None,
    exist_ok: bool,
    max_ahead: Duration | None = None,
    on_ahead: OnAhead = "reject",
) -> None:
    """Write the row of a new topic, and make its store where there is none yet.

    Raises
    ------
    AlreadyExistsError
        Where there is one and ``exist_ok`` is False.
    """
    values = {
        "name": check_name(name),
        "roll_after": None if roll_after is None else to_duration(roll_after, "roll_after", minimum=1),
        "roll_size": check_size(roll_size, "roll_size"),
        "retention": None if retention is None else to_duration(retention, "retention", minimum=1),
        "max_ahead": None if max_ahead is None else to_duration(max_ahead, "max_ahead"),
        "on_ahead": check_on_ahead(on_ahead),
        "ledger": 0,
        "entries": 0,
        "messages": 0,
        "bytes": 0,
        "ordinal": 0,
        "origin": secrets.token_hex(16),
    }

    backend.create_catalogue()
    if _row(backend, name) is None:
        # Before the topic: one that exists has files, and its store must not be made a second time elsewhere.
        store = record_store(backend, new_store(backend, as_root(ledgers)))

        def work(connection: sa.Connection) -> None:
            now = backend.now(connection)
            connection.execute(sa.insert(topics), {**values, "store_id": store, "created_at": now})

        try:
            backend.transact(work)
        except ConstraintError:
            pass  # it exists by now
        else:
            return
    if not exist_ok:
        raise AlreadyExistsError(f"topic {name!r} exists already; open it, or create it with exist_ok=True")


def open_topic(backend: Backend, ledgers: str | LedgerRoot | None, name: str) -> Storage:
    """Find a topic and its store.

    Raises
    ------
    NotFoundError
        Where there is none of this name.
    UnavailableError
        Where its store is absent, or another one lies there.
    """
    row = _row(backend, check_name(name))
    if row is None:
        raise NotFoundError(f"there is no topic {quoted(name)} in {backend.name}; create it first")
    files = files_of_topic(backend, name, row, as_root(ledgers))
    return Storage(row.id, name, backend, files, AheadLimit.of_row(row._mapping))  # noqa: SLF001  # SQLAlchemy's public name


def _row(backend: Backend, name: str) -> Any:
    columns = (topics.c.id, topics.c.name, topics.c.store_id, topics.c.max_ahead, topics.c.on_ahead)
    statement = (
        sa.select(*columns, stores.c.identity, stores.c.root, stores.c.is_complete)
        .outerjoin_from(topics, stores, topics.c.store_id == stores.c.id)
        .where(topics.c.name == name)
    )
    with backend.snapshot() as connection:
        return connection.execute(statement).one_or_none()


def topic_names(backend: Backend) -> list[str]:
    """Name every topic, in alphabetical order."""
    with backend.snapshot() as connection:
        return sorted(connection.execute(sa.select(topics.c.name)).scalars())
