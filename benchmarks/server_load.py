"""The server with 500 open streams, clients that read nothing, and mixed reads: latency, processor time, memory.

Identical reads share answers for a second; differing ones, and those of payloads, do not.

The clients share the machine with the server, so the figures that hold elsewhere are the processor time of one request,
and the requests per second that follow from it for one core. Latencies are those of a fixed rate below that.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

from benchmarks.measure import TICKS_PER_S, write_results
from benchmarks.servers import databases
from benchmarks.topics.append import BEGIN
from waterclock.connection import connect
from waterclock.message import Message

STREAMS = 500
SLOW = 20
"""Clients that ask for much and read nothing."""
CONNECTIONS = 16
SECONDS = 8.0
AT_REST = 0.05
"""Processor seconds per second below which the server has nothing to do but wait for clients that read nothing."""
OF_CAPACITY = 0.5
"""The fixed rate, as a part of what one core answers."""
HOST = "127.0.0.1"
READS = (
    "/api/tables/orders",
    "/api/tables/orders/messages/17",
    "/api/tables/shipments/groups/one?group=g17",
    "/api/topics/telemetry",
    "/api/topics/telemetry/find?time=2023-11-14T22:13:50Z",
    "/api/topics/telemetry/subscriptions",
)
PAYLOADS = "/api/topics/telemetry/messages?since=2023-11-14T22:13:50Z&limit=10"
KINDS: dict[str, Callable[[int], str]] = {
    "identical": lambda number: READS[number % len(READS)],
    "differing": lambda number: (path := READS[number % len(READS)]) + ("&" if "?" in path else "?") + f"n={number}",
    "payloads": lambda _number: PAYLOADS,
}
"""The path of each read, by its number."""


def fill(url: str, ledgers: str) -> None:
    with connect(url, ledgers) as database:
        database.create_table("orders", payload="json").put_many([{"payload": {"n": n}} for n in range(20_000)])
        shipments = database.create_table("shipments", payload="json", groups="sequenced")
        shipments.put_many([{"payload": {"n": n}, "group": f"g{n % 500}"} for n in range(5_000)])
        database.create_table("idle", payload="json")
        telemetry = database.create_topic("telemetry")
        for first in range(0, 20_000, 2_000):
            times = [BEGIN + n * 10_000_000 for n in range(first, first + 2_000)]
            telemetry.append([Message(f"s{at % 7}", "t", at, payload=b"x" * 100, receive_time=at) for at in times])
            telemetry.roll()
        telemetry.seal()
        telemetry.subscribe("billing")


class Server:
    """A server in a process of its own."""

    def __init__(self, url: str, ledgers: str) -> None:
        command = [sys.executable, "-m", "waterclock", "serve", "--url", url, "--listen", f"{HOST}:0"]
        where = {**os.environ, "WATERCLOCK_LEDGERS": ledgers}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=where)
        assert self.process.stderr is not None
        line = next(each for each in self.process.stderr if " at http" in each)
        found = re.search(r":([0-9]+)$", line.strip())
        assert found is not None
        self.port = int(found[1])

    def used(self) -> float:
        """Return its processor time so far, s."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def memory(self) -> float:
        """Return its memory, MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1000

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.communicate()


class Connection:
    """A connection that sends one request after another."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.drains: asyncio.Task[None] | None = None

    @property
    def is_closed(self) -> bool:
        """Return whether the server has ended it."""
        return self._reader.at_eof() or (self.drains is not None and self.drains.done())

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection(HOST, port))

    def send(self, path: str, accept: str = "application/json") -> None:
        self._writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode())

    async def head(self) -> bytes:
        return await self._reader.readuntil(b"\r\n\r\n")

    async def get(self, path: str) -> None:
        """Send a request and read the whole response."""
        self.send(path)
        head = await self.head()
        assert head.startswith(b"HTTP/1.1 200"), (path, head)
        found = re.search(rb"content-length: (\d+)", head)
        assert found is not None
        await self._reader.readexactly(int(found[1]))

    async def drain(self) -> None:
        """Read until the server ends the response."""
        with suppress(ConnectionError):
            while await self._reader.read(1 << 16):
                pass


