"""Claims and acks of very many messages, of very many priorities, and of any time: each counted, none timed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import exc
from tests.support.statements import statements_of
from tests.tables.conftest import MovableClock
from tests.tables.received import payloads

from waterclock.connection import Database
from waterclock.database.engines.postgresql import PostgresqlDialect
from waterclock.tables.catalogue import table_row
from waterclock.tables.databases import claiming_rows, table_dialect
from waterclock.tables.message_table import MessageTable
from waterclock.time import MIN_NS

MakeTable = Callable[..., MessageTable]
CLAIMS = 12


@pytest.mark.parametrize("options", [{}, {"groups": "sequenced"}, {"groups": "sequenced", "ungrouped": "free"}])
@pytest.mark.parametrize("at", [MIN_NS, -1, 0, "1969-07-20T20:17:40Z"])
def test_a_due_time_before_1970_is_due(make_table: MakeTable, options: dict[str, Any], at: Any) -> None:
    table = make_table(**options)
    table.put("now")
    table.put("long ago", at=at)
    assert payloads(table) == (
        ["now", "long ago"] if options.get("ungrouped") is None and options else ["long ago", "now"]
    )
    assert table.stats().in_flight == 2


def test_plain_sql_may_say_any_time(orders: MessageTable, database: Database) -> None:
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO orders(id, message, time_scheduled) VALUES (7, 'old', -9)"))
    with orders.subscribe() as deliveries:
        assert next(deliveries).payload == "old"


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)  # those that count parameters
def test_33_000_deliveries_of_many_claims_are_acked_together(orders: MessageTable) -> None:
    count = 33_000
    orders.put_many([{"payload": ""}] * count)
    deliveries = [one for _ in range(CLAIMS) for one in orders.receive(count // CLAIMS)]
    assert orders.ack(deliveries) == count
    assert orders.stats().acked == count


@pytest.mark.parametrize("what", ["one claim", "ids"])
def test_a_long_ack_is_several_statements_and_one_transaction(
    orders: MessageTable, database: Database, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(table_dialect, "NAMED_AT_ONCE", 4)
    orders.put_many([{"payload": ""}] * 10)
    deliveries = orders.receive(10)
    with statements_of(database.backend) as seen:
        assert orders.ack(deliveries if what == "one claim" else [one.id for one in deliveries]) == 10
    assert sum(text.lstrip().startswith("UPDATE") for text, _ in seen) == 3
    assert orders.stats().acked == 10


def test_only_errors_that_say_so_count_as_a_server_that_is_away() -> None:
    import psycopg  # noqa: PLC0415  # PostgreSQL's driver alone

    said = psycopg.OperationalError("sending query failed: number of parameters must be between 0 and 65535")
    refused = exc.OperationalError("UPDATE orders", {}, said)
    assert not PostgresqlDialect().is_transient(refused)
    away = exc.OperationalError(None, None, psycopg.OperationalError("connection failed: Connection refused"))
    assert PostgresqlDialect().is_transient(away)


@pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)
def test_each_statement_of_a_large_claim_reads_the_ends_of_few_leases(orders: MessageTable, database: Database) -> None:
    orders.put_many([{"payload": ""}] * 1000)
    with statements_of(database.backend) as seen:
        assert len(orders.receive(1000)) == 1000
    ends = [values["ends"].count(":") for text, values in seen if "UPDATE" in text and "ends" in values]
    assert sum(ends) == 1000
    assert max(ends) == 250


@pytest.mark.parametrize("kind", ["due", "scheduled above", "in flight above"])
@pytest.mark.parametrize("levels", [2000])
def test_a_claim_of_many_priorities_is_few_statements(
    orders: MessageTable,
    database: Database,
    clock: MovableClock,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    levels: int,
) -> None:
    monkeypatch.setattr(table_row, "LOOK_EVERY", math.inf)  # looking at the options is a statement, too
    later = clock.now + 10**15
    orders.put_many(
        {"payload": "above", "priority": 10 + one, "at": later if kind == "scheduled above" else None}
        for one in range(levels)
    )
    if kind == "in flight above":
        orders.receive(levels)
    if kind != "due":
        orders.put_many([{"payload": "below"}] * 40)
    for _ in range(3):
        with statements_of(database.backend) as seen:
            assert len(orders.receive(10)) == 10
        assert len(seen) <= 16


def test_after_a_long_walk_without_success_a_claim_of_many_priorities_is_one_question_until_something_is_due(
    orders: MessageTable, database: Database, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_row, "LOOK_EVERY", math.inf)
    later = clock.now + 10**12
    orders.put_many({"payload": "later", "priority": one, "at": later} for one in range(300))
    assert orders.receive() == []
    orders.context.marks.walks.walked(60.0)  # as on a table with very many
    with statements_of(database.backend) as seen:
        assert orders.receive() == []
    assert sum("LIMIT" in text for text, _ in seen) == 1
    assert not any("WITH RECURSIVE" in text or "UPDATE" in text for text, _ in seen)
    orders.put("now", priority=-7)
    assert payloads(orders) == ["now"]
    assert orders.receive() == []
    clock.move(10**12)
    assert len(orders.receive(400)) == 301  # and the one whose lease has ended


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    messages=st.lists(st.tuples(st.integers(-5, 25), st.sampled_from([-2, -1, 1])), min_size=1, max_size=60),
    limits=st.lists(st.integers(1, 15), min_size=1, max_size=4),
    looks=st.tuples(st.integers(2, 5), st.integers(6, 20)),
)
def test_a_claim_takes_the_highest_priorities_first_and_of_each_the_oldest_however_it_looks_for_them(
    orders: MessageTable,
    clock: MovableClock,
    monkeypatch: pytest.MonkeyPatch,
    messages: list[tuple[int, int]],
    limits: list[int],
    looks: tuple[int, int],
) -> None:
    monkeypatch.setattr(claiming_rows, "_FIRST_LOOK", looks[0])
    monkeypatch.setattr(claiming_rows, "_LONG_LOOK", looks[1])
    monkeypatch.setattr(claiming_rows, "_DEEP", 1)
    table = orders
    table.reschedule(table_ids(table), clock.now + 10**15)
    table.ack(table_ids(table))
    ids = table.put_many(
        [{"payload": "x", "priority": priority, "at": clock.now + due * 10**9} for priority, due in messages]
    )
    wanted = [
        id_
        for id_, (priority, due) in sorted(zip(ids, messages, strict=True), key=lambda one: (-one[1][0], one[1][1]))
        if due < 0
    ]
    order = dict(zip(ids, messages, strict=True))
    for limit in [*limits, 60]:
        got = [one.id for one in table.receive(limit)]
        assert [order[one] for one in got] == [order[one] for one in wanted[: len(got)]]
        assert len(got) == min(limit, len(wanted))
        wanted = [one for one in wanted if one not in got]


def table_ids(table: MessageTable) -> list[Any]:
    context = table.context
    with context.backend.snapshot() as connection:
        return list(connection.scalars(sa.select(context.rows.c.id).where(context.rows.c.time_acked.is_(None))))
