"""Workers against those of other queues on PostgreSQL: burn-down, put to handler, and what an idle one costs.

``python -m benchmarks work``; ``WATERCLOCK_BENCH_SIZE=full`` has 1,000,000 waiting messages and takes half an hour.
Each worker is a process of its own with a handler that does nothing, and the peers are filled by `benchmarks.peers`.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

import waterclock as wc
from benchmarks.measure import write_results
from benchmarks.peers import MissingPeerError, conninfo, make, package
from benchmarks.tables_peers import FILL, new_database

SERVICES = Path(__file__).resolve().parent.parent / "scripts" / "services"
SCRATCH = Path(__file__).parent / "scratch"
SIZES = {
    "short": {"rows": 20_000, "handled": 10_000, "rounds": 2, "singles": 100, "idle_s": 20.0},
    "full": {"rows": 1_000_000, "handled": 50_000, "rounds": 3, "singles": 1000, "idle_s": 60.0},
}
CONCURRENCY = (1, 8, 32)
Handled = Callable[[Any], None]


def waterclock_threads(url: str, concurrency: int, handled: Handled, ended: threading.Event) -> None:
    _waterclock(url, concurrency, lambda delivery: handled(delivery.payload), ended)


def waterclock_async(url: str, concurrency: int, handled: Handled, ended: threading.Event) -> None:
    async def handle(delivery: wc.Delivery) -> None:
        handled(delivery.payload)

    _waterclock(url, concurrency, handle, ended)


def _waterclock(url: str, concurrency: int, handle: Any, ended: threading.Event) -> None:
    with wc.connect(url) as database:
        worker = wc.Worker(database.table("bench"), handle, concurrency=concurrency)
        threading.Thread(target=lambda: (ended.wait(), worker.stop("0s")), daemon=True).start()
        worker.run()


def procrastinate(url: str, concurrency: int, handled: Handled, ended: threading.Event) -> None:
    theirs = package("procrastinate")
    app = theirs.App(connector=theirs.PsycopgConnector(kwargs=conninfo(url), min_size=1, max_size=concurrency + 2))

    @app.task(name="bench", queue="bench")
    async def bench(data: str) -> None:
        handled(data)

    async def run() -> None:
        async with app.open_async():
            work = asyncio.create_task(app.run_worker_async(concurrency=concurrency, install_signal_handlers=False))
            await asyncio.to_thread(ended.wait)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    asyncio.run(run())


def pgqueuer(url: str, concurrency: int, handled: Handled, ended: threading.Event) -> None:
    theirs, drivers = package("pgqueuer"), package("pgqueuer.db")

    async def run() -> None:
        info = conninfo(url)
        info["database"] = info.pop("dbname")
        connection = await package("asyncpg").connect(**info)
        queue = theirs.PgQueuer(drivers.AsyncpgDriver(connection))

        @queue.entrypoint("bench", concurrency_limit=concurrency)
        async def bench(job: Any) -> None:
            handled(job.payload.decode())

        work = asyncio.create_task(queue.run(batch_size=max(10, concurrency)))
        await asyncio.to_thread(ended.wait)
        queue.shutdown.set()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    asyncio.run(run())


WORKERS: dict[str, tuple[str, Callable[..., None]]] = {
    "waterclock, threads": ("waterclock", waterclock_threads),
    "waterclock, async": ("waterclock", waterclock_async),
    "procrastinate": ("procrastinate", procrastinate),
    "pgqueuer": ("pgqueuer", pgqueuer),
}
"""Each with the kind of queue that `benchmarks.peers` fills."""


def _child(name: str, url: str, concurrency: int, most: int, pipe: Any) -> None:
    """Run a worker until it has handled so many; say when it began, and when each was handled."""
    times: list[tuple[float, Any]] = []
    ended = threading.Event()

    def handled(payload: Any) -> None:
        times.append((time.time(), payload))
        if len(times) == most:
            ended.set()

    def end_when_asked() -> None:
        pipe.recv()
        ended.set()

    threading.Thread(target=end_when_asked, daemon=True).start()
    began = time.process_time()
    WORKERS[name][1](url, concurrency, handled, ended)
    pipe.send((times if most <= max(each["singles"] for each in SIZES.values()) else [times[0], times[-1]], began))
    pipe.send(time.process_time() - began)


class Running:
    """A worker in a process."""

    def __init__(self, name: str, url: str, concurrency: int, most: int) -> None:
        spawning = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawning.Pipe()
        self.process = spawning.Process(target=_child, args=(name, url, concurrency, most, theirs))
        self.process.start()

    def result(self) -> tuple[list[tuple[float, Any]], float]:
        times, _ = self.pipe.recv()
        busy = self.pipe.recv()
        self.process.join()
        return times, busy


def burn_down(name: str, url: str, concurrency: int, size: dict[str, Any]) -> float:
    times, _ = Running(name, url, concurrency, size["handled"]).result()
    return (size["handled"] - 1) / (times[-1][0] - times[0][0])


def put_to_handler(name: str, url: str, folder: str, size: dict[str, Any]) -> dict[str, float]:
    """Put single messages now and then into a queue that is empty."""
    worker, queue = Running(name, url, 8, size["singles"]), make((WORKERS[name][0], url, folder))
    time.sleep(3)  # until it waits
    sent: list[float] = []
    for _ in range(size["singles"]):
        sent.append(time.time())
        queue.enqueue(1)
        time.sleep(0.02)
    times, _ = worker.result()
    queue.close()
    late = sorted((at - began) * 1000 for began, (at, _) in zip(sent, sorted(times), strict=True))
    return {"p50_ms": round(statistics.median(late), 2), "p99_ms": round(late[int(len(late) * 0.99) - 1], 2)}


def idle(name: str, url: str, size: dict[str, Any]) -> dict[str, float]:
    """Count what an idle worker asks the server, and what it takes of a processor."""
    worker = Running(name, url, 8, 1)
    time.sleep(5)
    with psycopg.connect(**conninfo(url), autocommit=True) as connection:
        before, ticks = _transactions(connection), _ticks(worker.process.pid)
        time.sleep(size["idle_s"])
        after, busy = _transactions(connection) - 1, _ticks(worker.process.pid) - ticks
    worker.process.kill()
    worker.process.join()
    minutes = size["idle_s"] / 60
    percent = busy / os.sysconf("SC_CLK_TCK") / size["idle_s"] * 100
    return {"transactions_a_minute": round((after - before) / minutes), "percent_of_a_core": round(percent, 3)}


def _transactions(connection: Any) -> int:
    time.sleep(1.5)  # the server counts with a delay
    row = connection.execute(
        "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone()
    return row[0]


def _ticks(pid: int | None) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return int(fields[11]) + int(fields[12])


def measure(url: str, folder: str, size: dict[str, Any]) -> dict[str, Any]:
    figures: dict[str, Any] = {"burn-down, messages/s": {}, "put to handler": {}, "idle": {}}
    filled: dict[str, str] = {}
    empty: dict[str, str] = {}
    for name, (kind, _) in WORKERS.items():
        filled[name], empty[name] = new_database(url), new_database(url)
        try:
            queue = make((kind, filled[name], folder))
            make((kind, empty[name], folder)).close()
        except MissingPeerError as error:
            print(f"{name} is left out: {error}", flush=True)
            del filled[name], empty[name]
            continue
        rows = size["rows"] + size["handled"] * size["rounds"] * len(CONCURRENCY)
        for _ in range(rows // FILL):
            queue.enqueue(FILL)
        queue.close()
    for concurrency in CONCURRENCY:
        rates: dict[str, list[float]] = {name: [] for name in filled}
        for _ in range(size["rounds"]):
            for name, where in filled.items():
                rates[name].append(burn_down(name, where, concurrency, size))
        row = {name: round(statistics.median(found)) for name, found in rates.items()}
        figures["burn-down, messages/s"][f"{concurrency} at a time"] = row
        print(f"burn-down, {concurrency} at a time: {row}", flush=True)
    for name, where in empty.items():
        figures["put to handler"][name] = put_to_handler(name, where, folder, size)
        figures["idle"][name] = idle(name, where, size)
        print(f"{name}: {figures['put to handler'][name]}, idle {figures['idle'][name]}", flush=True)
    return figures


def main() -> None:
    chosen = os.environ.get("WATERCLOCK_BENCH_SIZE", "short")
    if chosen not in SIZES:
        sys.exit(f"WATERCLOCK_BENCH_SIZE: {chosen!r} is none; choose from {', '.join(SIZES)}")
    SCRATCH.mkdir(exist_ok=True)
    start = [sys.executable, str(SERVICES), "start", "postgresql", "--end-with", str(os.getpid())]
    facts = json.loads(subprocess.run(start, check=True, capture_output=True, text=True).stdout)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        figures = {"size": chosen, **measure(facts["servers"]["postgresql"]["url"], folder, SIZES[chosen])}
    subprocess.run([sys.executable, str(SERVICES), "stop", facts["folder"]], check=True)
    write_results("work", figures, ("waterclock", "sqlalchemy", "psycopg"))


if __name__ == "__main__":
    main()
