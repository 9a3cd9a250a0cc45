"""Message tables against other queues: same server, same durability, a handler that does nothing, in turns.

``python -m benchmarks tables.queues`` takes the short form; the size is in the environment, because what runs the
benchmarks passes no arguments on: ``WATERCLOCK_BENCH_SIZE=full`` has 100,000 and 1,000,000 rows and takes half an hour.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from benchmarks.measure import write_results
from benchmarks.servers import SCRATCH, running
from benchmarks.tables.peers import ELSEWHERE, ON_POSTGRESQL, ON_SQLITE, MissingPeerError, Place, make, work

SIZES = {
    "short": {"rows": (20_000,), "seconds": 1.0, "rounds": 2},
    "medium": {"rows": (100_000,), "seconds": 1.0, "rounds": 2},
    "full": {"rows": (100_000, 1_000_000), "seconds": 1.0, "rounds": 1},
}
A_CALL = (1, 10, 100)
CONSUMERS = (1, 2, 4)
FILL = 1000  # messages a call where the queue is filled


def rate(place: Place, verb: str, count: int, processes: int, seconds: float) -> float:
    """Measure messages a second over all processes."""
    context = multiprocessing.get_context("spawn")
    start, result = context.Barrier(processes), context.Queue()
    workers = [
        context.Process(target=work, args=(place, verb, count, seconds, start, result)) for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    found = [result.get(timeout=600) for _ in workers]
    for worker in workers:
        worker.join()
    return sum(done for done, _ in found) / max(taken for _, taken in found)


def fill(place: Place, rows: int) -> None:
    queue = make(place)
    if place[0] in ON_SQLITE:
        queue.hurry()
    for _ in range(rows // FILL):
        queue.enqueue(FILL)
    queue.close()
    print(f"{place[0]} has {rows} rows", flush=True)


@contextmanager
def old_snapshot(url: str) -> Generator[None]:
    """Keep the server from forgetting anything, as a long report or a dump does."""
    engine = sa.create_engine(url, isolation_level="REPEATABLE READ", poolclass=sa.NullPool)
    with engine.connect() as connection:
        connection.execute(sa.text("SELECT 1 FROM pg_class LIMIT 1"))
        yield


@contextmanager
def places(url: str | None, folder: str, kinds: list[str]) -> Generator[list[Place]]:
    """Make a fresh place for each kind; those that are missing are left out, aloud."""
    found: list[Place] = []
    for kind in kinds:
        own = Path(folder) / f"{kind}-{time.monotonic_ns()}"
        own.mkdir(parents=True)
        where = new_database(url) if url else f"sqlite:///{own}/waterclock.db"
        place = (kind, where, str(own))
        try:
            make(place).close()
        except MissingPeerError as error:
            print(f"{kind} is left out: {error}", flush=True)
            continue
        found.append(place)
    yield found


def new_database(url: str) -> str:
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    name = f"bench_{time.monotonic_ns()}"
    with engine.connect() as connection:
        connection.execute(sa.DDL("CREATE DATABASE %(name)s", context={"name": name}))
    return engine.url.set(database=name).render_as_string(hide_password=False)


def compare(
    label: str, places_: list[Place], verb: str, count: int, processes: int, size: dict[str, Any]
) -> dict[str, Any]:
    """Measure the queues in turns; one round each before another of any."""
    rates: dict[str, list[float]] = {place[0]: [] for place in places_}
    for _ in range(size["rounds"]):
        for place in places_:
            rates[place[0]].append(rate(place, verb, count, processes, size["seconds"]))
    row: dict[str, Any] = {kind: round(statistics.median(found)) for kind, found in rates.items()}
    peers = [speed for kind, speed in row.items() if kind != "waterclock"]
    if peers:
        row["of_the_best_peer"] = round(row["waterclock"] / max(1, *peers, 1), 2)
    print(f"{label}, {verb}, {count} a call, {processes} processes: {row}", flush=True)
    return row


def measure(url: str | None, folder: str, kinds: list[str], size: dict[str, Any]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for rows in size["rows"]:
        label = f"{rows} rows"
        with places(url, folder, kinds) as found:
            for place in found:
                fill(place, rows)
            figures[label] = cells(label, found, size)
    if url:
        with places(url, folder, kinds) as found:
            for place in found:
                fill(place, size["rows"][0])
            label = "old snapshot"
            figures[label] = {}
            for place in found:
                # Each server database has the snapshot of its own.
                with old_snapshot(place[1]):
                    speed = rate(place, "take", 10, 1, size["seconds"] * 3)
                figures[label][place[0]] = round(speed)
            print(f"old snapshot held, take, 10 a call, 1 process: {figures[label]}", flush=True)
    return figures


def cells(label: str, found: list[Place], size: dict[str, Any]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for count in A_CALL:
        for processes in CONSUMERS:
            for verb in ("enqueue", "take"):
                figures[f"{verb} {count} a call, {processes} processes"] = compare(
                    label, found, verb, count, processes, size
                )
    return figures


def main() -> None:
    name = os.environ.get("WATERCLOCK_BENCH_SIZE", "short")
    if name not in SIZES:
        sys.exit(f"WATERCLOCK_BENCH_SIZE: {name!r} is none; choose from {', '.join(SIZES)}")
    size = SIZES[name]
    with running("postgresql") as facts, tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        url = facts["servers"]["postgresql"]["url"]
        figures = {
            "size": name,
            "postgresql": measure(url, folder, [*ON_POSTGRESQL, *ELSEWHERE], size),
            "sqlite": measure(None, folder, list(ON_SQLITE), size),
        }
    write_results("tables_peers", figures, ("waterclock", "sqlalchemy", "psycopg"))


if __name__ == "__main__":
    main()
