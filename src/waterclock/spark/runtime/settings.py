"""Changes settings of a session for single queries, and reads how much memory the session has."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

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


def java_heap(spark: SparkSession) -> int | None:
    """Return the bytes of memory of the Java process that runs tasks; None through Spark Connect."""
    if is_remote():
        return None
    context = cast("Any", spark.sparkContext)
    jvm = context._jvm  # noqa: SLF001  # no other way leads there
    if context.master == "local" or context.master.startswith("local["):
        return jvm.java.lang.Runtime.getRuntime().maxMemory()
    memory = context.getConf().get("spark.executor.memory", "1g")
    return jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes(memory)
