"""On MariaDB, searches for new messages of groups begin at a bound, and miss none that is written below it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from tests.support.statements import statements_of
from tests.tables.plans import pages

from waterclock.connection import Database
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.claiming import bounded_rows
from waterclock.tables.messages.claiming.bounded_routing import advance_routed
from waterclock.tables.model.claims.bounds import UNASSIGNED

pytestmark = pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)

FINISHED = 600


@pytest.fixture
def database(connect: Callable[..., Database], monkeypatch: pytest.MonkeyPatch) -> Database:
    """Let each claim try to advance the bound; no other search finds what it misses."""
    monkeypatch.setattr("waterclock.tables.model.claims.bounds.LOOK_BACK_AT_LEAST", 3600.0)
    monkeypatch.setattr("waterclock.tables.model.claims.bounds.WRITTEN_WITHIN", 0)
    monkeypatch.setattr(bounded_rows, "_ADVANCE_IN_PAIRS_EVERY", 0.0)
    monkeypatch.setattr(bounded_rows, "_ADVANCE_IDLE_EVERY", 0.0)
    return connect()


def newest(table: MessageTable) -> int:
    rows = table.context.rows
    with table.context.backend.engine.connect() as connection:
        return connection.scalar(sa.select(sa.func.max(rows.c.seq))) or 0


def let_bound_advance(table: MessageTable) -> None:
    """Advance the bound beyond the last message; lock waits of other databases of the server hold it back."""
    last = newest(table)
    while table.context.reached.routed.value <= last:
        advance_routed(table.context, UNASSIGNED)


def pass_through(table: MessageTable, messages: int = 1) -> None:
    table.put_many([{"payload": "x", "group": "p"}] * messages)
    while claimed := table.receive(100):
        table.ack(claimed)


@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
@pytest.mark.usefixtures("written")
def test_neither_a_claim_nor_a_wait_looks_up_routed_messages(
    make_table: Callable[..., MessageTable], database: Database, policy: str
) -> None:
    table = make_table(groups=policy)
    pass_through(table, FINISHED)
    let_bound_advance(table)
    with statements_of(database.backend, "orders_unrouted_idx") as seen:
        assert table.receive(wait="1ms") == []
        table.put("x", group="a")
        [delivery] = table.receive(10)
        delivery.ack()
    assert max(pages(database, *one) for one in seen) < FINISHED / 4


def test_a_new_process_begins_at_the_bound(
    make_table: Callable[..., MessageTable], connect: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waterclock.tables.model.claims.bounds.SAVE_EVERY", 0.0)
    table = make_table(groups="sequenced")
    pass_through(table)
    let_bound_advance(table)
    table.context.sweeps.due_at = 0
    table.receive()
    fresh = connect().table("orders")
    assert fresh.context.reached.routed.value == table.context.reached.routed.value
    table.put("x", group="a")
    assert len(fresh.receive()) == 1


def test_a_message_that_is_committed_late_holds_the_bound_up(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="sequenced")
    with database.begin() as late:
        table.put("late", group="l", connection=late)
        for _ in range(3):
            pass_through(table)
    pass_through(table)
    assert table.stats().ready == 0


def test_a_routing_that_is_rolled_back_holds_the_bound_up(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="sequenced")
    table.put("first", group="a")
    with database.backend.engine.connect() as router:
        router.exec_driver_sql("UPDATE orders SET routed = 1")
        for _ in range(3):
            advance_routed(table.context, UNASSIGNED)
        router.rollback()
    assert [one.payload for one in table.receive()] == ["first"]


def test_a_message_whose_insert_waits_for_a_lock_holds_the_bound_up(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="sequenced", id_type="text")
    put = "INSERT INTO orders (id, message, group_id) VALUES ('{}', 'x', '{}')"
    table.put("x", id="same", group="s", delay="1h")
    assert table.receive() == []  # routes it, so that nothing but the lock wait holds the bound up

    def put_waiting() -> None:
        with database.backend.engine.begin() as connection:
            connection.exec_driver_sql(put.format("same", "waited"))

    with ThreadPoolExecutor(1) as threads, database.backend.engine.connect() as first:
        first.exec_driver_sql("DELETE FROM orders WHERE id = 'same'")
        waiting = threads.submit(put_waiting)
        while database.backend.alone(table.context.sql.now_without_lock_waits) is not None:
            pass
        with database.backend.engine.begin() as connection:
            connection.exec_driver_sql(put.format("z", "next"))
        for _ in range(3):
            table.ack(table.receive())
        first.commit()
        waiting.result()
    [found] = table.receive()
    assert found.group == "waited"


def test_messages_that_plain_sql_changes_below_the_bound_are_found(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="sequenced")
    table.put("due", group="a", delay="1h")
    table.put("moved", group="b", delay="1h")
    pass_through(table)
    let_bound_advance(table)
    with database.backend.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE orders SET time_next = 0 WHERE group_id = 'a'")
        connection.exec_driver_sql("UPDATE orders SET time_next = 0, group_id = 'c' WHERE group_id = 'b'")
    table.put("new", group="d")
    assert sorted(one.group or "" for one in table.receive(10)) == ["a", "c", "d"]
    assert table.receive() == []


def test_a_message_put_after_truncate_has_restarted_the_numbers_is_found(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="sequenced")
    pass_through(table, 10)
    let_bound_advance(table)
    with database.backend.engine.begin() as connection:
        connection.exec_driver_sql("TRUNCATE TABLE orders")
    table.put("x", group="b")
    assert [one.group for _ in range(2) for one in table.receive()] == ["b"]


@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
def test_messages_on_both_sides_of_the_bound_after_truncate_keep_their_order(
    make_table: Callable[..., MessageTable], database: Database, policy: str
) -> None:
    table = make_table(groups=policy)
    pass_through(table, 10)
    let_bound_advance(table)
    with database.backend.engine.begin() as connection:
        connection.exec_driver_sql("TRUNCATE TABLE orders")
    payloads = [str(number) for number in range(15)]
    table.put_many([{"payload": one, "group": "b"} for one in payloads])
    assert [one.payload for one in table.receive(15)] == payloads


def test_an_explicit_seq_below_the_bound_is_found_from_the_first_message_on(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="sequenced")
    pass_through(table)
    let_bound_advance(table)
    with database.backend.engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO orders (seq, message, group_id) VALUES (-5, 'hidden', 'h')")
    assert table.receive() == []
    table.context.reached.routed._every = 0.0
    assert [one.group for _ in range(2) for one in table.receive()] == ["h"]
