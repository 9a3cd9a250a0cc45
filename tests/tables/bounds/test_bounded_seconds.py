"""On MariaDB, searches for new messages of keys begin at a second, and miss none that is written below it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.statements import statements_of
from tests.tables.conftest import MovableClock
from tests.tables.options.plain_sql import run
from tests.tables.plans import pages

from waterclock.connection import Database
from waterclock.database.engines.mariadb import NOW
from waterclock.tables.databases.mariadb.unrouted_keys import second_of
from waterclock.tables.keys import key_routing
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.claiming import bounded_keys, bounded_rows
from waterclock.time import MAX_NS

pytestmark = pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)

FINISHED = 600


@pytest.fixture
def table(make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch) -> MessageTable:
    """Let each claim try to advance the bound; no other search finds what it misses."""
    monkeypatch.setattr("waterclock.tables.model.claims.bounds.LOOK_BACK_AT_LEAST", 3600.0)
    monkeypatch.setattr(bounded_rows, "_ADVANCE_IN_PAIRS_EVERY", 0.0)
    monkeypatch.setattr(bounded_rows, "_ADVANCE_IDLE_EVERY", 0.0)
    return make_table(fair_by="group", payload="text")


@pytest.fixture
def let_pass(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let the clock of bounds go ahead, so that they pass everything that does not hold them up."""

    def go_ahead() -> None:
        monkeypatch.setattr(bounded_keys, "second_of", lambda now: second_of(now) + 10)

    return go_ahead


def server_second(database: Database) -> int:
    with database.backend.engine.connect() as connection:
        return second_of(connection.exec_driver_sql(f"SELECT {NOW}").scalar_one())


def begin_now(table: MessageTable, database: Database) -> None:
    """Set the bound to the current second, in which later messages are put."""
    table.context.reached.routed.value = server_second(database)


def reach_now(table: MessageTable, database: Database) -> None:
    """Claim until the bound has passed all messages; lock waits of other databases of the server hold it back."""
    while table.context.reached.routed.value <= server_second(database):
        assert table.receive() == []


def put_in_seconds(database: Database, messages: Iterable[tuple[int, str, int, int]]) -> None:
    """Put messages, each as its second, from now on, and its group, priority and due time."""
    with database.backend.engine.begin() as connection:
        now = connection.exec_driver_sql("SELECT UNIX_TIMESTAMP()").scalar_one()
        for after, group, priority, due in messages:
            connection.exec_driver_sql(f"SET timestamp = {now + after}")
            connection.exec_driver_sql(
                "INSERT INTO orders (message, group_id, priority, time_next) VALUES (%s, %s, %s, %s)",
                (f"{group}{priority}", group, priority, due),
            )
        connection.exec_driver_sql("SET timestamp = DEFAULT")


@pytest.mark.usefixtures("written")
def test_neither_a_claim_nor_a_wait_looks_up_routed_messages(
    table: MessageTable, database: Database, let_pass: Callable[[], None]
) -> None:
    let_pass()
    table.put_many([{"payload": "x", "group": f"g{number % 7}"} for number in range(FINISHED)])
    while claimed := table.receive(100):
        table.ack(claimed)
    reach_now(table, database)
    with statements_of(database.backend, "orders_unrouted_idx") as seen:
        assert table.receive(wait="1ms") == []
    assert seen
    assert max(pages(database, *one) for one in seen) < FINISHED / 4


