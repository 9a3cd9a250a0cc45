"""Reports the progress of pipelines as a status line, as log lines, and to Prometheus."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from rich.console import Console
from rich.status import Status
from rich.text import Text

from waterclock._support import moments
from waterclock._support.log_events import event
from waterclock._support.quoting import counted, in_a_line
from waterclock.connection import connect
from waterclock.errors import WaterclockError
from waterclock.monitoring.families import Family, label
from waterclock.monitoring.process_reports import ProcessReport
from waterclock.spark.pipeline.definition import Pipeline
from waterclock.spark.pipeline.progress import Progress
from waterclock.time import format_duration

EVERY_S = 30.0
"""How often a pipeline without a terminal reports its progress."""

FIRST_EVERY_S = 10.0
"""How often until the end of the first micro-batch, which takes longest and has no figures yet."""

_PREFIX = "waterclock_pipeline_"
_MS_PER_S = 1_000
_NS_PER_S = 1_000_000_000

_log = logging.getLogger(__name__)


class Reporter:
    """Reports the progress of some pipelines.

    Parameters
    ----------
    pipelines
        The running pipelines.
    as_json
        Write an object per line instead of text.
    quiet
        Say nothing on stderr.
    logs
        Log it, each line with the name of its event.
    """

    def __init__(self, pipelines: Sequence[Pipeline], *, as_json: bool, quiet: bool, logs: bool = False) -> None:
        self._pipelines = pipelines
        self._as_json = as_json
        self._quiet = quiet
        self._logs = logs
        self._status: Status | None = None
        self._next = moments.monotonic() + FIRST_EVERY_S
        self._started: set[str] = set()
        self._lengths: dict[str, int] = {}
        self._begun: set[str] = set()
        self._lag_seconds: dict[str, float | None] = {}
        self._all: Sequence[Progress] = []
        self._databases = ExitStack()
        self._to_pages: dict[str, ProcessReport] = {}

    @property
    def metrics(self) -> Collector:
        """The metrics of the pipelines, for Prometheus."""
        return _PipelineMetrics(self)

    def families(self) -> Iterator[Family]:
        """Yield the metric families of the pipelines."""
        return families(self._all, self._lag_seconds)

    @contextmanager
    def shown(self) -> Generator[None]:
        """Show progress meanwhile."""
        with ExitStack() as stack, self._databases:
            if sys.stderr.isatty() and not (self._quiet or self._as_json or self._logs):
                self._status = stack.enter_context(Console(stderr=True).status("starting Spark …"))
            for pipeline in self._pipelines:
                self._say("starting", Progress(pipeline.name), "starting Spark …")
            yield

    def tell(self, all_progress: Sequence[Progress]) -> None:
        """Update the progress of the pipelines, and report it when due."""
        self._all = [*all_progress]
        if self._status is not None:
            self._status.update(Text("; ".join(line(one, None) for one in all_progress)))
        for progress in all_progress:
            if progress.state_partitions is not None and progress.pipeline not in self._started:
                self._started.add(progress.pipeline)
                self._say("plan", progress, _plan(progress))
            if progress.length is not None:
                self._report_length(progress, progress.length.batch_length)
        has_begun = {one.pipeline for one in all_progress if one.micro_batches}
        if moments.monotonic() < self._next and has_begun == self._begun:
            return
        self._begun = has_begun
        self._next = moments.monotonic() + (FIRST_EVERY_S if any(map(_in_first, all_progress)) else EVERY_S)
        for pipeline, progress in zip(self._pipelines, all_progress, strict=True):
            self._lag_seconds[pipeline.name] = _lag_seconds(pipeline, progress)
            self._write_for_pages(pipeline, progress)
            self._say("progress", progress, line(progress, self._lag_seconds[pipeline.name]))

    def _report_length(self, progress: Progress, length: int) -> None:
        """Report a change of an adaptive length."""
        before = self._lengths.get(progress.pipeline, length)
        self._lengths[progress.pipeline] = length
        if before == length:
            return
        change = f"{format_duration(before)} → {format_duration(length)}"
        text = f"batch length {change}, following the time that batches take"
        if self._status is not None:
            self._status.console.print(Text(f"{in_a_line(progress.pipeline)}: {text}"))
        self._say("batch_length", progress, text, batch_length_before=before)

    def end(self, all_progress: Sequence[Progress]) -> None:
        """Note that the pipelines have ended."""
        for pipeline, progress in zip(self._pipelines, all_progress, strict=True):
            self._write_for_pages(pipeline, progress, ended=True)

    def _write_for_pages(self, pipeline: Pipeline, progress: Progress, *, ended: bool = False) -> None:
        try:
            report = self._to_pages.get(pipeline.name) or self._open_report(pipeline)
        except WaterclockError as error:
            _log.debug("cannot write a report for the pages: %s", in_a_line(str(error)))
            return
        report.write(facts(progress, self._lag_seconds.get(pipeline.name)), ended=ended)

    def _open_report(self, pipeline: Pipeline) -> ProcessReport:
        source = pipeline.source
        database = self._databases.enter_context(connect(source.url, source.ledgers))
        adapts = {} if pipeline.adaptive is None else {"batch_length": pipeline.adaptive.text}
        given = {**pipeline.rule, **adapts}
        rule = ", ".join(f"{name} = {value}" for name, value in given.items() if value is not None)
        targets = ", ".join(output.target for output in pipeline.outputs if output.what == "batches")
        fixed = {"by": pipeline.by, "rule": rule, "table": targets}
        topic_id = database.topic(source.topic).storage.topic_id
        report = ProcessReport(database.backend, "pipeline", pipeline.name, topic_id, fixed)
        return self._to_pages.setdefault(pipeline.name, report)

    def _say(self, name: str, progress: Progress, text: str, **further: int) -> None:
        if self._quiet or self._status is not None:
            return
        known = facts(progress, self._lag_seconds.get(progress.pipeline)) | further
        if self._logs:
            _log.info("%s", text, extra=event(name, **known))
            return
        line = json.dumps({"event": name, **known}) if self._as_json else f"{in_a_line(progress.pipeline)}: {text}"
        print(line, file=sys.stderr, flush=True)  # noqa: T201  # the talk of a command, which a log collects


class _PipelineMetrics(Collector):
    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def collect(self) -> Iterator[Family]:
        return self._reporter.families()


def facts(progress: Progress, lag_seconds: float | None) -> dict[str, Any]:
    """Return all facts of a pipeline's progress, for JSON."""
    return {
        "pipeline": progress.pipeline,
        "micro_batches": progress.micro_batches,
        "first_tasks_done": None if progress.tasks is None else progress.tasks[0],
        "first_tasks": None if progress.tasks is None else progress.tasks[1],
        "messages": progress.messages,
        "messages_per_second": round(progress.rate, 1),
        "lag_messages": progress.lag,
        "lag_seconds": lag_seconds,
        "batches": progress.batches,
        "open_batches": progress.open_batches,
        "outside": progress.outside,
        **{name: value for name, value in _of_some_rules(progress).items() if value is not None},
        "rejected": progress.rejections,
        "state_rows": progress.state_rows,
        "state_bytes": progress.state_bytes,
        "state_partitions": progress.state_partitions,
        "state_buckets": progress.state_buckets,
        "micro_batch_ms": progress.phases,
    }


