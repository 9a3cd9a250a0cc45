"""Adds descriptions of jobs to Spark's own web pages."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

_DESCRIPTION = "spark.job.description"


@contextmanager
def described(spark: SparkSession, what: str) -> Generator[None]:
    """Describe the jobs of the block in Spark's pages; Spark Connect does not support this."""
    if is_remote():
        yield
        return
    context = spark.sparkContext
    before = context.getLocalProperty(_DESCRIPTION)
    context.setLocalProperty(_DESCRIPTION, what)
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)  # pyright: ignore[reportArgumentType]  # None takes it away
