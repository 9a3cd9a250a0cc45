"""A topic as a DataFrame of Spark's own: the same rows as the format ``waterclock`` gives, without Python between."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import waterclock as wc
from waterclock.spark import register, table
from waterclock.topics.store.ledger_files import LostFileError
from waterclock.topics.topic import Topic

SECOND = 1_000_000_000
PLACE = ("ledger", "entry", "index")


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> Iterator[SparkSession]:
    register(spark)
    # The settings of a session may pass over such files, which is not to hold for ledgers.
    given = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
    for name in given:
        spark.conf.set(name, "true")
    yield spark
    for name in given:
        spark.conf.unset(name)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[wc.Database]:
    """A store in a folder that is a pattern to Spark, and characters that mean something in a URL."""
    with wc.connect(f"sqlite:///{tmp_path}/f.db", ledgers=str(tmp_path / "a [b]{c,d}* ?%20\\ü#1")) as database:
        yield database


def append(topic: Topic, number: int, *, roll: bool = True) -> None:
    """Append eight messages in two entries, some from before 1970, some with headers."""
    chance = random.Random(number)  # noqa: S311
    for entry in range(2):
        messages = [
            wc.Message(
                f"source-{i % 2}",
                f"stream-{i % 3}",
                (number - 2) * SECOND + entry * 1_500 + i,
                chance.randbytes(600),
                publish_time=number * SECOND + entry,
                receive_time=number * SECOND + i,
                headers={"number": str(number), "": "ü"} if i % 2 else None,
            )
            for i in range(4)
        ]
        topic.append(messages)
    if roll:
        topic.roll()


def in_every_state(database: wc.Database) -> Topic:
    """Make a topic with ledgers that share a file, that have one to themselves, that are closed, and that is open."""
    topic = database.create_topic("t")
    for number in range(3):
        append(topic, number)
    topic.seal()
    assert topic.compact() == 2
    for number in range(3, 6):
        append(topic, number)
    topic.seal()
    append(topic, 6)
    append(topic, 7, roll=False)
    return topic


def of(spark: SparkSession, database: wc.Database, **options: Any) -> DataFrame:
    return table(spark, str(database.backend.url), "t", ledgers=str(database.ledgers), **options)


def rows(frame: DataFrame) -> list[Any]:
    return sorted((row.asDict() for row in frame.collect()), key=lambda row: [row[name] for name in PLACE])


def test_it_is_what_the_format_gives_of_ledgers_in_every_state(spark: SparkSession, database: wc.Database) -> None:
    topic = in_every_state(database)
    options = {"url": str(database.backend.url), "ledgers": str(database.ledgers), "topic": "t"}
    other = spark.read.format("waterclock").options(**options)
    frame = of(spark, database)
    assert [(f.name, f.dataType) for f in frame.schema] == [(f.name, f.dataType) for f in other.load().schema]
    expected = rows(other.load())
    assert len(expected) == 64
    assert rows(frame) == expected
    # Ledgers 0 to 2 share a file, of which the first is gone; 5 ends within.
    topic.truncate(wc.Position(1, 0, 0))
    bounds = {"since": 2 * SECOND + 1, "until": "1970-01-01T00:00:05.000000001Z"}
    within = of(spark, database, **bounds)
    assert len(within.inputFiles()) == 2
    assert rows(within) == rows(
        other.options(startingTimestamp=bounds["since"], endingTimestamp=bounds["until"]).load()
    )
    # By this time all is within one ledger that is not sealed.
    assert of(spark, database, since=7 * SECOND, by="receive_time").inputFiles() == []


def test_sql_sees_it_and_the_format_as_views(spark: SparkSession, database: wc.Database) -> None:
    in_every_state(database)
    frame = of(spark, database)
    frame.createOrReplaceTempView("telemetry")
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW through_python USING waterclock OPTIONS"
        f" (url '{database.backend.url}', ledgers '{str(database.ledgers).replace(chr(92), chr(92) * 2)}', topic 't')"
    )
    asked = (
        "SELECT source, ledger, count(*) AS n, max(event_time) AS last FROM {}"
        " WHERE event_time >= unix_micros(TIMESTAMP '1970-01-01 00:00:01Z') * 1000 AND ledger < 5 GROUP BY ALL"
    )
    found = spark.sql(asked.format("telemetry"))
    groups = found.collect()
    assert len(groups) == 4
    assert sorted(groups) == sorted(spark.sql(asked.format("through_python")).collect())
    # Spark reads two of the columns, and leaves out what the files' statistics exclude.
    plan = found._jdf.queryExecution().toString()
    assert "ReadSchema: struct<source:string,event_time:bigint>" in plan
    assert "GreaterThanOrEqual(event_time,1000000000)" in plan


def test_it_shows_what_was_there_while_ledgers_are_sealed_compacted_and_deleted(
    spark: SparkSession, database: wc.Database
) -> None:
    topic = in_every_state(database)
    frame = of(spark, database)
    before = rows(frame)
    append(topic, 8)
    assert topic.seal() == 2
    assert topic.compact() > 0
    assert rows(frame) == before
    assert rows(of(spark, database))[:-8] == before
    topic.truncate(wc.Position(6, 0, 0))
    assert rows(frame) == before
    # Ledger 6 had no file when the snapshot was taken, and has lost its place in the catalogue since.
    topic.truncate(wc.Position(7, 0, 0))
    with pytest.raises(PySparkException, match="ledger 6 of topic 't' was deleted while it was read"):
        frame.collect()
    assert of(spark, database).count() == 16


def test_a_topic_without_messages_has_no_rows(spark: SparkSession, database: wc.Database) -> None:
    topic = database.create_topic("t")
    frame = of(spark, database)
    assert frame.count() == 0
    assert frame.columns[0] == "source"
    append(topic, 0)
    topic.seal()
    assert of(spark, database, since=SECOND).count() == 0


def test_a_file_that_is_missing_or_damaged_is_named_even_if_the_session_skips_such(
    spark: SparkSession, database: wc.Database
) -> None:
    topic = in_every_state(database)
    frame = of(spark, database)
    path = Path(topic.files()[1])
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-len(whole) // 3] ^= 4  # a payload, which says nothing of itself
    for damaged in (bytes(flipped), whole[: len(whole) // 2], b""):
        path.write_bytes(damaged)
        with pytest.raises((PySparkException, Py4JError), match=path.name):
            frame.agg({"payload": "max"}).collect()
    path.unlink()
    with pytest.raises(
        (PySparkException, Py4JError), match=rf"{path.name}.*\n?.*does not exist|FILE_NOT_EXIST.*{path.name}"
    ):
        frame.agg({"payload": "max"}).collect()
    with pytest.raises(LostFileError, match=rf"cannot find a ledger file.*{path.name}"):
        of(spark, database)


def test_a_file_that_spark_would_leave_out_or_take_for_another_is_named(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "_spark_metadata" / "ledgers"
    folder.mkdir(parents=True)
    with wc.connect(f"sqlite:///{tmp_path}/f.db", ledgers=str(folder)) as database:
        topic = database.create_topic("t")
        for number in range(2):
            append(topic, number)
        topic.seal()
        with pytest.raises(wc.UnavailableError, match=rf"not list .*{Path(topic.files()[0]).name}.*_spark_metadata"):
            of(spark, database)
        elsewhere = str(tmp_path / "elsewhere")
        topic.relocate(elsewhere)
        url = str(database.backend.url)
        assert table(spark, url, "t", ledgers=elsewhere).count() == 16
        first, second = map(Path, topic.files())
        for wrong in (b"", first.read_bytes() + b"-"):
            second.write_bytes(wrong)
            with pytest.raises(wc.DamagedError, match=rf"{second.name} is corrupt: expected .* found {len(wrong)}"):
                table(spark, url, "t", ledgers=elsewhere)


def test_invalid_arguments_are_refused(spark: SparkSession, database: wc.Database) -> None:
    in_every_state(database)
    with pytest.raises(wc.NotFoundError, match="'nothing'"):
        table(spark, str(database.backend.url), "nothing")
    with pytest.raises(wc.InvalidArgumentError, match=r"'by' must be one of publish_time, .*got 'time'"):
        of(spark, database, by="time")
    with pytest.raises(wc.InvalidArgumentError, match="until"):
        of(spark, database, until="yesterday")
    with pytest.raises(wc.UnavailableError, match=r"cannot open the ledger files, such as s3a://elsewhere/.*files="):
        of(spark, database, files="s3a://elsewhere/")
    for files in ("", "nowhere", "C:\\ledgers", 7):
        with pytest.raises(wc.InvalidArgumentError, match="files must be a URL such as"):
            of(spark, database, files=files)
    with pytest.raises(LostFileError, match="elsewhere"):
        of(spark, database, files="file:///elsewhere")
    readers = "spark.sql.sources.useV1SourceList"
    before = spark.conf.get(readers)
    spark.conf.set(readers, "csv")
    try:
        with pytest.raises(wc.InvalidArgumentError, match=f"{readers} must contain parquet.* got 'csv'"):
            of(spark, database)
    finally:
        spark.conf.set(readers, before)
