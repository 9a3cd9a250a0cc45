"""Answers Prometheus: what a worker has done, and how many of its slots are taken."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError, UnavailableError
from waterclock.work.ground.counts import Counts

_PREFIX = "waterclock_worker_"
_HERE = "127.0.0.1"

_GAUGES = {
    "slots": "How many messages it can handle at a time.",
    "running": "How many messages it handles.",
    "waiting": "How many it has claimed that wait for a slot.",
}


@contextmanager
def answering(
    address: str, counts: Callable[[], Counts], facts: Callable[[], dict[str, Any]], unfinished: Callable[[], int]
) -> Generator[str]:
    """Answer at an address until the block ends; give the address.

    Raises
    ------
    InvalidArgumentError, UnavailableError
        For an address that is none, or cannot be listened at.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        raise InvalidArgumentError(
            f"metrics: {quoted(address)} is no address; give HOST:PORT, for example 0.0.0.0:9109"
        )
    registry = CollectorRegistry()
    registry.register(_Families(lambda: families(counts(), facts(), unfinished())))
    try:
        server, thread = start_http_server(int(port), host.strip("[]") or _HERE, registry)
    except (OSError, OverflowError) as error:
        raise UnavailableError(f"metrics: cannot listen at {quoted(address)}: {error}") from error
    try:
        yield f"{host or _HERE}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def families(
    counts: Counts, facts: dict[str, Any], unfinished: int
) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
    """Give what Prometheus is answered."""
    messages = CounterMetricFamily(_PREFIX + "messages", "Messages, by what became of them.", labels=["outcome"])
    for name, count in asdict(counts).items():
        messages.add_metric([name], count)
    yield messages
    for name, means in _GAUGES.items():
        yield GaugeMetricFamily(_PREFIX + name, means, value=facts[name])
    yield GaugeMetricFamily(_PREFIX + "stuck", "Handlers that run on though their time is up.", value=unfinished)


class _Families(Collector):
    def __init__(self, give: Callable[[], Iterator[CounterMetricFamily | GaugeMetricFamily]]) -> None:
        self._give = give

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        return self._give()
