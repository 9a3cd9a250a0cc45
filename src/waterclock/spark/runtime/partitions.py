"""Chooses the number of partitions of a streaming query's state: the number of cores in its first run.

The number never changes afterwards. Spark's default is 200, and for each partition, every micro-batch runs a task that
opens and commits a state store. For each bucket of a partition, Python calls the JVM several times. A few buckets per
partition keep busy sources apart.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation names it

from waterclock._support import moments
from waterclock.spark.buckets import MOST_BUCKETS

PARTITIONS = "spark.sql.shuffle.partitions"
"""Spark's setting: the number of partitions of a shuffle, and of a new state."""

MOST_CONNECTING = 32
"""Tasks of a stage that open the database. PostgreSQL takes 100 connections by default, and a task that puts
batches into a message table holds two."""

_SPARKS_OWN = "200"
_BUCKETS_A_PARTITION = 4
_ENOUGH_ROWS = 1 << 16
_LOOK_EVERY_S = 0.5
_REGISTER_WITHIN_S = 10.0


class Parts(NamedTuple):
    """The number of partitions of a query's state, and of buckets of its sources."""

    partitions: int
    buckets: int


def chosen_partitions(spark: SparkSession) -> int:
    """Return the session's setting, or the number of cores if it has Spark's default; or the next lower number.

    Unless the number divides `MOST_BUCKETS`, buckets are spread unevenly, and the fullest partition delays the others.
    """
    setting = str(spark.conf.get(PARTITIONS))
    most = cores_of(spark) if setting == _SPARKS_OWN else int(setting)
    return next(number for number in range(min(most, MOST_BUCKETS), 0, -1) if MOST_BUCKETS % number == 0)


def chosen_buckets(partitions: int) -> int:
    """Return the number of buckets for a state with this many partitions."""
    return min(_BUCKETS_A_PARTITION * partitions, MOST_BUCKETS)


def cores_of(spark: SparkSession) -> int:
    """Count the cores of the cluster that run tasks now.

    A cluster's executors register one after another, so this looks until it finds the same number twice.
    """
    found, give_up_at = 0, moments.monotonic() + _REGISTER_WITHIN_S
    while True:
        before, found = found, _parallelism(spark)
        if found == before or moments.monotonic() > give_up_at:
            return found
        moments.sleep(_LOOK_EVERY_S)


def few_connecting(rows: DataFrame, column: str) -> DataFrame:
    """Put rows with the same value of a column into one task, with at most `MOST_CONNECTING` tasks."""
    partitions = int(rows.sparkSession.conf.get(PARTITIONS) or 1)
    # Spark joins small partitions only if it has chosen their number itself.
    return rows.repartition(column) if partitions <= MOST_CONNECTING else rows.repartition(MOST_CONNECTING, column)


def parts_in(spark: SparkSession, checkpoint: str) -> Parts | None:
    """Read the partitions of the state from a pipeline's checkpoint; None if no query has begun it."""
    settings, options = _in_offsets(spark, checkpoint, PARTITIONS, '"buckets"')
    if settings is None or options is None:
        return None
    return Parts(int(json.loads(settings)["conf"][PARTITIONS]), json.loads(options)["buckets"])


def rule_in(spark: SparkSession, checkpoint: str) -> dict[str, Any] | None:
    """Read the rule from a pipeline's checkpoint; None if no query has begun it."""
    (options,) = _in_offsets(spark, checkpoint, '"rule"')
    return None if options is None else json.loads(options)["rule"]


def _in_offsets(spark: SparkSession, checkpoint: str, *texts: str) -> Sequence[str | None]:
    """Find for each text a line of a checkpoint's offsets that contains it; None if missing."""
    lines = [F.max(F.when(F.col("value").contains(text), F.col("value"))) for text in texts]
    try:
        found = spark.read.text(f"{checkpoint.rstrip('/')}/offsets").agg(*lines).head()
    except PySparkException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        found = None
    return [None] * len(texts) if found is None else list(found)


def _parallelism(spark: SparkSession) -> int:
    # With a job, which needs an executor, but also works through Spark Connect.
    return spark.range(_ENOUGH_ROWS).select(F.spark_partition_id()).distinct().coalesce(1).count()
