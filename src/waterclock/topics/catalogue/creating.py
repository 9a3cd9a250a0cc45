"""Creates topics, and opens existing ones."""

from __future__ import annotations

import secrets
from dataclasses import asdict, fields
from typing import Any

import sqlalchemy as sa

from waterclock._support import moments
from waterclock._support.quoting import quoted, unknown_name
from waterclock.database.backend import Backend
from waterclock.database.schema.topic_catalogue import stores, topics
from waterclock.differing_options import warn_of_differences
from waterclock.errors import AlreadyExistsError, ConstraintError, NotFoundError
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.catalogue.stores import files_of_topic, new_store, record_store
from waterclock.topics.model.clock_skew_limit import AheadLimit, KnownLimit
from waterclock.topics.model.names import check_name
from waterclock.topics.model.topic_options import DURATIONS, TopicOptions
from waterclock.topics.store.ledger_root import LedgerRoot, as_root


def create_topic(
    backend: Backend, ledgers: str | LedgerRoot | None, name: str, options: TopicOptions, *, exist_ok: bool
) -> None:
    """Write the row of a new topic, and create its store if missing.

    Raises
    ------
    AlreadyExistsError
        If the topic exists and ``exist_ok`` is False.
    """
    values = {
        "name": check_name(name),
        **asdict(options),
        "ledger": 0,
        "entries": 0,
        "messages": 0,
        "bytes": 0,
        "ordinal": 0,
        "origin": secrets.token_hex(16),
    }

    backend.create_catalogue()
    if _row(backend, name) is None:
        # Before the topic: an existing topic has files, and its store must not be created a second time elsewhere.
        store = record_store(backend, new_store(backend, as_root(ledgers)))

        def insert_topic(connection: sa.Connection) -> None:
            now = backend.now(connection)
            connection.execute(sa.insert(topics), {**values, "store_id": store, "created_at": now})

        try:
            backend.transact(insert_topic)
        except ConstraintError:
            pass  # it exists by now
        else:
            return
    if not exist_ok:
        raise AlreadyExistsError(
            f"cannot create topic {name!r}: it already exists. Open the topic, or pass exist_ok=True"
        )
    row = _row(backend, name)
    if row is not None:
        existing = TopicOptions.of_row(row._mapping)  # noqa: SLF001  # SQLAlchemy's public name
        warn_of_differences(
            f"topic {quoted(name)}",
            asdict(options),
            asdict(existing),
            asdict(TopicOptions()),
            DURATIONS,
            stacklevel=4,  # above are this function and the methods of the class and the database
        )


def open_topic(backend: Backend, ledgers: str | LedgerRoot | None, name: str) -> Storage:
    """Find a topic and its store.

    Raises `NotFoundError` if it does not exist. Raises `UnavailableError` if its store is missing, or its place holds
    another one.
    """
    row = _row(backend, check_name(name))
    if row is None:
        raise NotFoundError(unknown_name("topic", name, topic_names(backend), "create it first"))
    files = files_of_topic(name, row, as_root(ledgers))
    limit = AheadLimit.of_row(row._mapping)  # noqa: SLF001  # SQLAlchemy's public name
    return Storage(row.id, name, backend, files, KnownLimit(limit, moments.monotonic()))


def _row(backend: Backend, name: str) -> Any:
    options = [topics.c[field.name] for field in fields(TopicOptions)]
    columns = (topics.c.id, topics.c.name, *options)
    statement = (
        sa.select(*columns, stores.c.identity, stores.c.root, stores.c.is_complete)
        .join_from(topics, stores, topics.c.store_id == stores.c.id)
        .where(topics.c.name == name)
    )
    with backend.snapshot() as connection:
        return connection.execute(statement).one_or_none()


def topic_names(backend: Backend) -> list[str]:
    """Name every topic, in alphabetical order."""
    with backend.snapshot() as connection:
        return sorted(connection.execute(sa.select(topics.c.name)).scalars())
