"""Counts for monitoring: exact for a short queue, estimated for a long one, and a few rows read in either case."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.clocks import MovableClock
from tests.support.statements import statements_of

from waterclock.connection import Database
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.inspecting import estimating
from waterclock.tables.messages.inspecting.estimating import (
    COUNTED,
    STATES,
    WINDOW,
    WINDOWS,
    GroupsEstimate,
    TableEstimate,
    count_acked,
    estimate_groups,
    estimate_messages,
    rate_of_acks,
)

Connect = Callable[..., Database]

SECOND = 1_000_000_000
LONG = 6_000
"""Messages of a long queue."""

READ = max(COUNTED + 1, WINDOWS * WINDOW)


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock(1_800_000_000 * SECOND)


@pytest.fixture
def database(connect: Connect, clock: MovableClock) -> Database:
    return connect(clock=clock)


def messages_of(table: MessageTable) -> TableEstimate:
    backend = table.context.backend
    with backend.snapshot(indexed=True) as connection:
        return estimate_messages(table.context, connection, backend.now(connection))


def groups_of(table: MessageTable) -> GroupsEstimate:
    with table.context.backend.snapshot(indexed=True) as connection:
        return estimate_groups(table.context, connection)


def test_acked_messages_are_counted_without_expired_ones(database: Database, clock: MovableClock) -> None:
    table = database.create_table("orders", payload="json")
    table.ack(table.put_many([{"payload": n} for n in range(3)]))
    table.put("late", expires_at=clock() + SECOND)
    clock.move("2s")
    assert not table.receive()
    with table.context.backend.snapshot() as connection:
        assert count_acked(table.context, connection) == (3, False)
    assert table.stats().acked == 3


def test_a_short_queue_is_counted_as_stats_count_it(database: Database, clock: MovableClock) -> None:
    orders = database.create_table("orders", payload="text", min_backoff="1h", ack_wait="5m")
    orders.put_many([{"payload": "a", "priority": number % 3} for number in range(20)])
    orders.put("later", delay="1h")
    orders.put("gone", expires_at=clock.now + SECOND)
    clock.now += 2 * SECOND
    for delivery in orders.receive(5):
        delivery.ack()
    orders.receive(3)
    for delivery in orders.receive(2):
        delivery.nack()
    stats, found = orders.stats(), messages_of(orders)
    assert found.exact
    assert found.messages == {state: getattr(stats, state) for state in STATES}
    assert found.messages == {
        "ready": 10, "scheduled": 1, "in_flight": 3, "delayed": 2, "held": 0, "expired": 1
    }  # fmt: skip
    assert (found.depth, found.oldest_age) == (16, stats.oldest_age)


def test_a_long_queue_is_estimated_and_what_is_not_due_is_counted(database: Database, clock: MovableClock) -> None:
    orders = database.create_table("orders", payload="text", min_backoff="1h", cache_size=LONG)
    orders.put_many([{"payload": "a"} for _ in range(LONG)])
    clock.now += 30 * SECOND
    for delivery in orders.receive(400):
        delivery.ack()
    orders.receive(17)
    for delivery in orders.receive(9):
        delivery.nack()
    orders.put("later", delay="1h")
    found = messages_of(orders)
    assert not found.exact
    assert {state: found.messages[state] for state in ("in_flight", "delayed", "scheduled")} == {
        "in_flight": 17, "delayed": 9, "scheduled": 1
    }  # fmt: skip
    assert found.depth == pytest.approx(LONG - 400, rel=0.1)
    assert found.oldest_age == 30 * SECOND


def test_groups_that_stand_still_are_counted_while_others_continue(database: Database, clock: MovableClock) -> None:
    orders = database.create_table(
        "orders", payload="text", groups="sequenced", max_attempts=1, on_exhausted="block", min_backoff="1s"
    )
    orders.put_many([{"payload": "a", "group": f"g{number}"} for number in range(8) for _ in range(2)])
    first = {delivery.group: delivery for delivery in reversed(orders.receive(8, consumer="c"))}
    for name in ("g0", "g1", "g2"):
        first[name].nack()
    clock.now += 5 * SECOND
    orders.groups.pause("g7")
    found = groups_of(orders)
    assert found == GroupsEstimate(blocked=3, exhausted=3, exact=True)
    assert groups_of(database.create_table("plain")) == GroupsEstimate(0, 0, exact=True)


def test_acks_a_second_are_those_of_the_last_minute_or_of_the_last_thousand(
    database: Database, clock: MovableClock
) -> None:
    orders = database.create_table("orders", payload="text", cache_size=LONG)

    def rate() -> float:
        with database.backend.snapshot(indexed=True) as connection:
            return rate_of_acks(orders.context, connection, clock.now)

    orders.put_many([{"payload": "a"} for _ in range(COUNTED + 30)])
    orders.ack(orders.receive(30))
    assert rate() == 0.5
    clock.now += 61 * SECOND
    assert rate() == 0
    orders.ack(orders.receive(COUNTED))
    clock.now += 2 * SECOND
    assert rate() == COUNTED / 2


@pytest.mark.parametrize("groups", [None, "sequenced"])
@pytest.mark.parametrize("acked", [0, LONG - 10], ids=["unacked", "acked"])
def test_few_rows_are_read_of_a_long_table(database: Database, clock: MovableClock, groups: Any, acked: int) -> None:
    orders = database.create_table("orders", payload="text", groups=groups, cache_size=LONG, batch_size=LONG)
    orders.put_many([{"payload": "a", "group": f"g{number}"} for number in range(LONG)])
    with database.backend.engine.begin() as connection:
        marked = sa.update(orders.context.rows).where(orders.context.rows.c.seq <= acked)
        connection.execute(marked.values(time_acked=clock.now, time_next=None))
    with statements_of(database.backend, "orders", "waterclock_groups") as found:
        messages_of(orders)
        groups_of(orders)
        with database.backend.snapshot(indexed=True) as connection:
            rate_of_acks(orders.context, connection, clock.now)
    assert len(found) >= 2
    assert not {text: bad for text, values in found if (bad := too_much(database, text, values))}


def too_much(database: Database, text: str, parameters: Any) -> list[str]:
    """Return what a statement reads that is not bounded, for any statistics that a database may have."""
    with database.backend._indexed_reader.connect() as connection:
        if database.backend.dialect.name == "sqlite":
            plan = [str(row.detail) for row in connection.exec_driver_sql("EXPLAIN QUERY PLAN " + text, parameters)]
            return [
                step
                for step in plan
                if re.search(r"SCAN (orders|waterclock_groups)(?! USING (COVERING )?INDEX)|TEMP B-TREE FOR ORDER", step)
            ]
        if database.backend.dialect.name == "mysql":
            found = connection.exec_driver_sql("ANALYZE FORMAT=JSON " + text, parameters).scalar_one()
            return [str(one) for one in rows_read(json.loads(found), "r_rows") if one > READ]
        found = connection.exec_driver_sql("EXPLAIN (ANALYZE, FORMAT JSON) " + text, parameters).scalar_one()
        plan = found if isinstance(found, list) else json.loads(found)
        return [str(one) for one in rows_read(plan, "Actual Rows") if one > READ]


def rows_read(plan: Any, name: str) -> list[float]:
    if isinstance(plan, list):
        return [rows for one in plan for rows in rows_read(one, name)]
    if not isinstance(plan, dict):
        return []
    removed = plan.get("Rows Removed by Filter", 0)
    its = [float(plan[name]) + removed] if plan.get(name) is not None else []
    return its + [rows for value in plan.values() for rows in rows_read(value, name)]


def test_the_limits_are_what_the_help_of_the_metrics_says() -> None:
    assert estimating.COUNTED == 1_000
