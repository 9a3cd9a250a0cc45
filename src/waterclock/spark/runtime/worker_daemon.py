"""The process that an embedded Spark forks its Python workers from: what batching needs is imported here, once.

A stream runs several Python operators at a time, each in a worker of its own that would import the same for seconds.
Spark has every worker look for garbage after every task as well, which takes the longer the more is imported; what is
here before the fork is spared that. Of the libraries imported here NumPy and Arrow have threads by then, and both see
to it that a fork does not mind.
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
    "waterclock.spark.packing_kernel",
    "waterclock.spark.batch_bytes_kernel",
    "waterclock.spark.streaming.judging",
    "waterclock.spark.streaming.stateful",
)


def _unless_hung_up(work: Callable[[Any, bool], int]) -> Callable[[Any, bool], int]:
    """Let a worker end in silence that Java has no more use for: over a socket in the file system, that is an error."""

    def worker(connection: Any, authenticated: bool) -> int:
        try:
            return work(connection, authenticated)
        except BrokenPipeError:
            return 1

    return worker


def main() -> None:
    """Import, and fork workers until Spark ends."""
    if sys.argv[1:] == ["pyspark.worker"]:  # those that plan reads and writes need less
        for name in _FOR_TASKS:
            with suppress(Exception):  # a module that cannot be imported fails where a task needs it
                importlib.import_module(name)
    gc.collect()
    gc.freeze()
    daemon.worker = _unless_hung_up(daemon.worker)
    daemon.manager()


if __name__ == "__main__":
    main()
