"""Changing the options of a topic."""

from __future__ import annotations

import math
from dataclasses import asdict

import sqlalchemy as sa

from waterclock.database.topic_catalogue import topics
from waterclock.topics.storage import Storage
from waterclock.topics.topic_options import TopicChanges, TopicOptions


def alter_topic(storage: Storage, changes: TopicChanges) -> None:
    """Change options of a topic, checked together with those that stay; see `Topic.alter`."""

    def write(connection: sa.Connection) -> None:
        row, _ = storage.lock(connection)
        options = TopicOptions.of_row(row).changed(changes)
        connection.execute(sa.update(topics).where(topics.c.id == storage.topic_id).values(asdict(options)))

    storage.backend.transact(write)
    storage.known_limit.read_at = -math.inf  # so that the next append of this process reads it
