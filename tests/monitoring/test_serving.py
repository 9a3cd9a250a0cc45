"""The HTTP server of metrics: what it answers, and what clients cannot do to it."""

from __future__ import annotations

import socket
from collections.abc import Generator
from contextlib import suppress

import pytest
from prometheus_client import CollectorRegistry, Gauge

from waterclock.errors import InvalidArgumentError, UnavailableError
from waterclock.monitoring import serving as server
from waterclock.monitoring.serving import serving


@pytest.fixture
def reasons() -> list[str]:
    return []


@pytest.fixture
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Gauge("waterclock_up", "Up.", registry=registry).set(1)
    return registry


@pytest.fixture
def address(registry: CollectorRegistry, reasons: list[str]) -> Generator[tuple[str, int]]:
    with serving("127.0.0.1:0", "metrics", registry, lambda: reasons) as at:
        host, _, port = at.rpartition(":")
        yield host, int(port)


def ask(address: tuple[str, int], request: bytes) -> str:
    with socket.create_connection(address) as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(4096), b"")).decode()


def get(address: tuple[str, int], path: str, *headers: str) -> str:
    return ask(address, "\r\n".join([f"GET {path} HTTP/1.1", *headers, "", ""]).encode())


def test_metrics_and_both_probes_are_answered(address: tuple[str, int], reasons: list[str]) -> None:
    assert get(address, "/metrics").endswith("waterclock_up 1.0\n")
    assert get(address, "/metrics?x=1").startswith("HTTP/1.1 200 OK\r\n")
    assert get(address, "/readyz").endswith("\r\n\r\nready\n")
    reasons.append("the database is away\ud800")
    assert get(address, "/readyz").startswith("HTTP/1.1 503 ")
    assert get(address, "/readyz").endswith("\r\n\r\nthe database is away\\ud800\n")
    assert get(address, "/livez").startswith("HTTP/1.1 200 OK\r\n")


def test_openmetrics_is_answered_if_asked_for_and_a_wrong_version_does_no_harm(address: tuple[str, int]) -> None:
    assert get(address, "/metrics", "Accept: application/openmetrics-text; version=1.0.0").endswith("# EOF\n")
    assert get(address, "/metrics", "Accept: text/plain; version=x.y").startswith("HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", "404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"\x00\xff\r\n\r\n", "400"),
        (b"GET /metrics\r\n\r\n", "400"),
        (b"GET /metrics HTTP/1.1\r\n: \r\n:::\r\n\r\n", "200"),
    ],
)
def test_other_requests_are_refused(address: tuple[str, int], request_: bytes, status: str) -> None:
    assert ask(address, request_).split(" ")[1] == status


def test_a_head_request_gets_no_body(address: tuple[str, int]) -> None:
    assert ask(address, b"HEAD /livez HTTP/1.1\r\n\r\n").endswith("Connection: close\r\n\r\n")


def test_a_request_that_is_too_long_is_cut_off(address: tuple[str, int]) -> None:
    with socket.create_connection(address) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * server.LONGEST_REQUEST * 2)
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""


def test_slow_clients_are_cut_off(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SLOWEST_REQUEST", 0.05)
    with socket.create_connection(address) as client:
        client.sendall(b"GET /met")
        assert client.recv(1) == b""


def test_more_clients_than_the_limit_are_refused_at_once_and_later_served(address: tuple[str, int]) -> None:
    slow = [socket.create_connection(address) for _ in range(server.MOST_CONNECTIONS)]
    assert ask(address, b"").startswith("HTTP/1.1 503 ")
    for client in slow:
        client.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 200 OK")
        client.close()
    while not get(address, "/livez").startswith("HTTP/1.1 200"):
        pass


def test_a_fault_is_answered(registry: CollectorRegistry) -> None:
    def fail() -> list[str]:
        raise ZeroDivisionError

    with serving("127.0.0.1:0", "metrics", registry, fail) as at:
        host, _, port = at.rpartition(":")
        assert get((host, int(port)), "/readyz").startswith("HTTP/1.1 500 ")


@pytest.mark.parametrize("address", ["here", "127.0.0.1:99999", "127.0.0.1:", "127.0.0.1:²", ""])
def test_an_invalid_address_is_refused(registry: CollectorRegistry, address: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^listen must be HOST:PORT, for example"):
        serving(address, "listen", registry, list[str]).__enter__()


@pytest.mark.parametrize("address", ["192.0.2.1:80", "nowhere.invalid:80"])
def test_an_address_of_another_machine_is_refused(registry: CollectorRegistry, address: str) -> None:
    with pytest.raises(UnavailableError, match=r"^cannot serve metrics at .*\. Choose another address with --listen$"):
        serving(address, "listen", registry, list[str]).__enter__()


def test_a_busy_port_is_refused(registry: CollectorRegistry, address: tuple[str, int]) -> None:
    with pytest.raises(UnavailableError, match=r"^cannot serve metrics at '127.0.0.1:\d+': Address already in use\. "):
        serving(f"127.0.0.1:{address[1]}", "metrics", registry, list[str]).__enter__()
