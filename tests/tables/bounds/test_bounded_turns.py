"""On MariaDB, searches for turns and for sleeping keys begin at bounds, and miss none that is written below them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from tests.support.statements import statements_of
from tests.tables.options.plain_sql import run
from tests.tables.plans import pages

from waterclock._support import moments
from waterclock.connection import Database
from waterclock.database.driver_fast_path import execute_all
from waterclock.database.schema.table_catalogue import message_keys
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.databases.mariadb.unrouted_keys import second_of
from waterclock.tables.keys import turn_tiers
from waterclock.tables.keys.key_limits import counting, free_places, in_flight, trusted
from waterclock.tables.keys.key_rows import KeyState, _first_due, give_turns, last_turns, put_off
from waterclock.tables.keys.turn_tiers import ASLEEP, HAS_TURN, PACED, lows_of
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.claiming import bounded_keys, bounded_rows
from waterclock.tables.messages.claiming.bounded_keys import advance_keys
from waterclock.tables.model.claims import bounds, leased_bound
from waterclock.tables.model.claims.bounds import UNASSIGNED
from waterclock.tables.model.claims.leased_bound import SLOT, ClockRead, slot_of
from waterclock.time import MIN_NS

pytestmark = pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)

ROUNDS = 20
KEYS = 20


@pytest.fixture
def database(connect: Callable[..., Database], monkeypatch: pytest.MonkeyPatch) -> Database:
    """Let each claim try to advance the bounds up to the current time; no other search finds what it misses."""
    monkeypatch.setattr(bounds, "LOOK_BACK_AT_LEAST", 3600.0)
    monkeypatch.setattr(bounds, "CLOCK_STEP", 0)
    for name in ("LATE_BY", "WRITTEN_WITHIN"):
        monkeypatch.setattr(bounded_keys, name, 0)
    monkeypatch.setattr(bounded_keys, "second_of", lambda now: second_of(now) + 10)  # new messages are not tested here
    monkeypatch.setattr(bounded_rows, "_ADVANCE_IN_PAIRS_EVERY", 0.0)
    monkeypatch.setattr(bounded_rows, "_ADVANCE_IDLE_EVERY", 0.0)
    return connect()


def pass_through(table: MessageTable, **options: int) -> list[Delivery]:
    """Put two messages of each key, and claim them all, so that all keys sleep."""
    table.put_many([{"payload": "x", "group": f"p{each}", **options} for each in range(KEYS)] * 2)
    claimed = table.receive(2 * KEYS)
    return [*claimed, *table.receive()]


def let_bounds_advance(table: MessageTable) -> None:
    """Advance the bounds beyond the current time; lock waits of other databases of the server hold them back."""
    now, reached = table.context.backend.now(), table.context.reached
    every = [*reached.groups.of_unassigned().values(), *reached.sleeping.of_unassigned().values()]
    while any(bound.value < now for bound in every):
        assert table.receive() == []


@pytest.mark.parametrize(
    ("options", "priorities"),
    [({"fair_by": "group"}, (0,)), ({"limit": {"group": 9}}, (0, 3)), ({"rate": {"group": "1000000/s"}}, (0,))],
)
@pytest.mark.usefixtures("written")
def test_neither_a_claim_nor_a_wait_looks_up_earlier_turns_and_pauses(
    make_table: Callable[..., MessageTable], database: Database, options: dict[str, object], priorities: tuple[int]
) -> None:
    table = make_table(ack_wait="50ms", **options)
    for priority in priorities * ROUNDS:
        pass_through(table, priority=priority)
        run(database, "UPDATE orders SET time_acked = 1")
    let_bounds_advance(table)
    with statements_of(database.backend, "waterclock_message_keys") as seen:
        assert table.receive(wait="1ms") == []
    table.context.reached.routed.reset()
    table.put_many([{"payload": "x", "group": "a"}] * 2)
    with statements_of(database.backend, "waterclock_message_keys") as claiming:
        assert len(table.receive(1) + table.receive(1)) == 2
        table.receive()  # the key sleeps
    seen += [one for one in claiming if "unrouted" not in one[0]]  # the bound of new messages is not there yet
    searches = [one for one in seen if one[0].lstrip("(").startswith(("SELECT", "WITH"))]
    # Those for leases begin at a slot of two seconds, in which some of these messages were leased.
    assert max(pages(database, *one) for one in searches) < 10 * ROUNDS


@pytest.fixture
def table(make_table: Callable[..., MessageTable]) -> MessageTable:
    """Make a table whose bounds have passed the turns and pauses of some keys."""
    table = make_table(fair_by="group", payload="text")
    table.ack(pass_through(table))
    let_bounds_advance(table)
    table.context.reached.routed.reset()  # the tests put messages at once
    return table


def test_a_new_process_begins_at_the_bounds(
    table: MessageTable, connect: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "SAVE_EVERY", 0.0)
    table.context.sweeps.due_at = 0
    assert table.receive() == []
    mine, fresh = table.context.reached, connect().table("orders").context.reached
    assert 0 < fresh.groups.low(UNASSIGNED, 0) <= mine.groups.low(UNASSIGNED, 0)
    for state in (ASLEEP, PACED):
        assert 0 < fresh.sleeping.low(UNASSIGNED, state) <= mine.sleeping.low(UNASSIGNED, state)


@pytest.mark.parametrize(
    "change",
    ["turn = turn + 3600000000000", "is_due = 0, due_at = turn + 3600000000000", "is_due = 2, due_at = turn + 1"],
)
def test_a_claim_of_keys_that_is_rolled_back_holds_the_bounds_up(
    table: MessageTable, database: Database, change: str
) -> None:
    table.put_many([{"payload": name, "group": "a"} for name in ("first", "second")])
    [first] = table.receive(1)  # the key waits for its next turn
    with database.backend.engine.connect() as claim:
        claim.exec_driver_sql(f"UPDATE waterclock_message_keys SET {change}")  # noqa: S608  # ours
        for _ in range(3):
            advance_keys(table.context)
        claim.rollback()
    assert [one.payload for one in table.receive()] == ["second"]
    first.ack()


@pytest.mark.parametrize("is_due", [ASLEEP, HAS_TURN, PACED])
def test_a_key_that_is_committed_late_holds_the_bounds_up(table: MessageTable, database: Database, is_due: int) -> None:
    table.put("waits", group="a", delay="1h")
    assert table.receive() == []
    now = table.context.backend.now()
    with database.backend.engine.begin() as late:
        late.execute(sa.update(message_keys).values(is_due=is_due, due_at=now, turn=now, first_at=0))
        for _ in range(3):
            advance_keys(table.context)
    with database.backend.engine.begin() as plain:
        plain.execute(sa.update(table.context.rows).values(time_next=now, routed=1))
        plain.execute(sa.update(table.context.rows).values(routed=1))
    assert [one.payload for one in table.receive()] == ["waits"]


def test_the_highest_priority_goes_first_even_if_no_bound_of_it_is_known(by_priority: MessageTable) -> None:
    for priority in (-5, 0, 7):
        by_priority.put_many(
            [{"payload": str(priority), "group": f"{priority}{nth}", "priority": priority} for nth in "ab"]
        )
    assert [one.payload for one in by_priority.receive(6)] == ["7", "7", "0", "0", "-5", "-5"]


def test_more_priorities_than_have_bounds_are_served(
    by_priority: MessageTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_tiers, "MOST_KNOWN", 2)
    for priority in range(5):
        by_priority.put(str(priority), group="a", priority=priority)
        by_priority.put(str(priority), group="a", priority=priority)
    assert [one.payload for one in by_priority.receive(5)] == ["4", "4", "3", "3", "2"]
    for _ in range(3):
        advance_keys(by_priority.context)
    assert len(by_priority.context.reached.groups.of_unassigned()) == lows_of(by_priority.context).known == 2
    assert [one.payload for one in by_priority.receive(10)] == ["2", "1", "1", "0", "0"]
    by_priority.context.reached.routed.reset()
    by_priority.put_many([{"payload": "x", "group": "a", "priority": 7}] * 2)
    [_] = by_priority.receive(1)
    monkeypatch.setattr(bounds, "UNUSED_FOR", -1.0)
    advance_keys(by_priority.context)
    assert -7 in by_priority.context.reached.groups.of_unassigned()  # it has the place of one that is not used


def test_turns_are_found_after_the_clock_was_set_back(table: MessageTable) -> None:
    table.put("x", group="a")
    for own in (table.context.reached.groups, table.context.reached.sleeping):
        for bound in own.of_unassigned().values():
            bound.value += 3_600_000_000_000
    assert [one.payload for _ in range(2) for one in table.receive()] == ["x"]


def test_neither_a_turn_nor_a_pause_is_in_the_past_when_it_is_written(table: MessageTable, database: Database) -> None:
    """A statement may wait for a lock; here its clock stands still from the start."""
    table.put_many([{"payload": "x", "group": group} for group in "ab"] * 2)
    assert len(table.receive(2)) == 2
    now = table.context.backend.now()
    with database.begin() as claim:
        claim.exec_driver_sql("SET timestamp = 1")
        give_turns(table.context, claim, {("a", 0): KeyState(1, 1, 1)}, last=1)
        put_off(table.context, claim, {("b", 0): KeyState(1, 1, 1)})
        claim.exec_driver_sql("SET timestamp = DEFAULT")
    with database.backend.engine.connect() as connection:
        its = message_keys.c
        turn, due_at = connection.execute(sa.select(sa.func.max(its.turn), sa.func.max(its.due_at))).one()
    assert now <= min(turn, due_at)


def test_the_turn_of_a_row_is_computed_after_earlier_rows_were_written(table: MessageTable, database: Database) -> None:
    """The write of a row may take long, for example because of another transaction's lock."""
    table.put_many([{"payload": "x", "group": f"{each}"} for each in range(KEYS)] * 2)
    assert len(table.receive(KEYS)) == KEYS
    run(
        database,
        "CREATE TRIGGER written BEFORE UPDATE ON waterclock_message_keys FOR EACH ROW BEGIN"
        " IF NEW.turn < @written THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the turn is in the past'; END IF;"
        " SET @written = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) * 1000; END",
    )
    with database.begin() as claim:
        give_turns(table.context, claim, {(f"{each}", 0): KeyState(1, 1, 1) for each in range(KEYS)}, last=1)


