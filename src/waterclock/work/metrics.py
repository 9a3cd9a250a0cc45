"""Prometheus metrics of a worker: its counters, and the use of its slots."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from waterclock import prometheus
from waterclock.work.ground.counts import Counts

_PREFIX = "waterclock_worker_"

_GAUGES = {
    "slots": "How many messages it can handle at a time.",
    "running": "How many messages it handles.",
    "waiting": "How many it has claimed that wait for a slot.",
}


_USUAL_PORT = 9109


def answering(
    address: str, counts: Callable[[], Counts], facts: Callable[[], dict[str, Any]], unfinished: Callable[[], int]
) -> AbstractContextManager[str]:
    """Answer at an address until the block ends; the block gets the address.

    Raises
    ------
    InvalidArgumentError, UnavailableError
        For an invalid address, and for one that cannot be listened at.
    """
    return prometheus.answering(address, _USUAL_PORT, lambda: families(counts(), facts(), unfinished()))


def families(counts: Counts, facts: dict[str, Any], unfinished: int) -> prometheus.Families:
    """Return the metrics for Prometheus."""
    messages = CounterMetricFamily(_PREFIX + "messages", "Messages by outcome.", labels=["outcome"])
    for name, count in asdict(counts).items():
        messages.add_metric([name], count)
    yield messages
    for name, means in _GAUGES.items():
        yield GaugeMetricFamily(_PREFIX + name, means, value=facts[name])
    yield GaugeMetricFamily(_PREFIX + "stuck", "Handlers that still run after their time limit.", value=unfinished)
