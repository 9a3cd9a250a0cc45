"""Claims in tables without groups begin at bounds, and miss nothing that is due below them."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from tests.support.statements import Statement, statements_of
from tests.tables.plans import buffers, pages

from waterclock.connection import Database
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.claiming import bounded_rows
from waterclock.tables.messages.claiming.bounded_rows import _FirstsFound, advance, bounds_of
from waterclock.tables.model.claims.bounds import LATE_BY
from waterclock.tables.model.claims.due_slots import MOST_SLOTS, SLOT, end_of, slots_between
from waterclock.time import MAX_NS, MIN_NS

on_postgresql, on_mariadb, on_both = (
    pytest.mark.parametrize("database_url", names, indirect=True)
    for names in (["postgresql"], ["mariadb"], ["postgresql", "mariadb"])
)

FINISHED = 600


@pytest.fixture
def database(connect: Callable[..., Database], monkeypatch: pytest.MonkeyPatch) -> Database:
    """Connect with the database's own clock, by which bounds advance; no other search finds what they miss."""
    monkeypatch.setattr("waterclock.tables.model.claims.bounds.LOOK_BACK_AT_LEAST", 3600.0)
    monkeypatch.setattr(bounded_rows, "ADVANCE_EVERY", 0.0)
    monkeypatch.setattr(bounded_rows, "_ADVANCE_IN_PAIRS_EVERY", 0.0)
    monkeypatch.setattr(bounded_rows, "_ADVANCE_IDLE_EVERY", 0.0)
    monkeypatch.setattr(bounded_rows, "WRITTEN_WITHIN", 0)
    return connect()


def pass_through(table: MessageTable, *, priority: int = 0) -> None:
    table.put_many([{"payload": "x" * 1000, "priority": priority}] * FINISHED)
    table.ack(table.receive(FINISHED))


def let_bounds_advance(table: MessageTable, beyond: int) -> None:
    """Claim in vain until the bound of each priority is beyond a time of the database's clock."""
    while not (found := bounds_of(table.context)) or min(found.values()) <= beyond:
        assert table.receive() == []
        time.sleep(0.01)  # a bound stays behind the clock


def claim_of(seen: list[Statement]) -> Statement:
    [*_, found] = [one for one in seen if one[0].startswith("WITH RECURSIVE levels") and "UPDATE" in one[0]]
    return found


@on_postgresql
@pytest.mark.parametrize("options", [{}, {"purge_by": "partition"}])
@pytest.mark.usefixtures("held")
def test_neither_a_claim_nor_a_wait_walks_over_finished_messages(
    make_table: Callable[..., MessageTable], database: Database, options: dict[str, str]
) -> None:
    table = make_table(**options)
    pass_through(table)
    with statements_of(database.backend) as walking:
        assert table.receive() == []
    let_bounds_advance(table, table.context.backend.now())
    with database.backend.engine.begin() as connection:
        connection.exec_driver_sql("ANALYZE orders")  # which says that no message is unacked
    with statements_of(database.backend) as seen:
        assert table.receive(wait="1ms") == []
    assert max(buffers(database, *one) for one in seen) < 60 < buffers(database, *claim_of(walking))


def let_other_transactions_pass(database: Database, until: int = 0) -> None:
    """Let so many end that the oldest transaction in progress is old, and at least until a time, ns."""
    passed = 0
    with database.backend.engine.connect() as connection:
        while passed < 120 or database.backend.now(connection) <= until:
            connection.exec_driver_sql("SELECT txid_current()")
            connection.commit()
            passed += 1


@on_postgresql
@pytest.mark.parametrize("statement", ["SELECT txid_current()", "INSERT INTO reports VALUES (1)"])
def test_a_transaction_that_has_not_written_to_the_table_does_not_hold_bounds_back(
    make_table: Callable[..., MessageTable], database: Database, statement: str
) -> None:
    table = make_table()
    with database.backend.engine.connect() as forgotten:
        forgotten.exec_driver_sql("CREATE TABLE reports (number int)")
        forgotten.commit()
        forgotten.exec_driver_sql(statement)
        pass_through(table)
        let_other_transactions_pass(database)
        for _ in range(4):
            assert table.receive() == []
        assert bounds_of(table.context)[0] > table.context.backend.now() - 60_000_000_000


