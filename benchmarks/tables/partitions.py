"""What partitions by day cost puts, claims and acks, beside a table without them, in turns."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import waterclock as wc
from benchmarks.measure import write_results
from benchmarks.servers import databases
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.message_table import MessageTable

A_CALL = (1, 100)
ROUNDS = 60
FILL = 2_000


def _round(table: MessageTable, count: int) -> dict[str, float]:
    rows = [{"payload": "x" * 100}] * count
    held: list[Delivery] = []

    def take() -> None:
        held.extend(table.receive(count))

    taken: dict[str, float] = {}
    steps: dict[str, Callable[[], object]] = {
        "put": lambda: table.put_many(rows),
        "claim": take,
        "ack": lambda: table.ack(held),
    }
    for verb, step in steps.items():
        began = time.perf_counter()
        step()
        taken[verb] = time.perf_counter() - began
    assert len(held) == count
    return taken


def measure(database: wc.Database) -> dict[str, Any]:
    tables: dict[str, MessageTable] = {}
    for how in ("rows", "partition"):
        purge_by: Any = how
        tables[how] = database.create_table(f"by_{how}", payload="text", purge_by=purge_by)
        tables[how].put_many([{"payload": "x" * 100}] * FILL)
    figures: dict[str, Any] = {}
    for count in A_CALL:
        found: dict[str, list[dict[str, float]]] = {how: [] for how in tables}
        for _ in range(ROUNDS):
            for how, table in tables.items():
                found[how].append(_round(table, count))
        for verb in ("put", "claim", "ack"):
            median = {how: statistics.median(one[verb] for one in rounds) for how, rounds in found.items()}
            figures[f"{verb} {count}"] = {
                **{f"{how}_ms": round(seconds * 1e3, 2) for how, seconds in median.items()},
                "ratio": round(median["partition"] / median["rows"], 2),
            }
    return figures


def main() -> None:
    figures: dict[str, Any] = {}
    with databases() as urls, tempfile.TemporaryDirectory() as folder:
        for name, url in urls.items():
            if name != "sqlite":
                with wc.connect(url, f"{folder}/{name}") as database:
                    figures[name] = measure(database)
                print(f"{name}: {figures[name]}", flush=True)
    write_results("tables_partitions", figures, ("waterclock", "sqlalchemy", "psycopg", "pymysql"))


if __name__ == "__main__":
    main()
