"""What all of a table's work reads, where PostgreSQL's statistics are of a time when its messages were acked, or gone.

Autovacuum analyses a quiet table, and what comes then is planned with what it found. Everything is done once with a few
thousand messages, and the server counts the rows that it reads for it.
"""

from __future__ import annotations

import time
from itertools import product
from typing import Any

import pytest
import sqlalchemy as sa

from waterclock.connection import Database, connect
from waterclock.errors import LeaseLostError
from waterclock.tables.message_table import MessageTable

KEYED = 40  # rows read for each key
MESSAGES = 2_000
READ_FOR_EACH = {None: 60, "sequenced": 150, "exclusive": 250}
"""Rows of tables and indexes, for everything that is done; two thirds of them are. Going through all messages at each
claim makes a hundred more."""


def put(table: MessageTable, groups: Any) -> None:
    table.put_many(
        [{"payload": "x", "group": None if groups is None else f"g{number // 2}"} for number in range(MESSAGES)]
    )


def work(table: MessageTable, others: MessageTable, groups: Any) -> None:
    """Do everything that meets many messages."""
    put(table, groups)
    held = table.receive(MESSAGES, consumer="x")
    assert len(held) == MESSAGES
    assert table.ack([one.id for one in held[:100]]) == 100
    table.ack(held[100:-100])
    for late in held[:100]:
        with pytest.raises(LeaseLostError):
            late.ack()
    table.nack(held[-100:], "0s")
    while again := table.receive(MESSAGES, consumer="x"):  # in a group only the first one was tried
        table.nack(again, "0s")
    assert len(table.dead_letters(1_000)) == 100
    assert table.redrive() == 100
    put(table, groups)
    while deliveries := table.receive(10, consumer="x"):
        table.ack(deliveries)
    table.retry()
    table.stats()
    if groups is not None:
        put(table, groups)
        table.receive(1, consumer="x")
        assert len(table.groups.list()) >= MESSAGES // 2
        table.groups.purge("g6")
        assert table.groups.move("g7", to="others").done == 2
        if groups == "exclusive":
            table.groups.rebalance()
        assert others.receive(1, consumer="x")
    table.purge()


def analyze(database: Database, table: MessageTable, groups: Any, purge_by: str, state: str) -> None:
    """Let the server know a table as it is when everything in it is acked, or purged."""
    put(table, groups)
    while deliveries := table.receive(1_000, consumer="gone"):
        table.ack(deliveries)
    parts = ["orders_open"] if purge_by == "partition" else []
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM waterclock_groups"))
        connection.execute(sa.text("DELETE FROM waterclock_consumers"))  # else "gone" would be left its share
        if state == "purged":
            connection.execute(sa.text("DELETE FROM orders"))
        for name in ("orders", *parts, "orders_dead", "others", "waterclock_groups"):
            connection.execute(sa.text(f"ANALYZE {name}"))


def rows_read(url: str) -> int:
    """Ask how many rows were read from message tables and the groups' catalogue, once those who read them are gone."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    read = """
        SELECT sum(seq_tup_read)::bigint + (SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes)
        FROM pg_stat_user_tables"""
    with engine.connect() as connection:
        until = time.monotonic() + 60
        while connection.execute(sa.text(others)).scalar():  # a server process tells what it read when it ends
            assert time.monotonic() < until, "connections stay open"
            time.sleep(0.01)
        count = connection.execute(sa.text(read)).scalar_one()
    engine.dispose()
    return count


SHORT = {
    (None, "rows", "purged"),
    ("sequenced", "rows", "unknown"),
    ("exclusive", "partition", "purged"),  # the worst of all, before statements stopped trusting statistics
}


@pytest.mark.parametrize(
    ("groups", "purge_by", "state"),
    [
        pytest.param(*case, marks=[] if case in SHORT else pytest.mark.slow)
        for case in product((None, "sequenced", "exclusive"), ("rows", "partition"), ("unknown", "purged", "acked"))
    ],
)
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # the only one that plans by stored statistics
def test_no_work_reads_more_than_a_few_rows_for_each_message(
    database_url: str, groups: Any, purge_by: Any, state: str
) -> None:
    with connect(database_url, "unused") as database:
        table = database.create_table(
            "orders",
            payload="text",
            groups=groups,
            purge_by=purge_by,
            max_attempts=1,
            dead_letter="orders_dead",
            on_exhausted="block" if groups is None else "dead_letter",
        )
        database.create_table("others", payload="text", groups=groups)
        if state != "unknown":
            analyze(database, table, groups, purge_by, state)
    before = rows_read(database_url)
    with connect(database_url, "unused") as database:
        work(database.table("orders"), database.table("others"), groups)
    read = rows_read(database_url) - before
    assert read < READ_FOR_EACH[groups] * MESSAGES


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_putting_many_keys_reads_a_few_rows_for_each(database_url: str) -> None:
    with connect(database_url, "unused") as database:
        table = database.create_table("orders", payload="text")
    before = rows_read(database_url)
    with connect(database_url, "unused") as database:
        table = database.table("orders")
        for _ in range(2):
            table.put_many([{"payload": "x", "unique": f"k{number}"} for number in range(MESSAGES)])
    assert rows_read(database_url) - before < KEYED * MESSAGES
