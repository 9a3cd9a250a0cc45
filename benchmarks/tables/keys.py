"""Claims among a million keys that take turns: how long they take, and how many pages the server reads for each.

Every key has one message. In the state *new*, claims also route messages; in the state *known*, all keys wait for their
turns. ``--rows N`` for fewer; ``--url URL`` for one server that runs already.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from contextlib import closing
from typing import Any

import sqlalchemy as sa

import waterclock as wc
from benchmarks.measure import write_results
from benchmarks.servers import databases
from benchmarks.tables.pressure import pages_read
from waterclock.tables.message_table import MessageTable
from waterclock.time import MAX_NS

ROWS = 1_000_000
CLAIMS = 500
SHAPES: dict[str, dict[str, Any]] = {"fair": {"fair_by": "group"}, "limited": {"limit": {"group": 3}}}

_KNOWN = (
    "INSERT INTO waterclock_message_keys (table_id, message_key, level, tier, is_due, due_at, first_at, gap_from,"
    " gap_to, turn, leased_from, leased_seq) SELECT :table, message_key, 0, 0, 1, time_next, time_next, time_next,"
    " :most, :now + seq, :most, :most FROM keyed WHERE time_acked IS NULL",
    "UPDATE keyed SET routed = 1 WHERE time_acked IS NULL",
)
"""Statements after which all keys wait for their turns, as after ten thousand claims that route them."""


_HISTORY = (
    "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'INNODB_HISTORY_LIST_LENGTH'"
)
_IDLE = 1_000  # pages that an idle server reads in a second at most


def _put(table: MessageTable, rows: int) -> None:
    for first in range(0, rows, 10_000):
        numbers = range(first, min(first + 10_000, rows))
        table.put_many([{"payload": f"message {number}", "group": f"k{number}"} for number in numbers])


def _clean_up(database: wc.Database) -> None:
    name = database.backend.dialect.name
    with database.backend.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for table in ("keyed", "waterclock_message_keys"):
            verb = {"postgresql": "VACUUM ANALYZE", "sqlite": "ANALYZE"}.get(name, "ANALYZE TABLE")
            connection.exec_driver_sql(f"{verb} {table}").close()
    # MariaDB removes the old versions of a million rows in the background, for which it reads millions of pages.
    before = None
    while name == "mysql" and (before is None or _history(database) or pages_read(database) - before > _IDLE):
        before = pages_read(database)
        time.sleep(1)


def _history(database: wc.Database) -> int:
    """Return how many transactions have left old versions that MariaDB has not removed yet."""
    with database.backend.engine.connect() as connection:
        return int(connection.exec_driver_sql(_HISTORY).scalar_one())


def _claims(database: wc.Database, table: MessageTable, most: int) -> dict[str, float]:
    """Measure claims of so many messages; SQLite does not tell what it reads."""
    counts = database.backend.dialect.name != "sqlite"
    for _ in range(10):  # the first ones build their statements
        table.ack(table.receive(most))
    taken: list[float] = []
    held: list[Any] = []
    before = pages_read(database) if counts else 0
    for _ in range(CLAIMS):
        began = time.perf_counter()
        claimed = table.receive(most)
        taken.append((time.perf_counter() - began) * 1e3)
        assert len(claimed) == most
        held += claimed
    figures = {"p50_ms": round(statistics.median(taken), 2), "p99_ms": round(sorted(taken)[CLAIMS * 99 // 100], 2)}
    if counts:
        figures["pages"] = round((pages_read(database) - before) / CLAIMS)
    table.ack(held)
    return figures


def measure(url: str, rows: int) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, closing(wc.connect(url, folder)) as database:
        for shape, options in SHAPES.items():
            table = database.create_table("keyed", payload="text", ack_wait="1h", **options)
            _put(table, rows)
            for state in ("new", "known"):
                if state == "known":
                    values = {"table": table.context.table_id, "most": MAX_NS, "now": database.backend.now()}
                    with database.backend.engine.begin() as connection:
                        connection.exec_driver_sql("DELETE FROM waterclock_message_keys")
                        for statement in _KNOWN:
                            text = sa.text(statement)
                            connection.execute(text, {name: values[name] for name in text.compile().params})
                _clean_up(database)
                for most in (1, 10):
                    name = f"{shape}, {state}, claim of {most}"
                    figures[name] = _claims(database, table, most)
                    print(f"{url.split(':', maxsplit=1)[0]}: {name}: {figures[name]}", flush=True)
            table.drop()
    return figures


def main() -> None:
    arguments = sys.argv[1:]
    rows = int(arguments[arguments.index("--rows") + 1]) if "--rows" in arguments else ROWS
    if "--url" in arguments:
        measure(arguments[arguments.index("--url") + 1], rows)
        return
    with databases() as urls:
        figures = {name: measure(url, rows) for name, url in urls.items()}
    if rows == ROWS:
        write_results("tables_keys", {"keys": rows, **figures}, ("waterclock", "sqlalchemy", "psycopg", "pymysql"))


if __name__ == "__main__":
    main()