def _of_some_rules(progress: Progress) -> dict[str, int | None]:
    return {
        "missing_ids": progress.missing_ids,
        "incomplete_batches": progress.incomplete,
        "batch_length": None if progress.length is None else progress.length.batch_length,
    }


def _in_first(progress: Progress) -> bool:
    """Whether a first micro-batch runs or is planned. If it waits for messages, Spark reports it without tasks."""
    return not progress.micro_batches and (progress.tasks is not None or progress.reported is None)


def _plan(progress: Progress) -> str:
    return f"its state is in {progress.state_partitions} partitions and {progress.state_buckets} buckets of sources"


def line(progress: Progress, lag_seconds: float | None) -> str:
    """Describe the progress of a pipeline in a line of text."""
    if not progress.micro_batches and progress.lag is None:
        if progress.tasks is None:
            return "no micro-batch has ended yet"
        done, tasks = progress.tasks
        return f"first micro-batch: {done:,} of {tasks:,} tasks done"
    behind = f"{_shown(progress.lag)} behind" + ("" if lag_seconds is None else f" ({lag_seconds:,.1f} s)")
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in progress.rejections.items() if count)
    said = [
        f"{progress.messages:,} messages, {progress.rate:,.0f}/s, {behind}",
        f"{_shown(progress.batches)} batches, {_shown(progress.open_batches)} open",
        f"{_shown(progress.rejected)} rejected" + (f" ({reasons})" if reasons else ""),
    ]
    if progress.outside:
        said.append(f"{progress.outside:,} outside their windows")
    if progress.missing_ids is not None:
        said.append(counted(progress.missing_ids, "missing id"))
    if progress.incomplete is not None:
        said.append(f"{counted(progress.incomplete, 'batch', 'batches')} without all streams")
    if progress.length is not None:
        said.append(f"batch length {format_duration(progress.length.batch_length)}")
    if progress.state_bytes is not None:
        said.append(f"state {_shown(progress.state_rows)} rows, {progress.state_bytes:,} bytes")
    if progress.phases:
        said.append("micro-batch " + ", ".join(f"{phase} {ms:,} ms" for phase, ms in progress.phases.items()))
    return "; ".join(said)


