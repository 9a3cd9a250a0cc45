"""Times a pipeline from a topic to Parquet and to a message table, payloads included, against Spark's session windows.

Both read the same topic: 1,000 sources, payloads of 8 bytes. Spark's own job groups the rows of the ledgers' files by
`session_window`, collects the messages of each window and writes Parquet. ``--messages`` chooses the lengths of the
topic; what a message costs must not grow with it. The figures are processor time: the driver, the JVM and its Python
workers.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as Spark's own documentation names it

import waterclock as wc
from benchmarks.measure import BY_ALL_OF_SPARK, by_several_clocks, write_results
from benchmarks.spark_messages import LEDGER_SCHEMA, STREAMS, files, generate
from waterclock.spark import session
from waterclock.spark.pipeline.definition import AVAILABLE_NOW, Kind, Pipeline, PipelineOutput, PipelineSource
from waterclock.spark.pipeline.running import replay_pipeline
from waterclock.time import MAX_NS

SOURCES = 1_000
A_LEDGER = 500_000
GAP = "500 milliseconds"
WORK = Path(__file__).parent / "scratch" / "spark_payloads"


def pipeline(folder: Path, out: Path, kind: Kind) -> Pipeline:
    url = f"sqlite:///{folder / 'factory.db'}"
    table = f"sqlite:///{out / 'batches.db'}"
    target = "batches" if kind == "table" else str(out / "batches")
    outputs = (PipelineOutput("batches", "batches", kind, target, table if kind == "table" else url, None),)
    source = PipelineSource(url, None, "telemetry", {}, None)
    rule = {"window": "500ms", "max_delay": "400ms"}
    return Pipeline("benchmark", source, "event_time", rule, outputs, str(out / "cp"), AVAILABLE_NOW, None, None)


def ours(spark: SparkSession, folder: Path, kind: Kind) -> None:
    out = emptied(folder)
    with wc.connect(f"sqlite:///{out / 'batches.db'}") as database:
        database.create_table("batches", id_type="text")
    replay_pipeline(spark, pipeline(folder, out, kind), 0, MAX_NS)


def native(spark: SparkSession, folder: Path) -> None:
    """Collect the messages of session windows, with what a batch holds of each, and write them."""
    rows = spark.read.schema(f"{LEDGER_SCHEMA}, payload BINARY").parquet(*files(folder))
    at = F.timestamp_micros(F.expr("event_time div 1000"))
    message = F.struct("event_time", "stream", "publish_time", "receive_time", "payload", "entry", "index")
    windows = rows.groupBy("source", F.session_window(at, GAP)).agg(F.sort_array(F.collect_list(message)).alias("m"))
    windows.write.parquet(str(emptied(folder) / "windows"))


def emptied(folder: Path) -> Path:
    out = folder.with_name(f"{folder.name}-out")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description="Times pipelines with payloads.")
    parser.add_argument("--messages", type=int, nargs="+", default=[500_000, 5_000_000, 50_000_000])
    parser.add_argument("--rounds", type=int, default=2)
    chosen = parser.parse_args()
    spark = session("waterclock benchmark", **{"spark.driver.memory": "4g"})
    figures: dict[str, Any] = {"sources": SOURCES, "cores": spark.sparkContext.defaultParallelism}
    for messages in chosen.messages:
        folder = WORK / str(messages)
        if not folder.exists():
            a_ledger = min(messages, A_LEDGER)
            bursts = a_ledger // (SOURCES * len(STREAMS))
            generate(folder, sources=SOURCES, ledgers=messages // a_ledger, bursts=bursts, payload=bytes(8))
        runs: dict[str, Callable[[], object]] = {
            "session_window to Parquet": partial(native, spark, folder),
            "pipeline to Parquet": partial(ours, spark, folder, "parquet"),
            "pipeline to a message table": partial(ours, spark, folder, "table"),
        }
        figures[str(messages)] = {
            f"microseconds_a_message_{clock}": {
                name: round(seconds / messages * 1e6, 1) for name, seconds in each.items()
            }
            for clock, each in by_several_clocks(runs, chosen.rounds, BY_ALL_OF_SPARK).items()
        }
        print(messages, figures[str(messages)], flush=True)
    spark.stop()
    print(f"wrote {write_results('spark_payloads', figures, ('waterclock', 'pyspark', 'pyarrow', 'numba', 'numpy'))}")


if __name__ == "__main__":
    main()
