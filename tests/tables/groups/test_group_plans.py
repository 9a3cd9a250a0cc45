"""Every statement that groups run often looks at a few rows, among three thousand messages in fifteen hundred groups.

For all that a database may know of them: nothing, right after they were put, or what was true when all others were
acked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.statements import statements_of

from waterclock.connection import Database
from waterclock.tables.consumers.receiving import Request, pause
from waterclock.tables.databases.changes import Stop
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.claiming.claim_groups_in_steps import GroupClaim
from waterclock.time import MAX_NS

pytestmark = pytest.mark.both_servers

GROUPS = 1_500
A_FEW = 150
KEPT = "SELECT set_config('waterclock.kept', '{g40,g41,g42,g43,g44,g45}', true)"  # as a statement before would
TABLES = ("orders", "waterclock_groups", "waterclock_consumers")
# In SQLite's plans: all rows, all groups of a table, all groups that are assigned or unassigned. The index of unrouted
# messages has no others in it.
ALL_ROWS = rf"SCAN ({'|'.join(TABLES)})(?! USING INDEX orders_unrouted)"
ALL_GROUPS = r"waterclock_groups .*\((table_id=\?|assigned=\? AND table_id=\?)\)$"


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", []):
        yield from nodes(below)


def complaints(database: Database, text: str, parameters: Any) -> list[str]:
    """Run a statement again, and say where it looks at more than a few rows; what it changed is undone."""
    if isinstance(parameters, list):
        parameters = parameters[0]
    name = database.backend.dialect.name
    with database.backend._indexed_writer.connect() as connection:
        if name == "sqlite":
            plan = [str(row.detail) for row in connection.exec_driver_sql("EXPLAIN QUERY PLAN " + text, parameters)]
            if "AS newest" in text:
                plan.remove("SCAN orders")  # from the last row on, of which there is one to find
            if "group_id AS name" in text:  # by the key in its order, up to the limit
                plan.remove(
                    "SEARCH waterclock_groups USING COVERING INDEX sqlite_autoindex_waterclock_groups_1 (table_id=?)"
                )
            to_a_limit = ("AS shared", "waterclock_consumers.name !=", "AS my_earliest")
            if any(part in text for part in to_a_limit) and "USE TEMP B-TREE FOR ORDER BY" not in plan:
                plan = [step for step in plan if "waterclock_groups_due_idx (assigned=? AND table_id=?)" not in step]
            return [step for step in plan if re.search(f"{ALL_ROWS}|{ALL_GROUPS}", step)]
        if name == "mysql":
            found = connection.exec_driver_sql("ANALYZE " + text, parameters).mappings().all()
            connection.rollback()
            return [str(dict(row)) for row in found if row["table"] in TABLES and float(row["r_rows"] or 0) > A_FEW]
        bad: list[str] = []
        for mode in ("force_custom_plan", "force_generic_plan"):
            connection.exec_driver_sql(f"SET LOCAL plan_cache_mode = {mode}")
            connection.exec_driver_sql(KEPT)
            found = connection.exec_driver_sql("EXPLAIN (ANALYZE, FORMAT JSON) " + text, parameters).scalar_one()
            connection.rollback()
            plan = found if isinstance(found, list) else json.loads(found)
            for node in nodes(plan[0]["Plan"]):
                looked_at = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
                if "Relation Name" in node and looked_at > A_FEW:
                    condition = node.get("Index Cond", "")
                    bad.append(f"{mode}: {looked_at} rows by {node['Node Type']} {node.get('Index Name')} {condition}")
        return bad


def check(database: Database, found: dict[str, Any]) -> None:
    bad = {text: complaints(database, text, values) for text, values in found.items()}
    assert not {text: steps for text, steps in bad.items() if steps}


def put_many(table: MessageTable, count: int) -> None:
    table.put_many([{"payload": "x", "group": f"g{number % GROUPS}"} for number in range(count)])


@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
def test_no_frequent_statement_of_groups_looks_at_more_than_it_needs(
    make_table: Callable[..., MessageTable], database: Database, policy: str
) -> None:
    table = make_table(groups=policy, max_attempts=3, on_exhausted="block")
    put_many(table, 2 * GROUPS)
    check(database, frequent_statements(table, database))


@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
@pytest.mark.parametrize(
    ("analyzed", "purged"),
    [
        (("waterclock_groups",), False),
        (("orders",), True),
        (("orders", "waterclock_groups"), False),
        pytest.param(("waterclock_groups",), True, marks=pytest.mark.slow),
        pytest.param(("orders",), False, marks=pytest.mark.slow),
        pytest.param(("orders", "waterclock_groups"), True, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("database_url", ["postgresql", "sqlite"], indirect=True)  # MariaDB counts again by itself
def test_statistics_of_a_time_when_all_was_acked_mislead_no_frequent_statement(
    make_table: Callable[..., MessageTable], database: Database, policy: str, analyzed: tuple[str, ...], purged: bool
) -> None:
    table = make_table(groups=policy, max_attempts=3, on_exhausted="block")
    put_many(table, 300)
    while deliveries := table.receive(100, consumer="gone"):
        table.ack(deliveries)
    with database.backend.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM waterclock_groups")  # a consumer keeps exclusive ones
        if purged:
            connection.exec_driver_sql("DELETE FROM orders")
        for name in analyzed:
            connection.exec_driver_sql(f"ANALYZE {name}")
            if database.backend.dialect.name == "postgresql":
                facts = sa.text("SELECT reltuples, relpages > 0 FROM pg_class WHERE relname = :name")
                left = 0 if purged or name == "waterclock_groups" else 300
                assert connection.execute(facts, {"name": name}).one() == (left, True)
    put_many(table, 2 * GROUPS)
    check(database, frequent_statements(table, database))


def frequent_statements(table: MessageTable, database: Database) -> dict[str, Any]:
    """Do everything that is done often, and give the statements that choose rows for it."""
    table.ack(table.receive(1, consumer="x"))
    # The look through all groups is rare, and looks at many on purpose.
    table._context.sweeps.due_at = MAX_NS
    with statements_of(database.backend, *TABLES) as seen:
        deliveries = table.receive(10, consumer="x")
        others = table.receive(10, consumer="x")
        deliveries[0].ack()
        table.ack(deliveries[1:-1])
        deliveries[-1].nack()
        table.ack([one.id for one in others if one.group != deliveries[-1].group])
        put_many(table, 10)
        table.receive(1, consumer="x")
        table.groups.info("g17")
        assert len(table.groups.list(10)) == 10
        stop = Stop()
        stop.set()
        changes = table._context.sql.changes(database.backend, "orders")
        pause(table._row, changes, stop, 0, Request("x"), 0)
        changes.close()
    ours = {text: values for text, values in seen if text.split()[0] in ("SELECT", "WITH", "UPDATE", "DELETE")}
    ours = {text: values for text, values in ours.items() if "WHERE" in text}
    assert len(ours) > 20
    return ours


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # the only one that keeps plans
def test_routing_looks_up_each_message_by_its_key(make_table: Callable[..., MessageTable], database: Database) -> None:
    table = make_table(groups="sequenced")
    put_many(table, 5_000)  # more than are routed at once
    with statements_of(database.backend, *TABLES) as seen:
        table.receive(1)
    [(text, values)] = [one for one in seen if one[0].startswith("UPDATE orders") and "json_array" in one[0]]
    with database.backend._indexed_writer.connect() as connection:
        connection.exec_driver_sql("SET LOCAL plan_cache_mode = force_generic_plan")
        plan = "\n".join(row[0] for row in connection.exec_driver_sql("EXPLAIN " + text, values))
        connection.rollback()
    assert "using orders_pkey" in plan
    assert "Seq Scan" not in plan


@pytest.mark.usefixtures("bounds_stay")
def test_a_claim_and_an_ack_are_a_few_statements(
    sequenced: MessageTable, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waterclock.tables.catalogue.table_row.LOOK_EVERY", 3600)
    monkeypatch.setattr("waterclock.tables.model.claims.claim.LOOK_BACK_EVERY", 3600)
    put_many(sequenced, 100)
    for _ in ("routes", "sees that nothing is new"):
        sequenced.ack(sequenced.receive(10))
    with statements_of(database.backend, *TABLES) as claiming:
        deliveries = sequenced.receive(10)
    with statements_of(database.backend, *TABLES) as acking:
        sequenced.ack(deliveries)
    # MariaDB notes first that a group has ended: a DELETE that looks would wait for what a caller is putting into it.
    few = {"sqlite": (4, 3), "postgresql": (2, 3), "mysql": (5, 4)}
    seen = [text for text, _ in (*claiming, *acking)]
    assert (len(claiming), len(acking)) == few[database.backend.dialect.name], seen


def test_a_consumer_gets_its_own_groups_before_those_that_any_consumer_may_have(sequenced: MessageTable) -> None:
    sequenced.put_many([{"payload": group, "group": group} for group in "abcde"])
    for _ in ("routes", "sees that nothing is new"):
        sequenced.ack(sequenced.receive(1, consumer="x"))
    sequenced.groups.pin("d", "x")
    assert [one.group for one in sequenced.receive(2, consumer="x")] == ["d", "c"]
    assert [one.group for one in sequenced.receive(2, consumer="y")] == ["e"]


def test_a_claim_reads_about_as_many_groups_as_it_takes(
    sequenced: MessageTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    find = GroupClaim._free_groups

    def find_and_count(self: GroupClaim, priority: int, who: str, count: int) -> Any:
        found = find(self, priority, who, count)
        read.append(len(found))
        return found

    monkeypatch.setattr(GroupClaim, "_free_groups", find_and_count)
    sequenced.put_many([{"payload": "x", "group": f"g{number % 40}"} for number in range(400)])
    sequenced.ack(sequenced.receive(20))  # tells that a group gives ten messages
    read.clear()
    assert len(sequenced.receive(20)) == 20
    assert sum(read) <= 4


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # keeps what was, for a snapshot that is held
def test_a_claim_steps_over_no_remains_of_the_groups_that_were_routed(
    sequenced: MessageTable, database: Database
) -> None:
    with database.backend.snapshot() as old:
        old.execute(sa.text("SELECT 1"))
        sequenced.put_many([{"payload": "x", "group": f"g{number}"} for number in range(2_000)])
        sequenced.receive(1)
        with statements_of(database.backend, *TABLES) as seen:
            sequenced.receive(1)
        [(text, values)] = [(text, values) for text, values in seen if "of_unassigned" in text]
        with database.backend._indexed_writer.connect() as connection:
            explained = connection.exec_driver_sql(
                "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + text, values
            ).scalar_one()
    plan = explained[0]["Plan"]
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < A_FEW / 2


def test_an_ack_that_skips_messages_is_refused_without_reading_its_group(
    sequenced: MessageTable, database: Database
) -> None:
    sequenced.put_many([{"payload": "x", "group": "hot"} for _ in range(2_000)])
    deliveries = sequenced.receive(20)
    deliveries[0].ack()
    with statements_of(database.backend, *TABLES) as seen:
        sequenced.ack([one.id for one in deliveries[1:10]])
        sequenced.ack(deliveries[10:])
    check(database, {text: values for text, values in seen if "WHERE" in text})
    with database.backend.snapshot() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM orders WHERE time_acked IS NULL")).scalar() == 1_980
