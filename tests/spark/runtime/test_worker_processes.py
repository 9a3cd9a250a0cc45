"""The Python processes of an embedded Spark: they begin with what they need, and with PySpark as it is installed."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession

from waterclock.spark.runtime.worker_python import make_python

SPARK = Path(pyspark.__file__).parent


def test_workers_begin_with_what_batching_imports_and_search_no_garbage_in_it(spark: SparkSession) -> None:
    def look(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        kernel = sys.modules["waterclock.batching.event_time.columns"].KERNEL
        yield pa.RecordBatch.from_pydict(
            {
                "imported": ["shipped" in vars(kernel) and (kernel.shipped is not None or kernel.name in sys.modules)],
                "spared": [gc.get_freeze_count()],
                "pyspark": [pyspark.__file__],
                "hashed": [hash("a text")],
                "threads": [pa.cpu_count()],
            }
        )

    schema = "imported BOOLEAN, spared BIGINT, pyspark STRING, hashed BIGINT, threads BIGINT"
    (row,) = spark.range(1, numPartitions=1).mapInArrow(look, schema).collect()
    assert row.imported
    assert row.spared > 100_000
    assert row.pyspark == pyspark.__file__
    hashing = [sys.executable, "-c", "print(hash('a text'))"]
    seed = os.environ.get("PYTHONHASHSEED", "0")
    hashed = subprocess.check_output(hashing, env=os.environ | {"PYTHONHASHSEED": seed}, text=True)
    assert row.hashed == int(hashed), "else rows of one key would be in several partitions"
    assert row.threads == int(os.environ.get("OMP_NUM_THREADS", "1"))


def test_only_sparks_own_copies_leave_the_path_that_a_worker_is_given(tmp_path: Path) -> None:
    python = make_python(tmp_path / "python")
    kept = [str(tmp_path / "a folder"), str(tmp_path / "*.zip")]
    given = [f"{SPARK}/python/lib/pyspark.zip", kept[0], f"{SPARK}/jars/spark-core.jar", kept[1]]
    command = [
        python,
        "-c",
        "import os, sys; print(os.environ['PYTHONPATH'], sys.executable, *sys.argv[1:], sep='\\n')",
    ]
    done = subprocess.run(
        [*command, "an argument", ""],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(given)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n") == [os.pathsep.join(kept), sys.executable, "an argument", "", ""]


def test_the_worker_that_says_what_it_does_is_quiet_and_the_others_are_heard(tmp_path: Path) -> None:
    python = make_python(tmp_path / "python")
    speak = "import sys; print('printed'); print('said', file=sys.stderr)"
    runs = [
        subprocess.run([python, "-c", speak, program], capture_output=True, text=True, check=True)
        for program in ("pyspark.sql.streaming.transform_with_state_driver_worker", "pyspark.worker")
    ]
    assert [(run.stdout, run.stderr) for run in runs] == [("", ""), ("printed\n", "said\n")]
