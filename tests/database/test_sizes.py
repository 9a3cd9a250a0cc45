"""The sizes of a database and of its tables, read with bounded statements."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from waterclock.connection import Database
from waterclock.database.sizes import MOST_TABLES, TableSizes, read_sizes
from waterclock.server.pages import system
from waterclock.server.rights import Client


def tables_of(database: Database) -> dict[str, TableSizes]:
    return {one.name: one for one in read_sizes(database.backend).tables or ()}


def test_the_size_of_the_database_is_read_with_what_old_snapshots_make_it_keep(database: Database) -> None:
    database.create_table("orders", payload="text").put_many([{"payload": "x" * 1000}] * 500)
    found = read_sizes(database.backend)
    assert found.size > 500_000
    kind = database.backend.dialect.name
    assert (found.log_size is not None, found.tables is None) == (kind == "sqlite", kind == "sqlite")
    assert (found.unpurged is not None) == (kind == "mysql")
    assert (found.free is None) == (kind == "postgresql")


def test_the_sizes_of_our_tables_are_read_and_of_no_other(database: Database) -> None:
    table = database.create_table("orders", payload="text", groups="sequenced")
    table.put_many([{"payload": "x", "group": "g"}] * 500)
    with database.begin() as connection:
        connection.execute(sa.text("CREATE TABLE of_someone_else (id INT PRIMARY KEY)"))
    if read_sizes(database.backend).tables is None:  # SQLite would have to read the whole file
        return
    found = tables_of(database)
    assert {"orders", "waterclock_groups"} <= found.keys()
    assert "of_someone_else" not in found
    assert found["orders"].index_size > 0
    assert found["orders"].size > 0
    assert len(found) <= MOST_TABLES


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_partitions_count_for_their_table(database: Database) -> None:
    database.create_table("orders", payload="text", purge_by="partition").put_many([{"payload": "x"}] * 500)
    found = tables_of(database)
    assert {name for name in found if not name.startswith("waterclock_")} == {"orders"}
    assert found["orders"].size > 0
    assert found["orders"].index_size > 0


def test_a_locked_table_keeps_nobody_waiting_for_sizes(
    database: Database, connect: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    database.create_table("orders", payload="text")
    monkeypatch.setattr(system, "STORAGE_WITHIN", 0.2)
    lock = {"postgresql": "LOCK TABLE orders IN ACCESS EXCLUSIVE MODE", "mysql": "SELECT * FROM orders FOR UPDATE"}
    with connect().begin() as connection:
        connection.execute(sa.text(lock.get(database.backend.dialect.name, "SELECT 1")))
        found = system.system_data(database, Client("local", None))
    assert (found["storage"] is None) == (database.backend.dialect.name == "postgresql")
    assert system.system_data(database, Client("local", None))["storage"] is not None
