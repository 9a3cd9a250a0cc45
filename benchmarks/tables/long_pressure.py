"""All kinds of message tables at once, at a steady rate, while a snapshot of each is held for long.

``--minutes N`` of snapshot (30), ``--rate N`` messages per second of all tables together (1,500), and the names of
databases for those alone. Prints a line for each table and phase: before the snapshot, each third of its time, in
processes that begin under it, and after it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from multiprocessing.synchronize import Event
from typing import Any

import sqlalchemy as sa

import waterclock as wc
from benchmarks.measure import RESULTS, write_results
from benchmarks.servers import databases
from benchmarks.tables.pressure import A_ROUND, SHAPES, Shape, snapshot_held
from waterclock.tables.message_table import MessageTable

_STORED = RESULTS / "tables_long_pressure.json"  # of each database, the last run
_PAUSE = 0.15  # seconds after a claim that got fewer messages than it wanted
_AROUND = 180.0  # seconds before the snapshot, in new processes under it, and after it


def put(urls: Mapping[str, str], rate: float, stopped: Event) -> None:
    """Put a round of messages into one table after another."""
    tables = [(wc.connect(url).table("pressed"), SHAPES[name]) for name, url in urls.items()]
    began, number = time.monotonic(), 0
    while not stopped.wait(max(0.0, began + number * A_ROUND / rate - time.monotonic())):
        table, shape = tables[number % len(tables)]
        first = number // len(tables) * A_ROUND
        table.put_many([_message(shape, nth) for nth in range(first, first + A_ROUND)])
        number += 1


def _message(shape: Shape, nth: int) -> dict[str, Any]:
    group = {"group": f"g{nth % shape.groups}"} if shape.groups else {}
    return {"payload": f"message {nth} of many", **group, **({"unique": f"k{nth}"} if shape.is_unique else {})}


def handle(name: str, url: str, results: Any, changed: Event, stopped: Event) -> None:
    """Claim and ack the messages of a table, and report the times of a phase when the next one begins."""
    with closing(wc.connect(url)) as database:
        _handle(database.table("pressed"), name, results, changed, stopped)


def _handle(table: MessageTable, name: str, results: Any, changed: Event, stopped: Event) -> None:
    is_late = SHAPES[name].acks_last_first
    times: dict[str, list[float]] = {"claim": [], "ack": [], "empty": []}
    count, begins = 0, changed.is_set()
    while not stopped.is_set():
        if changed.is_set() != begins:
            results.put((name, count, _figures(times)))
            times, count, begins = {key: [] for key in times}, 0, not begins
        began = time.perf_counter()
        claimed = table.receive(A_ROUND)
        times["claim" if claimed else "empty"].append(time.perf_counter() - began)
        count += len(claimed)
        began = time.perf_counter()
        half = len(claimed) // 2 if is_late else 0
        for some in (claimed[half:], claimed[:half]):
            if some:
                table.ack(some)
        if claimed:
            times["ack"].append(time.perf_counter() - began)
        if len(claimed) < A_ROUND:
            time.sleep(_PAUSE)
    results.put((name, count, _figures(times)))


def _figures(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, taken in times.items():
        if taken:
            found[f"{name}_p50_ms"] = round(statistics.median(taken) * 1e3, 1)
            found[f"{name}_p99_ms"] = round(sorted(taken)[len(taken) * 99 // 100] * 1e3, 1)
    return found


class Run:
    """Tables of all shapes, each in a database of its own on one server, and the processes that use them."""

    def __init__(self, server: str, rate: float) -> None:
        self._figures: dict[str, dict[str, Any]] = {name: {} for name in SHAPES}
        self._spawn = multiprocessing.get_context("spawn")
        self._results, self._changed, self._stopped = (self._spawn.Queue(), self._spawn.Event(), self._spawn.Event())
        self._urls: dict[str, str] = {}
        self.open: list[wc.Database] = []
        admin = sa.create_engine(server, isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            for nth, name in enumerate(SHAPES):
                connection.exec_driver_sql(f"CREATE DATABASE shape{nth}")
                url = sa.make_url(server).set(database=f"shape{nth}").render_as_string(hide_password=False)
                self._urls[name] = url
                self.open.append(wc.connect(url))
                self.open[-1].create_table("pressed", payload="text", **SHAPES[name].options)
        self._ends = self._spawn.Event()
        self._putter = self._spawn.Process(target=put, args=(self._urls, rate, self._ends))
        self._putter.start()
        self.start()

    def start(self) -> None:
        """Start the processes that handle messages."""
        self._stopped = self._spawn.Event()
        self._handlers = [
            self._spawn.Process(target=handle, args=(name, url, self._results, self._changed, self._stopped))
            for name, url in self._urls.items()
        ]
        for each in self._handlers:
            each.start()

    def phase(self, label: str, seconds: float, *, ends: bool = False) -> None:
        """Let time pass, and note the figures; if ``ends``, the processes end after it."""
        time.sleep(seconds)
        if ends:
            self._stopped.set()
        elif self._changed.is_set():
            self._changed.clear()
        else:
            self._changed.set()
        for _ in SHAPES:
            name, count, figures = self._results.get(timeout=120)
            self._figures[name][label] = {"messages": count, **figures}
            print(f"{name}, {label}: {json.dumps(self._figures[name][label])}", flush=True)
        if ends:
            for each in self._handlers:
                each.join()

    def end(self) -> dict[str, Any]:
        """Stop putting messages, and return all figures."""
        self._ends.set()
        self._putter.join()
        for each in self.open:
            each.close()
        return self._figures


def measure(server: str, rate: float, seconds: float) -> dict[str, Any]:
    run = Run(server, rate)
    run.phase("warming up", min(60.0, seconds))
    run.phase("before", min(_AROUND, seconds))
    with ExitStack() as held:
        for each in run.open:
            held.enter_context(snapshot_held(each))
        for third in ("first", "second"):
            run.phase(f"held, {third} third", seconds / 3)
        run.phase("held, last third", seconds / 3, ends=True)
        run.start()
        run.phase("new processes", min(_AROUND, seconds))
    run.phase("after", min(_AROUND, seconds), ends=True)
    return run.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="postgresql, mariadb")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--rate", type=float, default=1_500)
    asked = parser.parse_args()
    figures: dict[str, Any] = json.loads(_STORED.read_text("utf-8")) if _STORED.exists() else {}
    with databases() as urls:
        for name in asked.names or ["postgresql", "mariadb"]:
            tables = measure(urls[name], asked.rate, asked.minutes * 60)
            figures[name] = {"minutes": asked.minutes, "messages_a_second": asked.rate, "tables": tables}
    if asked.minutes >= 10:
        write_results(_STORED.stem, figures, ("waterclock", "sqlalchemy", "psycopg", "pymysql"))


if __name__ == "__main__":
    main()
