"""The expressions that count a pipeline's outcomes."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from waterclock.spark.pipeline.progress import Progress, counts

OUTCOMES = "rejection STRING, count INT, batches ARRAY<STRUCT<outside: INT, reason: STRING>>"
TIMELY = [(None, 7, [(1, "timeout"), (2, "complete")]), (None, 1, [(0, "timeout")])]
ROWS = [*TIMELY, ("late", 2, None), ("late", 1, None), ("future", 1, None)]


def test_outcomes_are_counted_by_code_that_spark_compiles_once(spark: SparkSession) -> None:
    jvm: Any = spark._jvm  # pyright: ignore[reportPrivateUsage]
    compilations = jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    found: list[dict[str, int]] = []
    compiled: list[int] = []
    for _ in range(2):
        row = spark.createDataFrame(ROWS, OUTCOMES).agg(*counts()).head()
        assert row is not None
        found.append(row.asDict())
        compiled.append(compilations.getCount())
    progress = Progress(incomplete=0)
    progress.count(found[1])
    assert (found[1]["messages"], progress.batches, progress.outside, progress.rejected) == (12, 3, 3, 4)
    assert progress.incomplete == 2
    assert found[0] == found[1]
    assert compiled[0] == compiled[1]
