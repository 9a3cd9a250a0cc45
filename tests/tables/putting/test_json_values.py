"""JSON comes back equal from every database, or no database is asked."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.dialects import postgresql
from tests.tables.conftest import MovableClock
from tests.tables.options.plain_sql import run

from waterclock.connection import Database
from waterclock.errors import InvalidArgumentError
from waterclock.tables.model.values.json_values import MAX_DEPTH, check_json, check_jsonb

pytestmark = pytest.mark.both_servers

ON_POSTGRESQL = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)

numbers = st.integers() | st.integers(-(10**40), 10**40) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)
EDGES: list[Any] = [
    *(1e23, -0.0, 0.0, 1.0, 1, 1e16, -1e-7, 5e-324, 1.7976931348623157e308, 0.1 + 0.2, -3.4463320590335882e-292),
    *(2**53 + 1, 2**63, -(2**63) - 1, 10**400, 10**4299, "", "1e23", "null", "\u2028", "😀", None, True, [], {}),
    *({"b": 1, "a": {"bb": 1, "c": 2}}, {"": 0}, {"": -0.0, "é": [1, 1.0]}, {"a": "\\u0000 and \\ud800"}),
]


def nested(depth: int, inner: Any = ()) -> Any:
    value = inner
    for _ in range(depth):
        value = [value]
    return value


def spelled(value: Any) -> str:
    """Spell a value so that two are the same text only if types, signs and the order of keys are the same."""
    return json.dumps(value)


class Shade(enum.StrEnum):
    DARK = "dark"


@dataclass
class Order:
    weight: float
    note: str


def check_ways(database: Database, found: list[Any]) -> None:
    """Put values in every way, and compare what comes back."""
    table = database.table("orders")
    for number, value in enumerate(found):
        table.schedule(str(number), cron="0 0 1 1 *", payload=value)
    listed = {one.name: spelled(one.payload) for one in table.schedules()}
    assert listed == {str(number): spelled(value) for number, value in enumerate(found)}
    ids = [*table.put_many([{"payload": value, "extra": value} for value in found]), table.put(found, extra=found)]
    ids += [table.schedules.run(str(number)) for number in range(len(found))]
    put = dict(zip(ids, map(spelled, [*found, found, *found]), strict=True))
    with_extra = {one: put[one] for one in ids[: len(found) + 1]}
    for is_last in (False, True):
        deliveries = table.receive(100)
        assert {one.id: spelled(one.payload) for one in deliveries} == put
        assert {one.id: spelled(one.columns["extra"]) for one in deliveries if one.id in with_extra} == with_extra
        if is_last:
            break
        for one in deliveries:
            one.dead_letter("to be redriven")
        assert {one["id"]: spelled(one["payload"]) for one in table.dead_letters(100)} == put
        assert table.redrive() == len(put)
    for name in ("orders", "orders_dead"):
        run(database, f"DELETE FROM {name}")  # noqa: S608  # names of ours
    table.schedules.keep([])


def test_json_comes_back_equal_whichever_way_it_goes(database: Database) -> None:
    columns = {"extra": "json"}
    database.create_table("orders", payload="json", columns=columns, batch_size=100, dead_letter="orders_dead")
    check_ways(database, EDGES)
    settings(max_examples=settings.default.max_examples // 8)(
        given(st.lists(values, min_size=1, max_size=15))(lambda found: check_ways(database, found))
    )()


@pytest.mark.one_database
@given(values)
def test_any_json_value_is_taken(value: Any) -> None:
    check_json("payload", value)


def test_json_is_taken_up_to_one_depth_by_every_database(database: Database) -> None:
    table = database.create_table("orders", payload="json")
    deepest = nested(MAX_DEPTH - 1, {"a": 1})
    table.put(deepest)
    assert [one.payload for one in table.receive()] == [deepest]
    for deeper in ([deepest], nested(MAX_DEPTH, {}), nested(100_000)):
        with pytest.raises(InvalidArgumentError, match=r"^payload must be JSON of at most 31 nested levels, got "):
            table.put(deeper)


@pytest.mark.one_database
@pytest.mark.parametrize("make", [list, tuple])
def test_only_nesting_counts_as_depth(make: Callable[[Any], Any]) -> None:
    check_json("payload", make([[]] * 100 + ["[" * 100, "{" * 100, {"[" * 100: make([1])}]))


@pytest.mark.one_database
@pytest.mark.parametrize(
    "value", [{1: "a"}, {1: "a", "1": "b"}, [{None: 1}], {True: 1}, {1.5: 1}, {"a": {2: []}}, {(1, 2): 3}]
)
def test_a_key_that_is_not_text_is_refused(database: Database, value: Any) -> None:
    table = database.create_table("orders", payload="json", columns={"extra": "json"})
    with pytest.raises(InvalidArgumentError, match=r"^payload must .*key"):
        table.put(value)
    with pytest.raises(InvalidArgumentError, match=r"^extra must .*key"):
        table.put(1, extra=value)


@pytest.mark.one_database
def test_types_that_json_writes_as_a_list_or_a_text_are_accepted(database: Database) -> None:
    table = database.create_table("orders", payload="json")
    table.put({"pair": (1, (2, 3)), Shade.DARK: Shade.DARK})
    assert [one.payload for one in table.receive()] == [{"pair": [1, [2, 3]], "dark": "dark"}]


@pytest.mark.one_database
def test_a_schedule_keeps_the_json_of_an_object_and_its_keys_in_their_order(database: Database) -> None:
    table = database.create_table("orders", payload="json")
    table.schedule("daily", cron="@daily", payload=Order(-0.0, "x"))
    assert spelled(table.schedules()[0].payload) == '{"weight": -0.0, "note": "x"}'


@pytest.mark.one_database
def test_a_schedule_changes_with_the_value_and_not_with_the_order_of_keys(
    database: Database, clock: MovableClock
) -> None:
    table = database.create_table("orders", payload="json")
    seen: list[int | None] = []
    for payload in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1.0, "b": 2}):
        table.schedule("daily", cron="* * * * *", payload=payload)
        seen.append(table.schedules()[0].next_tick)
        clock.move("10m")
    assert seen[0] == seen[1] != seen[2]


@ON_POSTGRESQL
@pytest.mark.parametrize("value", [1e23, [{"a": -0.0}], -1e16, 1.5e300])
def test_a_column_of_jsonb_refuses_what_it_would_change(database: Database, value: Any) -> None:
    database.create_table("orders", payload="json", columns={"extra": postgresql.JSONB(), "declared": "json"})
    for name in ("message", "declared"):
        run(database, f"ALTER TABLE orders ALTER COLUMN {name} TYPE jsonb USING {name}::jsonb")
    table = database.table("orders")
    for message in ({"payload": value}, {"payload": 1, "extra": value}, {"payload": 1, "declared": value}):
        with pytest.raises(InvalidArgumentError, match=r" must not contain the float "):
            table.put_many([message])


@ON_POSTGRESQL
def test_a_column_of_jsonb_returns_all_else_equal(database: Database) -> None:
    columns = {"extra": postgresql.JSONB()}
    database.create_table("orders", payload="json", columns=columns, batch_size=100, dead_letter="orders_dead")
    for name in ("orders", "orders_dead"):
        run(database, f"ALTER TABLE {name} ALTER COLUMN message TYPE jsonb USING message::jsonb")
    kept = [value for value in EDGES if _is_kept(value)]
    assert len(kept) > 20
    table = database.table("orders")
    table.put_many([{"payload": value, "extra": value} for value in kept])
    for is_last in (False, True):
        deliveries = table.receive(100)
        for one, value in zip(deliveries, kept, strict=True):
            for back in (one.payload, one.columns["extra"]):
                assert json.dumps(back, sort_keys=True) == json.dumps(value, sort_keys=True)
            one.dead_letter("to be redriven")
        assert is_last or table.redrive() == len(kept)


def _is_kept(value: Any) -> bool:
    try:
        check_jsonb("value", value)
    except InvalidArgumentError:
        return False
    return True


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_column_that_is_declared_json_on_sqlite_refuses_what_it_would_change(database: Database) -> None:
    table = database.create_table("orders", payload="json", columns={"extra": sa.JSON(), "declared": "json"})
    run(database, "ALTER TABLE orders DROP COLUMN declared")
    run(database, "ALTER TABLE orders ADD COLUMN declared JSON")
    table = database.table("orders")
    for value in (1.0, -0.0, 0.1, 2**63):
        for name in ("extra", "declared"):
            with pytest.raises(InvalidArgumentError, match=f"^{name} must be JSON that SQLite stores unchanged"):
                table.put_many([{"payload": 1, name: value}])
    for value in ([1.0, -0.0, 2**63], {"a": 1e23}, 2**63 - 1, "1.0", "x", True):
        table.put(1, extra=value, declared=value)
        [delivery] = table.receive()
        assert {name: spelled(back) for name, back in delivery.columns.items()} == {
            "extra": spelled(value),
            "declared": spelled(value),
        }
        delivery.ack()
