"""While a transaction holds an old snapshot, no frequent statement of groups walks over finished work."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from tests.support.statements import statements_of
from tests.tables.conftest import MovableClock
from tests.tables.plans import buffers

from waterclock.connection import Database
from waterclock.database.schema.table_catalogue import LEASE_SLOT_BITS, USED_SLOT_BITS, unique_keys
from waterclock.tables.consumers.receiving import Request, seconds_until_due
from waterclock.tables.databases import claiming_rows
from waterclock.tables.groups.consumers import renew
from waterclock.tables.groups.group_state import lock_groups
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.finishing import expiring, extending
from waterclock.tables.messages.upkeep.reconcile import heal, heal_all
from waterclock.tables.model.claims.bounds import CLOCK_STEP, GroupBounds, ProvenBound
from waterclock.tables.model.claims.claim import FIRST_SEQ
from waterclock.tables.model.row_conditions import CANCELLED
from waterclock.tables.model.timing import sweeps
from waterclock.tables.model.timing.sweeps import ENDED_FOR, WHOLE_EVERY
from waterclock.time import MIN_NS

pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # the only one that counts buffers

FINISHED = 600

UPDATES = (
    "SELECT pg_stat_get_xact_tuples_updated(oid), pg_stat_get_xact_tuples_hot_updated(oid) FROM pg_class"
    " WHERE oid = to_regclass('{}')"
)
"""Selects how many rows of a table the transaction has updated, and how many of these updates added no index entry."""


@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
@pytest.mark.usefixtures("held")
def test_settling_a_group_begins_at_its_head(
    make_table: Callable[..., MessageTable], database: Database, policy: str
) -> None:
    table = make_table(groups=policy)
    table.put_many([{"payload": "x", "group": "a"}] * FINISHED)
    while len(finished := table.receive(100)) == 100:
        table.ack(finished)
    table.put_many([{"payload": "x", "group": "a"}] * 2)
    [first] = table.receive(1)
    with statements_of(database.backend) as seen:
        table.ack([first])
    [(text, values)] = [(text, values) for text, values in seen if re.match(r"UPDATE waterclock_groups .*head=", text)]
    assert buffers(database, text, values) < FINISHED / 4


@pytest.mark.usefixtures("held")
def test_a_group_that_begins_again_has_its_places_behind_those_it_had(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="sequenced")
    for _ in range(2):
        table.put_many([{"payload": "x", "group": "a"}] * 3)
        table.ack(table.receive(3))
    with database.backend.engine.connect() as connection:
        places = connection.exec_driver_sql("SELECT position FROM orders ORDER BY seq").scalars().all()
    assert places == sorted(set(places))


def pass_through(table: MessageTable, rounds: int) -> None:
    """Put, claim and ack messages of many groups; each round ends with a claim that finds nothing."""
    for _ in range(rounds):
        table.put_many([{"payload": "x", "group": f"g{number}"} for number in range(100)])
        while claimed := table.receive(100, consumer="x"):
            table.ack(claimed)


def let_bounds_advance(table: MessageTable) -> None:
    """Let messages pass until the bounds are near the last one.

    A transaction in any database of the server holds them back, such as one of another test.
    """
    pass_through(table, 8)
    reached, are_near = table.context.reached, False
    while not are_near:
        seq, now = table.put("x", group="g0"), table.context.backend.now()
        pass_through(table, 2)
        due = reached.groups.of_unassigned().get(0)  # it stays behind the clock, which stands still here
        are_near = reached.routed.value > int(seq) and due is not None and due.value >= now - CLOCK_STEP


def look_at(table: MessageTable, database: Database) -> int:
    """Count the pages that the look of a claim needs which finds nothing."""
    with statements_of(database.backend) as seen:
        assert table.receive(10, consumer="x") == []
    looks = [(text, values) for text, values in seen if "AS first_new" in text]
    return max(buffers(database, text, values) for text, values in looks)


def looks_from_bounds(table: MessageTable, database: Database) -> bool:
    """Say whether a look reads much less than one that has no bounds."""
    reached = table.context.reached
    from_the_bounds = look_at(table, database)
    reached.routed, reached.groups = ProvenBound(FIRST_SEQ), GroupBounds()
    return from_the_bounds < 0.85 * look_at(table, database)


@pytest.mark.usefixtures("held")
def test_a_claim_looks_from_the_bounds_on(make_table: Callable[..., MessageTable], database: Database) -> None:
    table = make_table(groups="sequenced")
    let_bounds_advance(table)
    assert looks_from_bounds(table, database)


@pytest.mark.usefixtures("held")
def test_a_claim_in_steps_looks_from_the_bounds_on(make_table: Callable[..., MessageTable], database: Database) -> None:
    table = make_table(groups="sequenced", ack_order="hold")
    let_bounds_advance(table)
    reached = table.context.reached

    def most_pages() -> int:
        table.put("x", group="g0")
        with statements_of(database.backend, "ready_at") as seen:
            table.ack(table.receive(10))
        searches = [(text, values) for text, values in seen if "AS of_mine" in text or "ready_at <=" in text]
        assert len(searches) > 2
        return max(buffers(database, text, values) for text, values in searches)

    from_the_bounds = most_pages()
    reached.routed, reached.groups = ProvenBound(FIRST_SEQ), GroupBounds()
    assert from_the_bounds < 0.85 * most_pages()


@pytest.mark.usefixtures("held")
def test_a_wait_for_the_next_group_looks_from_the_bounds_on(
    make_table: Callable[..., MessageTable], database: Database, clock: MovableClock
) -> None:
    table = make_table(groups="sequenced")
    let_bounds_advance(table)
    clock.move("1h")  # behind the ends of leases
    bound = table.context.reached.groups.of_unassigned()[0]
    while bound.value < clock.now - CLOCK_STEP:
        table.receive()
    with statements_of(database.backend, "first_new") as seen:
        assert seconds_until_due(table.context, Request(None)) == math.inf
    [from_the_bounds] = [buffers(database, text, values) for text, values in seen]
    table.context.reached.groups = GroupBounds()
    with statements_of(database.backend, "first_new") as seen:
        assert seconds_until_due(table.context, Request(None)) == math.inf
    assert from_the_bounds * 3 < max(buffers(database, text, values) for text, values in seen)


@pytest.mark.usefixtures("held")
def test_the_first_claim_of_a_new_process_looks_from_the_bounds_on(
    make_table: Callable[..., MessageTable],
    connect: Callable[[], Database],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("waterclock.tables.model.claims.bounds.SAVE_EVERY", 0.0)
    table = make_table(groups="sequenced")
    let_bounds_advance(table)
    table._context.sweeps.due_at = 0
    heal(table._context)
    another = connect()
    fresh = another.table("orders")
    assert looks_from_bounds(fresh, another)
    assert heal_all(fresh._context) == 0


@pytest.mark.usefixtures("held")
def test_noting_a_group_looks_up_its_newest_version_alone(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="sequenced")
    table.put_many([{"payload": "x", "group": "a"}] * 200)
    for _ in range(150):  # each makes some versions of the group's row
        table.ack(table.receive(1))
    [claimed] = table.receive(1)
    with statements_of(database.backend) as seen:
        table.ack([claimed])
    assert max(buffers(database, text, values) for text, values in seen if "waterclock_groups" in text) < 60


@pytest.mark.usefixtures("held")
def test_a_check_of_groups_passes_over_finished_messages_and_earlier_versions_of_groups(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="exclusive")
    for _ in range(6):
        table.put_many([{"payload": "x", "group": group} for group in "ab"] * 25)
        while claimed := table.receive(25, consumer="x"):
            table.ack(claimed)
    assert heal_all(table.context) == 0
    table.context.reached.saved.checked_whole_at = database.backend.now()
    assert pages_of_check(table, database) < 150
    table.context.reached.saved.checked_whole_at = 0
    assert pages_of_check(table, database) > FINISHED / 2
    assert pages_of_check(table, database) < 150  # it has just looked everywhere


@pytest.mark.usefixtures("held")
def test_a_check_of_all_messages_of_one_group_does_not_read_those_of_others(
    make_table: Callable[..., MessageTable], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "_CHUNK_TAKES", 0)
    table = make_table(groups="exclusive")
    table.put_many([{"payload": "x" * 1000, "group": group} for group in ["z", *"abcdef" * (FINISHED // 6)]])
    while claimed := table.receive(100, consumer="x"):
        table.ack(claimed)
    table.context.reached.saved.checked_whole_at = 0
    assert pages_of_check(table, database, one_group=True) < FINISHED / 10


def pages_of_check(table: MessageTable, database: Database, *, one_group: bool = False) -> int:
    with statements_of(database.backend) as seen:
        while True:
            table.context.sweeps.due_at = 0
            assert not heal(table.context)
            if table.context.sweeps.after is None or one_group:
                break
    return sum(buffers(database, text, values) for text, values in seen if "waterclock_groups" in text)


@pytest.mark.usefixtures("held")
def test_a_heartbeat_passes_over_finished_messages_of_a_group(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="exclusive")
    table.put_many([{"payload": "x", "group": "a"}] * 300)
    table.ack(table.receive(298, consumer="x"))
    leased = [one.leased for one in table.receive(2, consumer="x")]
    hour = 3_600_000_000_000
    with statements_of(database.backend, "orders") as seen:
        held = database.backend.transact_within(1, lambda own: extending.extend_all(table.context, own, leased, hour))
    assert len(held) == 2
    assert max(buffers(database, text, values) for text, values in seen) < 100


@pytest.mark.usefixtures("held")
def test_a_search_for_expired_messages_passes_over_those_acked_in_time(
    make_table: Callable[..., MessageTable], database: Database, clock: MovableClock
) -> None:
    table = make_table()
    second = 1_000_000_000
    table.put_many([{"payload": "acked", "expires_at": clock.now + second}] * 300)
    table.ack(table.receive(300))
    clock.move("1h")
    assert pages_of_expiry(table, database) > 300
    table.put_many([{"payload": "expires", "expires_at": clock.now + each * second} for each in (1, 2)])
    table.put("is cancelled", id=7_000_000, delay="1h")
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text("UPDATE orders SET expires_at = :never WHERE id = 7000000"), {"never": CANCELLED})
    clock.move("3s")
    assert pages_of_expiry(table, database) < 30
    assert table.stats().expired == 2
    assert table.stats().cancelled == 1


def pages_of_expiry(table: MessageTable, database: Database) -> int:
    with statements_of(database.backend, "orders") as seen:
        expiring.expire_some(table.context)
    return sum(buffers(database, text, values) for text, values in seen if "LIMIT" in text)


def test_a_message_left_before_the_head_of_its_group_is_found_some_minutes_later(
    make_table: Callable[..., MessageTable], database: Database, clock: MovableClock
) -> None:
    table = make_table(groups="sequenced")
    table.put_many([{"payload": payload, "group": "a"} for payload in ("a1", "a2")])
    table.ack(table.receive(1))
    pages_of_check(table, database)
    with database.backend.engine.begin() as plain:  # what the trigger takes for a statement of ours
        plain.exec_driver_sql("UPDATE orders SET claim_id = 1 WHERE message = 'a1'")
        plain.exec_driver_sql("UPDATE orders SET time_acked = NULL, claim_id = NULL WHERE message = 'a1'")
    pages_of_check(table, database)
    clock.now += WHOLE_EVERY
    table.context.sweeps.due_at = 0
    assert heal(table.context)
    assert [one.payload for one in table.receive()] == ["a1", "a2"]


def test_a_check_of_all_messages_that_passed_a_locked_group_is_repeated_in_the_next_round(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="sequenced")
    table.put_many([{"payload": payload, "group": "a"} for payload in ("a1", "a2")])
    table.ack(table.receive(1))
    with database.backend.engine.begin() as plain:  # what the trigger takes for a statement of ours
        plain.exec_driver_sql("UPDATE orders SET claim_id = 1 WHERE message = 'a1'")
        plain.exec_driver_sql("UPDATE orders SET time_acked = NULL, claim_id = NULL WHERE message = 'a1'")
    with database.begin() as connection:
        lock_groups(table.context, connection, ["a"])
        pages_of_check(table, database)
    table.context.sweeps.due_at = 0
    assert heal(table.context)


def test_a_search_for_all_expired_messages_that_passed_a_locked_one_is_repeated(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table()
    table.put("expires")
    assert expiring.expire_some(table.context) == 0
    table.context.expired_place._whole_at = 0
    expire = sa.text("UPDATE orders SET expires_at = :at")
    with database.backend.engine.begin() as plain:
        plain.execute(expire, {"at": database.backend.now() - 3_600_000_000_000})
    with database.backend.engine.begin() as plain:
        plain.exec_driver_sql("SELECT 1 FROM orders FOR UPDATE")
        assert expiring.expire_some(table.context) == 0
    assert expiring.expire_some(table.context) == 1


@pytest.fixture
def never_looks_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is found be found by the bounds alone."""
    monkeypatch.setattr("waterclock.tables.model.claims.bounds.LOOK_BACK_AT_LEAST", 3600.0)


