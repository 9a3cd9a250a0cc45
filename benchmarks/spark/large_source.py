"""What a source with very many messages needs in a replay, and what it costs the sources beside it.

Memory: 5, 20 and 50 M messages of one source are packed and batched by Spark, and the most memory that any of its
Python workers ever held is read from the kernel (VmHWM, which counts pages shared with the process they were forked
from). The same messages spread over sources small enough to be judged whole, each ending in a silence, must give the
same batches: their hashes, times and messages included, have the same sum.

Skew: 1,000 sources with 1 M messages, alone and, in turns, beside one with 9 M: when the last of their batches comes
out of the judging tasks, counted from the first of any.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation names it

from benchmarks.measure import PeakMemory, write_results
from benchmarks.spark.messages import STREAMS
from waterclock.columnar.packing import CLOCKED_SCHEMA, pack
from waterclock.columnar.records import POSITIONED
from waterclock.spark import event_time_batches, session

AT_ONCE = 500_000
"""Messages that a task makes; between those of two tasks is a silence."""

LARGE = "source-0500-large"
"""By its name in the middle of the others."""

COUNTS = (5_000_000, 20_000_000, 50_000_000)
ROUNDS = 4

_NS_PER_MS = 1_000_000
_BURST_MS = 1_000
_ENTRY = 10_000


def packed(spark: SparkSession, tasks: int, sources: Callable[[int], list[str]]) -> DataFrame:
    """Make packed rows: each task half a million messages of its ``sources``, in bursts a second apart."""
    make = partial(_make, sources=sources)
    return spark.range(0, tasks, 1, tasks).mapInArrow(make, CLOCKED_SCHEMA)


def one(task: int) -> list[str]:  # noqa: ARG001  # of whichever task
    """Name the one source."""
    return [LARGE]


def spread(task: int) -> list[str]:
    """Name a source for each task."""
    return [f"source-{task:04d}"]


def others(task: int) -> list[str]:
    """Name a thousand sources in the first two tasks, and in further ones the large one."""
    return [f"source-{number:04d}" for number in range(1_000)] if task < 2 else [LARGE]


def digest(messages: DataFrame) -> tuple[int, ...]:
    """Count batches and messages, and add up the batches' hashes."""
    found = F.xxhash64("start", "end", "closed_at", "reason", "count", "streams", "messages")
    batches = event_time_batches(messages).agg(F.count("*"), F.sum("count"), F.sum(found.cast("decimal(38, 0)")))
    (row,) = batches.collect()
    return tuple(int(value) for value in row)


def out_after(messages: DataFrame) -> dict[bool, float]:
    """Tell for the large source and for the others after how many seconds the last batch was out.

    Seconds since the first batch of all, which is when the shuffle is over.
    """
    now = F.expr("java_method('java.lang.System', 'currentTimeMillis')").cast("bigint")
    out = event_time_batches(messages).select((F.col("source") == LARGE).alias("large"), now.alias("at"))
    rows = out.groupBy("large").agg(F.min("at"), F.max("at")).collect()
    began = min(row[1] for row in rows)
    return {row[0]: (row[2] - began) / 1_000 for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--counts", type=int, nargs="*", default=COUNTS, help="messages of the one source")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    chosen = parser.parse_args()
    spark = session(app_name="waterclock benchmark")
    figures: dict[str, Any] = {"one source": [], "cores": spark.sparkContext.defaultParallelism}
    for count in chosen.counts:
        tasks = count // AT_ONCE
        began = time.perf_counter()
        with PeakMemory() as peak:
            found = digest(packed(spark, tasks, one))
        took = time.perf_counter() - began
        assert found[1] == tasks * AT_ONCE, f"{found[1]} messages are in batches, not all"
        assert found == digest(packed(spark, tasks, spread)), "the batches differ from those of sources judged whole"
        figures["one source"].append(
            {"messages": count, "seconds": round(took, 1), "MB of a worker": peak.bytes >> 20, "batches": found[0]}
        )
        print(figures["one source"][-1])
    alone: list[float] = []
    beside: list[float] = []
    large: list[float] = []
    for number in range(chosen.rounds + 1):
        without, with_it = out_after(packed(spark, 2, others)), out_after(packed(spark, 20, others))
        if number:  # the first round warms up
            alone.append(without[False])
            beside.append(with_it[False])
            large.append(with_it[True])
    figures["seconds until the last batch of the others"] = {
        "alone": round(statistics.median(alone), 2),
        "beside a source with 90 %": round(statistics.median(beside), 2),
        "and of that source": round(statistics.median(large), 2),
    }
    spark.stop()
    print(figures["seconds until the last batch of the others"])
    print(
        f"wrote {write_results('spark_large_source', figures, ('waterclock', 'pyspark', 'pyarrow', 'numba', 'numpy'))}"
    )


def _make(batches: Iterator[pa.RecordBatch], sources: Callable[[int], list[str]]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for task in batch.column("id").to_pylist():
            yield from pack([_messages(task, sources(task))], POSITIONED)


def _messages(task: int, sources: list[str]) -> pa.RecordBatch:
    chance = np.random.default_rng(task)
    bursts = AT_ONCE // (len(sources) * len(STREAMS))
    shape = (bursts, len(sources), len(STREAMS))
    count = bursts * len(sources) * len(STREAMS)
    # A task begins a day after the last one: more than the bursts of one last.
    began = (1_790_000_000_000 + task * 2 * 86_400_000 + np.arange(bursts) * _BURST_MS) * _NS_PER_MS
    times = (began[:, None, None] + chance.integers(0, 200 * _NS_PER_MS, shape)).ravel()
    received = times + chance.integers(0, 300 * _NS_PER_MS, count)
    order = np.argsort(received, kind="stable")
    source_of = np.broadcast_to(np.arange(len(sources))[:, None], shape).ravel()
    stream_of = np.broadcast_to(np.arange(len(STREAMS)), shape).ravel()
    place = np.arange(count)
    columns: dict[str, Any] = {
        "source": pa.DictionaryArray.from_arrays(source_of[order].astype(np.int32), sources),
        "stream": pa.DictionaryArray.from_arrays(stream_of[order].astype(np.int32), list(STREAMS)),
        "event_time": times[order],
        "receive_time": received[order],
        "ledger": np.full(count, task),
        "entry": place // _ENTRY,
        "index": (place % _ENTRY).astype(np.int32),
    }
    return pa.record_batch(columns)


if __name__ == "__main__":
    main()
