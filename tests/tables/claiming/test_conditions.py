from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tables.claiming.written_conditions import written

from waterclock.connection import Database
from waterclock.errors import InvalidArgumentError
from waterclock.tables.catalogue.condition_sql import Binder
from waterclock.tables.databases.sqlite.tables import SqliteTables
from waterclock.tables.message_table import MessageTable
from waterclock.tables.model import condition as tree
from waterclock.tables.model.condition_parser import DEEPEST, LONGEST, MOST, parse_condition, parse_order

MakeTable = Callable[..., MessageTable]

COLUMNS = {"amount": sa.BigInteger(), "price": sa.Double(), "region": sa.Text(), "urgent": sa.Boolean()}
THINGS = sa.Table("things", sa.MetaData(), *(sa.Column(name, kind) for name, kind in COLUMNS.items()))

numbers = st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1))
floats = st.floats(-5, 5, allow_nan=False)
texts = st.text(st.sampled_from("aAbB%_*?[]'\\é "), max_size=4)
names = {"amount": numbers, "price": floats, "region": texts, "urgent": st.booleans()}


@st.composite
def predicates(draw: st.DrawFn) -> tree.Condition:
    name = draw(st.sampled_from(sorted(COLUMNS)))
    column, negated = tree.Column(name), draw(st.booleans())
    value = names[name].map(tree.Constant)
    comparators = ["=", "<>"] if name == "urgent" else ["=", "<>", "<", "<=", ">", ">="]
    kinds = [
        "compare",
        "in",
        "null",
        *([] if name == "urgent" else ["between"]),
        *(["like"] if name == "region" else []),
    ]
    match draw(st.sampled_from(kinds)):
        case "compare":
            sides = (column, draw(value)) if draw(st.booleans()) else (draw(value), column)
            return tree.Compare(sides[0], draw(st.sampled_from(comparators)), sides[1])
        case "in":
            return tree.In(column, tuple(draw(st.lists(value, min_size=1, max_size=3))), negated)
        case "null":
            return tree.IsNull(column, negated)
        case "between":
            return tree.Between(column, draw(value), draw(value), negated)
        case _:
            return tree.Like(column, draw(value), negated)