@pytest.mark.usefixtures("never_looks_back")
def test_a_message_that_is_committed_late_is_found(make_table: Callable[..., MessageTable], database: Database) -> None:
    table = make_table(groups="sequenced")
    with database.backend.engine.connect() as late:
        late.exec_driver_sql("INSERT INTO orders (message, group_id) VALUES ('late', 'l')")
        pass_through(table, 3)
        late.commit()
    pass_through(table, 1)
    assert table.stats().ready == 0


@pytest.mark.usefixtures("never_looks_back")
def test_a_message_that_plain_sql_changes_behind_the_bound_is_found(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="sequenced")
    table.put("x", group="a", delay="1h")
    while table._context.reached.routed.value <= 1:  # held back by transactions in other databases of the server
        pass_through(table, 1)
    with database.backend.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE orders SET time_next = 0, group_id = 'b' WHERE time_acked IS NULL")
    assert [one.group for one in table.receive(10)] == ["b"]


@pytest.mark.usefixtures("never_looks_back")
def test_a_group_that_an_open_transaction_sets_free_is_found(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="sequenced")
    table.put_many([{"payload": "x", "group": "a"}] * 2)
    [first] = table.receive(1, consumer="y")
    with database.begin() as connection:
        table.ack([first], connection=connection)
        pass_through(table, 3)
    assert [one.group for one in table.receive(10)] == ["a"]