@pytest.mark.usefixtures("written")
def test_the_search_for_the_last_turn_passes_no_earlier_ones(table: MessageTable, database: Database) -> None:
    table.put_many([{"payload": "x", "group": "a"}] * 2)
    [_] = table.receive(1)
    for _ in range(20 * ROUNDS):
        run(database, "UPDATE waterclock_message_keys SET turn = turn + 1")
    run(database, "UPDATE waterclock_message_keys SET is_due = 0")
    with statements_of(database.backend, "DESC") as seen, database.backend.snapshot() as connection:
        [(statement, values)] = last_turns(table.context, [0])
        connection.execute(statement, values).one()
    assert pages(database, *seen[0]) < ROUNDS


@pytest.mark.usefixtures("written")
def test_the_search_for_the_first_due_message_passes_no_ended_leases(table: MessageTable, database: Database) -> None:
    table.put_many([{"payload": "x", "group": "a"}] * 10 * ROUNDS)
    table.ack(table.receive(10 * ROUNDS))
    now = table.context.backend.now()
    with statements_of(database.backend, "orders") as seen, database.backend.snapshot() as connection:
        values = {"key": "a", "priority": 0, "of": 0, "low": now, "until": now + 1}
        assert connection.execute(_first_due(table.context, checks=True), values).all() == [(None, 0)]
    assert pages(database, *seen[0]) < ROUNDS


