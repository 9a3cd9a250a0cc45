"""Message groups: receiving and acking with groups and without, in turns, on each database; ``--small`` for a look."""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import sqlalchemy as sa

from benchmarks.measure import write_results
from benchmarks.servers import databases
from waterclock.connection import Database, connect
from waterclock.tables.message_table import MessageTable

LIMIT = 100
ROUNDS = 9
CLAIMS = 100


@dataclass(frozen=True)
class Sizes:
    """How much there is of everything.

    Attributes
    ----------
    groups
        How many in the shape with ten messages each.
    hot
        How many messages the hot group has; beside it there are a tenth as many groups of one.
    piece
        How many messages are received and acked in a round.
    flat
        The numbers of groups among which one is claimed.
    """

    groups: int
    hot: int
    piece: int
    flat: tuple[int, ...]


SMALL = Sizes(2_000, 20_000, 1_000, (1_000, 10_000))
FULL = Sizes(10_000, 100_000, 5_000, (1_000, 10_000, 100_000, 1_000_000))


def fill(table: MessageTable, groups: list[str | None]) -> None:
    for start in range(0, len(groups), 10_000):
        table.put_many([{"payload": "x", "group": group} for group in groups[start : start + 10_000]])


def is_routed(database: Database, name: str) -> bool:
    # Not by listing groups: that looks at all messages.
    rows = sa.table(name, sa.column("routed"))
    with database.backend.snapshot(indexed=True) as connection:
        return connection.execute(sa.select(1).select_from(rows).where(rows.c.routed == 0).limit(1)).first() is None


def route(database: Database, table: MessageTable, count: int) -> float:
    """Let consumers route messages to their groups; return how many a second."""
    began = time.perf_counter()
    while not is_routed(database, table.name):
        for delivery in table.receive(1):
            delivery.ack()
    speed = count / (time.perf_counter() - began)
    print(f"  routed {count:,} messages, {speed:,.0f} a second", flush=True)
    return speed


def make(database: Database, name: str, policy: Any, groups: list[str | None]) -> MessageTable:
    table = database.create_table(name, payload="text", groups=policy, purge_after=None)
    began = time.perf_counter()
    fill(table, groups)
    print(f"  put {len(groups):,} messages into {name}, in {time.perf_counter() - began:.0f} s", flush=True)
    return table


def drain(table: MessageTable, count: int) -> float:
    """Receive and ack some messages; return how many a second."""
    began, done = time.perf_counter(), 0
    while done < count:
        done += table.ack(table.receive(LIMIT))
    return done / (time.perf_counter() - began)


def in_turns(database: Database, shape: str, names: list[str | None], piece: int) -> dict[str, Any]:
    grouped = make(database, f"{shape}_grouped", "sequenced", names)
    routed = route(database, grouped, len(names))
    plain = make(database, f"{shape}_plain", None, list(repeat(None, len(names))))
    speeds: dict[str, list[float]] = {"grouped": [], "plain": []}
    for _ in range(ROUNDS):
        speeds["grouped"].append(drain(grouped, piece))
        speeds["plain"].append(drain(plain, piece))
    for table in (grouped, plain):
        table.drop()
    found = {name: statistics.median(each) for name, each in speeds.items()}
    return {
        "routed_per_second": round(routed),
        **{f"{name}_per_second": round(speed) for name, speed in found.items()},
        "grouped_of_plain": round(found["grouped"] / found["plain"], 2),
    }


def claim_times(database: Database, counts: tuple[int, ...]) -> dict[str, float]:
    """Measure a claim and an ack of one group among many, ms."""
    found: dict[str, float] = {}
    for count in counts:
        table = make(database, "flat", "sequenced", [f"g{number}" for number in range(count)])
        route(database, table, count)
        taken: list[float] = []
        for _ in range(CLAIMS):
            began = time.perf_counter()
            table.ack(table.receive(1))
            taken.append(time.perf_counter() - began)
        found[str(count)] = round(statistics.median(taken) * 1000, 2)
        print(f"  among {count:,} groups a claim and an ack take {found[str(count)]} ms", flush=True)
        table.drop()
    return found


def measure(database: Database, sizes: Sizes) -> dict[str, Any]:
    ten_each: list[str | None] = [f"g{number % sizes.groups}" for number in range(sizes.groups * 10)]
    hot: list[str | None] = ["hot"] * sizes.hot + [f"g{number}" for number in range(sizes.hot // 10)]
    figures: dict[str, Any] = {}
    for shape, names in {"ten": ten_each, "hot": hot}.items():
        figures[shape] = in_turns(database, shape, names, sizes.piece)
        print(f"  {shape}: {figures[shape]}", flush=True)
    figures["ms_of_a_claim_and_an_ack_by_number_of_groups"] = claim_times(database, sizes.flat)
    return figures


def main() -> None:
    small = "--small" in sys.argv
    figures: dict[str, Any] = {}
    with databases() as urls:
        for kind, url in urls.items():
            with connect(url, "unused") as database:
                print(kind, flush=True)
                figures[kind] = measure(database, SMALL if small else FULL)
    path = write_results("tables_groups_small" if small else "tables_groups", figures, ("waterclock", "sqlalchemy"))
    print(f"written to {path}", flush=True)


if __name__ == "__main__":
    main()
