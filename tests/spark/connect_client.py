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
from waterclock.spark import seal_topic
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
    said = {
        "kind": type(spark).__module__,
        "sealed": sealed,
        "messages": progress.messages,
        "batches": progress.batches,
        "state_partitions": progress.state_partitions,
        "state_buckets": progress.state_buckets,
    }
    print(json.dumps(said))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
