"""Checks what a stream of 10^10 messages a day from 10^6 sources needs against a thousandth of that day.

A source sends a message every 8.64 s, and a micro-batch takes the messages of that time. The same traffic is run with a
thousandth and with a tenth of the sources; on paper, each figure is linear in their number. Then all sources send for
86 s, a thousandth of the day's messages, and each figure is printed beside what it should be.

``python -m benchmarks.spark.sizes`` takes some minutes and 2 GB of disk; ``--sources`` makes it smaller, and ``--by
rate`` batches by rate.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.measure import PeakMemory, write_results
from benchmarks.servers import SCRATCH
from benchmarks.spark.messages import STREAMS, files, generate, options
from benchmarks.spark.stream import buckets
from waterclock.spark import event_time_batches, rate_aware_batches, register, session

SOURCES = 1_000_000
EVERY_MS = 8_640
MICRO_BATCHES = 10
BY: Mapping[str, Callable[[DataFrame], DataFrame]] = {"event_time": event_time_batches, "rate": rate_aware_batches}
WORK = SCRATCH / "spark_sizes"


def run(spark: SparkSession, sources: int, batches_by: Callable[[DataFrame], DataFrame]) -> dict[str, float]:
    """Batch ten messages of each source, one a micro-batch, and say what a micro-batch and its state took."""
    folder = WORK / str(sources)
    if not folder.exists():
        generate(folder, sources=sources, ledgers=MICRO_BATCHES, bursts=1, every_ms=EVERY_MS, streams=STREAMS[:1])
    checkpoint = Path(tempfile.mkdtemp(dir=WORK))
    arriving = spark.readStream.format("waterclock").options(**options(folder), buckets=buckets(spark))
    batches = batches_by(arriving.option("maxMessagesPerTrigger", sources).load())
    with PeakMemory() as peak:
        writer = batches.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    steady = [each for each in query.recentProgress if each["numInputRows"]][1:]
    state = [each["stateOperators"][0] for each in steady]
    written = sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())
    shutil.rmtree(checkpoint)
    return {
        "seconds of a micro-batch": statistics.median(each["durationMs"]["triggerExecution"] for each in steady)
        / 1_000,
        "rows of state": state[-1]["numRowsTotal"],
        "MB of state, in memory and files": _mb(
            state[-1]["memoryUsedBytes"] + int(state[-1]["customMetrics"]["rocksdbSstFileSize"])
        ),
        "MB of state written": statistics.median(
            _mb(each["customMetrics"]["rocksdbTotalBytesWritten"]) for each in state
        ),
        "MB of checkpoint a micro-batch": _mb(written) / MICRO_BATCHES,
        "MB of a worker": _mb(peak.bytes),
        "MB of ledgers": _mb(sum(Path(file).stat().st_size for file in files(folder))),
    }


def _mb(size: float) -> float:
    return int(size) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sources", type=int, default=SOURCES, help="of the largest run (default: %(default)s)")
    parser.add_argument("--by", choices=BY, default="event_time")
    chosen = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    spark = session(app_name="waterclock benchmark", **{"spark.driver.memory": "4g"})
    register(spark)
    few, some, all_ = chosen.sources // 1_000, chosen.sources // 10, chosen.sources
    run(spark, few, BY[chosen.by])  # compiles, and starts workers
    of_few, of_some, measured = (run(spark, sources, BY[chosen.by]) for sources in (few, some, all_))
    on_paper = {name: of_few[name] + (of_some[name] - of_few[name]) * (all_ - few) / (some - few) for name in measured}
    figures: dict[str, Any] = {
        "by": chosen.by,
        "sources": all_,
        "messages": all_ * MICRO_BATCHES,
        "messages a micro-batch": all_,
        "seconds of traffic in it": EVERY_MS / 1_000,
        "cores": spark.sparkContext.defaultParallelism,
        "buckets": buckets(spark),
        "messages a second": {
            "on paper": round(all_ / on_paper["seconds of a micro-batch"]),
            "measured": round(all_ / measured["seconds of a micro-batch"]),
        },
    }
    for name in measured:
        figures[name] = {
            f"{few} sources": round(of_few[name], 3),
            f"{some} sources": round(of_some[name], 3),
            "on paper": round(on_paper[name], 3),
            "measured": round(measured[name], 3),
        }
    spark.stop()
    for what, figure in figures.items():
        print(what, figure)
    name = "spark_sizes" if chosen.by == "event_time" else f"spark_sizes_by_{chosen.by}"
    print(f"wrote {write_results(name, figures, ('waterclock', 'pyspark', 'pyarrow', 'numba', 'numpy'))}")


if __name__ == "__main__":
    main()
