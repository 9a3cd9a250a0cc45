"""The process from which Spark forks its Python workers. It has already done the imports of batching.

A stream runs several Python operators at a time, each in a separate worker, which would spend seconds on the same
imports. Spark also makes every worker collect garbage after every task, which takes longer with more modules imported.
Modules imported before the fork are exempt. NumPy and Arrow start threads when they are imported, but both libraries
work in a forked process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from pyspark import daemon

from waterclock.spark.runtime.workers import FOR_TASKS, prepare


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
    if sys.argv[1:] == ["pyspark.worker"]:  # workers that plan need less
        prepare(FOR_TASKS, compiled=True)
    else:
        prepare(())
    daemon.worker = _unless_hung_up(daemon.worker)
    daemon.manager()


if __name__ == "__main__":
    main()
