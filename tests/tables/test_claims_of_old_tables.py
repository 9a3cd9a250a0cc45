"""Tables that were made when the number of the claim was in a column ``lease``, and stayed there after the ack."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from tests.catalogues import migrate_only_to, name_groups_as_today
from tests.killed import killed_after_each_change

from waterclock.connection import Database
from waterclock.database.migrating import HEAD, catalogue_version
from waterclock.errors import SchemaError

from .conftest import MovableClock
from .plain_sql import run

NEW_NAMES = {"lease": "claim_id", "held_at": "ack_held_at"}


@pytest.fixture
def is_migrated() -> bool:
    """These tests migrate."""
    return False


@pytest.fixture
def old(connect: Callable[..., Database], monkeypatch: pytest.MonkeyPatch, clock: MovableClock) -> Database:
    migrate_only_to("0009", monkeypatch)
    database = connect(clock=clock, create=True)
    database.backend.transact(name_groups_as_today)
    return database


def age(database: Database, *names: str) -> None:
    """Give tables the columns and triggers that they had before."""
    for name in names:
        run(database, f"ALTER TABLE {name} DROP COLUMN acked_by")
        for was, new in NEW_NAMES.items():
            run(database, f"ALTER TABLE {name} RENAME COLUMN {new} TO {was}")
    if database.backend.dialect.name == "mysql":
        was = {new: old for old, new in NEW_NAMES.items()}
        for name, text in triggers(database).items():
            if "claim_id" in text:
                body = re.sub(r"\b(claim_id|ack_held_at)\b", lambda found: was[found[0]], text)
                table = name.removesuffix("_moved")
                run(database, f"CREATE OR REPLACE TRIGGER {name} BEFORE UPDATE ON {table} FOR EACH ROW {body}")


TRIGGERS = {
    "sqlite": "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'",
    "postgresql": "SELECT tgname || ' of ' || tgrelid::regclass, pg_get_triggerdef(oid) FROM pg_trigger"
    " WHERE NOT tgisinternal",
    "mysql": "SELECT trigger_name, action_statement FROM information_schema.triggers WHERE trigger_schema = DATABASE()",
}


def triggers(database: Database) -> dict[str, str]:
    with database.backend.engine.connect() as connection:
        found = connection.execute(sa.text(TRIGGERS[database.backend.dialect.name]))
        return {name: " ".join(text.replace('"', "").split()) for name, text in found}


def columns(database: Database, name: str) -> set[tuple[Any, ...]]:
    found = sa.inspect(database.backend.engine).get_columns(name)
    return {(one["name"], str(one["type"]), one["nullable"], one["default"]) for one in found}


def claims(database: Database, name: str) -> dict[str, tuple[Any, Any, bool]]:
    """Give claim_id, acked_by and whether it is acked, by payload."""
    statement = sa.text(f"SELECT message, claim_id, acked_by, time_acked FROM {name}")  # noqa: S608  # a name of ours
    with database.backend.engine.connect() as connection:
        return {one.message: (one[1], one[2], one[3] is not None) for one in connection.execute(statement)}


@pytest.mark.parametrize(
    "options",
    [{}, {"groups": "sequenced", "ack_order": "hold"}, {"groups": "exclusive"}],
    ids=["ungrouped", "hold", "exclusive"],
)
def test_numbers_of_claims_go_where_they_belong(old: Database, renew: Callable[[], Database], options: Any) -> None:
    table = old.create_table("orders", payload="text", dead_letter="dead", **options)
    states = {
        "waiting": (None, False),
        "leased": (11, False),
        "acked": (12, True),
        "acked by id": (None, True),
        "acked in a group": (-13, True),
        "acked no more": (-14, False),
    }
    table.put_many([{"payload": one, **({"group": one} if options else {})} for one in states])
    assert len(table.receive(99)) == len(states)
    age(old, "orders", "dead")
    for state, (number, acked) in states.items():
        run(old, "UPDATE orders SET lease = :number WHERE message = :state", number=number, state=state)
        if acked:
            run(old, "UPDATE orders SET time_acked = 5, time_next = NULL WHERE message = :state", state=state)
    run(old, "UPDATE waterclock_consumers SET lease_until = 1")  # the consumer of before is gone
    new = renew()
    assert claims(new, "orders") == {
        "waiting": (None, None, False),
        "leased": (11, None, False),
        "acked": (None, 12, True),
        "acked by id": (None, None, True),
        "acked in a group": (None, 13, True),
        "acked no more": (None, None, False),
    }
    table = new.table("orders")
    table.put_many([{"payload": "new", **({"group": "new"} if options else {})}])
    deliveries = table.receive(99)
    assert "new" in [one.payload for one in deliveries]
    assert table.ack(deliveries) == len(deliveries)
    fresh = new.create_table("fresh", payload="text", dead_letter="fresh_dead", **options)
    assert columns(new, "orders") == {
        tuple(str(part).replace("fresh", "orders") if isinstance(part, str) else part for part in one)
        for one in columns(new, fresh.name)
    }
    made = triggers(new)
    for name in [name for name in made if "fresh" in name]:
        assert (
            made[name].replace("fresh_dead", "dead").replace("fresh", "orders")
            == made[name.replace("fresh_dead", "dead").replace("fresh", "orders")]
        )


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_partitions_are_migrated_with_their_table(
    old: Database, renew: Callable[[], Database], clock: MovableClock
) -> None:
    table = old.create_table(
        "orders", payload="text", purge_by="partition", purge_after="1d", groups="sequenced", ack_order="hold"
    )
    for payload in ("a", "b"):
        table.put(payload, group="g")
    run(old, "UPDATE orders SET claim_id = -7, time_acked = 5 WHERE message = 'a'")
    age(old, "orders")
    table = renew().table("orders")
    assert claims(old, "orders") == {"a": (None, 7, True), "b": (None, None, False)}
    [delivery] = table.receive(9)
    delivery.ack()
    assert table.stats().acked == 2
    clock.move("3d")
    assert table.purge() == 2  # which also makes partitions for the days that come
    table.put("c", group="g")
    [delivery] = table.receive()
    delivery.ack()
    assert table.stats().acked == 1


def test_an_ack_held_back_and_an_adopted_table_are_migrated(old: Database, renew: Callable[[], Database]) -> None:
    run(
        old,
        "CREATE TABLE mine (time_scheduled BIGINT, id BIGINT NOT NULL UNIQUE, time_next BIGINT,"
        " epoch BIGINT, time_created BIGINT, time_acked BIGINT, message TEXT, own BIGINT)",
    )
    run(old, "INSERT INTO mine (id, message, own) VALUES (1, 'a', 5)")
    old.create_table("mine", payload="text", adopt=True)
    table = old.create_table("orders", payload="text", groups="sequenced", ack_order="hold")
    for payload in ("a", "b"):
        table.put(payload, group="g")
    first, second = table.receive(9)
    second.ack()
    age(old, "orders", "mine")
    new = renew()
    assert (new.table("orders").stats().held, new.table("orders").stats().in_flight) == (1, 1)
    first.ack()
    assert new.table("orders").stats().acked == 2
    [delivery] = new.table("mine").receive()
    delivery.ack()
    assert (delivery.columns, new.table("mine").stats().acked) == ({"own": 5}, 1)


def test_a_migration_that_dies_after_each_of_its_steps_goes_on_where_it_was(
    old: Database, renew: Callable[[], Database]
) -> None:
    for name in ("orders", "returns"):
        table = old.create_table(name, payload="text", groups="sequenced", ack_order="hold")
        table.put("a", group="g")
        run(old, f"UPDATE {name} SET claim_id = -7, time_acked = 5")  # noqa: S608  # a name of ours
    made = triggers(old)
    age(old, "orders", "returns")
    new, deaths = killed_after_each_change(renew)
    assert deaths >= 10
    assert triggers(new) == made
    for name in ("orders", "returns"):
        assert claims(new, name) == {"a": (None, 7, True)}
        new.table(name).put("b", group="g")
        [delivery] = new.table(name).receive()
        delivery.ack()


@pytest.mark.parametrize("taken", ["claim_id", "ack_held_at", "acked_by"])
def test_a_column_of_the_users_with_one_of_the_new_names_is_refused_before_anything_changes(
    old: Database, renew: Callable[[], Database], connect: Callable[..., Database], taken: str
) -> None:
    for name in ("a", "b"):
        old.create_table(name, payload="text").put("tea")
    age(old, "a", "b")
    run(old, f"ALTER TABLE b ADD COLUMN {taken} BIGINT")
    before = columns(old, "a")
    with pytest.raises(SchemaError, match=f"'b'.*column '{taken}' of its own; rename yours and connect again"):
        renew()
    assert columns(old, "a") == before
    run(old, f"ALTER TABLE b RENAME COLUMN {taken} TO mine")
    new = connect(create=True)
    with new.backend.snapshot() as connection:
        assert catalogue_version(connection) == HEAD
    [delivery] = new.table("b").receive()
    assert delivery.columns == {"mine": None}