def set_leased_since(database: Database, sql: str) -> None:
    """Run a statement that sets slots of leased messages, which a trigger otherwise prevents."""
    with database.backend.engine.begin() as connection:
        trigger = connection.exec_driver_sql("SHOW CREATE TRIGGER orders_moved").one()[2]
        connection.exec_driver_sql("DROP TRIGGER orders_moved")
        connection.exec_driver_sql(sql)
        connection.exec_driver_sql(trigger.replace("%", "%%"))


def slots(database: Database) -> list[int | None]:
    with database.backend.engine.connect() as connection:
        return list(connection.exec_driver_sql("SELECT leased_since FROM orders ORDER BY seq").scalars())


@pytest.fixture
def by_priority(make_table: Callable[..., MessageTable]) -> MessageTable:
    """Make a table in which each priority has a tier, whose bounds have passed the turns of some keys."""
    table = make_table(limit={"group": 1000}, payload="text")
    table.ack(pass_through(table))
    let_bounds_advance(table)
    table.context.reached.routed.reset()  # the tests put messages at once
    return table


@pytest.fixture
def limited(make_table: Callable[..., MessageTable]) -> MessageTable:
    """Make a table of which a key may have one leased message, with one that is leased and one that waits."""
    limited = make_table(limit={"group": 1}, payload="text", ack_wait="1h")
    limited.put_many([{"payload": name, "group": "a"} for name in ("first", "second")])
    assert [one.payload for one in limited.receive()] == ["first"]
    limited.context.reached.leased.reset()  # the tests set earlier slots
    return limited


