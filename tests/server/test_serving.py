"""The server as a process: its address, its end, and what it refuses to start with."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest
from tests.server.running import served
from tests.support.catalogues import sqlite_with_catalogue

import waterclock as wc
from waterclock.errors import InvalidArgumentError, UnavailableError
from waterclock.server.access import is_loopback
from waterclock.server.serving import listening, parse_address, serve

pytestmark = pytest.mark.one_database


def test_sigterm_ends_it_although_streams_are_open(sqlite_url: str) -> None:
    with wc.connect(sqlite_url) as database:
        database.create_table("orders")
    with served(sqlite_url) as server, httpx.Client(base_url=server.url) as client:
        assert client.get("/readyz").json() == {"status": "ready"}
        with client.stream("GET", "/api/tables/orders/stream", params={"consumer": "c"}) as stream:
            assert next(stream.iter_lines()) == ": ready"
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(20) == 0


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("192.0.2.1", False)]
    + [(host, False) for host in ("::", "0", "host.example", "localhost.example")],
)
def test_only_loopback_addresses_are_local(host: str, local: bool) -> None:
    assert is_loopback(host) is local


def test_an_address_is_a_host_and_a_port() -> None:
    assert parse_address("[::1]:80") == ("::1", 80)
    assert parse_address("localhost:0") == ("localhost", 0)
    for wrong in ("8040", ":8040", "localhost", "localhost:", "localhost:x", "localhost:65536", "localhost:-1"):
        with pytest.raises(InvalidArgumentError, match="listen must be HOST:PORT"):
            parse_address(wrong)


def test_a_reason_for_not_serving_is_reported(database: wc.Database, tmp_path: Path) -> None:
    def start(
        listen: str, certificate: Path | None = None, key: Path | None = None, rate_limit: int | None = None
    ) -> None:
        serve(
            database,
            listen,
            require_token=False,
            read_only=False,
            rate_limit=rate_limit,
            certificate=certificate,
            key=key,
            started=lambda _url, _policy: pytest.fail("it serves"),
        )

    with pytest.raises(UnavailableError, match=r"cannot listen at '192\.0\.2\.1:8040'"):
        start("192.0.2.1:8040")
    with pytest.raises(InvalidArgumentError, match="certificate and key must both be given"):
        start("127.0.0.1:0", certificate=tmp_path / "missing.pem")
    with pytest.raises(InvalidArgumentError, match="rate_limit must be"):
        start("127.0.0.1:0", rate_limit=0)
    with pytest.raises(InvalidArgumentError, match="cannot use the certificate"):
        start("127.0.0.1:0", tmp_path / "missing.pem", tmp_path / "missing.key")


def test_answers_do_not_wait_for_the_clients_ack() -> None:
    with listening("127.0.0.1", 0) as bound, socket.create_connection(bound.getsockname()):
        accepted, _ = bound.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Generator[wc.MessageTable]:
    with wc.connect(sqlite_with_catalogue(tmp_path_factory.mktemp("served") / "waterclock.db")) as database:
        yield database.create_table("orders", payload="json")


@pytest.fixture(scope="module")
def client(table: wc.MessageTable) -> Generator[httpx.Client]:
    url = table.context.backend.url.render_as_string()
    with served(url) as server, httpx.Client(base_url=f"{server.url}/api/tables", timeout=60) as client:
        yield client


def test_a_stream_sends_no_more_than_its_consumer_has_room_for(table: wc.MessageTable, client: httpx.Client) -> None:
    table.put_many([{"payload": n} for n in range(4)])
    got: list[int] = []
    with client.stream("GET", "/orders/stream", params={"consumer": "c", "limit": 2}) as stream:
        for line in stream.iter_lines():
            if not line.startswith("data: "):
                continue
            delivery = json.loads(line.removeprefix("data: "))
            got.append(delivery["payload"])
            assert client.get("/orders").json()["counts"]["in_flight"] <= 2
            client.post("/orders/ack", json={"deliveries": [delivery["delivery"]]})
            if len(got) == 4:
                break
    assert got == [0, 1, 2, 3]


def test_a_client_that_goes_away_while_it_waits_takes_no_message(table: wc.MessageTable, client: httpx.Client) -> None:
    wait = {"consumer": "gone", "wait": "30s"}
    for _ in range(3):
        with pytest.raises(httpx.ReadTimeout):
            client.post("/orders/receive", json=wait, timeout=0.3)
    table.put(17)
    [delivery] = client.post("/orders/receive", json={"consumer": "here", "wait": "30s"}).json()["deliveries"]
    assert (delivery["payload"], delivery["epoch"]) == (17, 1)
    client.post("/orders/ack", json={"deliveries": [delivery["delivery"]]})
