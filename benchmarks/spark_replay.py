"""Times the replay of 10 M messages of 1,000 sources on Spark against Spark's own session windows on the same files.

Only metadata is read. What it says: seconds by the clock, and of the processors (the JVM and its Python workers), which
other work on the machine disturbs less; and how many times as fast `event_time_batches` is by either.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation names it

from benchmarks.measure import in_turns, write_results
from waterclock.spark import event_time_batches
from waterclock.spark.session import session

SOURCES = 1_000
STREAMS = ("temperature", "pressure", "humidity", "voltage", "current")
FILES = 10
BURSTS = 200
"""Bursts of each source in a file: every second each stream sends once within 200 ms."""

GAP = "500 milliseconds"
"""Of Spark's session windows; as long as our window, so that both find one batch a burst."""

ROUNDS = 5
CPU_ROUNDS = 3
WORK = Path(__file__).parent / "work" / "spark_replay"
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def generate(folder: Path) -> None:
    """Write messages as a topic's sealed ledgers hold them: in order of receive time, all sources mixed."""
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    chance = np.random.default_rng(1)
    shape = (BURSTS, SOURCES, len(STREAMS))
    count = BURSTS * SOURCES * len(STREAMS)
    sources = np.broadcast_to(np.arange(SOURCES)[:, None], shape).ravel()
    streams = np.broadcast_to(np.arange(len(STREAMS)), shape).ravel()
    phases = chance.integers(0, NS_PER_S, SOURCES)
    for number in range(FILES):
        bursts = 1_790_000_000 * NS_PER_S + (np.arange(BURSTS) + number * BURSTS) * NS_PER_S
        times = (bursts[:, None, None] + phases[:, None] + chance.integers(0, 200 * NS_PER_MS, shape)).ravel()
        received = times + chance.integers(0, 300 * NS_PER_MS, count)
        order = np.argsort(received, kind="stable")
        table = pa.table(
            {
                "source": pa.array([f"source-{n:04d}" for n in range(SOURCES)]).take(pa.array(sources[order])),
                "stream": pa.array(STREAMS).take(pa.array(streams[order])),
                "event_time": times[order],
                "receive_time": received[order],
                "ledger": np.full(count, number),
                "entry": np.arange(count) // 1_000,
                "index": (np.arange(count) % 1_000).astype(np.int32),
            }
        )
        pq.write_table(table, unfinished / f"{number}.parquet", compression="zstd", row_group_size=2**17)
    unfinished.rename(folder)


def replay(messages: DataFrame) -> tuple[int, int]:
    """Count the batches and their messages."""
    return _counted(event_time_batches(messages).select("count"))


def native(messages: DataFrame) -> tuple[int, int]:
    """Count Spark's session windows and their messages."""
    happened = F.timestamp_micros(F.expr("event_time div 1000"))
    windows = messages.select("source", happened.alias("at")).groupBy("source", F.session_window("at", GAP))
    return _counted(windows.count().select("count"))


def _counted(windows: DataFrame) -> tuple[int, int]:
    row = windows.agg(F.count("*"), F.sum("count")).first()
    assert row is not None
    return row[0], row[1]


def cpu_seconds() -> float:
    """Add up the processor time of this process and all that it started: the JVM and its Python workers."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(") ")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        process = int(stat.parent.name)
        parents[process] = int(fields[1])
        ticks[process] = sum(map(int, fields[11:15]))  # also of children that have ended
    return sum(used for process, used in ticks.items() if _is_ours(process, parents)) / TICKS_PER_S


def _is_ours(process: int, parents: dict[int, int]) -> bool:
    while process in parents:
        if process == os.getpid():
            return True
        process = parents[process]
    return False


def main() -> None:
    if not WORK.exists():
        generate(WORK)
    spark = session("waterclock benchmark", **{"spark.driver.memory": "4g"})
    positioned = spark.read.parquet(str(WORK))
    messages = positioned.drop("ledger", "entry", "index")
    runs = {
        "session_window": lambda: native(messages),
        "event_time_batches": lambda: replay(messages),
        "event_time_batches, positions": lambda: replay(positioned),
    }
    batches, count = replay(messages)
    assert count == SOURCES * len(STREAMS) * FILES * BURSTS, f"{count} messages are in batches, not all"
    figures = {
        "messages": count,
        "sources": SOURCES,
        "batches": batches,
        "sessions": native(messages)[0],
        "cores": spark.sparkContext.defaultParallelism,
        "by_the_clock": _compared(in_turns(runs, ROUNDS, time.perf_counter)),
        "by_processor_time": _compared(in_turns(runs, CPU_ROUNDS, cpu_seconds)),
    }
    spark.stop()
    for measure in ("by_the_clock", "by_processor_time"):
        print(measure, figures[measure])
    print(f"wrote {write_results('spark_replay', figures, ('waterclock', 'pyspark', 'pyarrow', 'numba', 'numpy'))}")


def _compared(seconds: Mapping[str, float]) -> dict[str, Any]:
    native_seconds = seconds["session_window"]
    times = {name: round(native_seconds / took, 2) for name, took in seconds.items() if took != native_seconds}
    return {"seconds": {name: round(took, 2) for name, took in seconds.items()}, "times_as_fast": times}


if __name__ == "__main__":
    main()
