"""Behaviour of databases that surprises their users."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.services import Service
from tests.support.statements import noted

from waterclock.connection import Database
from waterclock.connection import connect as connect_to
from waterclock.database.backend import Backend
from waterclock.tables.message_table import MessageTable

pytestmark = pytest.mark.both_servers


def test_claims_and_acks_read_what_is_committed_for_any_settings_of_the_server(
    postgresql_server: Service, tmp_path: Path
) -> None:
    with postgresql_server.new_database() as url:
        name = sa.make_url(url).database
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with engine.connect() as connection:
            prefer = "ALTER DATABASE %(name)s SET default_transaction_isolation = 'repeatable read'"
            connection.execute(sa.DDL(prefer, context={"name": name}))
        database = connect_to(url, tmp_path / "ledgers")
        table = database.create_table("orders", payload="text")
        [level] = database.backend.alone(lambda own: own.exec_driver_sql("SHOW transaction_isolation").fetchone())
        assert level == "read committed"
        table.put("tea")
        [delivery] = table.receive()
        delivery.ack()
        database.close()


def test_a_claim_or_a_put_that_is_over_holds_no_lock(sqlite_url: str, sqlite_table: MessageTable) -> None:
    table = sqlite_table
    table.put_many([{"payload": str(number)} for number in range(5)])
    table.receive(2)  # RETURNING keeps the lock for as long as a row of it is unread
    other = sqlite3.connect(sa.make_url(sqlite_url).database or "", timeout=0, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("ROLLBACK")
    other.close()


@pytest.fixture
def sqlite_table(sqlite_url: str) -> Generator[MessageTable]:
    with connect_to(sqlite_url) as database:
        yield database.create_table("orders", payload="text")


@contextmanager
def transactions(backend: Backend) -> Generator[list[list[str]]]:
    """Collect the statements of each transaction."""
    seen: list[list[str]] = []

    def note(text: str, _: Any) -> None:
        if text.startswith("BEGIN"):
            seen.append([])
        if seen:
            seen[-1].append(text)

    with noted(backend, note):
        yield seen


def test_no_transaction_of_sqlite_reads_first_and_writes_later(sqlite_table: MessageTable) -> None:
    table = sqlite_table
    with transactions(table._context.backend) as seen:
        table.put_many([{"payload": str(number)} for number in range(5)])
        first, second, *rest = table.receive()
        first.ack()
        second.nack()
        rest[0].extend("1m")
        table.reschedule(5, 0)
        table.purge()
        with table.subscribe(limit=1) as deliveries:
            next(deliveries)
    writing = [one for one in seen if any(text.startswith(("INSERT", "UPDATE", "DELETE")) for text in one)]
    assert len(writing) >= 6
    assert {one[0] for one in writing} == {"BEGIN IMMEDIATE"}


# In SQLite writers take turns, so none commits late.
@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_message_committed_late_behind_the_mark_is_found_when_a_claim_comes_back_short(
    database: Database, make_table: Callable[..., MessageTable]
) -> None:
    table = make_table()
    with database.backend.engine.connect() as late:
        table.put("late", connection=late)
        table.put_many([{"payload": str(number)} for number in range(3)])
        assert [delivery.payload for delivery in table.receive(2)] == ["0", "1"]
        late.commit()
    assert {delivery.payload for delivery in table.receive(2)} == {"2", "late"}


def test_a_level_of_priority_that_is_new_goes_before_the_levels_that_are_known(
    make_table: Callable[..., MessageTable],
) -> None:
    table = make_table()
    table.put_many([{"payload": f"{priority}", "priority": priority} for priority in (0, 0, 0, 0, 5, 5)])
    assert [delivery.payload for delivery in table.receive(3)] == ["5", "5", "0"]
    table.put_many([{"payload": f"{priority}", "priority": priority} for priority in (3, 9, -1)])
    assert [delivery.payload for delivery in table.receive(6)] == ["9", "3", "0", "0", "0", "-1"]
