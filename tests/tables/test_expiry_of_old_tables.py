"""Tables that were made before messages could expire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from tests.catalogues import migrate_only_to
from tests.killed import killed_after_each_change

from waterclock.connection import Database
from waterclock.errors import SchemaError

from .conftest import MovableClock
from .plain_sql import run


@pytest.fixture
def is_migrated() -> bool:
    """These tests migrate."""
    return False


@pytest.fixture
def old(connect: Callable[..., Database], monkeypatch: pytest.MonkeyPatch, clock: MovableClock) -> Database:
    migrate_only_to("0011", monkeypatch)
    return connect(clock=clock, create=True)


def age(database: Database, *names: str) -> None:
    """Take away what tables had not before."""
    for name in names:
        on = f" ON {name}" if database.backend.dialect.name == "mysql" else ""
        run(database, f"DROP INDEX {name}_expires_idx{on}")
        run(database, f"ALTER TABLE {name} DROP COLUMN expires_at")


def columns(database: Database, name: str) -> set[tuple[Any, ...]]:
    found = sa.inspect(database.backend.engine).get_columns(name)
    return {(one["name"], str(one["type"]), one["nullable"], one["default"]) for one in found}


def indexes(database: Database, name: str) -> set[tuple[str, tuple[Any, ...]]]:
    found = sa.inspect(database.backend.engine).get_indexes(name)
    return {(one["name"] or "", tuple(one["column_names"])) for one in found}


@pytest.mark.parametrize("options", [{}, {"groups": "sequenced"}, {"groups": "exclusive"}], ids=str)
def test_messages_of_old_tables_can_expire(
    old: Database, renew: Callable[[], Database], clock: MovableClock, options: dict[str, Any]
) -> None:
    check_that_they_expire(old, renew, clock, options)


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_messages_of_old_tables_with_partitions_can_expire(
    old: Database, renew: Callable[[], Database], clock: MovableClock
) -> None:
    check_that_they_expire(old, renew, clock, {"purge_by": "partition"})


def check_that_they_expire(
    old: Database, renew: Callable[[], Database], clock: MovableClock, options: dict[str, Any]
) -> None:
    table = old.create_table("orders", payload="text", dead_letter="dead", **options)
    group = {"group": "g"} if "groups" in options else {}
    table.put("tea", **group)
    made = {name: (columns(old, name), indexes(old, name)) for name in ("orders", "dead")}
    age(old, "orders", "dead")
    new = renew()
    assert {name: (columns(new, name), indexes(new, name)) for name in ("orders", "dead")} == made
    table = new.table("orders")
    table.put("stale", expires_at=clock.now + 1, **group)
    clock.move("1s")
    assert [one.payload for one in table.receive()] == ["tea"]
    assert table.stats().expired == 1


def test_a_migration_that_dies_after_each_of_its_steps_goes_on_where_it_was(
    old: Database, renew: Callable[[], Database]
) -> None:
    for name in ("orders", "returns"):
        old.create_table(name, payload="text").put("a")
    made = {name: (columns(old, name), indexes(old, name)) for name in ("orders", "returns")}
    age(old, "orders", "returns")
    new, deaths = killed_after_each_change(renew)
    assert deaths >= 2
    assert {name: (columns(new, name), indexes(new, name)) for name in ("orders", "returns")} == made
    for name in ("orders", "returns"):
        assert [one.payload for one in new.table(name).receive()] == ["a"]


def test_a_column_of_the_users_with_the_new_name_is_refused_before_anything_changes(
    old: Database, renew: Callable[[], Database], connect: Callable[..., Database]
) -> None:
    for name in ("a", "b"):
        old.create_table(name, payload="text").put("tea")
    age(old, "a", "b")
    run(old, "ALTER TABLE b ADD COLUMN expires_at BIGINT")
    before = columns(old, "a")
    with pytest.raises(SchemaError, match=r"'b'.*column 'expires_at' of its own; rename yours and connect again"):
        renew()
    assert columns(old, "a") == before
    run(old, "ALTER TABLE b RENAME COLUMN expires_at TO mine")
    [delivery] = connect(create=True).table("b").receive()
    assert delivery.columns == {"mine": None}


def test_an_adopted_table_gets_the_column_or_keeps_its_own_where_it_fits(
    connect: Callable[..., Database], clock: MovableClock
) -> None:
    database = connect(clock=clock, create=True)
    for name, kind in (("with", "BIGINT"), ("without", None), ("wrong", "VARCHAR(20)")):
        own = "" if kind is None else f", expires_at {kind}"
        run(
            database,
            f"CREATE TABLE {name}_it (time_scheduled BIGINT, id BIGINT NOT NULL UNIQUE, time_next BIGINT,"
            f" epoch BIGINT, time_created BIGINT, time_acked BIGINT, message TEXT{own})",
        )
    for name in ("with_it", "without_it"):
        table = database.create_table(name, payload="text", adopt=True)
        table.put("stale", id=1, expires_at=clock.now + 1)
        table.put("tea", id=2)
        clock.move("1s")
        assert [one.payload for one in table.receive()] == ["tea"]
    with pytest.raises(SchemaError, match=r"the column 'expires_at' is VARCHAR.*and Waterclock keeps"):
        database.create_table("wrong_it", payload="text", adopt=True)


def test_a_table_that_lost_the_column_says_so(connect: Callable[..., Database], clock: MovableClock) -> None:
    database = connect(clock=clock, create=True)
    table = database.create_table("orders", payload="text")
    age(database, "orders")
    with pytest.raises(SchemaError, match="lacks the column 'expires_at'; add it"):
        table.put("tea", expires_at=clock.now + 1)
