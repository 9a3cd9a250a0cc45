"""The page shows the statements that run, and the tables as they are."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from tests.sql.comments import COMMENTS
from tests.sql.page import DATABASES, PAGE, parts_of, recorded_parts, written
from tests.sql.schema import catalogue_tables, message_table

from waterclock.database.schema.catalogue import metadata

pytestmark = pytest.mark.both_servers

ANEW = "docs/sql.md is not what runs: run `make sql`, and look at the difference"


def test_the_page_shows_the_statements_that_run(database_url: str, request: pytest.FixtureRequest) -> None:
    database = request.node.callspec.params["database_url"]
    shown = {part: text for part, text in parts_of(PAGE.read_text()).items() if part[1] == DATABASES[database]}
    assert recorded_parts(database_url, database) == shown, ANEW


def test_the_rest_of_the_page_equals_a_fresh_one() -> None:
    page = PAGE.read_text()
    assert written(parts_of(page)) == page, ANEW


def test_each_call_sends_more_than_the_frame_of_a_transaction() -> None:
    frame = ("--", "PRAGMA", "BEGIN", "SET TRANSACTION", "SET LOCAL", "COMMIT")
    for part, text in parts_of(PAGE.read_text()).items():
        assert [line for line in text.splitlines() if line and not line.startswith(frame)], part


@pytest.mark.parametrize("pattern", COMMENTS)
def test_each_comment_stands_above_a_clause(pattern: str) -> None:
    comment = f"-- {COMMENTS[pattern]}\n"
    assert comment in PAGE.read_text(), f"no line matches {pattern!r}; change the pattern, or remove its comment"


@pytest.mark.parametrize("table", [*catalogue_tables(), message_table()], ids=lambda table: table.name)
def test_each_column_has_a_meaning(table: sa.Table) -> None:
    assert [column.name for column in table.columns if not column.doc] == []


def test_no_table_of_the_catalogue_is_left_out() -> None:
    assert {table.name for table in catalogue_tables()} == set(metadata.tables)
