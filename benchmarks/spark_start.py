"""Times the start of a session and its first query, in processes of their own, with and without the archive of classes.

What is timed: ``session()`` until it returns, and then ``spark.range(1000).count()``; importing PySpark and Waterclock
comes before. Other work on the machine adds least to the processor time, which is that of all their processes.
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

from benchmarks.measure import cpu_seconds, write_results
from waterclock.spark.preparing.make_class_archive import make_class_archive
from waterclock.spark.session.class_archive import SWITCH, archive_options
from waterclock.spark.session.java import find_java
from waterclock.spark.session.session import session

ROUNDS = 5


def start() -> dict[str, float]:
    """Start a session in this process, and ask it something."""
    began = time.perf_counter()
    spark = session("waterclock benchmark")
    started = time.perf_counter()
    spark.range(1000).count()
    answered = time.perf_counter()
    used = cpu_seconds()
    spark.stop()
    return {
        "session": started - began,
        "first query": answered - started,
        "session and first query": answered - began,
        "processor time": used,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--once", action="store_true", help="start in this process, and print the seconds as JSON")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    chosen = parser.parse_args()
    if chosen.once:
        print(json.dumps(start()))
        return
    java = find_java()
    if not archive_options(java):
        make_class_archive()
    kinds = {"with the archive": {}, "without": {SWITCH: "off"}}
    taken: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for _ in range(chosen.rounds + 1):
        for kind, variables in kinds.items():
            taken[kind].append(_started(variables))
    figures: dict[str, Any] = {"java": str(java), "cores": os.cpu_count()}
    for kind, each in taken.items():
        warm = each[1:]  # the files are in memory by then
        figures[kind] = {part: round(statistics.median(one[part] for one in warm), 2) for part in warm[0]}
        print(kind, figures[kind])
    print(f"wrote {write_results('spark_start', figures, ('waterclock', 'pyspark'))}")


def _started(variables: dict[str, str]) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.spark_start", "--once"]
    answer = subprocess.run(command, env=os.environ | variables, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(answer.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