def in_flight_of(limited: MessageTable) -> int:
    """Count the leased messages of the key as a claim does, without the advance of the bound that precedes it."""
    with limited.context.backend.snapshot() as connection:
        return 1 - in_flight(limited.context, connection, ["a"], 1).free["a"]


@pytest.mark.usefixtures("written")
def test_a_count_of_leased_messages_passes_no_earlier_leases(limited: MessageTable, database: Database) -> None:
    run(database, "INSERT INTO orders (message, group_id, consumer) SELECT 'x', 'a', 'c' FROM seq_1_to_400")
    set_leased_since(database, "UPDATE orders SET claim_id = 1, leased_since = 5 WHERE consumer = 'c'")
    run(database, "UPDATE orders SET time_acked = 1 WHERE consumer = 'c'")
    while limited.context.reached.leased.value <= 5 * SLOT:
        advance_keys(limited.context)
    with statements_of(database.backend, "slot_0") as seen, database.backend.snapshot() as connection:
        [(statement, values)] = counting(limited.context, ["a"])
        assert [row.leased for row in connection.execute(statement, values) if row.key] == [1]
    with statements_of(database.backend, "json_table") as seen_of_turns:
        assert limited.receive() == []
    assert max(pages(database, *one) for one in seen + seen_of_turns) < 2 * ROUNDS


@pytest.mark.parametrize("slot", ["0", *(f"leased_since {moved}" for moved in ("- 99", "- 32", "- 1", "+ 99"))])
@pytest.mark.parametrize("has_bound", [False, True])
def test_a_limit_counts_leases_of_any_age(
    limited: MessageTable, database: Database, monkeypatch: pytest.MonkeyPatch, slot: str, *, has_bound: bool
) -> None:
    monkeypatch.setattr(leased_bound, "_KEPT", 10**9)  # otherwise it would get the current slot
    set_leased_since(database, f"UPDATE orders SET leased_since = {slot} WHERE leased_since > 0")  # noqa: S608  # ours
    if has_bound:
        advance_keys(limited.context)
    assert [limited.receive() for _ in range(3)] == [[]] * 3
    run(database, "UPDATE orders SET time_acked = 1 WHERE leased_since IS NOT NULL")
    assert [one.payload for one in limited.receive()] == ["second"]


@pytest.mark.parametrize("change", ["time_acked = 1", "claim_id = NULL"])
def test_an_ack_that_is_rolled_back_holds_the_bound_of_leases_up(
    limited: MessageTable, database: Database, change: str
) -> None:
    set_leased_since(database, "UPDATE orders SET leased_since = leased_since - 9 WHERE leased_since > 0")
    [slot, _] = slots(database)
    with database.backend.engine.connect() as other:
        other.exec_driver_sql(f"UPDATE orders SET {change}")  # noqa: S608  # ours
        for _ in range(3):
            advance_keys(limited.context)
        other.rollback()
    assert slot is not None
    assert slot_of(limited.context.reached.leased.value) <= slot


def test_a_message_that_remains_leased_gets_the_current_slot(limited: MessageTable, database: Database) -> None:
    [slot, _] = slots(database)
    assert slot is not None
    set_leased_since(database, "UPDATE orders SET leased_since = leased_since - 99 WHERE leased_since > 0")
    advance_keys(limited.context)
    assert slots(database)[0] in range(slot, slot + 10)
    assert limited.receive() == []


