"""A partition has one owner at a time, and its offset moves only from where its owner left it."""

from __future__ import annotations

import pytest

from waterclock.connection import Database
from waterclock.ingest.storing.partition_rows import (
    PartitionKey,
    PartitionRow,
    PartitionTakenError,
    PositionMovedError,
)

KEY = PartitionKey(1, "cluster", "topic id", 3)


def write(row: PartitionRow, before: int, after: int) -> None:
    row.backend.transact(lambda connection: row.write(connection, before, after, 1))


def test_a_partition_begins_at_its_start_and_continues_at_its_offset(database: Database) -> None:
    assert PartitionRow.read_offset(database.backend, KEY) is None
    row, offset = PartitionRow.take(database.backend, KEY, "plant", 7)
    assert (offset, row.read()) == (7, 7)
    write(row, 7, 9)
    assert PartitionRow.take(database.backend, KEY, "plant", 0)[1] == 9
    assert PartitionRow.read_offset(database.backend, KEY) == 9


def test_an_earlier_owner_is_refused(database: Database) -> None:
    first, _ = PartitionRow.take(database.backend, KEY, "plant", 0)
    second, _ = PartitionRow.take(database.backend, KEY, "plant", 0)
    with pytest.raises(PositionMovedError):
        write(first, 0, 1)
    with pytest.raises(PartitionTakenError, match="another process has taken it"):
        first.read()
    write(second, 0, 1)
    assert second.read() == 1


def test_an_append_is_not_written_twice(database: Database) -> None:
    row, _ = PartitionRow.take(database.backend, KEY, "plant", 0)
    write(row, 0, 5)
    with pytest.raises(PositionMovedError):
        write(row, 0, 5)
    assert row.read() == 5


def test_a_topic_that_was_created_again_is_recognised_by_its_id(database: Database) -> None:
    PartitionRow.take(database.backend, KEY, "plant", 0)
    again = KEY._replace(kafka_topic_id="another id")
    assert not PartitionRow.was_created_again(database.backend, KEY, "plant")
    assert PartitionRow.was_created_again(database.backend, again, "plant")
    assert not PartitionRow.was_created_again(database.backend, again, "other")
