"""Times reading a sealed topic through the format ``waterclock``, and as `waterclock.spark.table`, against Spark alone.

All read the same ledger files: five columns with nothing done to the rows (Spark's sink ``noop``), with a sum over a
column of them, and for batching, where the format gives packed rows. It says seconds by the clock and of the processors
(the JVM and its Python workers), and how many times as long as Spark's own Parquet reader the others take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

import waterclock as wc
from benchmarks.measure import BY_ALL_OF_SPARK, by_several_clocks, write_results
from benchmarks.servers import SCRATCH
from waterclock.spark import event_time_batches, register, session, table

LEDGERS = 10
ENTRIES = 5
"""In a ledger."""

MESSAGES = 100_000
"""In an entry."""

SOURCES = 1_000
PAYLOAD = b"x" * 40
COLUMNS = ("source", "stream", "event_time", "receive_time", "entry")
ROUNDS = 7
WORK = SCRATCH / "spark_read"


def generate() -> None:
    """Write a topic of sealed ledgers."""
    WORK.mkdir(parents=True)
    chance = np.random.default_rng(1)
    sources = pa.array([f"source-{number:04d}" for number in range(SOURCES)])
    streams = pa.array(["temperature", "pressure", "humidity", "voltage", "current"])
    with wc.connect(f"sqlite:///{WORK / 'factory.db'}") as database:
        topic = database.create_topic("telemetry", roll_after=None, roll_size=1 << 40)
        for number in range(LEDGERS * ENTRIES):
            times = 1_790_000_000 * 10**9 + (number * MESSAGES + np.arange(MESSAGES)) * 10_000
            event_times = times - chance.integers(0, 300_000_000, MESSAGES)
            columns = {
                "source": sources.take(pa.array(chance.integers(0, SOURCES, MESSAGES))),
                "stream": streams.take(pa.array(chance.integers(0, len(streams), MESSAGES))),
                "event_time": event_times,
                "publish_time": event_times,
                "receive_time": times,
                "payload": pa.array([PAYLOAD] * MESSAGES, pa.binary()),
            }
            topic.append(pa.table(columns))
            if number % ENTRIES == ENTRIES - 1:
                topic.roll()
        topic.seal()


def drain(messages: DataFrame) -> None:
    """Read everything, and do nothing with it."""
    messages.write.format("noop").mode("overwrite").save()


def add_up(messages: DataFrame) -> int:
    """Read everything, and add one column up."""
    row = messages.select(*COLUMNS).agg({"event_time": "max", "source": "max", "stream": "max", "entry": "sum"}).first()
    assert row is not None
    return row["sum(entry)"]


def batch(messages: DataFrame) -> int:
    """Batch everything, and count the messages of the batches."""
    row = event_time_batches(messages).agg({"count": "sum"}).first()
    assert row is not None
    return row["sum(count)"]


def main() -> None:
    if not (WORK / "factory.db-ledgers").exists():
        generate()
    spark = session(app_name="waterclock benchmark", **{"spark.driver.memory": "4g"})
    register(spark)
    files = [str(path) for path in sorted((WORK / "factory.db-ledgers").rglob("*.parquet"))]
    of_files = spark.read.parquet(*files)
    native = of_files.select(*COLUMNS)
    url = f"sqlite:///{WORK / 'factory.db'}"
    by_format = spark.read.format("waterclock").options(url=url, topic="telemetry")
    ours = by_format.options(columns=",".join(COLUMNS)).load()
    packed = spark.read.format("waterclock").options(url=url, topic="telemetry", packed=True).load()
    as_table = table(spark, url, "telemetry")
    assert ours.count() == native.count() == as_table.count() == LEDGERS * ENTRIES * MESSAGES
    assert add_up(ours) == add_up(native) == add_up(as_table)
    assert batch(packed) == batch(as_table)
    runs = {
        "parquet, noop": lambda: drain(native),
        "waterclock, noop": lambda: drain(ours),
        "table, noop": lambda: drain(as_table.select(*COLUMNS)),
        "parquet, sum": lambda: add_up(native),
        "waterclock, sum": lambda: add_up(ours),
        "table, sum": lambda: add_up(as_table),
        "parquet, batches": lambda: batch(of_files),
        "waterclock, batches": lambda: batch(packed),
        "table, batches": lambda: batch(as_table),
    }
    figures = {
        "messages": LEDGERS * ENTRIES * MESSAGES,
        "columns": COLUMNS,
        "cores": spark.sparkContext.defaultParallelism,
    } | {measure: _compared(each) for measure, each in by_several_clocks(runs, ROUNDS, BY_ALL_OF_SPARK).items()}
    spark.stop()
    for measure in ("by_the_clock", "by_processor_time"):
        print(measure, figures[measure])
    print(f"wrote {write_results('spark_read', figures, ('waterclock', 'pyspark', 'pyarrow'))}")


def _compared(seconds: Mapping[str, float]) -> dict[str, Any]:
    times = {
        f"{way}, {what}": round(seconds[f"{way}, {what}"] / seconds[f"parquet, {what}"], 2)
        for what in ("noop", "sum", "batches")
        for way in ("waterclock", "table")
    }
    return {"seconds": {name: round(took, 3) for name, took in seconds.items()}, "times_as_long": times}


if __name__ == "__main__":
    main()
