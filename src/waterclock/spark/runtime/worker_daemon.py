"""The process that an embedded Spark forks its Python workers from, with the imports of batching done once.

A stream runs several Python operators at a time, each in a worker of its own that would spend seconds on the same
imports. Spark also makes every worker collect garbage after every task, which takes longer with more imports; modules
imported before the fork are exempt. NumPy and Arrow have started threads by then, and both survive a fork.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pyspark import daemon

_FOR_TASKS = (
    "pandas",
    "pyspark.worker",
    "waterclock.batching.event_time.kernel",
    "waterclock.batching.rate.by_column.kernel",
    "waterclock.columnar.packing_kernel",
    "waterclock.columnar.batch_bytes_kernel",
    "waterclock.columnar.streams.judging",
    "waterclock.spark.streaming.stateful",
)


def _unless_hung_up(work: Callable[[Any, bool], int]) -> Callable[[Any, bool], int]:
    """End a worker quietly if Java no longer needs it: over a socket in the file system, that is an error."""

    def worker(connection: Any, authenticated: bool) -> int:
        try:
            return work(connection, authenticated)
        except BrokenPipeError:
            return 1

    return worker


def main() -> None:
    """Import, and fork workers until Spark ends."""
    if sys.argv[1:] == ["pyspark.worker"]:  # workers that plan reads and writes need less
        for name in _FOR_TASKS:
            with suppress(Exception):  # a module that cannot be imported fails when a task needs it
                importlib.import_module(name)
    gc.collect()
    gc.freeze()
    daemon.worker = _unless_hung_up(daemon.worker)
    daemon.manager()


if __name__ == "__main__":
    main()
