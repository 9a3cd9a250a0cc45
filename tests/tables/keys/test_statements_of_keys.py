"""Claims in tables with keys send few statements, however many keys they serve: each costs a round trip on MariaDB."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from tests.support.statements import statements_of
from tests.tables.options.plain_sql import run

from waterclock.connection import Database
from waterclock.tables.message_table import MessageTable

MakeTable = Callable[..., MessageTable]

TABLES = ("orders", "waterclock_message_keys")
ODD = ["", " ", "a ", "'", '"', "\\", "%s", ":a", "%(key_0)s", "ä", "𝄞", "a\nb", "?"]
"""Keys that a statement must neither change nor confuse."""

on_mariadb = pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)


@on_mariadb
@pytest.mark.usefixtures("bounds_stay")
def test_a_claim_of_ten_keys_sends_few_statements(make_table: MakeTable, database: Database) -> None:
    table = make_table(fair_by="group", batch_size=10)
    table.put_many([{"payload": "x", "group": str(number % 10)} for number in range(40)])
    table.ack(table.receive())
    table.ack(table.receive())
    with statements_of(database.backend, *TABLES) as seen:
        assert {one.group for one in table.receive()} == {str(number) for number in range(10)}
    assert len(seen) <= 8


@on_mariadb
def test_keys_that_end_are_deleted_in_few_statements(make_table: MakeTable, database: Database) -> None:
    table = make_table(fair_by="group", batch_size=40)
    table.put_many([{"payload": "x", "group": str(number)} for number in range(40)])
    table.ack(table.receive())
    run(database, "UPDATE waterclock_message_keys SET is_due = 0, due_at = 1, first_at = 1, gap_from = 1, gap_to = 1")
    with statements_of(database.backend, *TABLES) as seen:
        assert not table.receive()
    assert len(seen) <= 12
    assert not _keys(database)


@pytest.mark.both_servers
def test_keys_of_any_text_take_turns_sleep_and_end(make_table: MakeTable, database: Database) -> None:
    table = make_table(fair_by="group", batch_size=len(ODD))
    table.put_many([{"payload": f"{nth} of {key}", "group": key or None} for nth in range(2) for key in ODD])
    for nth in range(2):
        claimed = table.receive()
        assert [one.payload for one in claimed] == [f"{nth} of {key}" for key in sorted(ODD)]
        table.ack(claimed)
    run(database, "UPDATE waterclock_message_keys SET is_due = 0, due_at = 1, first_at = 1, gap_from = 1, gap_to = 1")
    assert not table.receive()
    assert not [key for key, is_due in _keys(database) if is_due != 3]


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)  # SQLite locks the whole database
def test_a_claim_passes_locked_messages_of_some_of_its_keys(make_table: MakeTable, database: Database) -> None:
    table = make_table(fair_by="group", batch_size=4)
    table.put_many([{"payload": f"{key}{nth}", "group": key} for nth in range(3) for key in "abcd"])
    assert [one.payload for one in table.receive()] == ["a0", "b0", "c0", "d0"]
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text("SELECT seq FROM orders WHERE message IN ('b1', 'd1') FOR UPDATE")).all()
        assert [one.payload for one in table.receive()] == ["a1", "b2", "c1", "d2"]
    assert sorted(one.payload for one in table.receive()) == ["a2", "b1", "c2", "d1"]


def _keys(database: Database) -> list[tuple[str, int]]:
    with database.backend.engine.connect() as connection:
        rows = connection.execute(sa.text("SELECT message_key, is_due FROM waterclock_message_keys"))
        return [(key, is_due) for key, is_due in rows]
