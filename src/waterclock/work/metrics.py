"""The Prometheus metrics of a worker, and of a process that runs upkeep."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

from prometheus_client import Counter, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from waterclock.monitoring.families import LABELS, KnownLabels, counter, gauge
from waterclock.tables.catalogue.selection import KIND
from waterclock.tables.consumers.delivery import Delivery
from waterclock.work.ground.counts import Counts
from waterclock.work.upkeep import Task

_PREFIX = "waterclock_worker_"

_GAUGES = {
    "slots": "How many messages the worker can handle at a time.",
    "running": "How many messages it handles.",
    "waiting": "How many messages it has claimed that wait for a slot.",
}

_COUNTERS = {
    "timed_out": ("timed_out_handlers", "Handlers that took too long; their messages count as failed."),
    "stuck": ("replaced_slots", "Handlers that still ran after their time limit, and whose slot was replaced."),
    "replaced": ("replaced_processes", "Processes that died or were killed, and were replaced."),
}
"""Counters other than outcomes of messages, by their field in `Counts`."""

HANDLER_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
CLAIM_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
"""Upper ends of the buckets of histograms."""


class WorkerMetrics(Collector):
    """Measures a worker, message by message. Thread-safe. ``limit`` tables and kinds have labels of their own."""

    def __init__(
        self,
        counts: Callable[[], Counts],
        facts: Callable[[], dict[str, Any]],
        unfinished: Callable[[], int],
        limit: int = LABELS,
    ) -> None:
        self._counts = counts
        self._facts = facts
        self._unfinished = unfinished
        self._lock = threading.Lock()
        self._tables, self._kinds = KnownLabels(limit), KnownLabels(limit)
        of_message = ["table", "kind"]
        self._outcomes = Counter(_PREFIX + "messages", "Messages by outcome.", [*of_message, "outcome"], registry=None)
        self._seconds = Histogram(
            _PREFIX + "handler_seconds", "How long handlers took.", of_message, registry=None, buckets=HANDLER_SECONDS
        )
        self._claims = Histogram(
            _PREFIX + "claim_seconds", "How long claims took.", ["table"], registry=None, buckets=CLAIM_SECONDS
        )
        self._claimed = Counter(_PREFIX + "sent_messages", "Messages claimed.", ["table"], registry=None)

    def note_outcome(self, delivery: Delivery, outcome: str) -> None:
        """Note the outcome of a message."""
        self._outcomes.labels(*self._labels(delivery), outcome).inc()

    def note_handled(self, delivery: Delivery, seconds: float) -> None:
        """Note how long a handler took."""
        self._seconds.labels(*self._labels(delivery)).observe(seconds)

    def note_claim(self, table: str, seconds: float, count: int) -> None:
        """Note how long a claim took, and how many messages it returned."""
        with self._lock:
            table = self._tables.of(table)
        self._claims.labels(table).observe(seconds)
        self._claimed.labels(table).inc(count)

    def _labels(self, delivery: Delivery) -> tuple[str, str]:
        with self._lock:
            return self._tables.of(delivery.context.name), self._kinds.of(delivery.headers.get(KIND, ""))

    def collect(self) -> Iterator[Metric]:
        """Yield all metric families."""
        for measured in (self._outcomes, self._seconds, self._claims, self._claimed):
            yield from measured.collect()
        counts = asdict(self._counts())
        for field, (name, means) in _COUNTERS.items():
            yield counter(_PREFIX + name, means, [], [((), counts[field])])
        facts = self._facts()
        for name, means in _GAUGES.items():
            yield gauge(_PREFIX + name, means, [], [((), facts[name])])
        yield gauge(
            _PREFIX + "stuck", "Handlers that still run after their time limit.", [], [((), self._unfinished())]
        )


class UpkeepMetrics(Collector):
    """Counts the tasks of upkeep that this process runs."""

    def __init__(self) -> None:
        self._runs = Counter(
            "waterclock_upkeep_runs",
            "Tasks of upkeep that this process ran.",
            ["kind", "task", "outcome"],
            registry=None,
        )

    def note(self, task: Task) -> None:
        """Note a task that has ended."""
        self._runs.labels(task.kind, task.task, "done" if task.error is None else "failed").inc()

    def collect(self) -> Iterable[Metric]:
        """Yield all metric families."""
        return self._runs.collect()
