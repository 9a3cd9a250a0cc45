"""A client of Spark Connect, in a process of its own: one process has Spark's sessions of one kind only.

Its arguments: the pipeline's file. It says on stdout, as JSON, what each function gave.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession
from tests.spark import short_lived
from tests.spark.pipeline.pipeline_files import SECOND, START, read

import waterclock as wc
from waterclock.spark import (
    archive_tables,
    compact_topic,
    event_time_batches,
    messages_of,
    rate_aware_batches,
    seal_topic,
    table,
)
from waterclock.spark.pipeline.running import replay_pipeline, run_pipeline

SETTINGS = {
    **short_lived.SETTINGS,
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}


def main(path: str) -> None:
    pipeline = read(Path(path))
    spark = SparkSession.builder.remote("local[2]").config(map=SETTINGS).getOrCreate()
    with wc.connect(pipeline.source.url) as database:
        topic = database.topic(pipeline.source.topic)
        sealed = seal_topic(spark, topic)
        compacted = compact_topic(spark, topic)
        orders = database.create_table("orders")
        orders.put_many([{"payload": b"one"}, {"payload": b"two"}])
        orders.ack([delivery.id for delivery in orders.receive()])
        archived = archive_tables(spark, [orders], database.create_topic("done"))
    progress = run_pipeline(spark, pipeline, once=True)
    again = replay_pipeline(spark, replace(pipeline, outputs=()), START, START + 60 * SECOND)
    with wc.connect(pipeline.source.url) as database:
        topic = database.create_topic("for-sql")
        topic.append([wc.Message("c", "s0", 0, b"16", receive_time=0)])
        topic.roll()
        topic.seal()
        topic.append([wc.Message("c", "s0", 10**9, b"17", receive_time=10**9)])
    messages = table(spark, pipeline.source.url, "for-sql")
    in_batches = messages_of(event_time_batches(messages), "for-sql", url=pipeline.source.url)
    said = {
        "kind": type(spark).__module__,
        "upkeep": [sealed, compacted, archived],
        "messages": progress.messages,
        "batches": progress.batches,
        "open_batches": progress.open_batches,
        "rejections": progress.rejections,
        "replayed": [again.messages, again.batches, again.rejected],
        "state_partitions": progress.state_partitions,
        "state_buckets": progress.state_buckets,
        "in_batches": sorted(bytes(row.payload).decode() for row in in_batches.collect()),
        "by_rate": rate_aware_batches(messages).count(),
    }
    print(json.dumps(said))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
