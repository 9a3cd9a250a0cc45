"""Plans of statements, in a table of which few messages matter."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import sqlalchemy as sa

from waterclock.connection import Database

MESSAGES = 30_000  # few enough to put in a second, and many enough that a plan for all of them costs more
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
