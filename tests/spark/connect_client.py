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
from waterclock.spark import compact_topic, event_time_batches, register, seal_topic
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
    register(spark)
    with wc.connect(pipeline.source.url) as database:
        topic = database.topic(pipeline.source.topic)
        sealed, compacted = seal_topic(spark, topic), compact_topic(spark, topic)
    place = {"url": pipeline.source.url, "topic": pipeline.source.topic, "packed": "true"}
    replayed = event_time_batches(spark.read.format("waterclock").options(**place).load(), **pipeline.rule).count()
    progress = run_pipeline(spark, pipeline, once=True)
    said = {
        "kind": type(spark).__module__,
        "sealed": sealed,
        "compacted": compacted,
        "replayed": replayed,
        "messages": progress.messages,
        "batches": progress.batches,
        "state_partitions": progress.state_partitions,
    }
    print(json.dumps(said))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
