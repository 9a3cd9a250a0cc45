"""In tables whose keys take turns, claims skip finished work that an old snapshot shows, and miss no message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.statements import Statement, statements_of
from tests.tables.conftest import MovableClock
from tests.tables.options.plain_sql import catch_up, run
from tests.tables.plans import buffers

from waterclock.connection import Database
from waterclock.tables.keys.key_limits import in_flight
from waterclock.tables.keys.key_rows import KeyState, give_turns, put_off
from waterclock.tables.keys.turn_tiers import ASLEEP
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.claiming import bounded_rows
from waterclock.tables.messages.upkeep.reconcile import heal
from waterclock.tables.model.timing.sweeps import ENDED_FOR
from waterclock.time import MIN_NS

FINISHED = 600

of_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # the only one with bounds
of_keys = pytest.mark.parametrize(
    "options", [{"fair_by": "group"}, {"limit": {"group": 300}}, {"rate": {"group": "1000000/s"}}]
)


def pass_through(table: MessageTable, count: int) -> None:
    table.put_many([{"payload": "x" * 100, "group": "a"}] * count)
    while claimed := table.receive(100):
        table.ack(claimed)


def most_buffers(database: Database, seen: list[Statement], part: str) -> int:
    found = [buffers(database, *one) for one in seen if part in one[0] and one[0].startswith("SELECT")]
    assert found
    return max(found)


@of_postgresql
@of_keys
@pytest.mark.usefixtures("held")
def test_a_claim_begins_behind_the_finished_messages_of_a_key(
    make_table: Callable[..., MessageTable], database: Database, clock: MovableClock, options: dict[str, Any]
) -> None:
    table = make_table(**options)
    table.put("waits", group="a")  # so that the row of the key stays
    [_] = table.receive()
    pass_through(table, FINISHED)
    clock.move("1s")
    table.put("y", group="a")
    with statements_of(database.backend) as seen:
        assert len(table.receive(10)) == 1
    assert most_buffers(database, seen, "first_at") < FINISHED / 4


@of_postgresql
@pytest.mark.usefixtures("held")
def test_a_claim_reads_neither_the_ends_of_leases_nor_earlier_versions_of_the_row_of_a_key(
    make_table: Callable[..., MessageTable], database: Database, clock: MovableClock
) -> None:
    table = make_table(fair_by="group")
    table.put("waits", group="a")
    [_] = table.receive()
    for _ in range(FINISHED // 10):
        clock.move("100ms")
        pass_through(table, 10)
    clock.move("100ms")
    table.put("y", group="a")
    with statements_of(database.backend) as seen:
        assert len(table.receive(10)) == 1
        assert table.receive(10) == []
    assert most_buffers(database, seen, "ORDER BY orders.time_next") < FINISHED / 4
    for text, values in seen:
        if "WITH RECURSIVE walk" in text or text.startswith("UPDATE waterclock_message_keys"):
            assert buffers(database, text, values) < FINISHED / 10, text


def let_key_end(table: MessageTable, clock: MovableClock, key: str) -> None:
    table.put("x", group=key)
    table.ack(table.receive())
    clock.move("1min")
    assert table.receive() == []


@of_postgresql
@pytest.mark.usefixtures("held")
def test_a_key_that_has_ended_is_looked_up_without_reading_earlier_versions_of_its_row(
    make_table: Callable[..., MessageTable], database: Database, clock: MovableClock
) -> None:
    table = make_table(fair_by="group")
    with statements_of(database.backend) as seen:
        let_turns_pass(table, clock, 4)
    lookups = [one for one in seen if one[0].startswith("WITH RECURSIVE walk")]
    assert buffers(database, *lookups[-1]) < 800  # a hundred keys


@of_postgresql
@pytest.mark.parametrize("row_is_locked", [False, True])
def test_the_row_of_a_key_is_deleted_some_minutes_after_its_last_message(
    make_table: Callable[..., MessageTable], database: Database, clock: MovableClock, row_is_locked: bool
) -> None:
    table = make_table(rate={"group": "1/s"})
    for key in ("ends", "begins again"):
        let_key_end(table, clock, key)
    with database.begin() as connection:
        if row_is_locked:
            connection.exec_driver_sql("SELECT 1 FROM waterclock_message_keys WHERE message_key = 'ends' FOR UPDATE")
        clock.now += ENDED_FOR
        table.put("y", group="begins again")
        assert [one.payload for one in table.receive()] == ["y"]
        table.context.ended_rows._due_at = 0
        assert table.receive() == []
        assert names_of_keys(database) == (["begins again", "ends"] if row_is_locked else ["begins again"])
    table.context.ended_rows._due_at = 0
    assert table.receive() == []
    assert names_of_keys(database) == ["begins again"]


def names_of_keys(database: Database) -> list[str]:
    with database.backend.engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT message_key FROM waterclock_message_keys ORDER BY message_key")
        return list(found.scalars())


@of_postgresql
@pytest.mark.usefixtures("held")
def test_a_limit_is_checked_without_reading_leases_that_ended_before_those_of_its_key(
    make_table: Callable[..., MessageTable], database: Database, clock: MovableClock
) -> None:
    table = make_table(limit={"group": 50})
    for _ in range(FINISHED // 50):
        clock.move("1min")  # the leases have ended
        pass_through(table, 50)
    clock.move("1min")
    run(database, "ANALYZE orders")  # to a planner with these statistics, no message is unacked
    table.put("y", group="a")
    with statements_of(database.backend) as seen:
        assert len(table.receive(10)) == 1
    [counting] = [one for one in seen if "AS leased," in one[0]]
    assert buffers(database, *counting) < FINISHED / 25


@of_postgresql
@pytest.mark.usefixtures("held")
def test_a_limit_is_checked_without_reading_messages_that_were_acked_during_their_lease(
    make_table: Callable[..., MessageTable], database: Database, clock: MovableClock
) -> None:
    table = make_table(limit={"group": 50})
    table.put("kept", group="a", priority=1)
    [kept] = table.receive()
    for _ in range(FINISHED // 50):
        pass_through(table, 50)
        clock.move("100ms")
    table.put("y", group="a")
    with statements_of(database.backend) as seen:
        [y] = table.receive(10)
    [counting] = [one for one in seen if "AS leased," in one[0]]
    assert buffers(database, *counting) < FINISHED / 20
    with database.begin() as connection:
        assert in_flight(table.context, connection, ["a"], 50).free["a"] == 48
    for one in (kept, y):
        one.ack()


@of_postgresql
def test_an_ack_looks_messages_up_by_seq_although_statistics_say_that_few_are_leased(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(fair_by="group")
    pass_through(table, 100)
    run(database, "ANALYZE orders")
    table.put_many([{"payload": "y", "group": "a"}] * 50)
    claimed = table.receive(50)
    with statements_of(database.backend) as seen:
        table.ack(claimed)
    [(text, values)] = [one for one in seen if one[0].startswith("UPDATE orders")]
    with database.backend._indexed_writer.connect() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN {text}", values).scalars().all()
    assert any("orders_pkey" in step for step in plan), plan


@pytest.mark.parametrize("change", ["time_next = 1", "time_next = time_next + 1", "group_id = 'a'", "priority = 3"])
def test_a_leased_message_that_plain_sql_has_changed_counts_under_a_limit(
    make_table: Callable[..., MessageTable], database: Database, change: str
) -> None:
    table = make_table(limit={"group": 3}, payload="text")
    table.put_many([{"payload": "1", "group": "a"}, {"payload": "2", "group": "b"}, {"payload": "3", "group": "a"}])
    assert len(table.receive(10)) == 3
    run(database, f"UPDATE orders SET {change} WHERE message = '2' OR priority = 0 AND group_id = 'a'")  # noqa: S608  # fixed
    expected = 0 if change == "group_id = 'a'" else 1
    with database.begin() as connection:
        assert in_flight(table.context, connection, ["a"], 10).free["a"] == expected


@pytest.mark.parametrize("is_claimed", [False, True])
def test_a_due_message_that_is_postponed_is_found_before_other_leases_of_its_key_end(
    make_table: Callable[..., MessageTable], database: Database, clock: MovableClock, is_claimed: bool
) -> None:
    table = make_table(fair_by="group", payload="text", ack_wait="10min", batch_size=1)
    table.put("moved", group="a")
    claimed = table.receive() if is_claimed else []
    if is_claimed:
        run(database, "UPDATE orders SET time_next = 1 WHERE message = 'moved'")
    table.put("first", group="a", at="1970-01-01T00:00:00Z")
    [_] = table.receive()
    for delivery in claimed:
        delivery.extend("5s")
    if not is_claimed:
        soon = database.backend.now() + 5 * 10**9
        run(database, "UPDATE orders SET time_next = :at WHERE message = 'moved'", at=soon)
    assert table.receive() == []
    clock.move("5s")
    assert [one.payload for one in table.receive()] == ["moved"]


@pytest.mark.both_servers
@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)  # SQLite locks no single rows
def test_a_claim_passes_no_message_that_another_transaction_has_locked(
    make_table: Callable[..., MessageTable], database: Database, clock: MovableClock
) -> None:
    table = make_table(fair_by="group")
    for number in range(4):
        clock.move("1s")
        table.put(str(number), group="a")
    assert [one.payload for one in table.receive(1)] == ["0"]  # which makes all of them known
    with database.begin() as connection:
        connection.exec_driver_sql("UPDATE orders SET headers = '{}' WHERE message = '1'")
        assert [one.payload for one in table.receive(1)] == ["2"]
        assert [one.payload for one in table.receive(1)] == ["3"]
        connection.rollback()
    assert [one.payload for one in table.receive(1)] == ["1"]


def test_a_message_that_is_due_before_those_of_its_key_is_found(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(fair_by="group", payload="text")
    table.put_many([{"payload": "x", "group": "a"}] * 3)
    assert len(table.receive(1)) == 1
    table.put("put", group="a", at="2001-01-01T00:00:00Z")
    table.put("changed", group="a", delay="1h")
    table.put("moved", group="b", delay="1h")
    assert len(table.receive(2)) == 2
    run(database, "UPDATE orders SET time_next = 1 WHERE message = 'changed'")
    run(database, "UPDATE orders SET time_next = 2, group_id = 'a' WHERE message = 'moved'")
    assert {one.payload for one in table.receive(10)} == {"x", "changed", "moved"}


@pytest.fixture
def never_looks_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is found be found by the bounds alone, which advance at each claim."""
    monkeypatch.setattr("waterclock.tables.model.claims.bounds.LOOK_BACK_AT_LEAST", 3600.0)
    monkeypatch.setattr(bounded_rows, "ADVANCE_EVERY", 0.0)
    monkeypatch.setattr(bounded_rows, "_ADVANCE_IDLE_EVERY", 0.0)