def test_a_new_process_begins_at_the_bound(
    table: MessageTable,
    database: Database,
    connect: Callable[..., Database],
    let_pass: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("waterclock.tables.model.claims.bounds.SAVE_EVERY", 0.0)
    let_pass()
    table.put("x", group="a")
    table.ack(table.receive())
    reach_now(table, database)
    table.context.sweeps.due_at = 0
    assert table.receive() == []
    assert connect().table("orders").context.reached.routed.value == table.context.reached.routed.value


def test_a_message_that_is_committed_late_holds_the_bound_up(
    table: MessageTable, database: Database, let_pass: Callable[[], None]
) -> None:
    let_pass()
    with database.begin() as late:
        table.put("late", group="l", connection=late)
        for _ in range(3):
            assert table.receive() == []
    assert [one.payload for one in table.receive()] == ["late"]


@pytest.mark.parametrize("change", ["routed = 1", "time_acked = 1"])
def test_a_change_that_is_rolled_back_holds_the_bound_up(
    table: MessageTable, database: Database, let_pass: Callable[[], None], change: str
) -> None:
    table.put("first", group="a")
    let_pass()
    with database.backend.engine.connect() as other:
        other.exec_driver_sql(f"UPDATE orders SET {change}")  # noqa: S608  # ours
        for _ in range(3):
            assert table.receive() == []
        other.rollback()
    assert [one.payload for one in table.receive()] == ["first"]


def test_a_message_whose_insert_waits_for_a_lock_holds_the_bound_up(
    make_table: Callable[..., MessageTable],
    table: MessageTable,
    database: Database,
    let_pass: Callable[[], None],
) -> None:
    del table  # for its patches
    others = make_table("others", fair_by="group", payload="text", id_type="text")
    others.put("x", id="same", group="s", delay="1h")
    assert others.receive() == []

    def put_waiting() -> None:
        run(database, "INSERT INTO others (id, group_id, time_next) VALUES ('same', 'waited', 1)")

    with ThreadPoolExecutor(1) as threads, database.backend.engine.connect() as first:
        first.exec_driver_sql("DELETE FROM others WHERE id = 'same'")
        waiting = threads.submit(put_waiting)
        while database.backend.alone(others.context.sql.now_without_lock_waits) is not None:
            pass
        let_pass()
        for _ in range(3):
            assert others.receive() == []
        first.commit()
        waiting.result()
    assert [one.group for one in others.receive()] == ["waited"]


@pytest.mark.parametrize(
    "change",
    ["time_next = 1", "time_next = 1, group_id = 'c'", "time_next = 1, priority = 3", "time_next = 1, routed = 0"],
)
def test_messages_that_plain_sql_changes_below_the_bound_are_found(
    table: MessageTable, database: Database, change: str
) -> None:
    table.put("changed", group="a", delay="1h")
    assert table.receive() == []
    begin_now(table, database)
    run(database, f"UPDATE orders SET {change}")  # noqa: S608  # ours
    assert [one.payload for one in table.receive()] == ["changed"]


def test_a_message_that_was_acked_before_it_was_routed_is_found_again(table: MessageTable, database: Database) -> None:
    table.put("first", group="b")
    run(database, "UPDATE orders SET time_acked = 1")
    begin_now(table, database)
    run(database, "UPDATE orders SET time_acked = NULL")
    assert [one.payload for one in table.receive()] == ["first"]


def test_a_message_whose_null_becomes_unrouted_after_the_trigger_is_found(
    table: MessageTable, database: Database
) -> None:
    run(database, "INSERT IGNORE INTO orders (message, time_next, routed) VALUES ('first', 1, NULL)")
    assert [one.payload for one in table.receive()] == ["first"]


def test_plain_sql_puts_no_finished_message_among_unrouted_ones(table: MessageTable, database: Database) -> None:
    del table
    run(database, "INSERT INTO orders (message, time_acked, unrouted_since) VALUES ('x', 1, 1)")
    with database.backend.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT unrouted_since FROM orders").scalar_one() is None


def test_new_messages_are_found_after_the_clock_was_set_back(table: MessageTable, database: Database) -> None:
    begin_now(table, database)
    table.context.reached.routed.value += 3600
    table.put("x", group="a")
    assert [one.payload for _ in range(2) for one in table.receive()] == ["x"]


def test_a_new_key_behind_many_seconds_of_another_comes_within_two_messages(
    table: MessageTable, database: Database, clock: MovableClock
) -> None:
    put_in_seconds(database, [*((number // 4, "a", 0, 1) for number in range(100)), (27, "z", 0, 1)])
    clock.now += 10**9  # plain SQL uses the clock of the server
    assert "z0" in [one.payload for _ in range(2) for one in table.receive(1)]


def test_a_new_key_in_the_newest_second_comes_within_two_messages(
    table: MessageTable, database: Database, clock: MovableClock
) -> None:
    put_in_seconds(database, [*((number * 4, "a", 0, 1) for number in range(60)), (250, "z", 0, 1)])
    clock.now += 255 * 10**9
    assert "z0" in [one.payload for _ in range(2) for one in table.receive(1)]


def test_a_due_message_behind_very_many_scheduled_ones_of_its_second_is_found(
    table: MessageTable, database: Database, clock: MovableClock
) -> None:
    table.context.turns.looked_ahead_at = math.inf  # the other search would find it among so few
    put_in_seconds(database, [*((0, "abcd"[number % 4], 0, MAX_NS) for number in range(1_600)), (0, "z", 0, 1)])
    clock.now += 10**9
    assert [one.payload for _ in range(5) for one in table.receive(1)] == ["z0"]


@pytest.mark.parametrize("sleeps", [False, True])
def test_a_key_behind_many_messages_of_many_others_comes_next(
    table: MessageTable, database: Database, clock: MovableClock, *, sleeps: bool
) -> None:
    if sleeps:
        table.put("later", group="z", delay="1h")
        assert table.receive() == []
    put_in_seconds(database, [*((number // 100, f"k{number % 30}", 0, 1) for number in range(1_000)), (5, "z", 0, 1)])
    clock.now += 10**9
    assert "z0" in [one.payload for _ in range(4) for one in table.receive(10)]


@pytest.mark.parametrize(("keys", "priorities"), [("abcd", 1), ("a", 4)])
def test_a_key_behind_very_many_messages_of_few_others_in_its_second_comes_soon(
    table: MessageTable,
    database: Database,
    clock: MovableClock,
    limit: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    keys: str,
    priorities: int,
) -> None:
    monkeypatch.setattr(key_routing, "_LOOK_AHEAD_EVERY", 0.0)
    limit(key_routing, "_LOOKED_AHEAD", 100)
    others = ((0, keys[number % len(keys)], number % priorities, 1) for number in range(1_600))
    put_in_seconds(database, [*others, (0, "z", 0, 1)])
    clock.now += 10**9
    assert "z0" in [one.payload for _ in range(20) for one in table.receive(1)]


@pytest.mark.parametrize(
    ("many", "one"),
    [
        ("a", ("a", 0)),  # due before the others of its key
        ("a", ("a", -3)),
        ("a", ("a", 3)),
        ("a", ("A", 0)),
        ("b", ("", 0)),
        ("ab", ("aa", 0)),
    ],
)
def test_a_due_message_behind_many_seconds_of_scheduled_ones_is_found(
    table: MessageTable, database: Database, clock: MovableClock, many: str, one: tuple[str, int]
) -> None:
    scheduled = [(number // 4, many[number % len(many)], 0, MAX_NS) for number in range(100)]
    put_in_seconds(database, [*scheduled, (30, *one, 1)])
    clock.now += 10**9
    assert len(table.receive(1)) == 1


def test_all_messages_of_many_keys_in_many_seconds_are_delivered(
    table: MessageTable, database: Database, clock: MovableClock
) -> None:
    put_in_seconds(
        database, ((number, "a" if number % 3 else f"k{number}", number % 2, number) for number in range(120))
    )
    clock.now += 10**9
    claimed = [found for _ in range(150) for found in table.receive(1)]
    assert len({found.id for found in claimed}) == 120
    assert table.receive() == []
    with database.backend.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(unrouted_since) FROM orders").scalar_one() == 0
