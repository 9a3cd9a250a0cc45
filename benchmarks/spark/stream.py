"""Times event-time batching of a Spark stream against Spark's own session windows on the same micro-batches.

``python -m benchmarks.spark.stream`` measures, all in turns, messages a second by the micro-batch: of few and of many
sources, ours of the topic, by event time and by rate, and Spark's of rows that its own reader takes from the topic's
files, with its state in Spark's default store and in RocksDB; of few, ours of these rows, too. That leaves out the
first micro-batch of each query. It also says how long the whole queries take, from start to end, by the clock and by
processor time, which is what a short stream costs. It says the bytes of state that a source takes, and how long a
micro-batch takes at 1,000 messages a second, with where the time goes. ``--messages`` and ``--batches`` make it
smaller, ``--sources`` chooses the numbers of sources, and ``--latency-batches 0`` leaves the last part out:
``--messages 250000 --batches 4`` is a short stream. Both read the same messages in each micro-batch.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation names it

from benchmarks.measure import BY_ALL_OF_SPARK, write_results
from benchmarks.servers import SCRATCH
from benchmarks.spark.messages import STREAMS, generate, options, stream_files
from waterclock.spark import event_time_batches, rate_aware_batches, register, session
from waterclock.spark.runtime.partitions import chosen_buckets, chosen_partitions

GAP = "500 milliseconds"
STORE = "spark.sql.streaming.stateStore.providerClass"
SPARKS_STORE = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
"""The default, in which `session_window` takes half the time."""
WORK = SCRATCH / "spark_stream"
LATENCY_SOURCES = 100
UNSTEADY = 3
"""Micro-batches at the start that also compile and start workers."""


def ours(messages: DataFrame) -> DataFrame:
    return event_time_batches(messages, max_skew="1s", buckets=buckets(messages.sparkSession))


def buckets(spark: SparkSession) -> int:
    """Give as many as a pipeline takes."""
    return chosen_buckets(chosen_partitions(spark))


def by_rate(messages: DataFrame) -> DataFrame:
    return rate_aware_batches(messages, buckets=buckets(messages.sparkSession))


def native(messages: DataFrame) -> DataFrame:
    happened = F.timestamp_micros(F.expr("event_time div 1000"))
    watermarked = messages.select("source", happened.alias("at")).withWatermark("at", "400 milliseconds")
    return watermarked.groupBy("source", F.session_window("at", GAP)).count()


def run(arriving: DataFrame, operator: Callable[[DataFrame], DataFrame]) -> list[Mapping[str, Any]]:
    """Stream a topic to its end, and give Spark's account of the micro-batches that had messages."""
    checkpoint = tempfile.mkdtemp(dir=WORK)
    writer = operator(arriving).writeStream.format("noop").outputMode("append")
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    shutil.rmtree(checkpoint)
    return [progress for progress in query.recentProgress if progress["numInputRows"]]


def in_sparks_store(spark: SparkSession, folder: Path) -> list[Mapping[str, Any]]:
    before = str(spark.conf.get(STORE))
    spark.conf.set(STORE, SPARKS_STORE)
    try:
        return run(stream_files(spark, folder), native)
    finally:
        spark.conf.set(STORE, before)


def topic(spark: SparkSession, folder: Path, messages: int) -> DataFrame:
    stream = spark.readStream.format("waterclock").options(**options(folder), buckets=buckets(spark))
    return stream.option("maxMessagesPerTrigger", messages).load()


def seconds(progress: list[Mapping[str, Any]]) -> list[float]:
    """Give the seconds of each micro-batch but the first, which also compiles and starts workers."""
    return [each["durationMs"]["triggerExecution"] / 1_000 for each in progress[1:]]