def test_renewing_a_consumers_lease_adds_few_index_entries(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="exclusive")
    table.receive(consumer="x")
    context = table.context
    slot = (context.backend.now_about() >> LEASE_SLOT_BITS) + 9
    with database.begin() as connection:  # whose own versions of the row the server keeps, too
        for number in range(FINISHED):
            renew(context, connection, "x", (slot << LEASE_SLOT_BITS) + number)
        changed, hot = connection.exec_driver_sql(UPDATES.format("waterclock_consumers")).one()
    assert changed == FINISHED
    assert changed - hot < FINISHED / 20


def test_using_a_unique_key_again_adds_few_index_entries(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    make_table().put("x", unique="k")
    slot = (database.backend.now() >> USED_SLOT_BITS) + 1
    with database.begin() as connection:
        for number in range(FINISHED):
            connection.execute(sa.update(unique_keys).values(used_at=(slot << USED_SLOT_BITS) + number))
        changed, hot = connection.exec_driver_sql(UPDATES.format("waterclock_unique_keys")).one()
    assert changed == FINISHED
    assert changed - hot < FINISHED / 20


@pytest.mark.usefixtures("held")
def test_a_claim_without_groups_begins_where_the_last_slow_one_ended(
    make_table: Callable[..., MessageTable],
    database: Database,
    clock: MovableClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock.move("1h")  # messages of the past are late ones, which have an index of their own
    table = make_table()
    table.put_many([{"payload": "x"}] * FINISHED)
    table.ack(table.receive(FINISHED))

    def claim_one() -> int:
        clock.move("1s")
        table.put("x")
        with statements_of(database.backend) as seen:
            [delivery] = table.receive(100)
        delivery.ack()
        [first, *_] = [buffers(database, *one) for one in seen if "levels" in one[0]]
        return first

    monkeypatch.setattr(claiming_rows, "SLOW_LOOK", 3600.0)
    claim_one()
    from_the_first = claim_one()
    monkeypatch.setattr(claiming_rows, "SLOW_LOOK", 0.0)  # as after a million messages
    claim_one()
    assert claim_one() < from_the_first / 3


@pytest.mark.usefixtures("held")
def test_a_group_that_ends_and_begins_again_is_found_without_reading_its_earlier_versions(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="sequenced")
    for _ in range(70):
        table.put("x", group="a")
        table.ack(table.receive())
    with statements_of(database.backend) as seen, database.begin() as connection:
        assert lock_groups(table.context, connection, ["a"])
    assert buffers(database, *seen[0]) < 20


def test_the_row_of_a_group_is_deleted_some_minutes_after_its_last_message(
    make_table: Callable[..., MessageTable], database: Database, clock: MovableClock
) -> None:
    table = make_table(groups="sequenced")
    table.put_many([{"payload": "x", "group": group} for group in ("ends", "begins again", "is paused", "is locked")])
    table.ack(table.receive(4))
    assert table.groups.list() == []
    table.groups.pause("is paused")
    clock.now += ENDED_FOR
    table.put("x", group="begins again")
    assert [one.group for one in table.receive()] == ["begins again"]
    with database.begin() as connection:
        lock_groups(table.context, connection, ["is locked"])
        let_ended_be_deleted(table, clock)
        assert names_of_groups(database) == ["begins again", "is locked", "is paused"]
    let_ended_be_deleted(table, clock)
    assert names_of_groups(database) == ["begins again", "is paused"]
    clock.now += ENDED_FOR
    assert heal_all(table.context) == 0  # it deletes what was passed over, which is no fault
    assert names_of_groups(database) == ["begins again", "is paused"]


def test_a_new_process_deletes_the_rows_of_groups_that_ended_long_before_it_started(
    make_table: Callable[..., MessageTable], connect: Callable[..., Database], database: Database, clock: MovableClock
) -> None:
    table = make_table(groups="sequenced")
    table.put("x", group="ended")
    table.ack(table.receive())
    clock.now += ENDED_FOR + 60_000_000_000
    assert connect(clock=clock).table("orders").receive() == []
    assert names_of_groups(database) == []


def test_a_new_process_searches_for_ended_groups_from_where_another_has_stopped(
    make_table: Callable[..., MessageTable], connect: Callable[..., Database], database: Database, clock: MovableClock
) -> None:
    table = make_table(groups="sequenced")
    table.put("x", group="ends")
    table.ack(table.receive())
    ended_until = clock.now - ENDED_FOR
    saved = table.context.reached.saved
    while saved._values.get("ended_until") != ended_until:  # the bounds wait for transactions of other tests
        saved._looked_at = -math.inf
        table.put("x", group="moves the bounds")
        table.ack(table.receive())
        table.context.sweeps.due_at = 0
        assert table.receive() == []
    again = connect(clock=clock)
    assert start_of_deletion(again.table("orders"), again) == ended_until
    clock.now -= 1
    assert start_of_deletion(table, database) == MIN_NS


def start_of_deletion(table: MessageTable, database: Database) -> int:
    table.context.ended_rows._due_at = 0
    with statements_of(database.backend, "waterclock_groups") as seen:
        assert table.receive() == []
    [values] = [values for text, values in seen if text.startswith("DELETE")]
    return values["start"]


def let_ended_be_deleted(table: MessageTable, clock: MovableClock) -> None:
    clock.move("1s")
    table.context.ended_rows._due_at = 0
    table.receive()


def names_of_groups(database: Database) -> list[str]:
    with database.backend.engine.connect() as connection:
        return list(connection.exec_driver_sql("SELECT group_id FROM waterclock_groups ORDER BY group_id").scalars())
