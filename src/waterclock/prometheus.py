"""Answering Prometheus at an address: for a worker, and for pipelines."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError, UnavailableError

Families = Iterator[CounterMetricFamily | GaugeMetricFamily]

_HERE = "127.0.0.1"
_LAST_PORT = 65_535


@contextmanager
def answering(address: str, usual_port: int, give: Callable[[], Families]) -> Generator[str]:
    """Answer at an address until the block ends; yield the address, with the port that was found for port 0.

    Raises
    ------
    InvalidArgumentError
        If it is not HOST:PORT; names ``usual_port`` as an example.
    UnavailableError
        If it cannot be listened at.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > _LAST_PORT:
        raise InvalidArgumentError(
            f"metrics must be HOST:PORT, for example 0.0.0.0:{usual_port}, got {quoted(address)}"
        )
    registry = CollectorRegistry()
    registry.register(_Families(give))
    try:
        server, thread = start_http_server(int(port), host.strip("[]") or _HERE, registry)
    except OSError as error:
        raise UnavailableError(f"cannot serve metrics at {quoted(address)}: {error}") from error
    try:
        yield f"{host or _HERE}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Families(Collector):
    def __init__(self, give: Callable[[], Families]) -> None:
        self._give = give

    def collect(self) -> Families:
        return self._give()
