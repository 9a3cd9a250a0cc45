"""Making topics, and opening those that are there."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import exc

from waterclock.database.backend import Backend
from waterclock.database.topic_catalogue import topics
from waterclock.errors import AlreadyExistsError, NotFoundError
from waterclock.time import Duration, to_duration
from waterclock.topics.ledger_files import LedgerFiles
from waterclock.topics.names import check_name, check_size
from waterclock.topics.storage import Storage


def create_topic(
    backend: Backend,
    name: str,
    *,
    roll_after: Duration | None,
    roll_size: int,
    retention: Duration | None,
    exist_ok: bool,
) -> None:
    """Write the row of a new topic; AlreadyExistsError where there is one and ``exist_ok`` is False."""
    values = {
        "name": check_name(name),
        "roll_after": None if roll_after is None else to_duration(roll_after, "roll_after", minimum=1),
        "roll_size": check_size(roll_size, "roll_size"),
        "retention": None if retention is None else to_duration(retention, "retention", minimum=1),
        "ledger": 0,
        "entries": 0,
        "messages": 0,
        "bytes": 0,
        "ordinal": 0,
    }

    def work(connection: sa.Connection) -> None:
        connection.execute(sa.insert(topics), {**values, "created_at": backend.now(connection)})

    try:
        backend.transact(work)
    except exc.IntegrityError:
        if not exist_ok:
            raise AlreadyExistsError(
                f"topic {name!r} exists already; open it, or create it with exist_ok=True"
            ) from None


def open_topic(backend: Backend, ledgers: str, name: str) -> Storage:
    """Find a topic; NotFoundError where there is none of this name."""
    statement = sa.select(topics.c.id).where(topics.c.name == check_name(name))
    with backend.snapshot() as connection:
        topic_id = connection.execute(statement).scalar()
    if topic_id is None:
        raise NotFoundError(f"there is no topic {name!r} in {backend.name}; create it first")
    return Storage(topic_id, name, backend, LedgerFiles(ledgers))


def topic_names(backend: Backend) -> list[str]:
    """Name every topic, in alphabetical order."""
    with backend.snapshot() as connection:
        return sorted(connection.execute(sa.select(topics.c.name)).scalars())
