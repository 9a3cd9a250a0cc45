"""Makes Spark's Python workers ready for the next task sooner, by shortening garbage collection.

A worker runs many tasks, and Spark makes it collect garbage after each. A collection scans all imported modules and
takes 40 ms, while a small task takes 5 ms. Imported modules are never garbage, so they can be excluded.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial, update_wrapper
from typing import Any

import pyarrow as pa

from waterclock.batching.kernels import load_compiled

_SEARCHING = ("pyspark.daemon", "waterclock.spark.runtime.worker_daemon")
"""The programs that collect garbage after each task: Spark's own, and ours around it."""

FOR_TASKS = (
    "pandas",
    "pyspark.worker",
    "waterclock.columnar.batch_bytes",
    "waterclock.columnar.streams.judging",
    "waterclock.spark.streaming.stateful",
)
"""Modules that workers of tasks import."""

_modules = 0


def prepare(modules: Iterable[str], *, compiled: bool = False) -> None:
    """Import modules before workers are forked, and exclude everything imported from garbage collection.

    With ``compiled``, load their kernels in compiled form.
    """
    for name in modules:
        with suppress(Exception):  # a module that cannot be imported fails when a task needs it
            importlib.import_module(name)
    if compiled:
        with suppress(Exception):
            load_compiled()
    gc.collect()
    gc.freeze()


def freeze_imports() -> None:
    """Exclude everything imported by the end of a task from garbage collection; outside a worker do nothing."""
    global _modules  # noqa: PLW0603  # the frozen modules are of the process
    program = sys.modules["__main__"].__spec__
    if program is None or program.name not in _SEARCHING or len(sys.modules) == _modules:
        return
    _modules = len(sys.modules)
    gc.collect()
    gc.freeze()


def freezing_imports(function: Callable[..., Iterable[pa.RecordBatch]], **options: Any) -> Any:
    """Return a function for ``mapInArrow`` of one of record batches and ``options`` that freezes imports at its end."""
    # Spark's pages show the name.
    return update_wrapper(partial(_run, partial(function, **options)), function, assigned=["__name__"], updated=[])


def _run(
    function: Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    yield from function(batches)
    freeze_imports()
