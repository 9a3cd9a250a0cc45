"""Times a pipeline from a topic to Parquet and to a message table, payloads included, against Spark's session windows.

Both read the same topic: 1,000 sources, payloads of 8 bytes. Spark's own job groups the rows of the ledgers' files by
`session_window`, collects the messages of each window and writes Parquet. ``--messages`` chooses the lengths of the
topic; what a message costs must not grow with it. A replay and a stream, which writes through ``foreachBatch``, are
measured, and a replay whose shorter ``max_delay`` rejects two messages of three, per rejected message. ``--connect``
does all of it through Spark Connect. The figures are processor time: the driver, the JVM and its Python workers.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation names it

import waterclock as wc
from benchmarks.measure import BY_ALL_OF_SPARK, by_several_clocks, write_results
from benchmarks.servers import SCRATCH
from benchmarks.spark.messages import LEDGER_SCHEMA, STREAMS, files, generate
from waterclock.spark import session
from waterclock.spark.pipeline.definition import AVAILABLE_NOW, Kind, Pipeline, PipelineOutput, PipelineSource
from waterclock.spark.pipeline.running import replay_pipeline, run_pipeline
from waterclock.spark.runtime.java import find_java, make_java_home
from waterclock.time import MAX_NS

SOURCES = 1_000
A_LEDGER = 500_000
GAP = "500 milliseconds"
REJECTED = "rejected messages of a replay to a topic"
WORK = SCRATCH / "spark_payloads"


def pipeline(folder: Path, kind: Kind, max_delay: str = "400ms") -> Pipeline:
    """Make empty places for the results, and the pipeline that writes to one of them."""
    out = emptied(folder)
    results = f"sqlite:///{out / 'results.db'}"
    with wc.connect(results) as database:
        database.create_table("batches", id_type="text")
        database.create_topic("rejected")
    what = "rejected" if kind == "topic" else "batches"
    target = str(out / "batches") if kind == "parquet" else what
    source = PipelineSource(f"sqlite:///{folder / 'factory.db'}", None, "telemetry", {}, None)
    outputs = (PipelineOutput(what, what, kind, target, source.url if kind == "parquet" else results, None),)
    rule = {"window": "500ms", "max_delay": max_delay}
    checkpoint = str(out / "cp")
    return Pipeline("benchmark", source, "event_time", rule, None, outputs, checkpoint, AVAILABLE_NOW, None, None)


def replay(spark: SparkSession, folder: Path, kind: Kind) -> None:
    replay_pipeline(spark, pipeline(folder, kind), 0, MAX_NS)


def stream(spark: SparkSession, folder: Path, kind: Kind) -> None:
    run_pipeline(spark, pipeline(folder, kind), once=True)


def rejected(spark: SparkSession, folder: Path) -> int:
    """Return how many messages are rejected: those received more than 100 ms, of up to 300, after they happened."""
    return replay_pipeline(spark, pipeline(folder, "topic", "100ms"), 0, MAX_NS).rejected


def native(spark: SparkSession, folder: Path) -> None:
    """Collect the messages of session windows, with what a batch holds of each, and write them."""
    rows = spark.read.schema(f"{LEDGER_SCHEMA}, payload BINARY").parquet(*files(folder))
    at = F.timestamp_micros(F.expr("event_time div 1000"))
    message = F.struct("event_time", "stream", "publish_time", "receive_time", "payload", "entry", "index")
    windows = rows.groupBy("source", F.session_window(at, GAP)).agg(F.sort_array(F.collect_list(message)).alias("m"))
    windows.write.parquet(str(emptied(folder) / "windows"))


def connected() -> SparkSession:
    """Start a server of Spark Connect, and a session of it."""
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    settings = {"spark.sql.streaming.stateStore.providerClass": provider, "spark.sql.shuffle.partitions": "2"}
    os.environ["JAVA_HOME"] = str(make_java_home(find_java(), WORK / "java"))
    return SparkSession.builder.remote("local[2]").config(map=settings).getOrCreate()


def emptied(folder: Path) -> Path:
    out = folder.with_name(f"{folder.name}-out")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description="Times pipelines with payloads.")
    parser.add_argument("--messages", type=int, nargs="+", default=[500_000, 5_000_000, 50_000_000])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--connect", action="store_true", help="through Spark Connect")
    chosen = parser.parse_args()
    spark = connected() if chosen.connect else session(app_name="waterclock benchmark", **{"spark.driver.memory": "4g"})
    figures: dict[str, Any] = {"sources": SOURCES, "connect": chosen.connect}
    for messages in chosen.messages:
        folder = WORK / str(messages)
        if not folder.exists():
            a_ledger = min(messages, A_LEDGER)
            bursts = a_ledger // (SOURCES * len(STREAMS))
            generate(folder, sources=SOURCES, ledgers=messages // a_ledger, bursts=bursts, payload=bytes(8))
        runs: dict[str, Callable[[], object]] = {
            "session_window to Parquet": partial(native, spark, folder),
            "replay to Parquet": partial(replay, spark, folder, "parquet"),
            "replay to a message table": partial(replay, spark, folder, "table"),
            "stream to Parquet": partial(stream, spark, folder, "parquet"),
            "stream to a message table": partial(stream, spark, folder, "table"),
            REJECTED: partial(rejected, spark, folder),
        }
        counts: dict[str, int] = dict.fromkeys(runs, messages) | {REJECTED: rejected(spark, folder)}
        figures[str(messages)] = {
            f"microseconds_a_message_{clock}": {
                name: round(seconds / counts[name] * 1e6, 1) for name, seconds in each.items()
            }
            for clock, each in by_several_clocks(runs, chosen.rounds, BY_ALL_OF_SPARK).items()
        }
        print(messages, figures[str(messages)], flush=True)
    spark.stop()
    name = "spark_payloads_connect" if chosen.connect else "spark_payloads"
    print(f"wrote {write_results(name, figures, ('waterclock', 'pyspark', 'pyarrow', 'numba', 'numpy'))}")


if __name__ == "__main__":
    main()
