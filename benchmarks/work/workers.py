"""Workers against those of other queues: burn-down, put to handler, what an idle one costs, faults, and draining.

``python -m benchmarks.work.workers --parts burn_down,latency,idle,faults,drain --workers "waterclock, threads"``
measures what is named; without arguments, everything in a short form. Each worker is a process of its own
(`benchmarks.work.peers`), with a handler that does nothing but count; what is compared runs in turns.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import servers
from benchmarks.measure import write_results
from benchmarks.servers import SCRATCH, SERVICES
from benchmarks.tables.peers import MissingPeerError, conninfo
from benchmarks.tables.queues import FILL, new_database
from benchmarks.work.job import KEPT, Job
from benchmarks.work.peers import WORKERS, Worker

CONCURRENCY = (1, 8, 32)
AT_ONCE = 8
"""Messages at a time where it is not varied."""

ENDS_WITHIN = 60.0  # s
FAULT_PAUSE = 0.005
"""Seconds that a handler takes where faults come, so that messages are left after them."""

RESTARTED = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    " AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1"
)


def _child(name: str, url: str, folder: str, concurrency: int, path: str, pause: float, asked: Any) -> None:
    ended = threading.Event()
    threading.Thread(target=lambda: (asked.wait(), ended.set()), daemon=True).start()
    WORKERS[name](url, folder).run(concurrency, Job(Path(path), pause), ended)


class Running:
    """A worker at work."""

    def __init__(self, name: str, url: str, folder: str, concurrency: int = AT_ONCE, pause: float = 0.0) -> None:
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            path = Path(file.name)
        path.unlink()
        self.job = Job(path, pause)
        spawning = multiprocessing.get_context("spawn")
        self._asked = spawning.Event()
        given = (name, url, folder, concurrency, str(path), pause, self._asked)
        self._process = spawning.Process(target=_child, args=given)
        self._process.start()

    def wait_for(self, count: int, seconds: float = 600.0) -> None:
        """Wait until so many messages were handled."""
        until = time.monotonic() + seconds
        while self.job.count < count:
            if time.monotonic() > until or not self._process.is_alive():
                raise RuntimeError(f"the worker handled {self.job.count} of {count} messages")
            time.sleep(0.01)

    def wait_at_most(self, count: int, seconds: float) -> None:
        """Wait until so many messages were handled, or so long since the first one."""
        self.wait_for(2)
        until = time.monotonic() + seconds
        while self.job.count < count and time.monotonic() < until:
            time.sleep(0.01)

    def rate(self, seconds: float) -> float:
        """Count what it handles for a while, messages a second."""
        before = self.job.count
        time.sleep(seconds)
        return (self.job.count - before) / seconds

    def ticks(self) -> int:
        """Give the processor time of its process and of those that it started."""
        pids, every = [str(self._process.pid)], 0
        while pids:
            pid = pids.pop()
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
            every += int(fields[11]) + int(fields[12])
            pids += Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return every

    def end(self) -> float:
        """Ask it to end, and say how long that took, s; it is killed after `ENDS_WITHIN`."""
        began = time.monotonic()
        self._asked.set()
        self._process.join(ENDS_WITHIN)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        return time.monotonic() - began


class Bench:
    """What is measured of each worker.

    Parameters
    ----------
    server
        The URL of a PostgreSQL server.
    facts
        What `scripts/services` said of it.
    """

    def __init__(self, server: str, facts: Any, folder: str, chosen: argparse.Namespace) -> None:
        self._server = server
        self._facts = facts
        self._folder = folder
        self._chosen = chosen

    def _made(self, name: str) -> tuple[str, Worker]:
        url = new_database(self._server)
        worker = WORKERS[name](url, self._folder)
        worker.prepare()
        return url, worker

    def _run(self, name: str, url: str, **given: Any) -> Running:
        return Running(name, url, self._folder, **given)

    def burn_down(self, names: list[str]) -> dict[str, Any]:
        """Handle what waits in a queue that holds many, messages a second."""
        found: dict[str, Any] = {}
        handled, rounds = self._chosen.handled, self._chosen.rounds
        filled: dict[str, str] = {}
        for name in names:
            filled[name], worker = self._made(name)
            many = self._chosen.rows + 2 * handled * rounds * len(CONCURRENCY)  # a worker takes more than it handles
            for _ in range(-(-many // FILL)):
                worker.fill(FILL)
            print(f"{name} is filled", flush=True)
        for concurrency in CONCURRENCY:
            rates: dict[str, list[float]] = {name: [] for name in names if concurrency <= WORKERS[name].most}
            for _ in range(rounds):
                for name, each in rates.items():
                    running = self._run(name, filled[name], concurrency=concurrency)
                    running.wait_at_most(handled, self._chosen.burn_seconds)
                    each.append((running.job.count - 1) / running.job.seconds)
                    running.end()
            found[f"{concurrency} at a time"] = {name: round(statistics.median(each)) for name, each in rates.items()}
            print(f"burn-down, {concurrency} at a time: {found[f'{concurrency} at a time']}", flush=True)
        return found

    def latency(self, name: str) -> dict[str, float]:
        """Put single messages now and then into a queue that is empty."""
        url, worker = self._made(name)
        running = self._run(name, url)
        worker.fill(1)
        running.wait_for(1)
        sent: list[float] = []
        for number in range(self._chosen.singles):
            time.sleep(0.02)
            sent.append(time.time())
            worker.fill(1)
            running.wait_for(number + 2)
        running.end()
        late = sorted((at - began) * 1000 for began, at in zip(sent, running.job.times()[1:], strict=True))
        return {"p50_ms": round(statistics.median(late), 2), "p99_ms": round(late[int(len(late) * 0.99) - 1], 2)}

    def idle(self, name: str) -> dict[str, float]:
        """Count what an idle worker asks the server, and what it takes of a processor."""
        url, worker = self._made(name)
        running = self._run(name, url)
        worker.fill(1)
        running.wait_for(1)
        time.sleep(5)
        with psycopg.connect(**conninfo(url), autocommit=True) as connection:
            before, ticks = _transactions(connection), running.ticks()
            time.sleep(self._chosen.idle_seconds)
            after, busy = _transactions(connection) - 1, running.ticks() - ticks
        running.end()
        percent = busy / os.sysconf("SC_CLK_TCK") / self._chosen.idle_seconds * 100
        minutes = self._chosen.idle_seconds / 60
        return {"transactions_a_minute": round((after - before) / minutes), "percent_of_a_core": round(percent, 3)}

    def faults(self, name: str) -> dict[str, float]:
        """Restart the server, end its sessions, and keep idle ones; compare the rate after that with the one before.

        ``rate`` is messages a second before, ``again_s`` the time from the last fault to the next handled message.
        """
        url, worker = self._made(name)
        for _ in range(self._chosen.fault_rows // FILL):
            worker.fill(FILL)
        running = self._run(name, url, pause=FAULT_PAUSE)
        seconds = self._chosen.fault_seconds
        with ExitStack() as idle:
            running.wait_for(200)
            before = running.rate(seconds)
            self._restart()
            for _ in range(int(5 * seconds)):  # five a second
                with psycopg.connect(**conninfo(url), autocommit=True) as connection:
                    connection.execute(RESTARTED)
                time.sleep(0.2)
            for _ in range(self._chosen.idle_connections):
                idle.enter_context(psycopg.connect(**conninfo(url)))
            began, count = time.monotonic(), running.job.count
            until = began + 2 * ENDS_WITHIN
            while running.job.count == count and time.monotonic() < until:
                time.sleep(0.01)
            again = time.monotonic() - began
            after = running.rate(seconds)
        running.end()
        return {"rate": round(before), "after_over_before": round(after / before, 2), "again_s": round(again, 2)}

    def _restart(self) -> None:
        restart = [sys.executable, str(SERVICES), "restart", self._facts["folder"], "postgresql"]
        subprocess.run(restart, check=True, capture_output=True)

    def drain(self, name: str) -> dict[str, float]:
        """Ask a worker to end whose handlers take a second each, and say how long it takes."""
        url, worker = self._made(name)
        worker.fill(200)
        running = self._run(name, url, concurrency=min(AT_ONCE, WORKERS[name].most), pause=1.0)
        running.wait_for(1)
        time.sleep(0.5)
        return {"seconds": round(running.end(), 2)}


def _transactions(connection: Any) -> int:
    time.sleep(1.5)  # the server counts with a delay
    row = connection.execute(
        "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone()
    return row[0]


def _there(bench: Bench, names: list[str]) -> list[str]:
    there: list[str] = []
    for name in names:
        try:
            bench._made(name)  # noqa: SLF001
        except MissingPeerError as error:
            print(f"{name} is left out: {error}", flush=True)
        else:
            there.append(name)
    return there


PARTS: dict[str, Callable[[Bench, str], Any] | None] = {
    "burn_down": None,  # all of them in turns
    "latency": Bench.latency,
    "idle": Bench.idle,
    "faults": Bench.faults,
    "drain": Bench.drain,
}


def _measure(bench: Bench, parts: list[str], names: list[str]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for part in parts:
        measure = PARTS[part]
        if measure is None:
            figures[part] = bench.burn_down(names)
            continue
        figures[part] = {}
        for name in names:
            if part in ("idle", "faults") and name.endswith("redis"):
                continue  # what is counted, or broken, is PostgreSQL
            try:
                figures[part][name] = measure(bench, name)
            except RuntimeError as error:
                figures[part][name] = {"failed": str(error)}
            print(f"{part}, {name}: {figures[part][name]}", flush=True)
    return figures


def _chosen() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated")
    parser.add_argument("--workers", default=";".join(WORKERS), help="semicolon-separated")
    parser.add_argument("--rows", type=int, default=20_000, help="that wait all the while in a burn-down")
    parser.add_argument("--handled", type=int, default=5_000, help="by each burn-down")
    parser.add_argument("--burn-seconds", type=float, default=10.0, help="at the most for each burn-down")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--singles", type=int, default=200, help="messages of which the latency is taken")
    parser.add_argument("--idle-seconds", type=float, default=30.0)
    parser.add_argument("--fault-rows", type=int, default=60_000)
    parser.add_argument("--fault-seconds", type=float, default=5.0)
    parser.add_argument("--idle-connections", type=int, default=60, help="300 where the server takes so many")
    chosen = parser.parse_args()
    chosen.parts, chosen.workers = chosen.parts.split(","), [each.strip() for each in chosen.workers.split(";")]
    for name, given, known in (("--parts", chosen.parts, PARTS), ("--workers", chosen.workers, WORKERS)):
        if unknown := set(given) - set(known):
            parser.error(f"{name}: {', '.join(unknown)} is none; choose from {'; '.join(known)}")
    if chosen.singles >= KEPT:
        parser.error(f"--singles: {chosen.singles}; times are kept of {KEPT - 1} at the most")
    return chosen


def main() -> None:
    chosen = _chosen()
    with servers.running("postgresql") as facts, tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        bench = Bench(facts["servers"]["postgresql"]["url"], facts, folder, chosen)
        figures = _measure(bench, chosen.parts, _there(bench, chosen.workers))
    sizes = {name: value for name, value in vars(chosen).items() if name not in ("parts", "workers")}
    print(f"wrote {write_results('work', {'sizes': sizes, **figures}, ('waterclock', 'sqlalchemy', 'psycopg'))}")


if __name__ == "__main__":
    main()
