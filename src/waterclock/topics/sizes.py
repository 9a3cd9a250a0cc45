"""Sizes: the bytes of a topic's ledgers, with a total in the topic's row, so that nobody has to add them up."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from waterclock.database.topic_catalogue import ledgers, topics
from waterclock.topics.storage import Storage

# A ledger that shares its file with others has no footer of its own, and its part of the file as its bytes.
_IN_ITS_OWN_FILE = sa.or_(ledgers.c.footer.is_not(None), ledgers.c.row_groups.is_(None))

SIZE = sa.case(
    (sa.and_(ledgers.c.state == "sealed", _IN_ITS_OWN_FILE), ledgers.c.file_bytes), else_=ledgers.c.bytes
).label("size")
"""Bytes of a ledger: of its file, or its part of it, where it is sealed, and of its entries before."""

_ADD = (
    sa.update(topics)
    .where(topics.c.id == sa.bindparam("topic"))
    .values(stored_bytes=topics.c.stored_bytes + sa.bindparam("more", type_=sa.BigInteger))
)


@contextmanager
def resizing(storage: Storage, connection: sa.Connection, first: int, last: int) -> Generator[None]:
    """Keep the topic's total while the ledgers from ``first`` to ``last`` change or go; the caller holds its lock."""
    before = _size(storage, connection, first, last)
    yield
    grown = _size(storage, connection, first, last) - before
    if grown:
        add_size(storage, connection, grown)


def add_size(storage: Storage, connection: Any, size: int) -> None:
    """Add to the topic's total, in a transaction that holds its lock."""
    connection.execute(_ADD, {"topic": storage.topic_id, "more": size})


def _size(storage: Storage, connection: sa.Connection, first: int, last: int) -> int:
    here = (ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger.between(first, last))
    return int(connection.execute(sa.select(sa.func.sum(SIZE)).where(*here)).scalar() or 0)
