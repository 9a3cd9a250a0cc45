"""Tables of MariaDB that were made when "a" and "a " were equal there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from tests.catalogues import migrate_only_to, name_groups_as_today

from waterclock.connection import Database
from waterclock.database import types
from waterclock.tables.groups import routing
from waterclock.tables.message_table import MessageTable

from .plain_sql import run

on_mariadb = pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)

PADDED = sa.text(
    "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = DATABASE()"
    " AND collation_name = 'utf8mb4_bin' AND column_name NOT IN ('json', 'version_num')"
)


@pytest.fixture
def is_migrated() -> bool:
    """These tests migrate."""
    return False


@pytest.fixture
def old(connect: Callable[..., Database], monkeypatch: pytest.MonkeyPatch) -> Database:
    migrate_only_to("0007", monkeypatch)
    monkeypatch.setattr(types, "_NO_PAD", "utf8mb4_bin")
    database = connect(create=True)
    database.backend.transact(name_groups_as_today)
    return database


def renewed(connect: Callable[..., Database], monkeypatch: pytest.MonkeyPatch) -> Database:
    monkeypatch.undo()
    return connect(create=True)


def shapes(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Give the columns of all tables but for their collations."""
    inspector = sa.inspect(database.backend.engine)
    return {
        name: [
            (one["name"], str(one["type"]).split(" ")[0], one["nullable"], one["default"], one.get("comment"))
            for one in inspector.get_columns(name)
        ]
        for name in inspector.get_table_names()
    }


def drained(table: MessageTable) -> list[str]:
    """Take and ack until nothing comes."""
    found: list[str] = []
    while deliveries := table.receive(1000):
        found += [delivery.payload for delivery in deliveries]
        table.ack(deliveries)
    return found


def renamed(before: dict[str, Any]) -> dict[str, Any]:
    """Give shapes as they are once migration 0011 has renamed what it renames."""
    columns = {
        "waterclock_attendance": {"told_at": "beat_at"},
        "waterclock_producers": {"epoch": "producer_epoch"},
        "waterclock_subscriptions": {"epoch": "reader_epoch"},
    }
    tables = {"waterclock_attendance": "waterclock_heartbeats"}
    return {
        tables.get(table, table): [(columns.get(table, {}).get(name, name), *rest) for name, *rest in shape]
        for table, shape in before.items()
    }


@on_mariadb
def test_after_the_migration_texts_are_distinguished_and_all_else_is_as_it_was(
    old: Database, connect: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"region": "text", "json": "json", "weight": "double"}
    table = old.create_table("orders", id_type="text", payload="text", columns=columns, max_attempts=9)
    table.put_many([{"id": "a", "payload": "1", "region": "r", "json": {"b": [1]}}, {"id": "b", "payload": "2"}])
    run(old, "ALTER TABLE orders ADD COLUMN own VARCHAR(9) COLLATE utf8mb4_bin DEFAULT 'it''s 1%' COMMENT 'a ''word'''")
    numbered = old.create_table("numbered", payload="json")
    numbered.put({"a": 1})
    before = shapes(old)
    new = renewed(connect, monkeypatch)
    after = renamed(before)
    kept = {name: shape[: len(after[name])] for name, shape in shapes(new).items() if name in after}
    assert kept == after  # other tables, and the last columns, are new
    with new.backend.engine.connect() as connection:
        padded = sorted(map(tuple, connection.execute(PADDED)))
    assert padded == [("numbered", "message"), ("orders", "own")]  # what is JSON, and a column of the user's
    table = new.table("orders")
    assert table.put_many([{"id": one, "payload": one} for one in ("a", "a ")]).existing == ["a"]
    assert sorted(drained(table)) == ["1", "2", "a "]
    with pytest.raises(sa.exc.DBAPIError):
        run(new, "INSERT INTO numbered(message) VALUES ('no JSON')")
    assert drained(new.table("numbered")) == [{"a": 1}]


@on_mariadb
@pytest.mark.parametrize("mode", ["sequenced", "exclusive"])
@pytest.mark.parametrize("first", ["a", "a "])
def test_messages_of_groups_that_were_one_are_all_sent_each_group_in_order(
    old: Database, connect: Callable[..., Database], monkeypatch: pytest.MonkeyPatch, mode: Any, first: str
) -> None:
    table = old.create_table("orders", payload="text", groups=mode, ack_wait="1h")
    groups = [first, "a", "a ", "a", "a ", "b", "b ", "a  "]
    table.put_many([{"payload": f"{group}{number}", "group": group} for number, group in enumerate(groups)])
    with monkeypatch.context() as patch:  # the names were one for the catalogue, as its older versions knew
        patch.setattr(routing, "_adding", routing._adding.prefix_with("IGNORE"))
        [out] = table.receive(1)
    out.nack(delay=0)
    run(old, "UPDATE waterclock_consumers SET lease_until = 1")  # the consumer of before is gone
    new = renewed(connect, monkeypatch)
    found = drained(new.table("orders"))
    assert sorted(found) == sorted(f"{group}{number}" for number, group in enumerate(groups))
    for group in set(groups):
        numbers = [text.removeprefix(group) for text in found if text[:-1] == group]
        assert numbers == sorted(numbers)
    assert new.table("orders").stats().ready == 0
