"""The catalogue's rows of Kafka partitions: the process that appends each partition, and its progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from waterclock.database.backend import Backend
from waterclock.database.schema.ingest_catalogue import ingest_partitions
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import LeaseLostError
from waterclock.ingest.storing.taking import take_rows

# Built once: building a statement takes longer than running it.
_IDENTITY = ("topic_id", "cluster", "kafka_topic_id", "partition")
_KEY = tuple(ingest_partitions.c[name] == sa.bindparam(f"of_{name}") for name in _IDENTITY)
_READ = sa.select(ingest_partitions.c.owner_epoch, ingest_partitions.c.offset).where(*_KEY)
_LOCK = _READ.with_for_update()
_TAKE = sa.update(ingest_partitions).where(*_KEY).values(owner_epoch=ingest_partitions.c.owner_epoch + 1)
_WRITE = (
    sa.update(ingest_partitions)
    .where(
        *_KEY,
        ingest_partitions.c.owner_epoch == sa.bindparam("mine"),
        ingest_partitions.c.offset == sa.bindparam("before"),
    )
    .values(offset=sa.bindparam("after"), seen_at=sa.bindparam("now"))
)
_FIND_OTHER = sa.select(sa.func.count()).where(
    ingest_partitions.c.topic_id == sa.bindparam("of_topic_id"),
    ingest_partitions.c.cluster == sa.bindparam("of_cluster"),
    ingest_partitions.c.kafka_topic == sa.bindparam("name"),
    ingest_partitions.c.kafka_topic_id != sa.bindparam("of_kafka_topic_id"),
)


class PartitionTakenError(LeaseLostError):
    """Another process has taken a partition; this one must not append its records."""


class PositionMovedError(Exception):
    """A partition's row has changed: another process took it, or an append was committed without an answer."""


class PartitionKey(NamedTuple):
    """Identity of a partition and of the topic that takes its messages."""

    topic_id: int
    cluster: str
    kafka_topic_id: str
    partition: int


@dataclass(frozen=True)
class PartitionRow:
    """A partition's row, for the process that took it."""

    backend: Backend
    key: PartitionKey  # identity of the partition
    owner_epoch: int  # how often it was taken, including by this process

    @staticmethod
    def read_offset(backend: Backend, key: PartitionKey) -> int | None:
        """Return the offset of the first record that is not appended; None if no process ever had the partition."""
        with backend.snapshot() as connection:
            row = connection.execute(_READ, _values(key)).one_or_none()
        return None if row is None else row.offset

    @staticmethod
    def was_created_again(backend: Backend, key: PartitionKey, kafka_topic: str) -> bool:
        """Return whether the catalogue knows a topic of that name under another id."""
        with backend.snapshot() as connection:
            return bool(connection.execute(_FIND_OTHER, {**_values(key), "name": kafka_topic}).scalar())

    @classmethod
    def take(cls, backend: Backend, key: PartitionKey, kafka_topic: str, start: int) -> tuple[PartitionRow, int]:
        """Take a partition for this process, and return its next offset; an earlier process is refused from now on.

        Parameters
        ----------
        start
            Its first offset if no process ever had it.
        """

        def take_row(connection: sa.Connection) -> tuple[int, int]:
            found = connection.execute(_LOCK, _values(key)).one_or_none()
            if found is None:
                facts = {
                    "kafka_topic": kafka_topic,
                    "owner_epoch": 1,
                    "offset": start,
                    "seen_at": backend.now(connection),
                }
                connection.execute(sa.insert(ingest_partitions), {**key._asdict(), **facts})
                return 1, start
            connection.execute(_TAKE, _values(key))
            return found.owner_epoch + 1, found.offset

        owner_epoch, offset = take_rows(backend, take_row)
        return cls(backend, key, owner_epoch), offset

    def write(self, connection: SqlConnection, before: int, after: int, now: int) -> None:
        """Write the partition's progress, in the transaction of the append.

        Raises `PositionMovedError` if another process has taken it, or its offset is not the one before.
        """
        values = {**_values(self.key), "mine": self.owner_epoch, "before": before, "after": after, "now": now}
        if connection.execute(_WRITE, values).rowcount != 1:
            raise PositionMovedError

    def read(self) -> int:
        """Return the offset of the first record that is not appended.

        Raises `PartitionTakenError` if another process has taken the partition.
        """
        with self.backend.snapshot() as connection:
            row = connection.execute(_READ, _values(self.key)).one_or_none()
        if row is None or row.owner_epoch != self.owner_epoch:
            raise PartitionTakenError(
                f"cannot append from partition {self.key.partition}: another process has taken it over. Stop one of the"
                " two processes, or run both in the same group"
            )
        return row.offset


def _values(key: PartitionKey) -> dict[str, object]:
    return {f"of_{name}": value for name, value in key._asdict().items()}
