"""Claims and acks on PostgreSQL where its statistics are of a time when all messages were acked, or purged."""

from __future__ import annotations

import statistics
import time
from typing import Any

import sqlalchemy as sa

from benchmarks.measure import write_results
from benchmarks.servers import databases
from waterclock.connection import Database, connect
from waterclock.tables.message_table import MessageTable

MESSAGES = 4_000
LIMIT = 100
ROUNDS = 30


def put(table: MessageTable, count: int, grouped: bool) -> None:
    table.put_many(
        [{"payload": "x", "group": f"g{number % (count // 10)}" if grouped else None} for number in range(count)]
    )


def analyze(database: Database, table: MessageTable, state: str, grouped: bool) -> None:
    put(table, MESSAGES, grouped)
    while deliveries := table.receive(1_000):
        table.ack(deliveries)
    with database.backend.engine.begin() as connection:
        if state == "purged":
            connection.execute(sa.delete(sa.table(table.name)))
        connection.execute(sa.text("ANALYZE"))


def measure(database: Database, name: str, options: dict[str, Any], state: str) -> dict[str, float]:
    table = database.create_table(name, payload="text", purge_after=None, **options)
    grouped = "groups" in options
    if state != "unknown":
        analyze(database, table, state, grouped)
    put(table, MESSAGES, grouped)
    began = time.perf_counter()
    table.ack(table.receive(1))  # routes, where there are groups
    first = time.perf_counter() - began
    taken: dict[str, list[float]] = {"claim": [], "ack": []}
    for _ in range(ROUNDS):
        began = time.perf_counter()
        deliveries = table.receive(LIMIT)
        claimed = time.perf_counter()
        table.ack(deliveries)
        taken["claim"].append(claimed - began)
        taken["ack"].append(time.perf_counter() - claimed)
    table.drop()
    medians = {f"{verb}_ms": round(statistics.median(each) * 1e3, 2) for verb, each in taken.items()}
    return {"first_claim_ms": round(first * 1e3, 1), **medians}


def main() -> None:
    shapes: dict[str, dict[str, Any]] = {
        "plain": {},
        "partitions": {"purge_by": "partition"},
        "groups": {"groups": "sequenced"},
        "groups and partitions": {"groups": "sequenced", "purge_by": "partition"},
    }
    figures: dict[str, Any] = {}
    with databases() as urls, connect(urls["postgresql"], "unused") as database:
        for shape, options in shapes.items():
            for state in ("unknown", "acked", "purged"):
                found = measure(database, f"{shape.replace(' ', '_')}_{state}", options, state)
                figures[f"{shape}, {state}"] = found
                print(f"{shape}, {state}: {found}", flush=True)
    print(f"written to {write_results('tables_statistics', figures, ('waterclock', 'sqlalchemy'))}", flush=True)


if __name__ == "__main__":
    main()
