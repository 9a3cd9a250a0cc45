"""Times the replay of 10 M messages of 1,000 sources on Spark against Spark's own session windows on the same files.

What it says: seconds by the clock, and of the processors (the JVM and its Python workers), which other work on the
machine disturbs less; how many times as fast `event_time_batches` is by either, and how many times as long as its
floor it takes: reading and packing the topic into nothing, and its kernel without Spark. It is measured on the topic,
read packed, and on rows that Spark's own reader takes from the files, as a user has them who keeps messages elsewhere.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation names it

from benchmarks.measure import BY_ALL_OF_SPARK, by_several_clocks, write_results
from benchmarks.servers import SCRATCH
from benchmarks.spark.messages import STREAMS, files, generate, options, read_files
from waterclock.batching.event_time.columns import assign_batches
from waterclock.spark import event_time_batches, register, session

SOURCES = 1_000
LEDGERS = 10
BURSTS = 200
"""Bursts of each source in a ledger."""

GAP = "500 milliseconds"
"""Of Spark's session windows; as long as our window, so that both find one batch a burst."""

JUDGED_AT_ONCE = 2**17
"""As in `waterclock.columnar.streams.slices`."""

ROUNDS = 4
WORK = SCRATCH / "spark_replay"


def replay(messages: DataFrame) -> tuple[int, int]:
    """Count the batches and their messages."""
    return _counted(event_time_batches(messages).select("count"))


def native(messages: DataFrame) -> tuple[int, int]:
    """Count Spark's session windows and their messages."""
    happened = F.timestamp_micros(F.expr("event_time div 1000"))
    windows = messages.select("source", happened.alias("at")).groupBy("source", F.session_window("at", GAP))
    return _counted(windows.count().select("count"))


def kernel() -> int:
    """Give the messages of the same files to the same kernel, as many at once as a replay; count the rejected ones."""
    rejected = 0
    for messages in _read():
        assigned = assign_batches(messages, window="500ms", max_delay="400ms")
        rejected += assigned.num_rows - assigned.column("rejected").null_count
    return rejected


@cache
def _read() -> list[pa.Table]:
    """Read the files into this process once, and bring the messages of a source together."""
    columns = ["source", "stream", "event_time", "receive_time"]
    table = ds.dataset(files(WORK)).to_table(columns=columns)
    table = table.sort_by([("source", "ascending"), ("receive_time", "ascending")])
    return [table.slice(first, JUDGED_AT_ONCE) for first in range(0, table.num_rows, JUDGED_AT_ONCE)]


def _counted(windows: DataFrame) -> tuple[int, int]:
    row = windows.agg(F.count("*"), F.sum("count")).first()
    assert row is not None
    return row[0], row[1]


def main() -> None:
    if not WORK.exists():
        generate(WORK, sources=SOURCES, ledgers=LEDGERS, bursts=BURSTS)
    spark = session(app_name="waterclock benchmark", **{"spark.driver.memory": "4g"})
    register(spark)
    topic = spark.read.format("waterclock").options(**options(WORK)).load()
    rows = read_files(spark, WORK)
    # A process of its own, because after it everything else in its process takes a third longer.
    alone = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    runs = {
        "session_window": lambda: native(rows),
        "event_time_batches": lambda: replay(topic),
        "event_time_batches, rows": lambda: replay(rows),
        "reading and packing": lambda: topic.write.format("noop").mode("overwrite").save(),
        "kernel, without Spark": lambda: alone.submit(kernel).result(),
    }
    batches, count = replay(topic)
    assert count == SOURCES * len(STREAMS) * LEDGERS * BURSTS, f"{count} messages are in batches, not all"
    figures = {
        "messages": count,
        "sources": SOURCES,
        "batches": batches,
        "sessions": native(rows)[0],
        "cores": spark.sparkContext.defaultParallelism,
    } | {measure: _compared(each) for measure, each in by_several_clocks(runs, ROUNDS, BY_ALL_OF_SPARK).items()}
    spark.stop()
    alone.shutdown()
    for measure in ("by_the_clock", "by_processor_time"):
        print(measure, figures[measure])
    print(f"wrote {write_results('spark_replay', figures, ('waterclock', 'pyspark', 'pyarrow', 'numba', 'numpy'))}")


def _compared(seconds: Mapping[str, float]) -> dict[str, Any]:
    native_seconds = seconds["session_window"]
    times = {name: round(native_seconds / took, 2) for name, took in seconds.items() if took != native_seconds}
    floor = seconds["reading and packing"] + seconds["kernel, without Spark"]
    return {
        "seconds": {name: round(took, 2) for name, took in seconds.items()},
        "times_as_fast": times,
        "of_the_floor": round(seconds["event_time_batches"] / floor, 2),
    }


if __name__ == "__main__":
    main()
