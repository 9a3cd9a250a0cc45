"""Every statement that runs often goes down an index: among ten thousand messages of which a hundred matter."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from tests.support.statements import statements_of
from tests.tables.plans import MESSAGES, OTHERS, can_be_explained, complaints, crowd

from waterclock.connection import Database
from waterclock.tables.consumers.receiving import Request, pause
from waterclock.tables.databases.changes import Stop
from waterclock.tables.message_table import MessageTable


@pytest.fixture(scope="module")
def many() -> list[dict[str, Any]]:
    return [{"payload": "x"} for _ in range(1000)]


@pytest.mark.parametrize("state", OTHERS)
def test_no_frequent_statement_reads_or_sorts_the_table(
    make_table: Callable[..., MessageTable], database: Database, many: list[dict[str, Any]], state: str
) -> None:
    table = make_table(purge_after="1s")
    for _ in range(MESSAGES // len(many)):
        table.put_many(many)
    crowd(database, state)
    with statements_of(database.backend) as seen:
        first = table.receive(10)
        second = table.receive(10)  # from a mark on
        table.ack(first)
        second[0].ack()
        second[1].nack()
        table.ack([one.id for one in second[2:]])
        table.put("new")
        table.put_many([{"payload": "known", "id": 1}, {"payload": "new", "id": 10**6}])
        stop = Stop()
        stop.set()
        changes = table._context.sql.changes(database.backend, "orders")
        pause(table._row, changes, stop, 0, Request(None), 0)
        changes.close()
        table.purge()
    ours = [(text, values) for text, values in seen if "orders" in text and can_be_explained(text)]
    assert len(ours) >= 8
    for text, values in ours:
        assert not complaints(database, text, values), text


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # the only one that compiles plans
def test_a_claim_from_a_table_with_partitions_is_not_compiled_and_leaves_the_acked_days_alone(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(purge_by="partition")
    table.put_many([{"payload": str(number)} for number in range(20)])
    with statements_of(database.backend) as seen:
        table.receive(1)
    [(claim, values)] = [(text, values) for text, values in seen if "UPDATE orders" in text]
    plan = str(database.backend.alone(lambda own: own.exec_driver_sql(f"EXPLAIN ANALYZE {claim}", values).fetchall()))
    assert "Update on orders" in plan
    assert "JIT" not in plan
    assert "orders_acked" not in plan
    assert "orders_open" in plan


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # the only one that plans by stored statistics
@pytest.mark.parametrize("purge_by", ["rows", "partition"])
@pytest.mark.parametrize("analyzed", ["never", "when all was acked", "when all was purged"])
def test_messages_that_are_known_by_their_keys_are_found_by_them_for_any_statistics(
    make_table: Callable[..., MessageTable],
    database: Database,
    many: list[dict[str, Any]],
    purge_by: str,
    analyzed: str,
) -> None:
    table = make_table(purge_by=purge_by)
    if analyzed != "never":
        table.put_many(many)
        table.ack(table.receive(len(many)))
        with database.backend.engine.begin() as connection:
            if analyzed == "when all was purged":
                connection.exec_driver_sql("DELETE FROM orders")
            connection.exec_driver_sql("ANALYZE orders")
    for _ in range(4):
        table.put_many(many)
    with statements_of(database.backend) as seen:
        held = table.receive(100)
        table.ack(held[:50])
        table.ack([one.id for one in held[50:90]])
        held[90].ack()
        held[91].nack()
        held[92].extend("5s")
        table.reschedule(held[93].id, at=1)
    ours = [(text, values) for text, values in seen if text.split()[0] in ("UPDATE", "WITH", "SELECT")]
    ours = [(text, values) for text, values in ours if "orders.seq = " in text or "orders.id = " in text]
    assert len(ours) >= 7
    for text, values in ours:
        for mode in ("force_custom_plan", "force_generic_plan"):
            plan = _plan_of_a_hot_statement(database, mode, text, values)
            by_keys = [step for step in plan if re.search(r"Index Cond: \((seq|id) = ", step)]
            through_all = [step for step, key in pairwise(plan) if "next_idx" in step and "priority" not in key]
            assert by_keys, "\n".join(plan)
            assert not through_all, plan


def _plan_of_a_hot_statement(database: Database, mode: str, text: str, values: Any) -> list[str]:
    with database.backend._indexed_writer.connect() as connection:
        connection.exec_driver_sql(f"SET LOCAL plan_cache_mode = {mode}")
        plan = [row[0] for row in connection.exec_driver_sql("EXPLAIN " + text, values)]
        connection.rollback()
    return plan
