"""Plans of statements, in a table of which few messages matter, and the pages that they read."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import psycopg
import sqlalchemy as sa

from waterclock.connection import Database

MESSAGES = 10_000  # few enough to put quickly, and many enough that a plan for all of them costs more
OTHERS = ("acked", "in flight", "scheduled")


def crowd(database: Database, state: str) -> None:
    """Give 99 of 100 messages a state that no claim is for, of a higher priority where that may be in its way."""
    backend = database.backend
    now = backend.now()
    change = {
        "acked": {"time_acked": now, "time_next": None},
        "in flight": {"time_next": now + 10**15, "claim_id": 1, "priority": 9},
        "scheduled": {"time_next": now + 10**15, "priority": 9},
    }[state]
    rows = sa.table("orders", *(sa.column(name) for name in ("id", *change)))
    with backend.engine.begin() as connection:
        connection.execute(sa.update(rows).where(rows.c.id % 100 != 0).values(change))
    analyze = {"sqlite": "ANALYZE", "postgresql": "ANALYZE orders", "mysql": "ANALYZE TABLE orders"}
    with backend.engine.connect() as connection:
        connection.exec_driver_sql(analyze[backend.dialect.name])
        connection.commit()


def can_be_explained(text: str) -> bool:
    """Say whether a statement chooses rows."""
    if text.startswith("SELECT") and "WHERE" not in text:  # asks which columns there are, and for no row
        return False
    return text.lstrip().split()[0] in ("SELECT", "WITH", "UPDATE", "DELETE", "INSERT")


def complaints(database: Database, text: str, parameters: Any) -> list[str]:
    """Say which steps of a statement's plan read or sort the whole table."""
    if isinstance(parameters, list):
        parameters = parameters[0]
    name = database.backend.dialect.name
    with database.backend.engine.connect() as connection:
        explain = "EXPLAIN QUERY PLAN " if name == "sqlite" else "EXPLAIN "
        found = connection.exec_driver_sql(explain + text, parameters)
        if name == "sqlite":
            plan = [row.detail for row in found]
            # The highest priority is the first entry of its index.
            scans = [step for step in plan if step.startswith("SCAN orders") and "orders_next_idx" not in step]
            return scans + [step for step in plan if "TEMP B-TREE" in step and "ORDER" in step]
        if name == "postgresql":
            steps = [row[0] for row in found]
            # A claim also sorts its marks: an array of a handful.
            sorts = [step for step, key in pairwise(steps) if "Sort  (" in step and "given" not in key]
            return sorts + [step for step in steps if "Seq Scan on orders" in step]
        rows = [dict(row) for row in found.mappings()]
        bad = [row for row in rows if row["type"] in ("ALL", "index") or "filesort" in str(row["Extra"])]
        return [str(row) for row in bad if int(row["rows"] or 0) > MESSAGES // 50]


def buffers(database: Database, text: str, values: Any) -> int:
    """Count the pages that a statement looks at, with the plan that is kept for all values; of many runs, the first."""
    values = values[0] if isinstance(values, list) else values
    places = {name: f"${place}" for place, name in enumerate(dict.fromkeys(re.findall(r"%\((\w+)\)[sbt]", text)), 1)}
    numbered = re.sub(r"%\((\w+)\)[sbt]", lambda found: places[found[1]], text)
    with database.backend._indexed_writer.connect() as connection:
        driver: Any = connection.connection.driver_connection
        given = psycopg.ClientCursor(driver).mogrify(",".join(["%s"] * len(places)), [values[name] for name in places])
        connection.exec_driver_sql("SET LOCAL plan_cache_mode = force_generic_plan")
        connection.exec_driver_sql(f"PREPARE explained AS {numbered}")
        execute = f"EXECUTE explained({given})" if places else "EXECUTE explained"
        plan = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS) {execute}").scalars().all()
        connection.exec_driver_sql("DEALLOCATE explained")
        connection.rollback()
    [first, *_] = [line for line in plan if "Buffers: shared" in line]
    return sum(map(int, re.findall(r"(?:hit|read)=(\d+)", first)))


def pages(database: Database, text: str, values: Any) -> int:
    """Run a statement again on MariaDB, count the pages that it looks at, and undo what it changed."""
    with database.backend._indexed_writer.connect() as connection:
        report = connection.exec_driver_sql("ANALYZE FORMAT=JSON " + text, values).scalar_one()
        connection.rollback()
    return sum(map(int, re.findall(r'"pages_accessed": (\d+)', report)))
