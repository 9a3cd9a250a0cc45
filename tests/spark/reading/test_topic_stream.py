"""The source in Spark: streams that are stopped and go on, filters that spare files, and mistakes reported in a
line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.spark import short_lived

import waterclock as wc
from waterclock.spark import register

SECOND = 1_000_000_000

MISTAKES = """
import sys
from waterclock.spark import register
from waterclock.spark import session
url = sys.argv[1]
spark = session("local[1]")
register(spark)
for options in ({"topic": "nowhere"}, {"topic": "t", "startingPosition": "0:0:0"}, {"topic": "t", "startingTme": "1"}):
    for read in (spark.read, spark.readStream):
        try:
            read.format("waterclock").options(url=url, **options).load()
        except Exception as error:
            print(str(error).strip())
spark.read.format("waterclock").options(url=url, topic="t", columns="sauce").load()
"""


def messages(first: int, stop: int) -> list[wc.Message]:
    return [
        wc.Message("ab"[n // 10 % 2], "s", n * SECOND, publish_time=n * SECOND, receive_time=n)
        for n in range(first, stop)
    ]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[wc.Database]:
    with wc.connect(f"sqlite:///{tmp_path}/f.db") as database:
        yield database


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def run(frame: DataFrame, checkpoint: Path, seen: list[list[int]]) -> StreamingQuery:
    """Run what there is to its end, and note the receive times of each micro-batch."""

    def note(rows: DataFrame, _: int) -> None:
        seen.append([row.receive_time for row in rows.orderBy("receive_time").collect()])

    query = (
        frame.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).foreachBatch(note)
    )
    started = query.start()
    started.awaitTermination()
    return started


def stream(spark: SparkSession, database: wc.Database, **options: Any) -> DataFrame:
    place = {"url": str(database.backend.url), "topic": "t", "columns": "receive_time"}
    return spark.readStream.format("waterclock").options(**place, **options).load()


def test_a_stream_continues_where_its_checkpoint_says_and_tells_how_far_it_is_behind(
    spark: SparkSession, database: wc.Database, tmp_path: Path
) -> None:
    topic = database.create_topic("t")
    for first in (0, 10, 20):
        topic.append(messages(first, first + 10))
    topic.roll()
    seen: list[list[int]] = []
    first_run = run(stream(spark, database, maxMessagesPerTrigger=15), tmp_path / "checkpoint", seen)
    topic.seal()
    topic.append(messages(30, 31))
    run(stream(spark, database, maxMessagesPerTrigger=15), tmp_path / "checkpoint", seen)
    assert seen == [list(range(10)), list(range(10, 20)), list(range(20, 30)), [30]]
    source = json.loads(first_run.recentProgress[0].json)["sources"][0]
    assert source["endOffset"] == {"position": "0:1:0", "ordinal": 10, "topic": topic.storage.origin, "begin": 0}
    assert source["latestOffset"] == {"position": "1:0:0", "ordinal": 30, "topic": topic.storage.origin}


def test_a_stream_ends_with_a_clear_error_if_unread_messages_were_deleted(
    spark: SparkSession, database: wc.Database, tmp_path: Path
) -> None:
    topic = database.create_topic("t")
    topic.append(messages(0, 2))
    seen: list[list[int]] = []
    run(stream(spark, database), tmp_path / "checkpoint", seen)
    topic.append(messages(2, 5))
    topic.roll()
    topic.append(messages(5, 6))
    topic.truncate(wc.Position(1, 0, 0))
    with pytest.raises(StreamingQueryException) as ended:
        run(stream(spark, database), tmp_path / "checkpoint", seen)
    assert "NotFoundError: position 0:1:0 of topic 't' has expired: the 3 messages" in str(ended.value)
    assert 'File "' not in str(ended.value)
    lossy = stream(spark, database, failOnDataLoss="false")
    run(lossy, tmp_path / "checkpoint", seen)
    assert seen == [[0, 1], [5]]
    topic.append(messages(6, 8))
    topic.truncate(topic.head)
    last = run(lossy, tmp_path / "checkpoint", seen).lastProgress
    assert last is not None
    assert json.loads(last.json)["sources"][0]["endOffset"]["ordinal"] == 8  # deleted messages are not behind


def test_filters_spare_the_files_that_hold_nothing_wanted(spark: SparkSession, database: wc.Database) -> None:
    topic = database.create_topic("t")
    for first in range(0, 40, 10):
        topic.append(messages(first, first + 10))
        topic.roll()
    topic.seal()
    frame = spark.read.format("waterclock").options(url=str(database.backend.url), topic="t").load()
    files = [Path(str(ledger.file)) for ledger in topic.ledgers() if ledger.file]
    gone = [file.rename(file.with_suffix(".away")) for file in files[:2]]
    assert len(gone) == 2
    by_time = frame.where(f"event_time >= {25 * SECOND}").select("receive_time").collect()
    assert sorted(row.receive_time for row in by_time) == list(range(25, 40))
    by_position = frame.where("ledger = 2 AND source = 'a'").select("receive_time").collect()
    assert sorted(row.receive_time for row in by_position) == list(range(20, 30))
    files[2].rename(files[2].with_suffix(".away"))
    by_source = frame.where("source = 'b' AND event_timestamp > timestamp_seconds(20)").select("receive_time").collect()
    assert sorted(row.receive_time for row in by_source) == list(range(30, 40))


@pytest.mark.slow
def test_a_script_with_a_mistake_gets_an_error_of_one_line(database: wc.Database) -> None:
    topic = database.create_topic("t")
    topic.append(messages(0, 1))
    topic.truncate(topic.head)
    command = [sys.executable, "-c", MISTAKES, str(database.backend.url)]
    environment = os.environ | short_lived.ENVIRONMENT
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    said = [line for line in done.stdout.splitlines() if "waterclock.errors" in line]
    expected = [
        "no topic named 'nowhere'",
        "startingPosition: 0:0:0 of topic 't' has expired",
        "no option named 'startingtme'",
    ]
    assert len(said) == 6, done.stdout + done.stderr
    for line, text in zip(said, [text for text in expected for _ in range(2)], strict=True):
        assert text in line
    assert not [line for line in done.stdout.splitlines() if line.startswith(("Traceback", "  File", "\tat"))]
    # What is not caught shows the script's own lines, and nothing of Spark's workers or of Java.
    assert done.returncode == 1
    assert "got 'sauce'" in done.stderr
    assert done.stderr.count("Traceback") == 1
    assert "waterclock/spark" not in done.stderr
    assert "\tat " not in done.stderr
