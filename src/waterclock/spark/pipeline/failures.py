"""Explains in one line why Spark ended a pipeline. Spark's own errors are many lines of Java stack traces."""

from __future__ import annotations

import logging
import re
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.accumulators import AccumulatorTCPServer, AccumulatorUnixServer
from pyspark.errors import PySparkException

from waterclock._support.quoting import cut
from waterclock._support.urls import redacted
from waterclock.errors import WaterclockError

_OURS = re.compile(r"\bwaterclock(?:\.\w+)+Error: (.*)")
_FORMAT_MISSING = re.compile(r"cannot use the format waterclock: .*")
_NO_MODULE = re.compile(r"No module named '?waterclock\b")
_CONTEXT_STOPPED = re.compile(r"stopped SparkContext|SparkContext was shut down|DAGScheduler\.cleanupQueryJobs")
_JAVA_ENDS_WITHIN_S = 10
_MORE_MEMORY = "raise spark.driver.memory (on a cluster also spark.executor.memory), and start the pipeline again"
_REMEDIES = (
    (re.compile(r"OutOfMemoryError"), f"{_MORE_MEMORY}: it continues from its checkpoint"),
    (
        re.compile(r"No space left on device|Disk quota exceeded"),
        "free some space, and start the pipeline again: it continues from its checkpoint",
    ),
    (
        re.compile(r"Mkdirs failed to create|Read-only file system|Permission denied"),
        "the pipeline must be able to write to its checkpoint and its outputs",
    ),
    (
        re.compile(r"Class org\.apache\.hadoop\.fs\S+ not found|No FileSystem for scheme"),
        "Spark lacks the library of that filesystem: name it in the setting spark.jars.packages",
    ),
    (
        re.compile(
            r"JSONDecodeError|Incomplete log file|MismatchedInputException|Unexpected end-of-input|assertion failed"
            r"|MISSING_STATE_DIRECTORY"
        ),
        "a file of the checkpoint seems to be corrupt or missing: restore a copy of it, or start with a new checkpoint",
    ),
    (
        re.compile(r"as destination already exists|CONCURRENT_STREAM_LOG_UPDATE|queries are concurrently using"),
        "another pipeline seems to run on the same checkpoint: run only one at a time",
    ),
    (
        re.compile(r"terminated with exception:\s*(SQLSTATE|Broken pipe|Connection reset|$)"),
        "one of Spark's processes ended, perhaps for lack of memory: start the pipeline again",
    ),
    (
        re.compile(r"(STATE_STORE|STATEFUL_PROCESSOR|CHECKPOINT|STREAMING_STATEFUL_OPERATOR|OFFSET_LOG)\w*"),
        "the checkpoint was written by another version or another pipeline: start with a new checkpoint",
    ),
)
"""Remedies by parts of errors' texts; the first that fits."""

_PYTHON_ERROR = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\b.*)$", re.MULTILINE)
_JAVA_CAUSE = re.compile(r"^Caused by: (.*)$", re.MULTILINE)
_JAVA_NAME = re.compile(r"\b(?:[a-z][a-z0-9_]*\.){2,}(?=[A-Z]\w*(?:Exception|Error))")

_JVM_DIED = (
    "Spark's Java process ended, most likely because it ran out of memory."
    f" {_MORE_MEMORY.capitalize()}: it continues from its checkpoint"
)
_SESSION_ENDED = "Spark's session ended: its master was unreachable or ended it. See Spark's log"
_WORKER_LACKS_US = (
    "a Python worker of Spark cannot import waterclock. Install the same version in the Python of every"
    " executor (PYSPARK_PYTHON, or an archive given with spark.archives)"
)


class PipelineError(WaterclockError):
    """A pipeline ended with an error, whose text is that of its cause."""


@contextmanager
def in_a_line() -> Generator[None]:
    """Turn an error of Spark into a `PipelineError` of one line; Spark's error is its cause."""
    try:
        yield
    except PySparkException as error:
        raise PipelineError(_reason_or_end(str(error))) from error
    except (Py4JError, ConnectionError, EOFError) as error:
        text = str(error)
        raise PipelineError(_reason_or_end(text) if "Exception" in text and "\tat " in text else _JVM_DIED) from error


def leave_traces_out() -> None:
    """Keep PySpark's and Py4J's error traces off this process's stderr, for programs that report errors in one line."""
    for name in ("DataFrameQueryContextLogger", "py4j"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(lambda record: "py4j" not in Path(record.pathname).parts)
    for server in (AccumulatorTCPServer, AccumulatorUnixServer):
        server.handle_error = _say_nothing  # it would print the end of its connection to Java


def reason(text: str) -> str:
    """Extract the cause from the text of one of Spark's errors, as one line."""
    if ours := _OURS.search(text):
        return ours[1].rstrip()
    if missing := _FORMAT_MISSING.search(text):
        return missing[0].rstrip()
    if _NO_MODULE.search(text):
        return _WORKER_LACKS_US
    if "stopped SparkContext" in text:
        return _SESSION_ENDED
    lines = text.strip().splitlines()
    said = lines[0] if lines else "Spark failed and gave no reason"
    if said.startswith("An error occurred while calling") and len(lines) > 1:
        said = lines[1].removeprefix(": ")
    if "Traceback (most recent call last)" in text:
        trace = text[text.index("Traceback (most recent call last)") :]
        errors = _PYTHON_ERROR.findall(trace)
        said = errors[-1] if errors else said
    elif causes := _JAVA_CAUSE.findall(text):
        said = f"{said} ({causes[-1]})" if causes[-1] not in said else said
    said = cut(redacted(_JAVA_NAME.sub("", said)))
    remedies = (remedy for pattern, remedy in _REMEDIES if pattern.search(text))
    return "; ".join([said, *islice(remedies, 1)])


def _reason_or_end(text: str) -> str:
    """Explain an error. If Java runs out of memory, it stops Spark before it ends, and other errors arrive first."""
    return _JVM_DIED if _CONTEXT_STOPPED.search(text) and _java_ends() else reason(text)


def _java_ends() -> bool:
    java: Any = SparkContext._gateway  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # none else knows its end
    if java is None:
        return False
    try:
        java.proc.wait(_JAVA_ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _say_nothing(self: object, request: object, client_address: object) -> None: ...
