"""Maintains the total size of a topic's ledgers in the topic's row, so that readers need not add it up."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import sqlalchemy as sa

from waterclock.database.schema.topic_catalogue import ledgers, topics
from waterclock.database.sql_connection import SqlConnection
from waterclock.topics.catalogue.storage import Storage

# Built once: an append may close a ledger.
_GROW = (
    sa.update(topics)
    .where(topics.c.id == sa.bindparam("topic"))
    .values(stored_bytes=topics.c.stored_bytes + sa.bindparam("size"))
)


@contextmanager
def resizing(storage: Storage, connection: sa.Connection, first: int, last: int) -> Generator[None]:
    """Keep the topic's total while the ledgers from ``first`` to ``last`` change or go; the caller holds its lock."""
    before = _size(storage, connection, first, last)
    yield
    grown = _size(storage, connection, first, last) - before
    if grown:
        add_size(storage, connection, grown)


def add_size(storage: Storage, connection: SqlConnection, size: int) -> None:
    """Add to the topic's total, in a transaction that holds its lock."""
    connection.execute(_GROW, {"topic": storage.topic_id, "size": size})


def _size(storage: Storage, connection: sa.Connection, first: int, last: int) -> int:
    here = (ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger.between(first, last))
    return int(connection.execute(sa.select(sa.func.sum(ledgers.c.bytes)).where(*here)).scalar() or 0)
