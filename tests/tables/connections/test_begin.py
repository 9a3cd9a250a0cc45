"""`Database.begin`: a transaction of the caller's, in which messages and the caller's own rows are written together."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import pytest
import sqlalchemy as sa

import waterclock as wc
from waterclock.connection import Database
from waterclock.tables.message_table import MessageTable

on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_messages_and_rows_are_committed_together(orders: MessageTable, database: Database) -> None:
    with database.begin() as connection:
        connection.execute(sa.text("CREATE TABLE customers (name VARCHAR(20))"))
    with database.begin() as connection:
        connection.execute(sa.text("INSERT INTO customers VALUES ('ada')"))
        orders.put("a", connection=connection)
    with database.begin() as connection:
        assert connection.execute(sa.text("SELECT name FROM customers")).scalars().all() == ["ada"]
    assert [delivery.payload for delivery in orders.receive()] == ["a"]


def test_an_error_in_the_block_rolls_back(orders: MessageTable, database: Database) -> None:
    def put_and_fail() -> None:
        with database.begin() as connection:
            orders.put("a", connection=connection)
            raise RuntimeError("refused")

    with pytest.raises(RuntimeError, match="refused"):
        put_and_fail()
    assert orders.receive() == []


def test_an_ack_counts_when_the_block_ends(orders: MessageTable, database: Database) -> None:
    orders.put("a")
    [delivery] = orders.receive()
    with database.begin() as connection:
        delivery.ack(connection=connection)
        assert orders.stats().acked == 0
    assert orders.stats().acked == 1


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_refused_commit_raises_a_waterclock_error(orders: MessageTable, database: Database) -> None:
    with database.begin() as connection:
        connection.execute(sa.text("CREATE TABLE kinds(id INT PRIMARY KEY)"))
        connection.execute(sa.text("CREATE TABLE items(kind INT REFERENCES kinds DEFERRABLE INITIALLY DEFERRED)"))

    def put_with_orphan() -> None:
        with database.begin() as connection:
            orders.put("a", connection=connection)
            connection.execute(sa.text("INSERT INTO items VALUES (1)"))

    with pytest.raises(wc.ConstraintError, match="items_kind_fkey"):
        put_with_orphan()
    assert orders.receive() == []


def test_a_block_may_end_its_transaction_itself(orders: MessageTable, database: Database) -> None:
    with database.begin() as connection:
        orders.put("a", connection=connection)
        connection.rollback()
    assert orders.receive() == []


@on_sqlite
def test_on_sqlite_it_begins_with_the_write_lock(database: Database) -> None:
    other = sqlite3.connect(str(database.backend.url.database), timeout=0)
    with database.begin() as connection:
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 30_000
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
    other.execute("BEGIN IMMEDIATE")
    other.close()


@on_sqlite
def test_a_database_that_stays_busy_is_unavailable(
    database: Database, monkeypatch: pytest.MonkeyPatch, connect: Callable[..., Database]
) -> None:
    monkeypatch.setattr("waterclock.database.engines.sqlite._PATIENCE", 0)
    with (
        database.begin(),
        pytest.raises(wc.UnavailableError, match="cannot be written to"),
        connect().begin(),
    ):
        pass
