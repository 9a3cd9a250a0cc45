from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from inspect import signature
from typing import Any

import pytest
import sqlalchemy as sa

from waterclock.connection import Database
from waterclock.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, SchemaError
from waterclock.tables.message_table import MessageTable
from waterclock.tables.model.options import MOST, TableOptions

SECOND = 1_000_000_000


def test_options_are_as_passed_or_as_documented(database: Database) -> None:
    database.create_table("orders", ack_wait="1m", batch_size=7)
    options = database.table("orders").options
    assert (options.ack_wait, options.batch_size) == (60 * SECOND, 7)
    assert (options.purge_after, options.cache_size) == (86_400 * SECOND, 10_000)
    assert options.poll_interval == 30 * SECOND


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("ack_wait", "0s"),
        ("ack_wait", "-1s"),
        ("ack_wait", "soon"),
        ("purge_after", 1.5),
        ("batch_size", 0),
        ("batch_size", MOST + 1),
        ("max_attempts", MOST + 1),
        ("batch_size", True),
        ("cache_size", "many"),
        ("poll_interval", 0),
        ("min_backoff", "0s"),
        ("max_backoff", "1s"),
        ("jitter", 1),
        ("jitter", float("nan")),
        ("groups", "sometimes"),
        ("group_header", ""),
        ("id_type", "int"),
        ("payload", "xml"),
        ("columns", {"id": "text"}),
        ("columns", {"payload": "text"}),
        ("columns", {"colour": "rainbow"}),
    ],
)
def test_an_invalid_option_is_refused_by_name(make_table: Callable[..., MessageTable], option: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"^{option}.*{value if isinstance(value, str) else ''}"):
        make_table(**{option: value})


def test_an_option_that_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match=r"no option named 'nonsense'; the options are ack_wait"):
        TableOptions.check(nonsense=1)


def test_the_defaults_of_the_options_are_those_of_create_table() -> None:
    created = signature(Database.create_table).parameters
    for option in fields(TableOptions):
        assert option.metadata["default"] == created[option.name].default, option.name


@pytest.mark.one_database
@pytest.mark.parametrize("name", ["", "a b", "a.b", 'a"b', "1st", "waterclock_x", "sqlite_x", "x" * 49, None])
def test_a_name_that_plain_sql_could_not_use_is_refused(database: Database, name: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^name must "):
        database.create_table(name)


def test_a_reserved_word_can_name_a_table(make_table: Callable[..., MessageTable]) -> None:
    table = make_table("order")
    table.put("tea")
    assert [delivery.payload for delivery in table.receive()] == ["tea"]


def test_a_table_is_created_once(make_table: Callable[..., MessageTable], database: Database) -> None:
    make_table(ack_wait="1m")
    with pytest.raises(AlreadyExistsError, match="orders"):
        make_table()
    with pytest.warns(UserWarning, match="ack_wait is '1m', not '2m'"):
        assert make_table(ack_wait="2m", exist_ok=True).options.ack_wait == 60 * SECOND
    assert database.tables() == ["orders"]


@pytest.mark.one_database
@pytest.mark.parametrize("adopt", [False, True])
def test_an_existing_table_with_other_options_is_returned_with_a_warning(database: Database, adopt: bool) -> None:
    database.create_table("orders", payload="json", max_attempts=3, dead_letter="failed", columns={"region": "text"})
    with pytest.warns(UserWarning, match="already exists and keeps its options") as warned:
        database.create_table(
            "orders", payload="text", max_attempts=3, columns={"region": "bigint"}, adopt=adopt, exist_ok=True
        )
    assert [str(each.message) for each in warned] == [
        "message table 'orders' already exists and keeps its options: payload is 'json', not 'text';"
        " columns is {'region': 'text'}, not {'region': 'bigint'}. To change them, call alter()"
    ]
    assert warned[0].filename == __file__


def test_an_unknown_table_cannot_be_opened(database: Database) -> None:
    with pytest.raises(NotFoundError, match="'orders'"):
        database.table("orders")


def test_a_table_that_was_dropped_outside_is_named(orders: MessageTable, database: Database) -> None:
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE orders"))
    with pytest.raises(SchemaError, match=r"'orders'.*missing"):
        database.table("orders")


def test_a_missing_column_is_named(orders: MessageTable, database: Database) -> None:
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE orders RENAME COLUMN headers TO notes"))
    with pytest.raises(SchemaError, match="'headers'"):
        database.table("orders")


def test_a_missing_option_is_named(orders: MessageTable, database: Database) -> None:
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text("UPDATE waterclock_message_tables SET options = '{\"ack_wait\": 1}'"))
    with pytest.raises(SchemaError, match="'purge_after'"):
        database.table("orders")