def test_many_messages_that_remain_leased_get_the_current_slot_soon(limited: MessageTable, database: Database) -> None:
    """With older slots, the search for keys that are not full finds full ones, and a claim counts them all."""
    run(database, "INSERT INTO orders (message, group_id, claim_id) SELECT 'x', 'b', 1 FROM seq_1_to_250")
    set_leased_since(database, "UPDATE orders SET leased_since = 7 + (group_id = 'a') WHERE leased_since > 0")
    limited.context.reached.searches_left = 0
    advance_keys(limited.context)
    assert [slot for slot in slots(database) if slot is not None and slot < 9] == [8]
    assert limited.context.reached.searches_left > 0
    advance_keys(limited.context)
    assert min(slot for slot in slots(database) if slot is not None) > 9


def test_a_message_that_remains_leased_keeps_its_slot_while_it_is_locked(
    limited: MessageTable, database: Database
) -> None:
    set_leased_since(database, "UPDATE orders SET leased_since = 7 WHERE leased_since > 0")
    with database.backend.engine.begin() as other:
        other.exec_driver_sql("UPDATE orders SET priority = priority").close()
        advance_keys(limited.context)
    assert slots(database) == [7, None]
    assert limited.receive() == []


@pytest.mark.parametrize(
    ("change", "is_renewed"),
    [("time_next = time_next + 1", True), ("claim_id = 7", True), ("leased_since = 3", True), ("priority = 3", False)],
)
def test_a_change_of_a_lease_sets_its_slot(
    limited: MessageTable, database: Database, change: str, *, is_renewed: bool
) -> None:
    del limited
    set_leased_since(database, "UPDATE orders SET leased_since = 7 WHERE leased_since > 0")
    run(database, f"UPDATE orders SET {change} WHERE leased_since > 0")  # noqa: S608  # ours
    [slot, _] = slots(database)
    assert slot is not None
    assert (slot != 7) == is_renewed


@pytest.mark.parametrize("change", ["time_acked = 1", "claim_id = NULL"])
def test_a_message_that_is_not_leased_has_no_slot(limited: MessageTable, database: Database, change: str) -> None:
    del limited
    run(database, f"UPDATE orders SET {change}, leased_since = 3")  # noqa: S608  # ours
    run(database, "INSERT INTO orders (message, leased_since, claim_id, time_acked) VALUES ('x', 3, 1, 1)")
    assert slots(database) == [None] * 3


