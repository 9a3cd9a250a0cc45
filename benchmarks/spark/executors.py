"""Times a replay and a stream on one executor and on two, of one core each, in processes of their own.

The replay is that of `benchmarks.spark.replay`, 10 M messages of 1,000 sources; the stream that of
`benchmarks.spark.stream`, 1 M messages of 1,000 sources a micro-batch. The driver needs some of a core as well, so that
a machine of two cores shows less than two executors can do.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks.measure import write_results
from benchmarks.spark import replay, stream
from benchmarks.spark.messages import STREAMS, generate, options
from waterclock.spark import register, session
from waterclock.spark.runtime.partitions import PARTITIONS, chosen_partitions

EXECUTORS = (1, 2)
ROUNDS = 3
MESSAGES = 1_000_000
BATCHES = 5
SOURCES = 1_000


def measure(executors: int) -> dict[str, float]:
    """Give messages a second of both, on so many executors."""
    spark = session(
        f"local-cluster[{executors},1,2048]",
        app_name="waterclock benchmark",
        **{"spark.executor.memory": "2g", "spark.ui.enabled": "false"},
    )
    spark.conf.set(PARTITIONS, chosen_partitions(spark))
    register(spark)
    messages = spark.read.format("waterclock").options(**options(replay.WORK)).load()
    count = replay.replay(messages)[1]
    replays: list[float] = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        replay.replay(messages)
        replays.append(time.perf_counter() - began)
    folder = stream.WORK / f"{SOURCES}-{MESSAGES}-{BATCHES}"
    arriving = stream.topic(spark, folder, MESSAGES)
    stream.run(arriving, stream.ours)
    micro_batches = stream.seconds(stream.run(arriving, stream.ours))
    spark.stop()
    return {
        "replay, messages a second": round(count / statistics.median(replays)),
        "stream, messages a second": round(MESSAGES / statistics.median(micro_batches)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--on", type=int, help="measure in this process, on so many executors, and print JSON")
    chosen = parser.parse_args()
    if chosen.on:
        print(json.dumps(measure(chosen.on)))
        return
    if not replay.WORK.exists():
        generate(replay.WORK, sources=replay.SOURCES, ledgers=replay.LEDGERS, bursts=replay.BURSTS)
    folder = stream.WORK / f"{SOURCES}-{MESSAGES}-{BATCHES}"
    if not folder.exists():
        generate(folder, sources=SOURCES, ledgers=BATCHES, bursts=MESSAGES // (SOURCES * len(STREAMS)))
    figures: dict[str, Any] = {"cores": os.cpu_count()}
    for executors in EXECUTORS:
        command = [sys.executable, "-m", "benchmarks.spark.executors", "--on", str(executors)]
        answer = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        figures[f"{executors} executors"] = json.loads(answer.stdout.splitlines()[-1])
    for name, figure in figures.items():
        print(name, figure)
    print(f"wrote {write_results('spark_executors', figures, ('waterclock', 'pyspark', 'pyarrow', 'numba'))}")


if __name__ == "__main__":
    main()
