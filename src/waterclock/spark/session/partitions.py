"""In how many parts Spark keeps the state of a streaming query: as many as it has cores, and then for good.

Spark's own number is 200, and each part costs each micro-batch a task with a store to open and to commit.
"""

from __future__ import annotations

import json

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation names it

from waterclock import moments

PARTITIONS = "spark.sql.shuffle.partitions"
"""Spark's setting: the parts of what a query brings together, and of the state that it begins."""

_SPARKS_OWN = "200"
_ENOUGH_ROWS = 1 << 16
_LOOK_EVERY_S = 0.5
_REGISTER_WITHIN_S = 10.0


def chosen_partitions(spark: SparkSession) -> int:
    """Give what the session's setting says; where that is Spark's own, the number of cores."""
    setting = str(spark.conf.get(PARTITIONS))
    return cores_of(spark) if setting == _SPARKS_OWN else int(setting)


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


def partitions_in(spark: SparkSession, checkpoint: str) -> int | None:
    """Read from a checkpoint in how many parts its state is; None where no query has begun it."""
    try:
        lines = spark.read.text(f"{checkpoint.rstrip('/')}/offsets").where(F.col("value").contains(PARTITIONS)).head(1)
    except PySparkException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return None
        raise
    return int(json.loads(lines[0][0])["conf"][PARTITIONS]) if lines else None


def _parallelism(spark: SparkSession) -> int:
    # By a job, which needs an executor and works through Spark Connect, too.
    return spark.range(_ENOUGH_ROWS).select(F.spark_partition_id()).distinct().coalesce(1).count()
