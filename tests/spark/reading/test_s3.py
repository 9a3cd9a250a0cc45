"""A topic whose ledgers lie on S3 is sealed and read by Spark's tasks, and no page or plan of Spark shows a secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.s3 import SECRET, S3Server

import waterclock as wc
from waterclock.spark import register, seal_topic, table
from waterclock.spark.reading.topic_read_options import TopicReadOptions
from waterclock.spark.upkeep import _TopicPlace

FORMS = (SECRET, SECRET.replace("/", "%2F"), "s3cr3t", "endpoint_override")


def test_spark_seals_and_reads_a_topic_on_s3_without_showing_its_secrets(
    spark: SparkSession, s3_server: S3Server, tmp_path: Path
) -> None:
    register(spark)
    s3_server.filesystem.create_dir("spark-bucket")
    root = s3_server.url("spark-bucket/data")
    url = f"sqlite:///{tmp_path}/f.db"
    with wc.connect(url, root) as database:
        topic = database.create_topic("t", roll_after=None)
        for ledger in range(3):
            topic.append([wc.Message("press", "load", ledger * 10 + i, b"x") for i in range(5)])
            topic.roll()
        assert seal_topic(spark, topic) == 3
        assert {info.state for info in topic.ledgers()} == {"sealed", "open"}
        options = {"url": url, "ledgers": root, "topic": "t"}
        frame = spark.read.format("waterclock").options(**options).load()
        assert sorted(row.event_time for row in frame.select("event_time").collect()) == sorted(
            ledger * 10 + i for ledger in range(3) for i in range(5)
        )
        # This Spark has no s3a; what it says of it shows no secret either.
        with pytest.raises(wc.UnavailableError, match=r"s3a://spark-bucket/data/t-1/.*s3a.*files=") as refused:
            table(spark, url, "t", ledgers=root)
        shown = [
            str(refused.value),
            frame._jdf.queryExecution().toString(),
            repr(topic.plan()),
            repr(_TopicPlace.of(topic)),
            repr(TopicReadOptions.checked(options)),
        ]
    for text in shown:
        assert not any(form in text for form in FORMS), text
