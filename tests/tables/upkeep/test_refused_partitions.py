"""Purging by partitions on PostgreSQL where it refuses some statements: a publication, a user's trigger."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from tests.tables.conftest import MovableClock
from tests.tables.options.plain_sql import run

from waterclock.connection import Database
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.upkeep.purging import purge_undated
from waterclock.tables.model.days import DAY

pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


@pytest.fixture
def by_day(make_table: Callable[..., MessageTable]) -> MessageTable:
    return make_table(purge_by="partition", purge_after="1d")


def put_numbers(table: MessageTable, *ids: int) -> None:
    table.put_many([{"payload": str(number), "id": number} for number in ids])


def acked_parts(table: MessageTable) -> set[str]:
    with table.context.backend.engine.connect() as connection:
        parts = sa.text("SELECT tableoid::regclass::text FROM orders WHERE time_acked IS NOT NULL")
        return set(connection.scalars(parts))


def test_a_publication_of_all_tables_refuses_no_ack_and_no_purge(
    by_day: MessageTable, database: Database, clock: MovableClock
) -> None:
    run(database, "CREATE PUBLICATION every FOR ALL TABLES")
    put_numbers(by_day, 1, 2)
    by_day.ack(1)
    clock.move("30d")
    by_day.ack(2)
    assert by_day.purge() == 1
    assert acked_parts(by_day) == {f"orders_{clock.now // DAY}"}
    clock.move("30d")
    assert by_day.purge() == 1


def test_messages_of_no_day_that_are_refused_keep_no_others(
    by_day: MessageTable, database: Database, clock: MovableClock
) -> None:
    put_numbers(by_day, 1, 2, 3)
    clock.move("300d")
    by_day.ack([1, 2, 3])
    run(database, "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'kept'; END $$")
    run(
        database,
        "CREATE TRIGGER refuse BEFORE DELETE ON orders_undated FOR EACH ROW WHEN (OLD.id = 2)"
        " EXECUTE FUNCTION refuse()",
    )
    assert acked_parts(by_day) == {"orders_undated"}
    context = by_day.context
    assert context.sql.days is not None
    assert purge_undated(context, context.sql.days, clock.now + DAY) == 2
    assert by_day.stats().acked == 1