def many(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(inner, min_size=2, max_size=3).map(tuple)


conditions = st.recursive(
    predicates(),
    lambda inner: st.one_of(inner.map(tree.Not), many(inner).map(tree.All), many(inner).map(tree.Any)),
    max_leaves=8,
)
rows = st.fixed_dictionaries({name: st.none() | values for name, values in names.items()})


def judge(condition: tree.Condition, row: dict[str, Any]) -> bool | None:  # noqa: C901  # one case each
    """Decide by SQL's three-valued logic, as the standard has it."""

    def value(operand: tree.Operand) -> Any:
        return row[operand.name] if isinstance(operand, tree.Column) else operand.value  # type: ignore[union-attr]

    def compare(left: Any, sign: str, right: Any) -> bool | None:
        if left is None or right is None:
            return None
        return {
            "=": left == right,
            "<>": left != right,
            "<": left < right,
            "<=": left <= right,
            ">": left > right,
            ">=": left >= right,
        }[sign]

    match condition:
        case tree.Compare(left, sign, right):
            found = compare(value(left), sign, value(right))
        case tree.In(subject, members, negated):
            each = [compare(value(subject), "=", value(one)) for one in members]
            found = either(each)
            found = opposite(found) if negated else found
        case tree.Between(subject, low, high, negated):
            found = both([compare(value(subject), ">=", value(low)), compare(value(subject), "<=", value(high))])
            found = opposite(found) if negated else found
        case tree.Like(subject, pattern, negated):
            text, wanted = value(subject), value(pattern)
            words = "".join({"%": ".*", "_": "."}.get(sign, re.escape(sign)) for sign in wanted)
            found = None if text is None else re.fullmatch(words, text, re.DOTALL) is not None
            found = opposite(found) if negated else found
        case tree.IsNull(subject, negated):
            found = (value(subject) is None) != negated
        case tree.Not(inner):
            found = opposite(judge(inner, row))
        case tree.All(parts):
            found = both([judge(part, row) for part in parts])
        case tree.Any(parts):
            found = either([judge(part, row) for part in parts])
    return found


def opposite(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def both(truths: list[bool | None]) -> bool | None:
    return False if False in truths else None if None in truths else True


def either(truths: list[bool | None]) -> bool | None:
    return True if True in truths else None if None in truths else False


def bind(condition: tree.Condition, text: str = "", parameters: dict[str, object] | None = None) -> Any:
    columns = {column.name: column for column in THINGS.columns}
    return Binder("where", text, columns, parameters or {}, SqliteTables().like).condition(condition)


@given(conditions)
def test_a_condition_that_is_written_and_read_is_the_same(condition: tree.Condition) -> None:
    assert parse_condition(written(condition)) == condition


@pytest.fixture(scope="module")
def things() -> Any:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        THINGS.create(connection)
        yield connection


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(conditions, st.lists(rows, min_size=1, max_size=5))
def test_a_database_chooses_what_the_standard_says(
    things: sa.Connection, condition: tree.Condition, data: list[dict[str, Any]]
) -> None:
    things.execute(sa.delete(THINGS))
    things.execute(sa.insert(THINGS), data)
    bound = bind(parse_condition(written(condition)))
    chosen = things.execute(sa.select(THINGS).where(bound)).mappings().all()
    assert [dict(row) for row in chosen] == [row for row in data if judge(condition, row)]


signs = ['"', "'", "(", ")", ",", "=", "<>", "-", ".", "é", "\0", "\ud800", ";", "--", "\n", ":"]
words = ["amount", "region", "AND", "or", "NOT", "IN", "BETWEEN", "LIKE", "IS", "NULL", "TRUE", "nothing"]
pieces = st.sampled_from([*signs, *words, ":x", "1", "1e999", "'eu'", "9" * 400])


@given(st.one_of(st.text(), st.lists(pieces, max_size=25).map(" ".join), st.lists(pieces, max_size=25).map("".join)))
def test_no_text_does_anything_but_be_understood_or_be_refused(text: str) -> None:
    for read in (lambda: bind(parse_condition(text), text, {"x": 1}), lambda: parse_order(text)):
        with suppress(InvalidArgumentError):
            read()


@pytest.mark.parametrize(
    ("text", "problem", "caret"),
    [
        ("", "expected a column, a value or a :parameter, got the end", 0),
        ("region", "expected a comparison, got the end", 6),
        ("region = 'eu' amount", "expected the end, AND or OR, got 'amount'", 14),
        ("(region = 'eu'", "expected ), got the end", 14),
        ("region = 'eu", "this ' is not closed", 9),
        ("region = NULL", "write IS NULL", 9),
        ("regio = 'eu'", "no column named 'regio'; the columns are amount, price, region, urgent", 0),
        ("region = 5", "'region' holds text and cannot be compared with the int 5", 9),
        ("amount = 'five'", "'amount' holds numbers and cannot be compared with the str 'five'", 9),
        ("amount IN (1, region)", "'amount' holds numbers and cannot be compared with 'region', which holds text", 14),
        ("urgent = 1", "'urgent' holds booleans and cannot be compared with the int 1", 9),
        ("urgent < TRUE", "'urgent' holds booleans, which does not support this comparison", 0),
        ("amount LIKE 'a'", "LIKE needs a text column, but 'amount' holds numbers", 0),
        ("amount = :most", "no parameter named 'most'; parameters= has x", 9),
        ("1 = 1", "expected a column", 4),
        ("amount = 99999999999999999999", "is too large for any column", 9),
        ("amount; DROP TABLE things", "unexpected character ';'", 6),
        ("amount NOT 3", "expected IN, BETWEEN or LIKE, got '3'", 11),
    ],
)
def test_the_place_of_an_error_is_shown(text: str, problem: str, caret: int) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        bind(parse_condition(text), text, {"x": 1})
    first, line, mark = str(refused.value).split("\n")
    assert first.startswith("where: ")
    assert problem in first
    assert line == f"  {text}"
    assert mark == " " * (caret + 2) + "^"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("(" * (DEEPEST + 1), f"more than {DEEPEST} levels deep"),
        (" OR ".join(["amount = 1"] * (MOST + 1)), f"more than {MOST} comparisons"),
        ("a" * (LONGEST + 1), f"got {LONGEST + 1} characters"),
        (5, "must be a string .*5"),
    ],
)
def test_values_that_no_database_accepts_are_refused_before_it_sees_them(text: object, problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        parse_condition(text)


@pytest.mark.parametrize(("text", "caret"), [("", 0), ("amount DOWN", 7), ("amount,", 7), ("1", 0)])
def test_an_order_that_is_none_is_shown_in_its_place(text: str, caret: int) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^order: ") as refused:
        parse_order(text)
    assert str(refused.value).split("\n")[2] == " " * (caret + 2) + "^"


@pytest.fixture
def sales(make_table: MakeTable) -> MessageTable:
    columns = {"region": "text", "amount": "bigint", "price": "double", "urgent": "boolean", "facts": "json"}
    table = make_table(columns=columns)
    table.put_many(
        [
            {"payload": "a", "region": "eu", "amount": 5, "price": 1.5, "urgent": True},
            {"payload": "b", "region": "us", "amount": 3, "price": 2.5, "urgent": False},
            {"payload": "c", "region": "EU", "amount": 9, "price": 0.5, "urgent": True, "priority": 2},
            {"payload": "d", "region": "eu\\1", "amount": 7},
            {"payload": "e", "amount": 1, "group": "g"},
        ]
    )
    return table


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("region = 'eu'", "a"),
        ("region LIKE 'e%'", "ad"),
        ("region LIKE 'eu\\_'", "d"),
        ("region NOT LIKE 'e%'", "bc"),
        ("region IS NULL OR urgent = TRUE", "ace"),
        ("NOT (region = 'eu')", "bcd"),
        ("region IN ('eu', :other) AND amount > :min", "ab"),
        ("price BETWEEN 1 AND 2.5", "ab"),
        ("amount > price AND price < 1", "c"),
        ("priority >= 1 OR id = 5", "ce"),
        ("group_id = 'g' AND epoch = 0 AND time_created > 0 AND time_scheduled > 0", "e"),
    ],
)
def test_a_consumer_receives_messages_that_match_an_sql_condition(
    sales: MessageTable, where: str, expected: str
) -> None:
    parameters = {"other": "us", "min": 2} if ":" in where else None
    received = sales.receive(100, where=where, parameters=parameters)
    assert sorted(one.payload for one in received) == list(expected)


