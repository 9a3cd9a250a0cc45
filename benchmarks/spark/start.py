"""Times how a session and its Python workers start, in processes of their own, each time without one of their parts.

What is timed: ``session()`` until it returns; then ``spark.range(1000).count()``; the first replay of a small topic,
for which workers start, and later ones; a stream of it, and its later micro-batches. Importing PySpark and Waterclock
comes before. Other work on the machine adds least to the processor time, which is that of all their processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import waterclock as wc
from benchmarks.measure import cpu_seconds, descendants, is_python_of_spark, write_results
from waterclock.spark import event_time_batches, register, session
from waterclock.spark.preparing import make_class_archive
from waterclock.spark.runtime import session as starting
from waterclock.spark.runtime import worker_python
from waterclock.spark.runtime.class_archive import SWITCH, archive_options
from waterclock.spark.runtime.java import find_java

ROUNDS = 3
REPLAYS = 8
ENTRIES = 20
UNSTEADY = 5
"""Replays and micro-batches at the start that also compile."""

NOTHING_FROZEN = "import gc\n\ngc.freeze = lambda: None\n"
WITHOUT: Mapping[str, Mapping[str, str]] = {
    "nothing": {},
    "the archive of classes": {SWITCH: "off"},
    "the launcher of Python": {},
    "the fork server": {},
    "freezing": {},
}
"""Which part a start lacks, and the environment for it."""


def start(without: str) -> dict[str, float]:
    """Start a session in this process without one of its parts, and ask it something."""
    settings: dict[str, str] = {}
    launcher = worker_python._LAUNCHER  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # a switch would be for this alone
    if without == "the launcher of Python":
        launcher = '#!/bin/sh\nexec @PYTHON@ "$@"\n'
    if without == "the fork server":
        starting._forks = lambda: None  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # as below
    worker_python._LAUNCHER = launcher  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # as above
    taken: dict[str, float] = {}

    def timed(what: str, work: Callable[[], object]) -> Any:
        began, used = time.perf_counter(), cpu_seconds()
        result = work()
        taken[what], taken[f"{what}, processor"] = time.perf_counter() - began, cpu_seconds() - used
        return result

    spark: SparkSession = timed("session", lambda: session(app_name="waterclock benchmark", **settings))
    timed("first query", lambda: spark.range(1000).count())
    register(spark)
    with tempfile.TemporaryDirectory() as folder:
        place = {"url": f"sqlite:///{folder}/f.db", "topic": "telemetry"}
        fill(place["url"])
        replayed = event_time_batches(spark.read.format("waterclock").options(**place, packed=True).load())
        timed("first replay", replayed.count)
        later: list[float] = []
        for _ in range(REPLAYS):
            timed("replay", replayed.count)
            later.append(taken["replay"])
        taken["replay"] = statistics.median(later[UNSTEADY:])
        arriving = spark.readStream.format("waterclock").options(**place, buckets=8, maxMessagesPerTrigger=60)
        writer = event_time_batches(arriving.load()).writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", f"{folder}/checkpoint").start()
        timed("stream", query.awaitTermination)
        micro_batches = [each["durationMs"]["triggerExecution"] for each in query.recentProgress]
        taken["micro-batch"] = statistics.median(micro_batches[UNSTEADY:]) / 1_000
    taken["all, processor"] = cpu_seconds()
    taken["memory of the workers, MB"] = memory_of_workers()
    spark.stop()
    return taken


def memory_of_workers() -> float:
    """Add up what Spark's Python processes hold, each its share of what several have in common; MB."""
    held = 0
    for process in descendants():
        folder = Path("/proc") / str(process)
        with suppress(OSError):
            if is_python_of_spark(process):
                lines = (folder / "smaps_rollup").read_text().splitlines()
                held += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return held / 1_000


def fill(url: str) -> None:
    """Append entries of 60 messages, a second apart."""
    with wc.connect(url) as database:
        topic = database.create_topic("telemetry")
        for number in range(ENTRIES):
            at = (1_790_000_000 + number) * 10**9
            names = [(f"source-{source}", f"stream-{stream}") for source in range(20) for stream in range(3)]
            topic.append([wc.Message(*each, at, publish_time=at, receive_time=at) for each in names])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--once", metavar="WITHOUT", help="start in this process, and print the seconds as JSON")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    chosen = parser.parse_args()
    if chosen.once:
        print(json.dumps(start(chosen.once)))
        return
    java = find_java()
    if not archive_options(java):
        make_class_archive()
    taken: dict[str, list[dict[str, float]]] = {without: [] for without in WITHOUT}
    for _ in range(chosen.rounds + 1):
        for without, environment in WITHOUT.items():
            taken[without].append(started(without, environment))
    figures: dict[str, Any] = {"java": str(java), "cores": os.cpu_count()}
    for without, each in taken.items():
        warm = each[1:]  # the files are in memory by then
        figures[f"without {without}"] = {
            part: round(statistics.median(one[part] for one in warm), 2) for part in warm[0]
        }
        print(f"without {without}", figures[f"without {without}"])
    print(f"wrote {write_results('spark_start', figures, ('waterclock', 'pyspark'))}")


def started(without: str, environment: Mapping[str, str]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        if without == "freezing":
            (Path(folder) / "sitecustomize.py").write_text(NOTHING_FROZEN)
        path = {"PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])}
        command = [sys.executable, "-m", "benchmarks.spark.start", "--once", without]
        answer = subprocess.run(
            command, env=os.environ | environment | path, stdout=subprocess.PIPE, check=True, text=True
        )
    return json.loads(answer.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