async def closed_loop(port: int, kind: str, seconds: float) -> int:
    """Send requests one after another on some connections; return how many were answered."""
    connections = [await Connection.open(port) for _ in range(CONNECTIONS)]
    until, numbers, answered = time.monotonic() + seconds, count(time.monotonic_ns()), 0

    async def go_on(connection: Connection) -> None:
        nonlocal answered
        while time.monotonic() < until:
            await connection.get(KINDS[kind](next(numbers)))
            answered += 1

    await asyncio.gather(*map(go_on, connections))
    return answered


async def open_loop(port: int, kind: str, rate: float, seconds: float) -> list[float]:
    """Send requests at a rate; return their latencies from the moment at which each was due, sorted, s."""
    connections = [await Connection.open(port) for _ in range(CONNECTIONS)]
    began, first = time.monotonic() + 0.1, time.monotonic_ns()
    due = [(began + number / rate, KINDS[kind](first + number)) for number in range(int(rate * seconds))]
    due.reverse()
    latencies: list[float] = []

    async def go_on(connection: Connection) -> None:
        while due:
            at, path = due.pop()
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            await connection.get(path)
            latencies.append(time.monotonic() - at)

    await asyncio.gather(*(go_on(each) for each in connections))
    return sorted(latencies)


async def load(server: Server) -> dict[str, float]:
    """Measure without streams, with 500 of them, and then at a fixed rate."""
    for kind in KINDS:
        await closed_loop(server.port, kind, 1)
    found: dict[str, float] = {"memory_mb": server.memory()}
    for name in ("alone", "with streams"):
        if name == "with streams":
            streams = await open_streams(server.port)  # kept open until the end
            found["at rest with streams, processor s per s"] = await rest(server)
            found["memory_with_streams_mb"] = server.memory()
        for kind in KINDS:
            used, began = server.used(), time.monotonic()
            answered = await closed_loop(server.port, kind, SECONDS)
            found[f"{kind} {name}, ms of processor time"] = round((server.used() - used) / answered * 1e3, 3)
            found[f"{kind} {name}, requests/s"] = round(answered / (time.monotonic() - began))
    for kind in KINDS:
        rate = OF_CAPACITY * 1e3 / found[f"{kind} with streams, ms of processor time"]
        latencies = await open_loop(server.port, kind, rate, SECONDS)
        found[f"{kind}, fixed rate"] = round(rate)
        found[f"{kind}, p50_ms"] = round(statistics.median(latencies) * 1e3, 1)
        found[f"{kind}, p99_ms"] = round(latencies[int(len(latencies) * 0.99)] * 1e3, 1)
    found["memory_after_mb"] = server.memory()
    found["open streams and slow readers"] = sum(not each.is_closed for each in streams)
    return found


async def rest(server: Server) -> float:
    """Wait until the server rests; return the processor seconds per second that it needs then."""
    while True:
        used = server.used()
        await asyncio.sleep(5)
        if (found := (server.used() - used) / 5) < AT_REST:
            return round(found, 3)


async def open_streams(port: int) -> list[Connection]:
    """Open streams of pages and of deliveries, and clients that read nothing."""
    opened: list[Connection] = []
    for number in range(STREAMS):
        opened.append(each := await Connection.open(port))
        each.send(f"/api/tables/idle/stream?consumer=c{number}" if number % 5 == 0 else "/events")
        assert (await each.head()).startswith(b"HTTP/1.1 200")
        each.drains = asyncio.ensure_future(each.drain())
    for _ in range(SLOW):
        opened.append(each := await Connection.open(port))
        for _ in range(10):  # together more than sockets buffer
            each.send("/api/topics/telemetry/messages?limit=20000", "application/vnd.apache.arrow.stream")
    return opened


def measure(url: str, ledgers: str) -> dict[str, float]:
    fill(url, ledgers)
    server = Server(url, ledgers)
    try:
        return asyncio.run(load(server))
    finally:
        server.end()


def main() -> None:
    with databases() as urls, tempfile.TemporaryDirectory() as folder:
        figures = {name: measure(urls[name], f"{folder}/{name}") for name in ("sqlite", "postgresql")}
    write_results("server_load", figures, ("fastapi", "sqlalchemy", "uvicorn"))


if __name__ == "__main__":
    main()