@on_postgresql
@pytest.mark.parametrize("is_into_partition", [False, True])
def test_a_message_that_a_long_transaction_commits_is_found(
    make_table: Callable[..., MessageTable], database: Database, *, is_into_partition: bool
) -> None:
    table = make_table(**({"purge_by": "partition"} if is_into_partition else {}))
    pass_through(table)
    waiting = "orders"
    if is_into_partition:
        table.put("earlier")
        with database.backend.engine.connect() as connection:
            of_it = "SELECT tableoid::regclass FROM orders WHERE time_acked IS NULL"
            waiting = connection.exec_driver_sql(of_it).scalar_one()
        table.ack(table.receive())
    with database.backend.engine.connect() as late:
        rows = sa.table(waiting, *(sa.column(name) for name in ("message", "time_next", "routed")))
        almost_late = table.context.backend.now_sql() - LATE_BY * 9 // 10
        put = sa.insert(rows).values(message="late", time_next=almost_late).returning(rows.c.time_next, rows.c.routed)
        due, is_late = late.execute(put).one()
        assert not is_late
        # Then a bound may be beyond the message.
        let_other_transactions_pass(database, until=due + LATE_BY + 100_000_000)
        for _ in range(6):
            assert table.receive() == []
        late.commit()
    assert [one.payload for one in table.receive()] == ["late"]


@on_mariadb
@pytest.mark.parametrize("priority", [0, 1, 3])
@pytest.mark.usefixtures("held")
def test_neither_a_claim_nor_a_wait_walks_over_deleted_messages(
    make_table: Callable[..., MessageTable], database: Database, priority: int
) -> None:
    table = make_table()

    def handle_one_of_each() -> None:
        table.put_many([{"payload": "x", "priority": one} for one in (0, priority)])
        table.ack(table.receive(2))
        let_bounds_advance(table, table.context.backend.now())

    def pages_of_a_wait() -> int:
        with statements_of(database.backend, "orders") as seen:
            assert table.receive(wait="1ms") == []
        return sum(pages(database, *one) for one in seen if one[0].startswith("SELECT"))

    handle_one_of_each()
    before = pages_of_a_wait()
    with database.backend.engine.begin() as connection:
        for _ in range(30):  # a statement that takes long would put late messages
            values = f"'x', {priority}, {database.backend.now(connection) + 10 * SLOT}"
            put = f"INSERT INTO orders (message, priority, time_next) SELECT {values} FROM seq_1_to_1000"  # noqa: S608
            connection.exec_driver_sql(put)
    with database.backend.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM orders")
    handle_one_of_each()
    assert pages_of_a_wait() < before + 100  # a walk over the entries reads as many, and there are two searches


