"""``waterclock pipeline`` runs the pipelines of a file on Spark, as a stream or over stored data."""

from __future__ import annotations

import logging
import signal
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App

from waterclock._support.quoting import quoted, unknown_name
from waterclock.cli.terminal.common import Common
from waterclock.cli.terminal.exporting import MetricsOptions, exporting
from waterclock.cli.terminal.log_format import LogOptions
from waterclock.errors import InvalidArgumentError, NotFoundError
from waterclock.time import system_clock, to_time
from waterclock.work.running.signals import raise_if_interrupted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from waterclock.spark.pipeline.file import PipelineFile
    from waterclock.spark.pipeline.progress import Progress

app = App(name="pipeline")


@app.command
def run(
    file: Path,
    /,
    *,
    once: bool = False,
    master: str | None = None,
    conf: list[str] | None = None,
    metrics: MetricsOptions = MetricsOptions(),
    log: LogOptions = LogOptions(),
    spark_log: Path | None = None,
    common: Common = Common(),
) -> None:
    """Batch a topic as it grows, and write the batches; continue from the checkpoint.

    Reports progress on stderr every 30 seconds, and every 10 until the first micro-batch has ended; with --json as one
    object per line.

    Parameters
    ----------
    file
        The pipelines: a TOML file.
    once
        Read the existing messages, and end.
    master
        Spark's cluster; an embedded Spark on every core unless set here or in the file.
    conf
        A setting of Spark, NAME=VALUE; overrides the file's.
    spark_log
        File for Spark's log; without it, Spark's errors go to stderr, each as a line.
    """
    from waterclock.connection import connect
    from waterclock.spark.pipeline.file import PipelineFile
    from waterclock.spark.pipeline.preflight import check_places
    from waterclock.spark.pipeline.reporting import Reporter
    from waterclock.spark.pipeline.running import run_pipelines

    output = log.output(common)
    settings = _settings(conf)
    read = PipelineFile.read(file)
    for pipeline in read.pipelines:
        check_places(pipeline)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # at level INFO it logs every call of the JVM
    with _stopping() as stop, ExitStack() as reporting:
        reporter = Reporter(read.pipelines, as_json=output.as_json, quiet=output.quiet, logs=output.logs)
        source = read.pipelines[0].source
        reporting.enter_context(
            exporting(metrics, output, lambda: connect(source.url, source.ledgers), [reporter.metrics], list[str])
        )
        reporting.enter_context(reporter.shown())
        spark = _session(read, master, settings, spark_log)
        stop.listen()
        ended = run_pipelines(spark, read.pipelines, once=once, tell=reporter.tell, stopping=stop.is_wished)
        reporter.end(ended)
    for progress in ended:
        output.facts(_facts(progress, named=len(ended) > 1))


@app.command
def replay(
    file: Path,
    /,
    *,
    since: str,
    until: str,
    pipeline: str | None = None,
    master: str | None = None,
    conf: list[str] | None = None,
    spark_log: Path | None = None,
    common: Common = Common(),
) -> None:
    """Batch a range of the topic again: write the batches that start in it, and the messages rejected in it.

    Adjacent ranges return each batch once.

    Parameters
    ----------
    file
        The pipelines: a TOML file.
    since
        Batches that start at this time or later, or this long ago.
    until
        Batches that start before this time.
    pipeline
        The pipeline, if the file has several.
    master
        Spark's cluster; an embedded Spark on every core unless set here or in the file.
    conf
        A setting of Spark, NAME=VALUE; overrides the file's.
    spark_log
        File for Spark's log; without it, Spark's errors go to stderr, each as a line.
    """
    from waterclock.spark.pipeline.file import PipelineFile
    from waterclock.spark.pipeline.preflight import check_places
    from waterclock.spark.pipeline.running import replay_pipeline

    settings = _settings(conf)
    read = PipelineFile.read(file)
    names = [each.name for each in read.pipelines]
    chosen = [each for each in read.pipelines if pipeline in (None, each.name)]
    if not chosen:
        raise NotFoundError(unknown_name("pipeline", pipeline, names, f"the file has {', '.join(names)}"))
    if len(chosen) > 1:
        raise InvalidArgumentError(f"--pipeline is missing; name one of {', '.join(names)}")
    check_places(chosen[0])
    now = system_clock()
    begin, end = to_time(since, "since", now=now), to_time(until, "until", now=now)
    if begin >= end:
        raise InvalidArgumentError(f"--since must be earlier than --until, got {quoted(since)} and {quoted(until)}")
    progress = replay_pipeline(_session(read, master, settings, spark_log), chosen[0], begin, end)
    common.output.facts({"messages": progress.messages, "batches": progress.batches, "rejected": progress.rejected})


def _session(file: PipelineFile, master: str | None, conf: Mapping[str, str], log: Path | None) -> SparkSession:
    from waterclock.spark import session
    from waterclock.spark.pipeline.failures import in_a_line, leave_traces_out

    if log is not None and (log.is_dir() or not log.absolute().parent.is_dir()):
        raise InvalidArgumentError(f"--spark-log must be a file in an existing folder, got {quoted(str(log))}")
    leave_traces_out()
    settings = {**file.spark, **conf}
    where = master or settings.pop("spark.master", "local[*]")
    settings.pop("spark.master", None)
    with in_a_line():
        return session(where, log, app_name=f"waterclock {file.name}", **settings)


def _settings(given: list[str] | None) -> dict[str, str]:
    settings: dict[str, str] = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals or not name.startswith("spark."):
            raise InvalidArgumentError(f"--conf must be spark.NAME=VALUE, got {quoted(text)}")
        settings[name] = value
    return settings


def _facts(progress: Progress, *, named: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"pipeline": progress.pipeline} if named else {}
    names = ("micro_batches", "messages", "batches", "lag", "open_batches", "outside", "rejected")
    return facts | {name: getattr(progress, name) for name in names}


class _SignalStop:
    """Handles SIGINT and SIGTERM.

    While Spark starts, they end the process at once. Later, the first stops it after the micro-batch under way, and a
    second one at once.
    """

    def __init__(self) -> None:
        self._wished = False
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def is_wished(self) -> bool:
        return self._wished

    def end_at_once(self) -> None:
        for number in self._before:
            signal.signal(number, _end)
        raise_if_interrupted()

    def listen(self) -> None:
        for number in self._before:
            signal.signal(number, self._note)

    def be_deaf(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, _number: int, _frame: object) -> None:
        self._wished = True
        self.be_deaf()


def _end(_number: int, _frame: object) -> None:
    raise SystemExit(0)


@contextmanager
def _stopping() -> Generator[_SignalStop]:
    stop = _SignalStop()
    stop.end_at_once()
    try:
        yield stop
    finally:
        stop.be_deaf()
