"""Runs upkeep as Spark jobs: parallel tasks process ledgers, files or tables that one process would handle in turn.

Each task works as the library does in one process, with the same owners, leases and verification. So a task that is
killed or runs twice neither loses nor duplicates data; the next call finishes its work.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from waterclock._support.urls import represented
from waterclock.archive_to_topic import archive_table
from waterclock.connection import connect
from waterclock.database.backend import Backend
from waterclock.spark.runtime.describing import described
from waterclock.tables.message_table import MessageTable
from waterclock.time import Duration, to_duration
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.store.ledger_files import LedgerFiles
from waterclock.topics.topic import Topic
from waterclock.topics.upkeep.compacting import FILE_BYTES, compact_run, runs_to_compact
from waterclock.topics.upkeep.partial_failure import Done, total
from waterclock.topics.upkeep.sealing import ledgers_to_seal, try_to_seal

_T = TypeVar("_T")
_R = TypeVar("_R")
_RESULTS_SCHEMA = "id BIGINT, result BINARY"


class _TopicPlace(NamedTuple):
    """The address of a topic, in a form that can be sent to a task."""

    url: str
    files: LedgerFiles
    topic_id: int
    name: str

    def __repr__(self) -> str:
        return represented(self, self._asdict())

    @classmethod
    def of(cls, topic: Topic) -> _TopicPlace:
        storage = topic.storage
        return cls(_url(storage.backend), storage.files, storage.topic_id, storage.name)


def seal_topic(spark: SparkSession, topic: Topic) -> int:
    """Write every closed ledger of a topic to a Parquet file, one ledger per task; return how many.

    The driver first does due upkeep of the topic, as ``Topic.seal`` does. Every executor must reach the database and
    the folder of ledgers under the names that the driver has for them: no SQLite on a cluster of several machines.

    Raises
    ------
    DamagedError
        If ledgers are corrupt; those stay as they are, and all others are sealed. Each is logged by its task.
    pyspark.errors.PySparkException
        If a task failed each time it was tried; the ledgers of the others are sealed.
    """
    ledgers = ledgers_to_seal(topic.storage)
    seal = partial(_on_topic, _TopicPlace.of(topic), try_to_seal)
    return total(topic.name, "sealed", _results_of(spark, ledgers, seal, f"seal {topic.name}"))


def compact_topic(spark: SparkSession, topic: Topic, file_bytes: int = FILE_BYTES) -> int:
    """Join small files of adjacent ledgers into larger ones, one new file per task; return how many files are saved.

    As with ``Topic.compact``, positions stay, readers continue, and an error at the end names damaged or lost ledgers.
    Executors need what `seal_topic` needs.
    """
    runs = runs_to_compact(topic.storage, file_bytes)
    compact = partial(_on_topic, _TopicPlace.of(topic), compact_run)
    return total(topic.name, "compacted", _results_of(spark, runs, compact, f"compact {topic.name}"))


def archive_tables(
    spark: SparkSession, tables: Sequence[MessageTable], topic: Topic, older_than: Duration = "0s"
) -> int:
    """Move acked messages of some tables into a topic, each exactly once, one table per task; return how many.

    The tables may be the shards of one, in several databases. `waterclock.archive_to_topic.archive_table` describes an
    archived message. Appends to one topic run one after another, so only reading and deleting get faster.

    Parameters
    ----------
    older_than
        Minimum time since a message's ack.
    """
    age = to_duration(older_than, "older_than")
    places = [(_url(table.context.backend), table.name) for table in tables]
    return sum(_results_of(spark, places, partial(_archive, _TopicPlace.of(topic), age), f"archive to {topic.name}"))


def _results_of(spark: SparkSession, pieces: Sequence[_T], work: Callable[[_T], _R], what: str) -> list[_R]:
    """Run a function for each piece in its own task, and return the results in the order of the pieces.

    It uses a DataFrame, because Spark Connect has no RDDs.
    """
    if not pieces:
        return []
    # As many partitions as pieces: a killed task loses one piece, and a slow one does not delay others.
    numbers = spark.range(0, len(pieces), 1, len(pieces))
    with described(spark, f"{what}: {len(pieces)}"):
        done = numbers.mapInArrow(partial(_worked, list(pieces), work), _RESULTS_SCHEMA).collect()
    return [pickle.loads(row.result) for row in sorted(done, key=lambda row: row.id)]  # noqa: S301  # of our own tasks


def _worked(
    pieces: Sequence[_T], work: Callable[[_T], _R], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        numbers = batch.column("id").to_pylist()
        results = [pickle.dumps(work(pieces[number])) for number in numbers]
        yield pa.record_batch([pa.array(numbers, pa.int64()), pa.array(results, pa.binary())], ["id", "result"])


def _on_topic(place: _TopicPlace, task: Callable[[Storage, _T], Done], piece: _T) -> Done:
    backend = Backend(place.url)
    try:
        return task(_storage(place, backend), piece)
    finally:
        backend.close()


def _archive(place: _TopicPlace, age: int, table: tuple[str, str]) -> int:
    url, name = table
    backend = Backend(place.url)
    try:
        with connect(url) as other:
            return archive_table(other.table(name), Topic(_storage(place, backend)), age)
    finally:
        backend.close()


def _storage(place: _TopicPlace, backend: Backend) -> Storage:
    return Storage(place.topic_id, place.name, backend, place.files)


def _url(backend: Backend) -> str:
    return backend.url.render_as_string(hide_password=False)