@on_mariadb
def test_the_database_and_python_give_a_time_the_same_slot(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table()
    now = table.context.backend.now()
    with database.backend.engine.begin() as connection:
        for time_next in (0, SLOT - 1, SLOT, now, MAX_NS):
            connection.execute(sa.text("INSERT INTO orders (message, time_next) VALUES ('x', :at)"), {"at": time_next})
        found = connection.exec_driver_sql("SELECT time_next, due_slot FROM orders").all()
    assert dict(map(tuple, found)) == {one: one // SLOT for one, _ in found}
    assert slots_between(now, now + SLOT) == [now // SLOT, now // SLOT + 1]


@pytest.mark.parametrize(("low", "until"), [(0, MOST_SLOTS * SLOT), (MIN_NS, 0), (5 * SLOT, 4 * SLOT)])
def test_a_search_names_neither_many_slots_nor_none(low: int, until: int) -> None:
    assert slots_between(low, until) is None
    assert slots_between(0, MOST_SLOTS * SLOT - 1) == [*range(MOST_SLOTS)]


def test_a_bound_does_not_pass_the_last_slot_that_was_searched() -> None:
    ahead = 100 * SLOT  # the server's clock was set forward since the slots were chosen
    found = _FirstsFound((ahead, None, None, None, None, None), 1, end_of(7))
    assert found.searched_until(behind=0) == 8 * SLOT
    assert _FirstsFound((ahead, None, None, None, None, None), 1, None).searched_until(behind=5) == ahead - 5


@on_postgresql
@pytest.mark.usefixtures("held")
def test_ten_priorities_have_bounds(make_table: Callable[..., MessageTable], database: Database) -> None:
    table = make_table()
    for priority in range(10):
        table.put_many([{"payload": "x" * 1000, "priority": priority}] * 100)
        advance(table.context)  # which finds the priority
        table.ack(table.receive(100))
    assert sorted(bounds_of(table.context)) == list(range(10))
    let_bounds_advance(table, table.context.backend.now())
    with statements_of(database.backend) as seen:
        assert table.receive() == []
    assert max(buffers(database, *one) for one in seen) < 200


@on_both
@pytest.mark.usefixtures("held")
def test_a_new_process_begins_at_the_bounds(
    make_table: Callable[..., MessageTable], connect: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waterclock.tables.model.claims.bounds.SAVE_EVERY", 0.0)
    table = make_table()
    pass_through(table)
    let_bounds_advance(table, table.context.backend.now())
    table.context.sweeps.due_at = 0
    table.receive()
    another = connect()
    fresh = another.table("orders")
    assert bounds_of(fresh.context) == bounds_of(table.context)
    assert fresh.receive() == []


@on_both
def test_a_message_due_below_the_bound_is_found(make_table: Callable[..., MessageTable], database: Database) -> None:
    table = make_table()
    later = table.put("rescheduled", delay="1h")
    table.put("moved", delay="1h", priority=1)
    past = table.context.backend.now()
    let_bounds_advance(table, past)
    table.put("put", at=past)
    table.reschedule(later, past)
    with database.backend.engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO orders (message, time_scheduled) VALUES ('by SQL', 0)")
        connection.execute(sa.text("UPDATE orders SET time_next = :past WHERE message = 'moved'"), {"past": past})
    claimed = table.receive(10)
    assert {one.payload for one in claimed} == {"put", "rescheduled", "by SQL", "moved"}
    assert claimed[0].payload == "moved"
    table.ack(claimed)
    assert table.receive() == []


@on_both
def test_a_wait_ends_at_a_message_due_below_the_bound(make_table: Callable[..., MessageTable]) -> None:
    table = make_table(poll_interval="1h")
    table.put("first")
    table.ack(table.receive())
    past = table.context.backend.now()
    let_bounds_advance(table, past)
    table.put("late", at=past)
    due, now = table.context.backend.look(lambda own: bounded_rows.due_from_bounds(table.context, own) or (None, 0))
    assert due == past < now


@on_postgresql
def test_a_claim_after_a_wait_needs_no_search_of_its_own(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table()
    table.put("first")
    table.ack(table.receive())
    let_bounds_advance(table, table.context.backend.now())
    for payload in ("second", "third"):
        table.put(payload)
        with statements_of(database.backend) as seen:
            assert [one.payload for one in table.receive()] == [payload]
        assert len(seen) == 1
        assert table.receive(wait="1ms") == []


@on_postgresql
def test_messages_found_from_the_cursor_do_not_wait_for_a_second_claim(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table()
    table.put_many([{"payload": str(number)} for number in range(3)])
    table.ack(table.receive(2))
    with statements_of(database.backend) as seen:
        assert [one.payload for one in table.receive(2)] == ["2"]
    assert sum("UPDATE" in text for text, _ in seen) == 1
    assert table.receive(2) == []


@on_both
def test_a_wait_leaves_the_search_from_the_first_message_to_the_next_claim(
    make_table: Callable[..., MessageTable], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table()
    table.put("first")
    table.ack(table.receive())
    let_bounds_advance(table, table.context.backend.now())
    with database.backend.engine.begin() as connection:
        is_marked = database.backend.dialect.name == "mysql"
        connection.exec_driver_sql("DROP TRIGGER orders_due" if is_marked else 'DROP TRIGGER "~late" ON orders')
        connection.exec_driver_sql("INSERT INTO orders (message, time_scheduled, time_next) VALUES ('hidden', 0, 0)")
    assert table.receive() == []
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600.0)
    monkeypatch.setattr("waterclock.tables.model.claims.bounds.moments", later)
    table.context.backend.look(lambda own: bounded_rows.due_from_bounds(table.context, own))
    assert [one.payload for one in table.receive()] == ["hidden"]


@on_postgresql
def test_a_message_that_a_trigger_of_the_user_makes_due_below_the_bound_is_found(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table()
    table.put("changed", delay="1h")
    past = table.context.backend.now()
    let_bounds_advance(table, past)
    with database.backend.engine.begin() as connection:
        connection.exec_driver_sql(
            f"CREATE FUNCTION set_due() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.time_next := {past};"
            " RETURN NEW; END'"
        )
        connection.exec_driver_sql(
            "CREATE TRIGGER set_due BEFORE INSERT OR UPDATE OF message ON orders"
            " FOR EACH ROW EXECUTE FUNCTION set_due()"
        )
        connection.exec_driver_sql("UPDATE orders SET message = 'changed again'")
    [changed] = table.receive()
    changed.ack()
    with database.backend.engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO orders (message) VALUES ('put')")
    assert [changed.payload, *(one.payload for one in table.receive())] == ["changed again", "put"]


@on_both
def test_a_message_that_is_committed_late_holds_the_bound_up(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table()
    table.put("first")
    table.ack(table.receive())
    with database.begin() as late:
        table.put("late", connection=late)
        began = table.context.backend.now()
        while table.context.backend.now() < began + 500_000_000:
            table.receive()
        assert all(bound < began for bound in bounds_of(table.context).values())
    [found] = table.receive()
    assert found.payload == "late"


@on_both
def test_an_ack_that_is_rolled_back_holds_the_bound_up(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table()
    table.put("first")
    table.ack(table.receive())
    message_id = table.put("second")
    with database.backend.engine.connect() as connection:
        connection.execute(
            sa.text("UPDATE orders SET time_acked = 1, time_next = NULL WHERE id = :id"), {"id": message_id}
        )
        began = table.context.backend.now()
        while table.context.backend.now() < began + 500_000_000:
            assert table.receive() == []
        connection.rollback()
    [found] = table.receive()
    assert found.payload == "second"


@on_mariadb
def test_a_message_whose_insert_waits_for_a_lock_holds_the_bound_up(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table()
    table.put("first")
    table.ack(table.receive())
    locking = database.backend.engine.execution_options(isolation_level="REPEATABLE READ")
    with ThreadPoolExecutor(1) as threads, locking.connect() as connection:
        connection.exec_driver_sql("SELECT seq FROM orders FOR UPDATE")  # locks the gap behind the last message, too
        waiting = threads.submit(table.put, "waited")
        began = table.context.backend.now()
        while table.context.backend.now() < began + 1_000_000_000:
            assert table.receive() == []
        connection.rollback()
        waiting.result()
    [found] = table.receive()
    assert found.payload == "waited"


@on_mariadb
def test_a_search_from_the_first_message_finds_hidden_ones_while_a_statement_waits_for_a_lock(
    make_table: Callable[..., MessageTable], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table()
    table.put("first")
    table.ack(table.receive())
    let_bounds_advance(table, table.context.backend.now())
    engine = database.backend.engine
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER orders_due")
        connection.exec_driver_sql("INSERT INTO orders (message, time_scheduled, time_next) VALUES ('hidden', 0, 0)")

    def lock(connection: sa.Connection) -> None:
        connection.exec_driver_sql("SELECT seq FROM orders WHERE message = 'first' FOR UPDATE")

    def wait() -> None:
        with engine.begin() as connection:
            lock(connection)

    with ThreadPoolExecutor(1) as threads, engine.connect() as connection:
        lock(connection)
        threads.submit(wait)
        while database.backend.alone(table.context.sql.now_without_lock_waits) is not None:
            time.sleep(0.01)
        assert table.receive() == []
        later = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600.0)
        monkeypatch.setattr("waterclock.tables.model.claims.bounds.moments", later)
        found = [one.payload for _ in range(2) for one in table.receive()]
        connection.rollback()
    assert found == ["hidden"]


@on_both
def test_a_statement_that_waited_before_it_put_a_message_is_late(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    make_table()
    # Its time is that of the statement's start.
    waiting = {
        "postgresql": "WITH waited AS MATERIALIZED (SELECT pg_sleep(0.3))"
        " INSERT INTO orders (message) SELECT 'x' FROM waited",
        "mysql": "INSERT INTO orders (message) SELECT 'x' FROM (SELECT sleep(0.3)) AS waited",
    }
    with database.backend.engine.begin() as connection:
        connection.exec_driver_sql(waiting[database.backend.dialect.name])
        assert connection.exec_driver_sql("SELECT routed FROM orders").scalar() == 2


@on_both
def test_priorities_beyond_the_bounds_are_claimed_as_ever(make_table: Callable[..., MessageTable]) -> None:
    table = make_table()
    for priority in (*range(6), *range(6)):
        table.put(str(priority), priority=priority)
        advance(table.context)
        [found] = table.receive()
        found.ack()
        assert found.payload == str(priority)
