"""A streaming query in a process of its own, which tests kill: a topic in, batches to a message table and to Parquet.

Its arguments: the database's URL, a folder of its own, the master, and ``once`` or ``on``. It says on stdout when it
is ready and when each micro-batch begins and ends.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from tests.spark import short_lived

from waterclock.spark import batches_of, event_time_outcomes, register, session
from waterclock.spark.runtime.class_archive import archive_options
from waterclock.spark.runtime.java import find_java
from waterclock.spark.runtime.partitions import PARTITIONS, chosen_partitions

RULE = {"window": "500ms", "max_delay": "400ms"}
TOPIC, TABLE = "telemetry", "batches"
SETTINGS = short_lived.SETTINGS | {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.defaultJavaOptions": f"{short_lived.JAVA} {archive_options(find_java())}",
    # A killed executor takes its tasks' tries with it; the query is to survive many.
    "spark.task.maxFailures": 100,
    "spark.deploy.maxExecutorRetries": -1,
    "spark.executor.memory": "512m",
}


def main(url: str, folder: str, master: str, until: str) -> None:
    spark = session(master, **SETTINGS)
    say("ready")
    run(spark, url, folder, until)
    say("done")


def run(spark: SparkSession, url: str, folder: str, until: str) -> None:
    """Run the query until it has read all that there is, or for ever."""
    register(spark)
    spark.conf.set(PARTITIONS, chosen_partitions(spark))
    options = {"url": url, "topic": TOPIC, "buckets": "64"}
    if until == "on":
        options["maxMessagesPerTrigger"] = "200"
    arriving = spark.readStream.format("waterclock").options(**options).load()
    writer = (
        event_time_outcomes(arriving, **RULE, max_skew="1s")
        .writeStream.foreachBatch(partial(write, url=url, folder=Path(folder)))
        .option("checkpointLocation", f"{folder}/checkpoint")
    )
    query = (writer.trigger(availableNow=True) if until == "once" else writer).start()
    query.awaitTermination()


def write(outcomes: DataFrame, number: int, *, url: str, folder: Path) -> None:
    """Write a micro-batch; after a kill it comes again, with the same number, and changes nothing."""
    say(f"begin {number}")
    outcomes.persist()
    place = {"url": url, "table": TABLE, "payloads": TOPIC}
    batches_of(outcomes).write.format("waterclock").options(**place).mode("append").save()
    outcomes.write.mode("overwrite").parquet(f"{folder}/outcomes/micro_batch={number}")
    outcomes.unpersist()
    say(f"end {number}")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
