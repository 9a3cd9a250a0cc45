"""Removes a topic and its contents. If the removal is killed, the topic still exists, and can be removed again."""

from __future__ import annotations

import sqlalchemy as sa

from waterclock.database.schema.ingest_catalogue import ingest_files, ingest_partitions
from waterclock.database.schema.process_catalogue import process_reports
from waterclock.database.schema.topic_catalogue import files, followers, ledgers, producers, subscriptions, topics
from waterclock.database.schema.upkeep_catalogue import forget_upkeep
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.model.counter import Counter
from waterclock.topics.upkeep.retention import delete_before
from waterclock.topics.upkeep.sweeping import sweep


def remove_topic(storage: Storage) -> None:
    """Remove a topic, its ledgers and their files at once, its subscriptions, producers and followers.

    Raises `NotFoundError` if it was removed already. Raises `UnavailableError` if a file cannot be deleted; the others
    are removed when this is called again.
    """
    while True:
        delete_before(storage, storage.head(), force=True, grace=0)
        _let_go(storage)
        sweep(storage, strict=True)
        if storage.backend.transact(lambda connection: _remove_if_empty(storage, connection)):
            return


def _let_go(storage: Storage) -> None:
    statement = sa.update(files).where(files.c.topic_id == storage.topic_id).values(until=0)
    storage.backend.transact(lambda connection: connection.execute(statement))


def _remove_if_empty(storage: Storage, connection: sa.Connection) -> bool:
    row, _ = storage.lock(connection)
    if Counter.of_row(row).entries:
        return False  # a producer appended meanwhile
    for table in (ledgers, files):
        statement = sa.select(sa.func.count()).where(table.c.topic_id == storage.topic_id)
        if connection.execute(statement).scalar():
            return False
    for table in (subscriptions, producers, followers, ingest_files, ingest_partitions, process_reports):
        connection.execute(sa.delete(table).where(table.c.topic_id == storage.topic_id))
    forget_upkeep(connection, "topic", row["name"])
    connection.execute(sa.delete(topics).where(topics.c.id == storage.topic_id))
    return True