def test_another_process_does_not_trust_a_bound_of_leases(
    limited: MessageTable, connect: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot know whether the clock was set back since, or whether the table had a limit all the time."""
    monkeypatch.setattr(bounds, "SAVE_EVERY", 0.0)
    advance_keys(limited.context)
    limited.context.sweeps.due_at = 0
    assert limited.receive() == []
    mine, fresh = limited.context.reached, connect().table("orders").context.reached
    assert fresh.leased.value == MIN_NS < mine.leased.value
    assert fresh.sleeping.low(UNASSIGNED, ASLEEP) > MIN_NS


def test_a_limit_that_is_removed_and_set_again_is_exact(
    limited: MessageTable, connect: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "SAVE_EVERY", 0.0)
    set_leased_since(connect(), "UPDATE orders SET leased_since = leased_since - 99 WHERE leased_since > 0")
    monkeypatch.setattr(leased_bound, "_KEPT", 10**9)
    advance_keys(limited.context)
    limited.context.sweeps.due_at = 0
    assert limited.receive() == []
    for options in ({"limit": None, "rate": {"group": "9/s"}}, {"limit": {"group": 1}, "rate": None}):
        limited.alter(**options)
        limited = connect().table("orders")
        for _ in range(2):
            advance_keys(limited.context)
            limited.context.sweeps.due_at = 0
            limited.ack(limited.receive())
    limited.put("third", group="a")
    limited.context.reached.routed.reset()  # the bound of new messages
    assert limited.receive() == []


def test_a_limit_is_exact_after_the_clock_was_set_back(limited: MessageTable, database: Database) -> None:
    """The lease of another process is then behind the bound, and the clock, too."""
    leased = limited.context.reached.leased
    leased.value = limited.context.backend.now() + 3_600_000_000_000
    set_leased_since(database, "UPDATE orders SET leased_since = leased_since - 99 WHERE leased_since > 0")
    assert in_flight_of(limited) == 1


def test_a_limit_is_exact_after_the_clock_was_set_back_and_caught_up(limited: MessageTable, database: Database) -> None:
    """While this process was stopped, another one leased a message with a slot before the bound."""
    leased = limited.context.reached.leased
    leased.value = limited.context.backend.now() - 1_000_000_000
    set_leased_since(database, "UPDATE orders SET leased_since = leased_since - 99 WHERE leased_since > 0")
    leased.clock_read = stopped_for(limited, passed=7.0, shown=7.0)
    assert in_flight_of(limited) == 1


def test_a_limit_is_exact_after_the_clock_was_set_back_a_little(limited: MessageTable, database: Database) -> None:
    leased = limited.context.reached.leased
    leased.value = limited.context.backend.now()
    set_leased_since(database, "UPDATE orders SET leased_since = leased_since - 3 WHERE leased_since > 0")
    assert in_flight_of(limited) == 1


def test_a_limit_is_exact_after_a_process_was_stopped(limited: MessageTable, database: Database) -> None:
    """Meanwhile, the clock was set back and caught up, and another process leased a message."""
    assert limited.receive() == []
    leased = limited.context.reached.leased
    leased.value = limited.context.backend.now() - 1_000_000_000
    set_leased_since(database, "UPDATE orders SET leased_since = leased_since - 99 WHERE leased_since > 0")
    leased.clock_read = stopped_for(limited, passed=13.0, shown=13.0)
    assert limited.receive() == []


@pytest.mark.parametrize("shown", [-2.0, 60.0])
def test_the_bound_of_leases_does_not_advance_if_the_clock_was_set(
    limited: MessageTable, database: Database, shown: float
) -> None:
    """The time that passed hides that the clock was set back, or set back and then forward."""
    assert limited.receive() == []
    leased = limited.context.reached.leased
    leased.value = limited.context.backend.now() - 4_000_000_000
    set_leased_since(database, "UPDATE orders SET leased_since = leased_since - 6 WHERE leased_since > 0")
    leased.clock_read = stopped_for(limited, passed=4.0, shown=shown)
    assert [limited.receive() for _ in range(3)] == [[]] * 3


def stopped_for(table: MessageTable, *, passed: float, shown: float) -> ClockRead:
    """Return a reading of the clock from some seconds ago, since which the clock has moved by other seconds."""
    at = moments.monotonic() - passed
    return ClockRead(at, at, table.context.backend.now() - int(shown * 1e9))


def test_a_count_from_a_bound_that_another_thread_forgot_is_repeated(limited: MessageTable, database: Database) -> None:
    leased = limited.context.reached.leased
    leased.value = limited.context.backend.now()
    set_leased_since(database, "UPDATE orders SET leased_since = leased_since - 99 WHERE leased_since > 0")
    with limited.context.backend.snapshot() as connection:
        counted = execute_all(connection, counting(limited.context, ["a"]))
        leased.reset()
        again = trusted(limited.context, connection, ["a"], counted)
        assert free_places(limited.context, ["a"], again, 1).free == {"a": 0}


def test_a_claim_searches_only_tiers_that_have_turns(by_priority: MessageTable, database: Database) -> None:
    by_priority.put_many([{"payload": "x", "group": "a"}] * 2)
    with statements_of(database.backend, "waterclock_message_keys") as seen:
        assert len(by_priority.receive(1)) == 1
    [search] = [text for text, values in seen if "seen_turn" in text]
    assert "tier <" not in search
    assert "tier >" in search  # only from the tier on at which the claim begins
    assert " OR unlocked" not in search


@pytest.mark.parametrize(("priority", "expected"), [(5, ["other", "known"]), (-5, ["known", "other"])])
def test_a_claim_finds_keys_of_a_priority_that_another_process_met(
    by_priority: MessageTable,
    connect: Callable[..., Database],
    monkeypatch: pytest.MonkeyPatch,
    priority: int,
    expected: list[str],
) -> None:
    monkeypatch.setattr(bounded_keys, "begins_search", lambda _: False)  # which would meet it, too
    another = connect().table("orders")
    another.put_many([{"payload": "other", "group": "b", "priority": priority}] * 2)
    assert [one.payload for one in another.receive(1)] == ["other"]  # it adds the row of the key
    by_priority.put("known", group="a")
    assert [one.payload for one in by_priority.receive(2)] == expected
