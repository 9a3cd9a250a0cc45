"""Spark's Python workers between tasks."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from waterclock.spark.runtime.workers import freeze_imports, freezing_imports


def test_after_a_task_a_worker_does_not_search_what_it_has_imported_for_garbage(spark: SparkSession) -> None:
    def importing(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        importlib.import_module("sqlalchemy.dialects.oracle")  # as any module that no worker begins with
        return batches

    task = freezing_imports(importing)

    def left_out(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        before = gc.get_freeze_count()
        rows = sum(batch.num_rows for batch in task(batches))
        yield pa.record_batch({"rows": [rows], "left_out": [gc.get_freeze_count() - before]})

    [row] = spark.range(7, numPartitions=1).mapInArrow(left_out, "rows BIGINT, left_out BIGINT").collect()
    assert row["rows"] == 7
    assert row["left_out"] > 1_000


def test_the_garbage_of_the_users_own_process_is_left_to_them() -> None:
    before = gc.get_freeze_count()
    freeze_imports()
    assert gc.get_freeze_count() <= before  # what was frozen may end


@pytest.mark.parametrize("module", ["waterclock.spark.registering", "waterclock.spark.streaming.stateful"])
def test_the_processes_that_plan_a_stream_import_only_what_they_need(module: str) -> None:
    imported = f"import {module}, sys; print({{'pandas', 'waterclock.spark.writing'}} & sys.modules.keys())"
    said = subprocess.run([sys.executable, "-c", imported], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert said.strip() == "set()"
