"""Changes the options and the name of a topic."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import sqlalchemy as sa

from waterclock._support.quoting import quoted
from waterclock.database.schema.topic_catalogue import topics
from waterclock.database.schema.upkeep_catalogue import rename_upkeep
from waterclock.errors import AlreadyExistsError, ConstraintError
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.model.names import check_name
from waterclock.topics.model.topic_options import TopicChanges, TopicOptions


def alter_topic(storage: Storage, changes: TopicChanges) -> None:
    """Change options of a topic, checked together with its other options; see `Topic.alter`."""

    def write(connection: sa.Connection) -> None:
        row, _ = storage.lock(connection)
        options = TopicOptions.of_row(row).changed(changes)
        connection.execute(sa.update(topics).where(topics.c.id == storage.topic_id).values(asdict(options)))

    storage.backend.transact(write)
    storage.known_limit.read_at = -math.inf  # so that the next append of this process reads it


def rename_topic(storage: Storage, name: str) -> Storage:
    """Rename a topic and return it. See `Topic.rename`."""
    statement = sa.update(topics).where(topics.c.id == storage.topic_id).values(name=check_name(name))

    def write(connection: sa.Connection) -> None:
        row, _ = storage.lock(connection)
        connection.execute(statement)
        if row["name"] != name:
            rename_upkeep(connection, "topic", row["name"], name)

    try:
        storage.backend.transact(write)
    except ConstraintError as error:
        raise AlreadyExistsError(
            f"cannot rename topic {quoted(storage.name)}: a topic named {quoted(name)} exists. Choose another name"
        ) from error
    return replace(storage, name=name)
