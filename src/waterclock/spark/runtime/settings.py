"""Changes settings of a session for some of its queries."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from waterclock.spark.runtime.partitions import MOST_CONNECTING, PARTITIONS

_ADAPTIVE = "spark.sql.adaptive.enabled"


@contextmanager
def changed(spark: SparkSession, settings: Mapping[str, str]) -> Generator[None]:
    """Change settings until the block ends. A query takes them when it is planned, and a stream when it starts."""
    before = {name: str(spark.conf.get(name)) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def planned_once(spark: SparkSession) -> Mapping[str, str]:
    """Return the setting with which Spark plans each query once, unless shuffles have many partitions.

    By default it plans the rest of a query again after each shuffle, which costs a replay 0.6 s of CPU time or more. It
    then joins small partitions, which pays for many.
    """
    return {_ADAPTIVE: "false"} if int(spark.conf.get(PARTITIONS) or 1) <= MOST_CONNECTING else {}
