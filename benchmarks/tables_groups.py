"""Message groups: receiving and acking with groups and without, in turns, on each database; ``--small`` for a look."""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.measure import write_results
from benchmarks.topics_append import databases
from waterclock.connection import Database, connect
from waterclock.tables.message_table import MessageTable

LIMIT = 100
ROUNDS = 5


def fill(table: MessageTable, groups: list[str | None]) -> None:
    for start in range(0, len(groups), 10_000):
        table.put_many([{"payload": "x", "group": group} for group in groups[start : start + 10_000]])


def make(database: Database, name: str, policy: Any, groups: list[str | None]) -> MessageTable:
    table = database.create_table(name, payload="text", groups=policy, purge_after=None)
    fill(table, groups)
    table.ack(table.receive(1))  # routes what is there
    return table


def drain(table: MessageTable, count: int) -> float:
    """Receive and ack some messages; return how many a second."""
    began, done = time.perf_counter(), 0
    while done < count:
        done += table.ack(table.receive(LIMIT))
    return done / (time.perf_counter() - began)


def in_turns(database: Database, shape: str, names: list[str | None], piece: int) -> dict[str, float]:
    began = time.perf_counter()
    grouped = make(database, f"{shape}_grouped", "sequenced", names)
    print(f"  {shape}: put and routed in {time.perf_counter() - began:.1f} s", flush=True)
    plain = make(database, f"{shape}_plain", None, [None] * len(names))
    speeds: dict[str, list[float]] = {"grouped": [], "plain": []}
    for _ in range(ROUNDS):
        speeds["grouped"].append(drain(grouped, piece))
        speeds["plain"].append(drain(plain, piece))
    for table in (grouped, plain):
        table.drop()
    result = {name: sorted(each)[ROUNDS // 2] for name, each in speeds.items()}
    return {
        **{name: round(speed) for name, speed in result.items()},
        "ratio": round(result["grouped"] / result["plain"], 2),
    }


def claim_times(database: Database, counts: list[int]) -> dict[str, float]:
    """Measure a claim and an ack of one group among many, ms."""
    found: dict[str, float] = {}
    for count in counts:
        table = make(database, "flat", "sequenced", [f"g{number}" for number in range(count)])
        began = time.perf_counter()
        for _ in range(50):
            table.ack(table.receive(1))
        found[str(count)] = round((time.perf_counter() - began) / 50 * 1000, 2)
        table.drop()
    return found


def main() -> None:
    small = "--small" in sys.argv
    size = 100 if small else 10_000
    counts = [100, 1_000] if small else [1_000, 10_000, 100_000, 1_000_000]
    ten_each: list[str | None] = [f"g{number % size}" for number in range(size * 10)]
    hot: list[str | None] = [name for number in range(size) for name in [*["hot"] * 10, f"g{number}"]]
    figures: dict[str, Any] = {}
    with databases() as urls:
        for kind, url in urls.items():
            with connect(url, "unused") as database:
                print(kind, flush=True)
                figures[kind] = {
                    "ten messages a group": in_turns(database, "ten", ten_each, size),
                    "a hot group beside small ones": in_turns(database, "hot", hot, size),
                    "ms of a claim and an ack by number of groups": claim_times(database, counts),
                }
                print(figures[kind], flush=True)
    if not small:
        write_results("tables_groups", figures, ("waterclock", "sqlalchemy"))


if __name__ == "__main__":
    main()
