"""Spark reads a topic in which something is damaged, lost or missing: the query says so, or goes on behind it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows

import waterclock as wc
from waterclock.database.schema.topic_catalogue import entries, ledgers
from waterclock.spark import register
from waterclock.spark.reading.source import TopicReader
from waterclock.spark.reading.topic_read_options import TopicReadOptions
from waterclock.spark.reading.topic_stream import TopicStreamReader
from waterclock.topics.store.ledger_files import LostFileError
from waterclock.topics.topic import Topic


@pytest.fixture
def database(tmp_path: Path) -> Iterator[wc.Database]:
    """Four sealed ledgers of ten messages and an open one of ten, each in two entries."""
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        topic = database.create_topic("t")
        for first in range(0, 50, 5):
            if first and first % 10 == 0:
                topic.roll()
            topic.append([wc.Message("a", "s", n, publish_time=n, receive_time=n) for n in range(first, first + 5)])
        topic.seal()
        yield database


def options(database: wc.Database, **given: str) -> TopicReadOptions:
    return TopicReadOptions.checked({"url": str(database.backend.url), "topic": "t", **given})


def numbers(reader: TopicReader) -> list[int]:
    return [n for part in reader.partitions() for batch in reader.read(part) for n in batch["receive_time"].to_pylist()]


def streamed(reader: TopicStreamReader, most: int) -> list[int]:
    """Run micro-batches of so many messages to the end."""
    read: list[int] = []
    start = reader.initialOffset()
    while (end := reader.latestOffset(start, ReadMaxRows(most))) != start:
        for part in reader.partitions(start, end):
            read += [n for batch in reader.read(part) for n in batch["receive_time"].to_pylist()]
        start = end
    assert start["ordinal"] == 50
    return read


def write(database: wc.Database, statement: Any) -> None:
    database.backend.transact(lambda connection: connection.execute(statement))


def path_of(database: wc.Database, ledger: int) -> Path:
    return Path(str(database.topic("t").ledgers()[ledger].file))


def cut_file(database: wc.Database) -> set[int]:
    path_of(database, 1).write_bytes(b"no file of Parquet")
    return set(range(10, 20))


def flip_page(database: wc.Database) -> set[int]:
    path = path_of(database, 2)
    data = bytearray(path.read_bytes())
    data[40] ^= 4
    path.write_bytes(data)
    return set(range(20, 30))


def lose_file(database: wc.Database) -> set[int]:
    path_of(database, 3).unlink()
    return set(range(30, 40))


def lose_row(database: wc.Database) -> set[int]:
    write(database, sa.delete(ledgers).where(ledgers.c.ledger == 2))
    return set(range(20, 30))


def damage_entry(database: wc.Database) -> set[int]:
    write(database, sa.update(entries).where(entries.c.entry == 0).values(data=b"WCA1 and what follows"))
    return set(range(40, 45))


def lose_entry(database: wc.Database) -> set[int]:
    write(database, sa.delete(entries).where(entries.c.entry == 0))
    return set(range(40, 45))


FAULTS = [cut_file, flip_page, lose_file, lose_row, damage_entry, lose_entry]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_read_stops_at_damage_or_continues_behind_it(
    database: wc.Database, fault: Callable[[wc.Database], set[int]], caplog: pytest.LogCaptureFixture
) -> None:
    gone = fault(database)
    with pytest.raises((wc.DamagedError, LostFileError)):
        numbers(TopicReader(options(database)))
    caplog.clear()
    lenient = TopicReader(options(database, onDamage="skip"))
    assert numbers(lenient) == [n for n in range(50) if n not in gone]
    warnings = [record.message for record in caplog.records if "skips" in record.message]
    assert len(warnings) == 1
    assert f"skips {len(gone)} messages" in warnings[0]


@pytest.mark.parametrize("most", [3, 7, 100])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_stream_stops_at_damage_or_continues_behind_it_and_its_lag_adds_up(
    database: wc.Database, fault: Callable[[wc.Database], set[int]], most: int, caplog: pytest.LogCaptureFixture
) -> None:
    gone = fault(database)
    with pytest.raises((wc.DamagedError, LostFileError)):
        streamed(TopicStreamReader(options(database)), most)
    with caplog.at_level(logging.WARNING):
        read = streamed(TopicStreamReader(options(database, onDamage="skip")), most)
    assert read == [n for n in range(50) if n not in gone]
    assert "skips" in caplog.text


def test_a_footer_that_is_damaged_is_taken_from_the_catalogue(database: wc.Database) -> None:
    for compacted in (False, True):
        if compacted:
            assert database.topic("t").compact() == 3
        path = path_of(database, 0)
        data = path.read_bytes()
        path.write_bytes(data[:-60] + bytes(60))
        assert numbers(TopicReader(options(database))) == list(range(50))
        path.write_bytes(data)


def test_a_stream_skips_what_is_recorded_as_lost(database: wc.Database) -> None:
    write(database, sa.update(ledgers).where(ledgers.c.ledger.in_([0, 2])).values(state="lost", path=None))
    left = [n for n in range(50) if n // 10 not in (0, 2)]
    assert numbers(TopicReader(options(database))) == left
    assert numbers(TopicReader(options(database, startingPosition="0:0:0"))) == left
    assert streamed(TopicStreamReader(options(database)), 4) == left


@pytest.mark.parametrize("value", ["ignore", "", "Raise"])
def test_on_damage_has_two_values(database: wc.Database, value: str) -> None:
    with pytest.raises(wc.InvalidArgumentError, match="onDamage"):
        options(database, onDamage=value)


def test_queries_take_the_option_too(spark: SparkSession, database: wc.Database, tmp_path: Path) -> None:
    register(spark)
    flip_page(database)
    given = {"url": str(database.backend.url), "topic": "t"}
    with pytest.raises(PySparkException, match="row group 0"):
        spark.read.format("waterclock").options(**given).load().collect()
    lenient = spark.read.format("waterclock").options(**given, onDamage="skip").load()
    assert sorted(row.receive_time for row in lenient.collect()) == [n for n in range(50) if n // 10 != 2]
    seen: list[int] = []

    def note(rows: DataFrame, _: int) -> None:
        seen.extend(row.receive_time for row in rows.collect())

    stream = spark.readStream.format("waterclock").options(**given, onDamage="skip").load()
    writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    writer.foreachBatch(note).start().awaitTermination()
    assert sorted(seen) == [n for n in range(50) if n // 10 != 2]


def test_a_topic_that_was_opened_reads_the_same(database: wc.Database) -> None:
    gone = lose_row(database)
    topic: Topic = database.topic("t")
    assert [m.receive_time for m in topic.read(on_damage="skip")] == [n for n in range(50) if n not in gone]