def test_a_consumer_receives_in_its_own_order_with_nothing_last(sales: MessageTable) -> None:
    assert [one.payload for one in sales.receive(2, order="priority DESC, amount")] == ["c", "e"]
    assert [one.payload for one in sales.receive(order="price DESC")] == ["b", "a", "d"]


def test_ids_are_compared_by_their_type(make_table: MakeTable) -> None:
    table = make_table(id_type="uuid")
    first, second = table.put_many([{"payload": "a"}, {"payload": "b"}])
    [one] = table.receive(where="id = :wanted", parameters={"wanted": second})
    [other] = table.receive(where=f"id = '{first}'")
    assert (one.payload, other.payload) == ("b", "a")
    with pytest.raises(InvalidArgumentError, match="'id' holds UUIDs"):
        table.receive(where="id = 'five'")


@pytest.mark.one_database
def test_invalid_or_unused_names_are_refused(sales: MessageTable) -> None:
    for where in ("headers IS NULL", "message = 'x'", "claim_id IS NULL", "acked_by IS NULL", "ack_held_at IS NULL"):
        with pytest.raises(InvalidArgumentError, match="no column named"):
            sales.receive(where=where)
    with pytest.raises(InvalidArgumentError, match="'facts' holds json"):
        sales.receive(where="facts = 'x'")
    with pytest.raises(InvalidArgumentError, match="got the unused min"):
        sales.subscribe(where="amount > 3", parameters={"min": 3})
    with pytest.raises(InvalidArgumentError, match=r"^parameters must be a dict"):
        sales.receive(where="amount > 3", parameters=[3])  # type: ignore[arg-type]


@pytest.mark.one_database
def test_a_table_with_groups_refuses_a_choice_that_would_break_their_order(sequenced: MessageTable) -> None:
    for choice in ({"where": "id = 1"}, {"order": "id"}):
        with pytest.raises(InvalidArgumentError, match="that would break the order of its groups"):
            sequenced.receive(**choice)


def test_a_subscriber_waits_for_the_next_of_its_own_messages(connect: Callable[..., Database]) -> None:
    table = connect().create_table("orders", payload="text", columns={"region": "text"}, poll_interval="1h")
    table.put("not mine", region="us")
    table.put("mine", region="eu", at=time.time_ns() + 100_000_000)
    with table.subscribe(where="region = 'eu'") as deliveries:
        assert next(deliveries).payload == "mine"
    assert table.stats().ready == 1


def test_a_subscribers_selection_survives_added_and_removed_columns(sales: MessageTable, database: Database) -> None:
    with sales.subscribe(where="region = 'eu'") as deliveries:
        next(deliveries).ack()
        with database.backend.engine.begin() as connection:
            connection.execute(sa.text("ALTER TABLE orders DROP COLUMN region"))
        database.table("orders").put("f")
        with pytest.raises(InvalidArgumentError, match="no column named 'region'"):
            next(deliveries)
