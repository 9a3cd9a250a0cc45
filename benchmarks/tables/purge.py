"""Purging a day's acked messages: rows deleted one by one, beside the drop of their partition."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa

import waterclock as wc
from benchmarks.measure import write_results
from benchmarks.servers import databases
from waterclock.tables.model.days import DAY

MESSAGES = 1_000_000
_INSERT = {
    "postgresql": """
        INSERT INTO {table}(id, message, time_next, time_acked)
        SELECT n, repeat('x', 100), NULL, :acked + n FROM generate_series(1, :count) AS n""",
    "mysql": """
        INSERT INTO {table}(id, message, time_next, time_acked)
        SELECT seq, repeat('x', 100), NULL, :acked + seq FROM seq_1_to_1000000 WHERE seq <= :count""",
}
_LOG = {
    "postgresql": "SELECT pg_current_wal_insert_lsn() - '0/0'",
    "mysql": (
        "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'INNODB_OS_LOG_WRITTEN'"
    ),
}


def measure(url: str, folder: Path, purge_by: Any) -> dict[str, float]:
    """Purge a table of acked messages; return the seconds, and the bytes of log that it wrote."""
    now = time.time_ns()
    # As it was made four days ago, so that there is a partition for the day of the acks.
    with wc.connect(url, folder, clock=lambda: now - 4 * DAY) as database:
        name = f"purged_{purge_by}"
        database.create_table(name, payload="text", purge_after="1d", purge_by=purge_by)
        statement = sa.text(_INSERT[database.backend.dialect.name].format(table=name))
        acked = (now // DAY - 3) * DAY
        with database.backend.engine.begin() as connection:
            connection.execute(statement, {"acked": acked, "count": MESSAGES})
    with wc.connect(url, folder, clock=lambda: now) as database:
        table = database.table(name)
        before = _log(database)
        began = time.perf_counter()
        purged = table.purge()
        seconds = time.perf_counter() - began
        assert purged == MESSAGES
        written = _log(database) - before
        table.drop()
        return {"seconds": seconds, "log_bytes": written}


def _log(database: wc.Database) -> int:
    with database.backend.engine.connect() as connection:
        return int(connection.execute(sa.text(_LOG[database.backend.dialect.name])).scalar_one())


def main() -> None:
    """Measure on each database that has partitions."""
    figures: dict[str, Any] = {}
    with databases() as urls, tempfile.TemporaryDirectory() as folder:
        for name, url in urls.items():
            if name != "sqlite":
                figures[name] = {how: measure(url, Path(folder), how) for how in ("rows", "partition")}
    path = write_results("tables_purge", {"messages": MESSAGES, **figures}, ("sqlalchemy", "psycopg", "pymysql"))
    print(path.read_text())


if __name__ == "__main__":
    main()
