"""Times a micro-batch of a stream by event time, by how long its windows wait: of one bucket without Spark, and whole.

``python -m benchmarks.spark.long_delays`` feeds a bucket of 125 sources 2,500 messages a second, an eighth of 20,000,
until as many windows close as open, and measures what follows: the processor time of a micro-batch (reading the state,
batching and writing the state) and the bytes that it writes. Messages come in the order in which they happened, or each
after a random part of ``max_delay``. ``whole`` keeps all that waits in the one state that each micro-batch writes.

With ``--stream`` Spark reads a topic of 20,000 messages a second instead, a second of it in each measured micro-batch.
Larger micro-batches before these fill the state, so that as many windows close as open. ``state_megabytes`` is what a
micro-batch writes into the state, ``written_megabytes`` what files in the checkpoint grew by, per micro-batch, which
includes Spark's snapshots of the state, and ``checkpoint_megabytes`` what the checkpoint holds at the end.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from benchmarks.measure import cpu_seconds, write_results
from benchmarks.servers import SCRATCH
from benchmarks.spark.messages import STREAMS, generate, options
from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.columnar.many_sources import ManySources, joined
from waterclock.columnar.records import POSITIONED
from waterclock.columnar.streams.event_time_stream import EventTimeStream
from waterclock.spark import event_time_batches, register, session
from waterclock.spark.runtime.partitions import chosen_buckets, chosen_partitions
from waterclock.time import to_duration

SOURCES = 125
MESSAGES = 2_500
SECOND = 1_000_000_000
_STREAMS = 4
WORK = SCRATCH / "spark_long_delays"
A_SECOND = 20_000
"""Messages a second of the whole stream."""
_A_FILLING = 50
"""Seconds of the topic in a micro-batch that fills the state."""


class CountedStore(dict[int, bytes]):
    """Chunks in memory, and how many bytes were written."""

    written = 0

    def __setitem__(self, number: int, chunk: bytes) -> None:
        self.written += len(chunk)
        super().__setitem__(number, chunk)


def arriving(step: int, delay: int, chance: np.random.Generator) -> ManySources:
    """Make what a bucket receives in a second, each message up to ``delay`` ns after it happened."""
    received = step * SECOND + np.arange(MESSAGES) * (SECOND // MESSAGES)
    records = np.zeros(MESSAGES, POSITIONED)
    records["event_time"] = received - (chance.integers(0, delay, MESSAGES) if delay else 0)
    records["receive_time"] = received
    records["ledger"], records["index"] = step, np.arange(MESSAGES)
    sources = (np.arange(MESSAGES) % SOURCES).astype(np.int32)
    streams = (np.arange(MESSAGES) // SOURCES % _STREAMS).astype(np.int32)
    records["stream"] = streams
    source_names = pa.array([f"source-{n}" for n in range(SOURCES)])
    return ManySources(source_names, pa.array([f"s{n}" for n in range(_STREAMS)]), records, sources, streams)


def measured(max_delay: str, *, disorder: bool, whole: bool, micro_batches: int) -> dict[str, float]:
    """Return the mean and the slowest of the micro-batches, ms of processor time, and the bytes that one writes."""
    rule = EventTimeRule.checked("500ms", max_delay, 0, "split")
    chance = np.random.default_rng(1)
    store = None if whole else CountedStore()
    stream, state = EventTimeStream(rule, POSITIONED, store=store), b""
    first = 2 * to_duration(max_delay) // SECOND + 10
    taken: list[float] = []
    written = before = 0
    if whole:
        stream.take(joined([arriving(step, 0, chance) for step in range(first)], POSITIONED), 0)
        state = stream.state()
    for step in range(first if whole else 1, first + micro_batches):
        arrived = arriving(step, rule.max_delay if disorder else 0, chance)
        began = time.process_time()
        if state:
            stream = EventTimeStream.restore(state, rule, POSITIONED, store)
        stream.take(arrived, 0)
        state = stream.state()
        if step == first:
            before = store.written if store else 0
        if step >= first:
            taken.append(time.process_time() - began)
            written += len(state)
    written += (store.written if store else 0) - before
    return {
        "ms": round(1_000 * statistics.fmean(taken), 2),
        "slowest_ms": round(1_000 * max(taken), 2),
        "kilobytes": round(written / len(taken) / 1_000),
    }


def streamed(
    spark: SparkSession, folder: Path, checkpoints: str, max_delay: str, micro_batches: int
) -> dict[str, float]:
    """Return the median ms of the last micro-batches by the clock, their mean by processor time, and the bytes."""
    checkpoint = tempfile.mkdtemp(dir=checkpoints)
    fillings = _fillings(max_delay)
    _run(spark, folder, checkpoint, max_delay, _A_FILLING * A_SECOND, fillings)
    before, written = _sizes(checkpoint), 0
    steady: Sequence[Mapping[str, Any]] = []
    used: Sequence[float] = []
    for _ in range(2):  # the first warms up
        steady, used = _run(spark, folder, checkpoint, max_delay, A_SECOND, micro_batches)
        after = _sizes(checkpoint)
        written = sum(size - before.get(name, 0) for name, size in after.items() if size > before.get(name, 0))
        before = after
    return {
        "ms": statistics.median(each["durationMs"]["triggerExecution"] for each in steady),
        "ms_of_processor_time": round(1_000 * statistics.median(used)),
        "state_megabytes": round(statistics.median(map(_written_to_state, steady)) / 1e6, 2),
        "written_megabytes": round(written / micro_batches / 1e6, 2),
        "checkpoint_megabytes": round(sum(before.values()) / 1e6, 1),
    }


def _fillings(max_delay: str) -> int:
    """Return how many micro-batches fill the state: windows close one ``max_delay`` after they opened."""
    return -(-to_duration(max_delay) // SECOND // _A_FILLING) + 1


def _run(
    spark: SparkSession, folder: Path, checkpoint: str, max_delay: str, messages: int, micro_batches: int
) -> tuple[Sequence[Mapping[str, Any]], Sequence[float]]:
    """Continue the stream for so many micro-batches.

    Returns
    -------
    tuple
        Spark's reports of the micro-batches after the first two, and the processor time of each of these, s.
    """
    halt = Path(checkpoint) / "halt"
    written_at: list[float] = []

    def write(batches: DataFrame, _: int) -> None:
        written_at.append(cpu_seconds())
        if len(written_at) >= micro_batches:
            halt.touch()
        batches.write.format("noop").mode("append").save()

    buckets = chosen_buckets(chosen_partitions(spark))
    stream = spark.readStream.format("waterclock").options(**options(folder), buckets=buckets)
    arriving = stream.options(maxMessagesPerTrigger=messages, haltFile=str(halt)).load()
    batches = event_time_batches(arriving, "500ms", max_delay, max_skew="1s", buckets=buckets)
    query = batches.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    running = query.trigger(availableNow=True).start()
    running.awaitTermination()
    halt.unlink()
    steady = [progress for progress in running.recentProgress if progress["numInputRows"]][2:]
    return steady, np.diff(written_at[1:]).tolist()


def _written_to_state(progress: Mapping[str, Any]) -> int:
    return int(progress["stateOperators"][0]["customMetrics"]["rocksdbTotalBytesWritten"])


def _sizes(checkpoint: str) -> dict[str, int]:
    return {str(path): path.stat().st_size for path in Path(checkpoint).rglob("*") if path.is_file()}


def in_a_stream(delays: Sequence[str], micro_batches: int, rounds: int) -> dict[str, Any]:
    """Measure streams of one topic with each delay, in turns."""
    ledgers = max(map(_fillings, delays)) + -(-2 * (micro_batches + 1) // _A_FILLING)
    folder = WORK / str(ledgers)
    if not folder.exists():
        sources = A_SECOND // len(STREAMS)
        generate(folder, sources=sources, ledgers=ledgers, bursts=_A_FILLING, payload=b"")
    taken: dict[str, list[dict[str, float]]] = {delay: [] for delay in delays}
    # Spark writes snapshots of the state even after a query has ended, so only its end makes the folder free.
    with (
        tempfile.TemporaryDirectory(dir=WORK) as checkpoints,
        session(app_name="waterclock benchmark", **{"spark.driver.memory": "4g"}) as spark,
    ):
        register(spark)
        for number in range(rounds):
            for delay, found in taken.items():
                found.append(streamed(spark, folder, checkpoints, delay, micro_batches))
                print(f"round {number}, {delay}", found[-1], flush=True)
    return {
        delay: {name: statistics.median(each[name] for each in found) for name in found[0]}
        for delay, found in taken.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--delays", nargs="+", default=["1s", "15m"])
    parser.add_argument("--micro-batches", type=int, default=120, help="that are measured (default: %(default)s)")
    parser.add_argument("--stream", action="store_true", help="measure a stream on Spark, not a bucket")
    parser.add_argument("--rounds", type=int, default=2, help="of --stream (default: %(default)s)")
    chosen = parser.parse_args()
    if chosen.stream:
        streams = in_a_stream(chosen.delays, chosen.micro_batches, chosen.rounds)
        print(f"wrote {write_results('spark_long_delay_stream', streams, ('waterclock', 'pyspark', 'numba', 'numpy'))}")
        return
    measured("1s", disorder=False, whole=False, micro_batches=3)  # compiles
    figures: dict[str, Any] = {}
    for delay in chosen.delays:
        for disorder in (False, True):
            name = f"{delay}, {'up to max_delay late' if disorder else 'in order'}"
            figures[name] = measured(delay, disorder=disorder, whole=False, micro_batches=chosen.micro_batches)
            print(name, figures[name], flush=True)
        figures[f"{delay}, whole"] = measured(delay, disorder=False, whole=True, micro_batches=5)
        print(f"{delay}, whole", figures[f"{delay}, whole"], flush=True)
    print(f"wrote {write_results('spark_long_delays', figures, ('waterclock', 'pyarrow', 'numba', 'numpy'))}")


if __name__ == "__main__":
    main()