def families(all_progress: Sequence[Progress], lag_seconds: dict[str, float | None]) -> Iterator[Family]:
    """Return the metrics for Prometheus."""
    counters: list[tuple[str, str, Callable[[Progress], float | None]]] = [
        ("messages", "Messages read since the start.", lambda one: one.messages),
        ("batches", "Batches produced since the start.", lambda one: one.batches),
        ("outside", "Messages outside the window of their batch.", lambda one: one.outside),
        ("incomplete_batches", "Batches by id without all declared streams.", lambda one: one.incomplete),
        ("micro_batches", "Micro-batches since the start.", lambda one: one.micro_batches),
    ]
    gauges: list[tuple[str, str, Callable[[Progress], float | None]]] = [
        ("lag_messages", "Messages of the topic that are not read yet.", lambda one: one.lag),
        (
            "lag_seconds",
            "How long the oldest unread message has been in the topic; measured every 30 s.",
            lambda one: lag_seconds.get(one.pipeline),
        ),
        ("open_batches", "Batches that are not closed yet.", lambda one: one.open_batches),
        ("missing_ids", "Ids in no batch, between ids that have one.", lambda one: one.missing_ids),
        (
            "batch_length_seconds",
            "The batch length, if it is adaptive.",
            lambda one: None if one.length is None else one.length.batch_length / _NS_PER_S,
        ),
        ("state_rows", "Rows of the state.", lambda one: one.state_rows),
        ("state_bytes", "The state's share of the executors' memory.", lambda one: one.state_bytes),
    ]
    for kind, measures in ((CounterMetricFamily, counters), (GaugeMetricFamily, gauges)):
        for name, means, measure in measures:
            family = kind(_PREFIX + name, means, labels=["pipeline"])
            for one in all_progress:
                value = measure(one)
                if value is not None:
                    family.add_metric([label(one.pipeline)], value)
            yield family
    rejected = CounterMetricFamily(_PREFIX + "rejected", "Messages in no batch.", labels=["pipeline", "reason"])
    phases = GaugeMetricFamily(
        _PREFIX + "micro_batch_seconds", "How long the newest micro-batch took.", labels=["pipeline", "phase"]
    )
    for one in all_progress:
        for reason, count in one.rejections.items():
            rejected.add_metric([label(one.pipeline), reason], count)
        for phase, ms in one.phases.items():
            phases.add_metric([label(one.pipeline), label(phase)], ms / _MS_PER_S)
    yield rejected
    yield phases


def _lag_seconds(pipeline: Pipeline, progress: Progress) -> float | None:
    try:
        return progress.lag_seconds(pipeline.source)
    except WaterclockError:
        return None  # the stream itself reports the topic's error


def _shown(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"
