"""Creates Java's archive of loaded classes: runs a typical Spark session, while Java records the classes it loads."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from waterclock.spark.reading.columns import METADATA_COLUMNS
from waterclock.spark.runtime.class_archive import BUILDS_WITHIN_S, QUIET, build
from waterclock.spark.runtime.java import find_java
from waterclock.spark.runtime.session import JAVA_OPTIONS, session
from waterclock.spark.streaming.batching import batches_of, event_time_outcomes

_KINDS = {"source": "STRING", "stream": "STRING", "index": "INT"}
_SCHEMA = ", ".join(f"`{name}` {_KINDS.get(name, 'BIGINT')}" for name in METADATA_COLUMNS)


def make_class_archive() -> Path:
    """Build the archive for this machine's Java and Spark, in a minute, and return its path.

    For a process of its own: it starts a session and ends it.

    Raises `UnavailableError` if Java is missing or writes no archive, or no folder can hold the archive.
    """
    return build(find_java(), run_and_dump)


def run_and_dump(path: Path) -> None:
    """Run a session that uses a little of everything, and make its Java record the loaded classes."""
    options: dict[str, Any] = {
        "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} {QUIET} -XX:ArchiveClassesAtExit='{path}'",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": 1,
    }
    spark = session("local[1]", app_name="waterclock class archive", **options)
    with tempfile.TemporaryDirectory(prefix="waterclock-") as scratch:
        _warm_up(spark, Path(scratch))
        java: Any = spark.sparkContext._gateway  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # none else knows its end
        spark.stop()
        java.proc.stdin.close()  # on that it ends, and writes the archive
        java.proc.wait(BUILDS_WITHIN_S)


def _warm_up(spark: SparkSession, folder: Path) -> None:
    """Use each part of a session once: batch a few messages as a replay and as a stream, in files in ``folder``."""
    messages = str(folder / "messages")
    columns = [f"CAST(id AS {_KINDS.get(name, 'BIGINT')}) AS `{name}`" for name in METADATA_COLUMNS]
    spark.range(20).selectExpr(*columns).write.parquet(messages)
    replayed = event_time_outcomes(spark.read.schema(_SCHEMA).parquet(messages), window=10, max_delay=10)
    batches_of(replayed).write.parquet(str(folder / "batches"))
    arriving = spark.readStream.schema(_SCHEMA).parquet(messages)

    def write(outcomes: DataFrame, number: int) -> None:
        outcomes.persist()
        outcomes.write.mode("overwrite").parquet(str(folder / "outcomes" / str(number)))
        outcomes.unpersist()

    query = event_time_outcomes(arriving, window=10, max_delay=10).writeStream.foreachBatch(write)
    query = query.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
