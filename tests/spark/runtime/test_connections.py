"""How many connections the tasks of a query open on a server, counted on the way there."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.services import Service
from tests.work.faults.stalling import stalling

import waterclock as wc
from waterclock.spark import register

TASKS = 8
PLANNING = 2
"""Connections of the driver for a plan: one to look at the topic, one for statements."""
MESSAGE = "source STRING, stream STRING, event_time BIGINT, payload BINARY"


@pytest.mark.slow  # 25 tasks of Python, some seconds of processor time
def test_only_unsealed_entries_and_writes_take_connections_one_a_task(
    spark: SparkSession, postgresql_server: Service, tmp_path: Path
) -> None:
    register(spark)
    ledgers = str(tmp_path / "ledgers")
    with postgresql_server.new_database() as url, stalling(url) as wire:
        with wc.connect(url, ledgers) as database:
            topic = database.create_topic("t", roll_after=None)
            database.create_topic("copy")
            for ledger in range(TASKS):
                topic.append([wc.Message("press", "load", ledger, b"x")])
                topic.roll()
        place = {"url": wire.url, "ledgers": ledgers}
        frame = spark.read.format("waterclock").options(**place, topic="t").load()
        assert frame.rdd.getNumPartitions() == TASKS
        before = wire.opened
        assert frame.count() == TASKS
        assert wire.opened - before <= TASKS  # none of them is sealed
        with wc.connect(url, ledgers) as database:
            database.topic("t").seal()
        before = wire.opened
        assert spark.read.format("waterclock").options(**place, topic="t").load().count() == TASKS
        assert wire.opened - before <= PLANNING
        rows = spark.createDataFrame([("press", "load", n, b"x") for n in range(TASKS)], MESSAGE)
        written = rows.repartition(TASKS).write.format("waterclock").options(**place, topic="copy")
        before = wire.opened
        written.mode("append").save()
        # One looks at the options on the driver, one forgets the producers in the end.
        assert wire.opened - before <= TASKS + 2