def let_bound_advance(table: MessageTable, beyond: int = 1) -> None:
    """Let messages pass, until the bound is behind some of them."""
    while table.context.reached.routed.value <= beyond:
        table.put_many([{"payload": "x" * 1000, "group": "a"}] * 500)
        while claimed := table.receive(500):
            table.ack(claimed)


@of_postgresql
@pytest.mark.usefixtures("held", "never_looks_back")
def test_a_search_for_new_messages_begins_at_the_bound(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(fair_by="group")
    let_bound_advance(table, 2000)
    run(database, "ANALYZE orders")  # to a planner with these statistics, no message is unacked
    with statements_of(database.backend) as seen:
        assert table.receive() == []
    from_the_bound = most_buffers(database, seen, "routed != 1")
    table.context.reached.routed.reset()
    with statements_of(database.backend) as seen:
        assert table.receive() == []
    assert from_the_bound < most_buffers(database, seen, "routed != 1") * 2 / 3


@of_postgresql
@pytest.mark.usefixtures("held", "never_looks_back")
def test_a_search_for_new_messages_passes_no_earlier_retries(
    make_table: Callable[..., MessageTable], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waterclock.tables.model.claims.bounds.SAVE_EVERY", 0.0)
    table = make_table(fair_by="group")
    let_bound_pass_retries(table, 5)
    table.context.sweeps.due_at = 0
    heal(table.context)
    found: list[int] = []
    for one in (table, database.table("orders")):  # the latter with the bounds that were saved, as in a new process
        with statements_of(database.backend) as seen:
            assert one.receive() == []
        found.append(most_buffers(database, seen, "routed != 1"))
    table.context.reached.routed.reset()
    with statements_of(database.backend) as seen:
        assert table.receive() == []
    assert max(found) < most_buffers(database, seen, "routed != 1") / 2


def retry(table: MessageTable, times: int) -> None:
    """Let messages of a key be retried so often, and ack them."""
    table.put_many([{"payload": "x" * 1000, "group": "r"}] * FINISHED)
    for _ in range(times):
        table.nack(table.receive(FINISHED), "0s")
    table.ack(table.receive(FINISHED))


def let_bound_pass_retries(table: MessageTable, times: int) -> None:
    """Let the bound pass so many retries, except those of a block.

    A transaction in any database of the server holds it back, such as one of another test.
    """
    routed = table.context.reached.routed
    passed = max(routed.value, 1) + (1 + times) * FINISHED - 1024
    retry(table, times)
    assert any(table.receive() or routed.value >= passed for _ in range(2000))


@of_postgresql
@pytest.mark.usefixtures("never_looks_back")
@pytest.mark.parametrize("change", ["time_next = 1", "group_id = 'b', time_next = 1"])
def test_a_change_that_is_committed_late_is_found(
    make_table: Callable[..., MessageTable], database: Database, clock: MovableClock, change: str
) -> None:
    table = make_table(fair_by="group")
    table.put("late", group="a", delay="100h")
    assert table.receive() == []
    let_bound_pass_retries(table, 2)
    with database.backend.engine.connect() as late:
        late.exec_driver_sql(f"UPDATE orders SET {change} WHERE message = 'late'")  # noqa: S608  # fixed
        retry(table, 4)
        assert table.receive() == []
        late.commit()
    catch_up(clock)
    assert [one.payload for one in table.receive()] == ["late"]


@of_postgresql
@pytest.mark.usefixtures("never_looks_back")
def test_messages_are_found_after_their_numbers_were_set_back(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(fair_by="group")
    let_bound_pass_retries(table, 2)
    run(database, "TRUNCATE orders RESTART IDENTITY")
    table.put("y", group="a")
    assert [one.payload for _ in range(2) for one in table.receive()] == ["y"]


@of_postgresql
def test_a_message_that_draws_the_first_number_is_found(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(fair_by="group")
    table.put("y", group="a", delay="100h")
    assert table.receive() == []
    run(database, "ALTER SEQUENCE orders_seq_seq RESTART")
    run(database, "UPDATE orders SET time_next = 1")
    assert [one.payload for one in table.receive()] == ["y"]


@of_postgresql
@pytest.mark.usefixtures("never_looks_back")
def test_a_message_of_a_key_that_is_committed_late_is_found(
    make_table: Callable[..., MessageTable], database: Database, clock: MovableClock
) -> None:
    table = make_table(fair_by="group")
    with database.backend.engine.connect() as late:
        late.exec_driver_sql("INSERT INTO orders (message, group_id) VALUES ('late', 'l')")
        for _ in range(4):
            pass_through(table, FINISHED)
        late.commit()
    catch_up(clock)
    assert [one.payload for one in table.receive()] == ["late"]


@of_postgresql
@pytest.mark.usefixtures("never_looks_back")
def test_a_message_that_was_acked_before_it_was_routed_is_found_again(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(fair_by="group")
    table.put("first", group="b")
    run(database, "UPDATE orders SET time_acked = 1")
    let_bound_advance(table)
    run(database, "UPDATE orders SET time_acked = NULL WHERE message = 'first'")
    assert [one.payload for one in table.receive()] == ["first"]


def let_turns_pass(table: MessageTable, clock: MovableClock, rounds: int) -> None:
    """Let keys take turns, sleep and wake."""
    for _ in range(rounds):
        clock.move("1s")
        table.put_many([{"payload": "x", "group": f"g{number}"} for number in range(100)])
        claimed = table.receive(100)
        assert table.receive(100) == []  # now the keys sleep until the ends of the leases
        table.ack(claimed)
        clock.move("1min")
        assert table.receive(100) == []


def let_bounds_of_rows_advance(table: MessageTable, clock: MovableClock) -> None:
    """Let turns pass until the bounds are near the last one.

    A transaction in any database of the server holds them back, such as one of another test.
    """
    let_turns_pass(table, clock, 5)
    reached, are_near = table.context.reached, False
    while not are_near:
        recent = table.context.backend.now()
        let_turns_pass(table, clock, 3)
        bounds = *reached.groups.of_unassigned().values(), reached.sleeping.of_unassigned()[ASLEEP]
        are_near = min(bound.value for bound in bounds) > recent


@of_postgresql
@pytest.mark.usefixtures("held", "never_looks_back")
def test_searches_of_the_rows_of_keys_begin_at_bounds(
    make_table: Callable[..., MessageTable],
    database: Database,
    clock: MovableClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("waterclock.tables.model.claims.bounds.SAVE_EVERY", 0.0)
    table = make_table(fair_by="group")
    begun = database.backend.now()
    let_bounds_of_rows_advance(table, clock)
    table.context.sweeps.due_at = 0
    heal(table.context)
    for one in (table, database.table("orders")):  # the latter with the bounds that were saved, as in a new process
        with statements_of(database.backend) as seen:
            assert one.receive() == []
        assert min(values["asleep"] for _, values in seen if "asleep" in values) > begun
        [*_, next_turns] = [found for found in seen if "AS due" in found[0]]
        from_the_first = buffers(database, next_turns[0], next_turns[1] | {"low_0": MIN_NS})
        assert buffers(database, *next_turns) < from_the_first / 2


@of_postgresql
@pytest.mark.usefixtures("never_looks_back")
@pytest.mark.parametrize("change", ["is_due = 1, turn = :now", "is_due = 0, due_at = :now"])
def test_a_row_of_a_key_that_is_committed_late_is_found(
    make_table: Callable[..., MessageTable], database: Database, clock: MovableClock, change: str
) -> None:
    table = make_table(fair_by="group")
    table.put("later", group="l", delay="100h")
    assert table.receive() == []
    with database.backend.engine.connect() as late:
        update = f"UPDATE waterclock_message_keys SET {change}, first_at = -1 WHERE message_key = 'l'"  # noqa: S608  # fixed
        late.execute(sa.text(update), {"now": database.backend.now()})
        let_turns_pass(table, clock, 4)
        late.commit()
    assert table.receive() == []
    with database.backend.engine.connect() as connection:
        find = sa.text("SELECT first_at FROM waterclock_message_keys WHERE message_key = 'l'")
        assert connection.execute(find).scalar_one() > 0  # a claim has looked at the row


@of_postgresql
def test_no_turn_and_no_pause_is_in_the_past_when_it_is_written(
    make_table: Callable[..., MessageTable], database: Database, clock: MovableClock
) -> None:
    table = make_table(fair_by="group")
    for group in "ab":
        table.put("later", group=group, delay="1h")
    assert table.receive() == []
    clock.move("1s")
    with database.begin() as connection:  # as by a claim that was suspended after it had looked
        give_turns(table.context, connection, {("a", 0): KeyState(1, 1, 1)}, last=1)
        put_off(table.context, connection, {("b", 0): KeyState(1, 1, 1)})
        find = sa.text("SELECT is_due, turn, due_at FROM waterclock_message_keys ORDER BY message_key")
        a, b = connection.execute(find)
    now = database.backend.now()
    assert (a.is_due, a.turn >= now, b.is_due, b.due_at >= now) == (1, True, 0, True)
