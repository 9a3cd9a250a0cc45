"""Statements are built and compiled once for all tables that are alike, in all databases of one kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.sql.compiler import SQLCompiler
from tests.tables.conftest import MovableClock
from tests.tables.kinds import group_of

from waterclock.connection import Database
from waterclock.tables.message_table import MessageTable
from waterclock.tables.model.schema import UserColumn


def use(table: MessageTable, **fields: Any) -> None:
    table.put("tea", **fields)
    [delivery] = table.receive()
    assert delivery.payload == "tea"
    delivery.nack(delay=0)
    [delivery] = table.receive()
    delivery.ack()
    assert table.receive() == []


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """List the statements that are compiled."""
    found: list[object] = []
    init = SQLCompiler.__init__

    def note_and_compile(self: SQLCompiler, dialect: sa.Dialect, statement: Any, *args: Any, **kw: Any) -> None:
        found.append(statement)
        init(self, dialect, statement, *args, **kw)

    monkeypatch.setattr(SQLCompiler, "__init__", note_and_compile)
    return found


def test_a_table_that_is_opened_again_compiles_nothing(
    connect: Callable[..., Database], clock: MovableClock, compiled: list[object], kind: dict[str, Any]
) -> None:
    connect(clock=clock).create_table("orders", payload="text", jitter=0, columns={"size": "bigint"}, **kind)
    groups = [{"group": name} if group_of(kind) else {} for name in "abc"]  # each consumer has groups of its own
    for fields in groups[:2]:
        use(connect(clock=clock).table("orders"), **fields)
    again = connect(clock=clock)
    compiled.clear()
    use(again.table("orders"), **groups[2])
    assert not compiled


def test_claims_of_other_limits_compile_nothing(database: Database, compiled: list[object]) -> None:
    table = database.create_table("orders", payload="text")
    use(table)
    table.put_many([{"payload": "tea"}] * 17)
    assert len(table.receive(5)) == 5
    compiled.clear()
    assert [len(table.receive(limit)) for limit in (2, 3, 7)] == [2, 3, 7]
    assert not compiled


def test_tables_of_other_names_and_options_do_not_share_theirs(database: Database, kind: dict[str, Any]) -> None:
    names = ["a" * 48, "A_1", "select", "order", "percent_s"]
    tables = [database.create_table(name, payload="text", jitter=0, **kind) for name in names]
    tables.append(database.create_table("b", payload="text", jitter=0, max_attempts=5, **kind))
    for table in tables:
        table.put(table.name, **group_of(kind))
    for table in tables:
        [delivery] = table.receive()
        assert delivery.payload == table.name
        delivery.ack()
    assert len({table._context for table in tables}) == len(tables)


def test_a_table_that_was_dropped_and_made_again_is_written_and_read_as_it_is_now(database: Database) -> None:
    for columns, value in (({"size": "bigint"}, 7), ({"size": "text"}, "7 %s"), ({"size": "json"}, {"x": [7]})):
        table = database.create_table("orders", payload="text", columns=columns)
        table.put("tea", size=value)
        assert table.receive()[0].columns == {"size": value}
        table.drop()
    table = database.create_table("orders", payload="json", id_type="text", groups="sequenced")
    table.put({"tea": 1}, id="x", group="g")
    assert [(one.id, one.payload, one.columns) for one in table.receive()] == [("x", {"tea": 1}, {})]


def test_databases_with_clocks_of_their_own_read_each_its_own(connect: Callable[..., Database]) -> None:
    tables = [connect(clock=lambda at=at: at).create_table("orders", payload="text", exist_ok=True) for at in (5, 9)]
    for table in tables:
        table.put("tea")
    with tables[0]._context.backend.snapshot() as connection:
        rows = tables[0]._context.rows
        assert connection.execute(sa.select(rows.c.time_created).order_by(rows.c.seq)).scalars().all() == [5, 9]
    [first] = tables[0].receive()  # the other one is due later
    assert first.lease_until - tables[0]._context.options.ack_wait in range(5, 10**11)
    first.ack()
    with tables[0]._context.backend.snapshot() as connection:
        acked = sa.select(rows.c.time_acked).where(rows.c.time_acked.is_not(None))
        assert connection.execute(acked).scalars().all() == [5]


class Bare(sa.types.UserDefinedType[Any]):
    """A type of a user's that says nothing of caches."""


def test_columns_are_alike_by_all_that_their_types_were_made_with() -> None:
    def extra(name: str, kind: Any, **changed: bool) -> UserColumn:
        same = {"has_default": True, "is_nullable": False, "is_generated": False}
        return UserColumn(name, kind, **same | changed)

    def same(one: Any, other: Any) -> bool:
        return extra("a", one) == extra("a", other)

    assert same(sa.String(5), sa.String(5))
    assert not same(sa.String(5), sa.String(6))
    assert not same(sa.String(5), sa.VARCHAR(5))
    assert same(mysql.ENUM("x", "y"), mysql.ENUM("x", "y"))
    assert not same(mysql.ENUM("x", "y"), mysql.ENUM("x", "z"))
    assert not same(Bare(), Bare())
    assert extra("a", sa.String(5)) != extra("b", sa.String(5))
    for changed in ({"has_default": False}, {"is_nullable": True}, {"is_generated": True}):
        assert extra("a", sa.String(5)) != extra("a", sa.String(5), **changed)
