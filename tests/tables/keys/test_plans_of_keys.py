"""Claims in tables whose keys take turns read about as many rows as they take, whatever waits behind them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.statements import statements_of
from tests.tables.options.plain_sql import run

from waterclock.connection import Database
from waterclock.tables.message_table import MessageTable

pytestmark = pytest.mark.both_servers

TABLES = ("orders", "waterclock_message_keys")
MANY = 3_000
A_FEW = 400
"""Pages, or rows, that a statement may read. On MariaDB, a window of a hundred messages is three hundred rows."""


def _read(database: Database, text: str, values: Any) -> int:
    """Return how many pages, or rows on MariaDB, a statement reads; on SQLite, whether it reads or sorts a table."""
    name = database.backend.dialect.name
    with database.backend._indexed_writer.connect() as connection:
        if name == "sqlite":
            steps = [row.detail for row in connection.exec_driver_sql("EXPLAIN QUERY PLAN " + text, values)]
            bad = [step for step in steps if re.search(r"SCAN (orders|waterclock)|ORDER BY|\(table_id=\?\)$", step)]
            return MANY if bad else 0
        if name == "postgresql":
            explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}"
            for _ in range(2):  # the first one also reads the catalogue
                plan = connection.exec_driver_sql(explain, values).scalar_one()[0]["Plan"]
                connection.rollback()
            return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        connection.exec_driver_sql("FLUSH STATUS")
        connection.exec_driver_sql(text, values)
        rows = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read%%'").all()
        connection.rollback()
        return sum(int(value) for _, value in rows)


def _check(database: Database, seen: list[tuple[str, Any]]) -> None:
    for text, values in seen:
        if text.lstrip().startswith(("SELECT", "(SELECT")):
            assert _read(database, text, values) < A_FEW, text


@pytest.mark.parametrize("state", ["waiting", "scheduled", "new"])
def test_a_claim_reads_few_messages_of_a_full_key(
    make_table: Callable[..., MessageTable], database: Database, state: str
) -> None:
    table = make_table(limit={"group": 2}, batch_size=3)
    table.put_many([{"payload": "x", "group": "busy"}] * MANY)
    assert len(table.receive()) == 2
    if state != "new":
        run(database, "UPDATE orders SET routed = 1")
    if state == "scheduled":
        run(database, "UPDATE orders SET time_next = time_next + 1000000000000 WHERE claim_id IS NULL")
    table.put("y", group="other")
    if state == "waiting":
        run(database, "UPDATE orders SET time_next = 1 WHERE claim_id IS NOT NULL AND id = 1")  # its lease has ended
        run(database, "UPDATE orders SET time_next = 0 WHERE claim_id IS NULL")
    with statements_of(database.backend, *TABLES) as seen:
        assert "y" in [one.payload for one in table.receive()]
        table.receive()
    _check(database, seen)


def test_a_claim_reads_few_of_many_keys(make_table: Callable[..., MessageTable], database: Database) -> None:
    table = make_table(fair_by="group", batch_size=3)
    table.put_many([{"payload": "x", "group": str(number)} for number in range(MANY)])
    while _unrouted(database):
        table.receive(1)
    with database.backend.engine.connect() as connection:
        first = connection.execute(sa.text("SELECT min(turn) FROM waterclock_message_keys")).scalar_one()
    put_off = "UPDATE waterclock_message_keys SET is_due = 0, due_at = due_at + 1000000000000 WHERE turn >= :turn"
    run(database, put_off, turn=first + 30)
    with statements_of(database.backend, *TABLES) as seen:
        assert len(table.receive()) == 3
    _check(database, seen)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_claim_passes_neither_keys_of_its_table_that_wait_behind_its_own_nor_those_of_other_tables(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(fair_by="group")
    table.put_many([{"payload": "x", "group": "first"}, {"payload": "y", "group": "second"}])
    assert len(table.receive(1)) == 1
    waiting = (
        "INSERT INTO waterclock_message_keys (table_id, message_key, level, tier, is_due, due_at, first_at, gap_from,"
        " gap_to, turn) SELECT :table, 'k' || nth, 0, 0, 1, 0, 0, 0, 0, :turn + nth"
        " FROM generate_series(1, 5000) AS nth"
    )
    for number in (0, table.context.table_id, 1000):
        run(database, waiting, table=number, turn=database.backend.now() + 10**15)
    with statements_of(database.backend, *TABLES) as seen:
        assert len(table.receive(1)) == 1
    of_turns = [(text, values) for text, values in seen if "is_due = 1" in text and not text.startswith("UPDATE")]
    assert len(of_turns) > 2
    assert max(_read(database, *one) for one in of_turns) < 30


def _unrouted(database: Database) -> int:
    with database.backend.engine.connect() as connection:
        return connection.execute(sa.text("SELECT count(*) FROM orders WHERE routed = 0")).scalar_one()
