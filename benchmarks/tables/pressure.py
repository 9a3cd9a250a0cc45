"""Message tables while another connection holds a snapshot: claims, acks and rates before, under it and after it.

A transaction that stays open (a report, a forgotten session, pg_dump) keeps a server from removing rows that were
changed since. Claims must not walk over those. ``--small`` for a look; ``--url URL`` for a server that runs already,
and the names of shapes for those alone.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

import waterclock as wc
from benchmarks.measure import write_results
from benchmarks.servers import databases
from waterclock.tables.message_table import MessageTable

A_ROUND = 100
"""Messages that are put, claimed and acked in a round."""

_LAST = 50
"""Rounds whose figures are those of a phase."""

_FRESH = "--fresh"


@dataclass(frozen=True)
class Shape:
    """One way to use a table.

    Attributes
    ----------
    options
        Of the table.
    groups
        Among how many groups, or keys, its messages are spread; 0: they are in none.
    is_unique
        Whether each message is put with a key of its own.
    acks_last_first
        Whether the later half of what was claimed is acked before the first.
    """

    options: dict[str, Any]
    groups: int = 0
    is_unique: bool = False
    acks_last_first: bool = False


SHAPES = {
    "plain": Shape({}),
    "sequenced, 5 groups": Shape({"groups": "sequenced"}, 5),
    "sequenced, 2,000 groups": Shape({"groups": "sequenced"}, 2_000),
    "exclusive, 5 groups": Shape({"groups": "exclusive"}, 5),
    "unique": Shape({}, is_unique=True),
    "acks held back": Shape({"groups": "sequenced", "ack_order": "hold"}, 5, acks_last_first=True),
    "partitions": Shape({"purge_by": "partition"}),
    "fair, 5 keys": Shape({"fair_by": "group"}, 5),
    "fair, 2,000 keys": Shape({"fair_by": "group"}, 2_000),
    "limited, 5 keys": Shape({"limit": {"group": A_ROUND}}, 5),
}


@dataclass(frozen=True)
class Round:
    """What a round took, s."""

    whole: float
    claim: float
    ack: float
    empty: float


class Flow:
    """Puts, claims and acks messages of a table of one shape."""

    def __init__(self, table: MessageTable, shape: Shape, first: int = 0) -> None:
        self._table = table
        self._shape = shape
        self._number = first
        # The groups of an exclusive table stay with the process that has them.
        self._prefix = f"{first}-" if shape.options.get("groups") == "exclusive" else ""

    def rounds(self, messages: int) -> list[Round]:
        return [self._round() for _ in range(messages // A_ROUND)]

    def _round(self) -> Round:
        began = time.perf_counter()
        self._put()
        ready = time.perf_counter()
        first = held = self._table.receive(A_ROUND)
        claimed = time.perf_counter() - ready
        acking = time.perf_counter()
        while held:
            self._ack(held)
            # Groups give what they have to one claim or to several.
            held = self._table.receive(A_ROUND) if len(first) < A_ROUND else []
        acked = time.perf_counter()
        empty = time.perf_counter()
        left = self._table.receive(A_ROUND)
        ended = time.perf_counter()
        self._ack(left)
        return Round(acked - began, claimed, acked - acking, ended - empty)

    def _put(self) -> None:
        numbers = range(self._number, self._number + A_ROUND)
        self._number += A_ROUND
        rows: list[dict[str, Any]] = [{"payload": f"message {number} of many"} for number in numbers]
        for number, row in zip(numbers, rows, strict=True):
            if self._shape.groups:
                row["group"] = f"{self._prefix}g{number % self._shape.groups}"
            if self._shape.is_unique:
                row["unique"] = f"k{number}"
        self._table.put_many(rows)

    def _ack(self, held: Sequence[Any]) -> None:
        if self._shape.acks_last_first:
            self._table.ack(held[len(held) // 2 :])
            held = held[: len(held) // 2]
        if held:
            self._table.ack(held)


def figures_of(rounds: Sequence[Round]) -> dict[str, float]:
    last = rounds[-_LAST:]

    def of(name: str) -> dict[str, float]:
        taken = sorted(getattr(one, name) * 1e3 for one in last)
        return {
            f"{name}_p50_ms": round(statistics.median(taken), 2),
            f"{name}_p99_ms": round(taken[len(taken) * 99 // 100], 2),
        }

    rate = A_ROUND / statistics.median(one.whole for one in last)
    return {**of("claim"), **of("ack"), **of("empty"), "messages_a_second": round(rate)}


@contextmanager
def snapshot_held(database: wc.Database) -> Generator[None]:
    """Hold a snapshot in a transaction that only read."""
    engine = database.backend.engine.execution_options(isolation_level="REPEATABLE READ")
    with engine.connect() as connection:
        connection.execute(sa.text("SELECT count(*) FROM waterclock_message_tables")).all()
        yield
        connection.rollback()


def sizes(database: wc.Database, name: str) -> dict[str, Any]:
    """Give the sizes of the rows and of their indexes, MB, and the share of updates that changed no index."""
    with database.backend.engine.connect() as connection:
        if database.backend.dialect.name != "postgresql":
            connection.exec_driver_sql(f"ANALYZE TABLE {name}").close()
            of = sa.text(
                "SELECT data_length, index_length FROM information_schema.tables"
                " WHERE table_name = :name AND table_schema = DATABASE()"
            )
            heap, indexes = connection.execute(of, {"name": name}).one()
            return {"heap_mb": round(float(heap) / 2**20, 1), "indexes_mb": round(float(indexes) / 2**20, 1)}
        connection.exec_driver_sql("SELECT pg_stat_clear_snapshot()")
        of = sa.text(
            "SELECT sum(pg_table_size(relid)), sum(pg_indexes_size(relid)),"
            " round(sum(n_tup_hot_upd) / greatest(sum(n_tup_upd), 1), 2)"
            " FROM pg_stat_user_tables WHERE relname ~ :name"
        )
        heap, indexes, hot = connection.execute(of, {"name": f"^{name}(_|$)"}).one()
        groups = connection.execute(of, {"name": "^waterclock_groups$"}).one()[2]
        return {
            "heap_mb": round(float(heap) / 2**20, 1),
            "indexes_mb": round(float(indexes) / 2**20, 1),
            "hot_ratio": float(hot),
            "hot_ratio_of_groups": float(groups),
        }


def pages_read(database: wc.Database) -> int:
    """Return how many pages the server has looked at, in memory or not: this does not depend on other work.

    On PostgreSQL it counts those of this database; on MariaDB those of the server, which must do nothing else.
    """
    with database.backend.engine.connect() as connection:
        if database.backend.dialect.name != "postgresql":
            of_server = "SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_read_requests'"
            return int(connection.exec_driver_sql(of_server).one()[1])
        time.sleep(11)  # an idle session reports what it read after ten seconds
        of_database = "SELECT blks_hit + blks_read FROM pg_stat_database WHERE datname = current_database()"
        return connection.exec_driver_sql(of_database).scalar_one()


def last_figures(database: wc.Database, flow: Flow, messages: int) -> dict[str, float]:
    """Let messages pass, and return the figures of the last rounds, with the pages read for the messages of one."""
    flow.rounds(messages - A_ROUND * _LAST)
    before = pages_read(database)
    figures = figures_of(flow.rounds(A_ROUND * _LAST))
    return {**figures, "pages_a_round": round((pages_read(database) - before) / _LAST)}


def measure(database: wc.Database, url: str, name: str, messages: int) -> dict[str, Any]:
    shape = SHAPES[name]
    if database.backend.has_catalogue() and "pressed" in database.tables():
        database.table("pressed").drop()
    table = database.create_table("pressed", payload="text", **shape.options)
    flow = Flow(table, shape)
    flow.rounds(A_ROUND * _LAST // 5)  # the first ones build their statements
    figures: dict[str, Any] = {"before": last_figures(database, flow, A_ROUND * _LAST)}
    sizes_before = sizes(database, "pressed")
    with snapshot_held(database):
        figures["held"] = last_figures(database, flow, messages)
        figures["fresh process"] = _in_a_fresh_process(url, name)
        figures["sizes"] = {"before": sizes_before, "held": sizes(database, "pressed")}
    _vacuum(database)
    figures["after"] = last_figures(database, flow, A_ROUND * _LAST)
    table.drop()
    before, held = figures["before"], figures["held"]
    figures["ratios"] = {key: round(held[key] / before[key], 2) for key in before}
    return figures


def _vacuum(database: wc.Database) -> None:
    # What autovacuum does within the minute.
    if database.backend.dialect.name == "postgresql":
        with database.backend.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM")


def _in_a_fresh_process(url: str, name: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.tables.pressure", _FRESH, url, name]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def run_fresh(url: str, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder, closing(wc.connect(url, folder)) as database:
        flow = Flow(database.table("pressed"), SHAPES[name], first=10**9)  # with keys that no other process has put
        rounds = flow.rounds(A_ROUND * _LAST // 2)
    first = {"first_claim_ms": round(rounds[0].claim * 1e3, 2), "first_empty_ms": round(rounds[0].empty * 1e3, 2)}
    print(json.dumps({**first, **figures_of(rounds[5:])}))


def main() -> None:
    arguments = sys.argv[1:]
    if _FRESH in arguments:
        run_fresh(*arguments[1:])
        return
    messages = 20_000 if "--small" in arguments else 200_000
    chosen = [name for name in SHAPES if name in arguments] or list(SHAPES)
    if "--url" in arguments:
        url = arguments[arguments.index("--url") + 1]
        run(url.split(":")[0].split("+")[0], url, chosen, messages)
        return
    figures: dict[str, Any] = {"messages": messages}
    with databases() as urls:
        for name, url in urls.items():
            if name != "sqlite":  # which keeps no old rows for readers among the new ones
                figures[name] = run(name, url, chosen, messages)
    if "--small" not in arguments:
        write_results("tables_pressure", figures, ("waterclock", "sqlalchemy", "psycopg", "pymysql"))


def run(database_name: str, url: str, chosen: Sequence[str], messages: int) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, closing(wc.connect(url, folder)) as database:
        for name in chosen:
            figures[name] = measure(database, url, name, messages)
            print(f"{database_name}, {name}: {json.dumps(figures[name], indent=1)}", flush=True)
    return figures


if __name__ == "__main__":
    main()
