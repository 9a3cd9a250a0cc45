"""Upkeep as Spark jobs: what one process does for one ledger, file or table after another, many tasks do at once.

Each task does what the library does in one process, with the same owners, leases and verification. So a task that is
killed or runs twice loses nothing and doubles nothing; what it leaves undone, the next call does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from pyspark.sql import SparkSession

from waterclock.archiving import archive_table
from waterclock.connection import connect
from waterclock.database.backend import Backend
from waterclock.tables.message_table import MessageTable
from waterclock.time import Duration, to_duration
from waterclock.topics.compacting import FILE_BYTES, Run, compact_run, runs_to_compact
from waterclock.topics.ledger_files import LedgerFiles
from waterclock.topics.sealing import ledgers_to_seal, seal_ledger
from waterclock.topics.storage import Storage
from waterclock.topics.topic import Topic
from waterclock.urls import represented

_T = TypeVar("_T")


class _Place(NamedTuple):
    """Where a topic lies, as a task can be told."""

    url: str
    ledgers: str
    topic_id: int
    name: str

    def __repr__(self) -> str:
        return represented(self)

    @classmethod
    def of(cls, topic: Topic) -> _Place:
        storage = topic.storage
        return cls(_url(storage.backend), storage.files.root, storage.topic_id, storage.name)


def seal_topic(spark: SparkSession, topic: Topic) -> int:
    """Turn every closed ledger of a topic into a Parquet file, a ledger a task; give how many.

    The driver first puts the topic in order, as ``Topic.seal`` does. Every executor must reach the database and the
    folder of ledgers under the names that the driver has for them: no SQLite on a cluster of several machines.

    Raises
    ------
    pyspark.errors.PySparkException
        Where a task failed each time it was tried; the ledgers of the others are sealed.
    """
    return _sum_of(spark, ledgers_to_seal(topic.storage), partial(_seal, _Place.of(topic)))


def compact_topic(spark: SparkSession, topic: Topic, file_bytes: int = FILE_BYTES) -> int:
    """Join small files of adjacent ledgers into larger ones, a new file a task; give how many files are saved.

    What ``Topic.compact`` says holds here: positions stay, readers read on. Executors need what `seal_topic` needs.
    """
    return _sum_of(spark, runs_to_compact(topic.storage, file_bytes), partial(_compact, _Place.of(topic)))


def archive_tables(
    spark: SparkSession, tables: Sequence[MessageTable], topic: Topic, older_than: Duration = "0s"
) -> int:
    """Move acked messages of some tables into a topic, each exactly once, a table a task; give how many.

    The tables may be the shards of one, in several databases. `waterclock.archiving.archive_table` says what an
    archived message looks like. Appends to one topic take turns, so it is the reading and deleting that gains.

    Parameters
    ----------
    older_than
        How long ago a message must have been acked.
    """
    age = to_duration(older_than, "older_than")
    places = [(_url(table.context.backend), table.name) for table in tables]
    return _sum_of(spark, places, partial(_archive, _Place.of(topic), age))


def _sum_of(spark: SparkSession, pieces: Sequence[_T], work: Callable[[_T], int]) -> int:
    if not pieces:
        return 0
    # As many partitions as pieces: a killed task takes one piece with it, and a slow one holds up no other.
    return spark.sparkContext.parallelize(pieces, len(pieces)).map(work).sum()


def _seal(place: _Place, ledger: int) -> int:
    backend = Backend(place.url)
    try:
        return int(seal_ledger(_storage(place, backend), ledger))
    finally:
        backend.close()


def _compact(place: _Place, run: Run) -> int:
    backend = Backend(place.url)
    try:
        return compact_run(_storage(place, backend), run)
    finally:
        backend.close()


def _archive(place: _Place, age: int, table: tuple[str, str]) -> int:
    url, name = table
    with connect(place.url, place.ledgers) as database, connect(url, place.ledgers) as other:
        return archive_table(other.table(name), database.topic(place.name), age)


def _storage(place: _Place, backend: Backend) -> Storage:
    return Storage(place.topic_id, place.name, backend, LedgerFiles(place.ledgers))


def _url(backend: Backend) -> str:
    return backend.url.render_as_string(hide_password=False)
