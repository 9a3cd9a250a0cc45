"""Laying a statement out moves its words and changes none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.sql.layout import WIDTH, laid_out

NAMES = st.sampled_from(["orders.id", "`position`", '"end"', "'a (text), FROM'", ":now", "%(count)s::BIGINT", "?", "*"])
WORDS = st.sampled_from(
    [
        "SELECT",
        "FROM",
        "WHERE",
        "AND",
        "OR",
        "CASE",
        "WHEN",
        "ELSE",
        "END",
        "UPDATE",
        "SET",
        "VALUES",
        "WITH",
        "ON",
        ",",
    ]
)


def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(inner, max_size=12).map(lambda parts: f"({' '.join(parts)})")


STATEMENTS = st.lists(st.recursive(NAMES | WORDS, nested, max_leaves=40), min_size=1, max_size=30).map(" ".join)


@given(STATEMENTS)
def test_nothing_but_white_space_is_changed(statement: str) -> None:
    assert laid_out(statement).split() == laid_out(laid_out(statement)).split()
    assert "".join(laid_out(statement).split()) == "".join(statement.split())


def test_a_short_clause_is_a_line() -> None:
    statement = "SELECT orders.id FROM orders \nWHERE orders.seq = ? AND orders.claim_id = ?"
    assert laid_out(statement).splitlines() == [
        "SELECT orders.id",
        "FROM orders",
        "WHERE orders.seq = ? AND orders.claim_id = ?",
    ]


def test_a_long_condition_has_a_line_for_each_part() -> None:
    parts = [f"orders.column_{number} = %(value_{number})s" for number in range(4)]
    lines = laid_out(f"DELETE FROM orders WHERE {' AND '.join(parts)}").splitlines()  # noqa: S608  # never run
    assert lines == ["DELETE FROM orders", f"WHERE {parts[0]}", *(f"    AND {part}" for part in parts[1:])]


def test_a_query_within_a_query_stands_below_its_bracket() -> None:
    inner = "SELECT other.seq FROM orders AS other WHERE other.time_acked IS NULL AND other.time_next IS NOT NULL"
    lines = laid_out(f"SELECT orders.id FROM orders WHERE orders.seq IN ({inner})").splitlines()  # noqa: S608  # never run
    assert lines[2:] == [
        "WHERE orders.seq IN (",
        "    SELECT other.seq",
        "    FROM orders AS other",
        "    WHERE other.time_acked IS NULL AND other.time_next IS NOT NULL",
        ")",
    ]


def test_a_text_is_not_taken_for_clauses() -> None:
    statement = f"SELECT '{'FROM ' * WIDTH}' FROM orders"  # noqa: S608  # never run
    assert laid_out(statement).count("\nFROM") == 1
