"""Calls awaited in one loop, beside the synchronous calls in as many threads: each in turns."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import waterclock as wc
from benchmarks.measure import by_several_clocks, write_results
from benchmarks.servers import databases
from waterclock import aio

CALLS = 500
THREADS = 4
ROUNDS = 15
CLOCKS: dict[str, Callable[[], float]] = {"by_the_clock": time.perf_counter, "by_processor_time": time.process_time}


def measure(url: str, folder: Path) -> dict[str, dict[str, float]]:
    """Return the µs of a call of each kind, by each clock."""
    with (
        asyncio.Runner() as runner,
        ThreadPoolExecutor(THREADS) as pool,
        wc.connect(url, folder, create=True) as database,
    ):
        awaited = runner.run(aio.connect(url, folder, threads=THREADS))
        table = database.create_table("called", payload="text")
        same = runner.run(awaited.table("called"))

        async def put() -> None:
            await asyncio.gather(*(same.put("x") for _ in range(CALLS)))

        async def ack() -> None:
            await asyncio.gather(*(one.ack() for one in [*await same.receive(CALLS)]))

        runs: dict[str, Callable[[], object]] = {
            "aio_put": lambda: runner.run(put()),
            "put": lambda: list(pool.map(lambda _: table.put("x"), range(CALLS))),
            "aio_receive_and_ack": lambda: runner.run(ack()),
            "receive_and_ack": lambda: list(pool.map(lambda one: one.ack(), table.receive(CALLS))),
        }
        found = by_several_clocks(runs, ROUNDS, CLOCKS)
        runner.run(awaited.close())
    return {clock: {name: 1e6 * took / CALLS for name, took in each.items()} for clock, each in found.items()}


def main() -> None:
    """Measure on each database."""
    figures: dict[str, Any] = {"calls": CALLS, "threads": THREADS}
    with databases() as urls, tempfile.TemporaryDirectory() as folder:
        for name, url in urls.items():
            figures[name] = measure(url, Path(folder))
    print(write_results("aio_calls", figures, ("sqlalchemy", "psycopg", "pymysql")).read_text())


if __name__ == "__main__":
    main()
