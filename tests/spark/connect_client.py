"""A client of Spark Connect, in a process of its own: one process has Spark's sessions of one kind only.

Its arguments: the pipeline's file. It says on stdout, as JSON, what each function gave.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from tests.spark import short_lived
from tests.spark.pipeline_files import read

import waterclock as wc
from waterclock.spark import event_time_batches, messages_of, seal_topic, table
from waterclock.spark.pipeline.running import run_pipeline

SETTINGS = {
    **short_lived.SETTINGS,
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.ui.enabled": "false",
}


def main(path: str) -> None:
    pipeline = read(Path(path))
    spark = SparkSession.builder.remote("local[2]").config(map=SETTINGS).getOrCreate()
    with wc.connect(pipeline.source.url) as database:
        topic = database.topic(pipeline.source.topic)
        sealed = seal_topic(spark, topic)
    progress = run_pipeline(spark, pipeline, once=True)
    with wc.connect(pipeline.source.url) as database:
        topic = database.create_topic("for-sql")
        topic.append([wc.Message("c", "s0", 0, b"16", receive_time=0)])
        topic.roll()
        topic.seal()
        topic.append([wc.Message("c", "s0", 10**9, b"17", receive_time=10**9)])
    batches = event_time_batches(table(spark, pipeline.source.url, "for-sql"))
    messages = messages_of(batches, "for-sql", url=pipeline.source.url)
    said = {
        "kind": type(spark).__module__,
        "sealed": sealed,
        "messages": progress.messages,
        "batches": progress.batches,
        "state_partitions": progress.state_partitions,
        "state_buckets": progress.state_buckets,
        "in_batches": sorted(bytes(row.payload).decode() for row in messages.collect()),
    }
    print(json.dumps(said))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
