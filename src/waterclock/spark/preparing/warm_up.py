"""Uses each part of a Spark session once, so that Java records the classes that the part loads."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from waterclock.spark.reading.columns import METADATA_COLUMNS
from waterclock.spark.streaming.batching import batches_of, event_time_outcomes

_KINDS = {"source": "STRING", "stream": "STRING", "index": "INT"}
_SCHEMA = ", ".join(f"`{name}` {_KINDS.get(name, 'BIGINT')}" for name in METADATA_COLUMNS)


def warm_up(spark: SparkSession, folder: Path) -> None:
    """Batch a few messages as a replay and as a stream, with Parquet files below ``folder``."""
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