class Shape(NamedTuple):
    """The messages of a micro-batch: one or more bursts of some of the sources, each of one or more streams."""

    sources: int
    streams: int
    bursts: int

    @classmethod
    def of(cls, sources: int, messages: int) -> Shape:
        """Choose up to five streams and as many bursts as fit; of more sources than messages, each sends once."""
        a_burst = min(sources, messages)
        streams = min(messages // a_burst, len(STREAMS))
        return cls(a_burst, streams, messages // (a_burst * streams))

    @property
    def messages(self) -> int:
        return self.sources * self.streams * self.bursts


def compared(spark: SparkSession, folders: Mapping[int, Path], messages: int, rounds: int) -> dict[str, Any]:
    sizes = {folder: Shape.of(sources, messages).messages for sources, folder in folders.items()}

    def of_topic(folder: Path, operator: Callable[[DataFrame], DataFrame]) -> list[Mapping[str, Any]]:
        return run(topic(spark, folder, sizes[folder]), operator)

    def of_files(folder: Path, operator: Callable[[DataFrame], DataFrame]) -> list[Mapping[str, Any]]:
        return run(stream_files(spark, folder), operator)

    runs: dict[tuple[int, str], Callable[[], list[Mapping[str, Any]]]] = {}
    for sources, folder in folders.items():
        runs[sources, "event_time_batches"] = partial(of_topic, folder, ours)
        runs[sources, "rate_aware_batches"] = partial(of_topic, folder, by_rate)
        runs[sources, "session_window"] = partial(in_sparks_store, spark, folder)
        runs[sources, "session_window, RocksDB"] = partial(of_files, folder, native)
    first = next(iter(folders))
    runs[first, "event_time_batches, rows"] = partial(of_files, folders[first], ours)
    taken: dict[tuple[int, str], list[float]] = {key: [] for key in runs}
    whole: dict[tuple[int, str], list[Mapping[str, float]]] = {key: [] for key in runs}
    figures: dict[str, Any] = {str(sources): {"messages_a_second": {}, "whole_query": {}} for sources in folders}
    for number in range(rounds + 1):
        for (sources, name), each in runs.items():
            progress, took = clocked(each)
            if number:  # the first round warms up
                taken[sources, name] += seconds(progress)
                whole[sources, name].append(took)
            if name == "event_time_batches":
                figures[str(sources)]["state"] = state_of(progress, sources)
    medians = {key: statistics.median(each) for key, each in taken.items()}
    for (sources, name), median in medians.items():
        figures[str(sources)]["messages_a_second"][name] = round(sizes[folders[sources]] / median)
        figures[str(sources)]["whole_query"][name] = {
            clock: round(statistics.median(took[clock] for took in whole[sources, name]), 2)
            for clock in BY_ALL_OF_SPARK
        }
    for sources in folders:
        times = medians[sources, "session_window"] / medians[sources, "event_time_batches"]
        figures[str(sources)]["times_as_fast"] = round(times, 2)
    return figures


def clocked(query: Callable[[], list[Mapping[str, Any]]]) -> tuple[list[Mapping[str, Any]], dict[str, float]]:
    """Run a query, and give its account, and its seconds from start to end by each clock."""
    began = {clock: now() for clock, now in BY_ALL_OF_SPARK.items()}
    progress = query()
    return progress, {clock: now() - began[clock] for clock, now in BY_ALL_OF_SPARK.items()}


def state_of(progress: list[Mapping[str, Any]], sources: int) -> dict[str, Any]:
    last = progress[-1]["stateOperators"][0]
    return {
        "rows": last["numRowsTotal"],
        "bytes_a_source": round(int(last["customMetrics"]["rocksdbSstFileSize"]) / sources),
        "seconds": {"updates": last["allUpdatesTimeMs"] / 1_000, "commit": last["commitTimeMs"] / 1_000},
    }


def latency(spark: SparkSession, micro_batches: int) -> dict[str, Any]:
    """Take 1,000 messages a second as they come, and say how long micro-batches take, ms, and with what."""
    arriving = spark.readStream.format("rate").option("rowsPerSecond", 1_000).load()
    at = F.unix_micros("timestamp") * 1_000
    source = F.concat(F.lit("source-"), F.col("value") % LATENCY_SOURCES)
    stream = F.element_at(F.array(*map(F.lit, STREAMS)), (F.col("value") % len(STREAMS)).cast("int") + 1)
    messages = arriving.select(
        source.alias("source"), stream.alias("stream"), at.alias("event_time"), at.alias("receive_time")
    )
    query = ours(messages).writeStream.format("noop").outputMode("append").start()
    steady: list[Mapping[str, Any]] = []
    while len(steady) < micro_batches:
        query.awaitTermination(1)
        steady = [each for each in query.recentProgress if each["numInputRows"]][UNSTEADY:]
    query.stop()
    parts = sorted({part for each in steady for part in each["durationMs"]})
    p50 = {part: statistics.median(each["durationMs"].get(part, 0) for each in steady) for part in parts}
    state = [each["stateOperators"][0] for each in steady]
    return {
        "micro_batches": len(steady),
        "p50_ms": p50,
        "p50_ms_state_commit": statistics.median(each["commitTimeMs"] for each in state),
        "p50_ms_state_updates": statistics.median(each["allUpdatesTimeMs"] for each in state),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000, help="in a micro-batch (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=5, help="micro-batches, the first unmeasured (%(default)s)")
    parser.add_argument("--sources", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--rounds", type=int, default=2, help="after one that is not measured (default: %(default)s)")
    parser.add_argument("--latency-batches", type=int, default=40)
    chosen = parser.parse_args()
    folders: dict[int, Path] = {}
    for sources in chosen.sources:
        folders[sources] = folder = WORK / f"{sources}-{chosen.messages}-{chosen.batches}"
        if not folder.exists():
            shape = Shape.of(sources, chosen.messages)
            generate(
                folder,
                sources=shape.sources,
                ledgers=chosen.batches,
                bursts=shape.bursts,
                streams=STREAMS[: shape.streams],
                all_sources=sources,
            )
    spark = session(app_name="waterclock benchmark", **{"spark.driver.memory": "4g"})
    register(spark)
    figures: dict[str, Any] = {
        "messages_a_micro_batch": chosen.messages,
        "cores": spark.sparkContext.defaultParallelism,
        "by_sources": compared(spark, folders, chosen.messages, chosen.rounds),
    }
    if chosen.latency_batches:
        figures["at_1000_messages_a_second"] = latency(spark, chosen.latency_batches)
    spark.stop()
    for name, figure in figures.items():
        print(name, figure)
    print(f"wrote {write_results('spark_stream', figures, ('waterclock', 'pyspark', 'pyarrow', 'numba', 'numpy'))}")


if __name__ == "__main__":
    main()
