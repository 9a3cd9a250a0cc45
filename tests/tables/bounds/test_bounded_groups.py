"""On MariaDB, searches for due groups begin at bounds, and miss none that is written below them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from tests.support.statements import statements_of
from tests.tables.plans import pages

from waterclock.connection import Database
from waterclock.database.schema.table_catalogue import groups
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.claiming import bounded_groups, bounded_rows
from waterclock.tables.messages.claiming.bounded_routing import advance_routed
from waterclock.tables.model.claims import bounds
from waterclock.tables.model.claims.bounds import UNASSIGNED

pytestmark = pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)

ROUNDS = 20


@pytest.fixture
def database(connect: Callable[..., Database], monkeypatch: pytest.MonkeyPatch) -> Database:
    """Let each claim try to advance the bounds up to the current time; no other search finds what it misses."""
    monkeypatch.setattr(bounds, "LOOK_BACK_AT_LEAST", 3600.0)
    monkeypatch.setattr(bounds, "CLOCK_STEP", 0)
    monkeypatch.setattr(bounds, "WRITTEN_WITHIN", 0)
    for name in ("LATE_BY", "WRITTEN_WITHIN"):
        monkeypatch.setattr(bounded_groups, name, 0)
    monkeypatch.setattr(bounded_rows, "_ADVANCE_IN_PAIRS_EVERY", 0.0)
    monkeypatch.setattr(bounded_rows, "_ADVANCE_IDLE_EVERY", 0.0)
    return connect()


def pass_through(table: MessageTable, rounds: int = 1, **options: int) -> None:
    for _ in range(rounds):
        table.put_many([{"payload": "x", "group": f"p{each}", **options} for each in range(20)])
        while claimed := table.receive(100, consumer="c"):
            table.ack(claimed)


def let_bounds_advance(table: MessageTable, consumer: str = UNASSIGNED) -> None:
    """Advance the bounds beyond the current time; lock waits of other databases of the server hold them back."""
    now = table.context.backend.now()
    reached = table.context.reached
    while reached.routed.value < 0 or any(bound.value < now for bound in reached.groups._bounds.values()):
        advance_routed(table.context, consumer)


@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
@pytest.mark.usefixtures("written")
def test_neither_a_claim_nor_a_wait_looks_up_earlier_times_at_which_groups_were_due(
    make_table: Callable[..., MessageTable], database: Database, policy: str
) -> None:
    table = make_table(groups=policy, ack_wait="50ms")
    pass_through(table, ROUNDS)
    let_bounds_advance(table, "c")
    with statements_of(database.backend, "waterclock_groups") as seen:
        assert table.receive(wait="1ms", consumer="c") == []
        table.put("x", group="a")
        [_] = table.receive(10, consumer="c")
    searches = [one for one in seen if one[0].startswith(("SELECT", "WITH")) and "ready_at" in one[0]]
    assert max(pages(database, *one) for one in searches) < 10 * ROUNDS


def test_a_new_process_begins_at_the_bounds(
    make_table: Callable[..., MessageTable], connect: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "SAVE_EVERY", 0.0)
    table = make_table(groups="sequenced")
    pass_through(table)
    let_bounds_advance(table)
    table.context.sweeps.due_at = 0
    table.receive()
    fresh = connect().table("orders")
    assert 0 < fresh.context.reached.groups.low(UNASSIGNED, 0) <= table.context.reached.groups.low(UNASSIGNED, 0)
    table.put("x", group="a")
    assert len(fresh.receive()) == 1


def test_a_claim_that_is_rolled_back_holds_the_bounds_up(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="sequenced")
    pass_through(table)
    table.put("waits", group="a")
    table.put("is claimed", group="b")
    [claimed] = table.receive(1)
    table.nack([claimed], "0s")  # now both are due
    with database.backend.engine.connect() as claim:
        claim.execute(sa.update(groups).values(ready_at=groups.c.ready_at + 3_600_000_000_000))
        for _ in range(3):
            advance_routed(table.context, UNASSIGNED)
        claim.rollback()
    assert sorted(one.group or "" for one in table.receive(2)) == ["a", "b"]


def test_a_group_that_is_committed_late_holds_the_bounds_up(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="sequenced")
    pass_through(table)
    table.put("waits", group="a")
    [claimed] = table.receive(1)
    due = table.context.backend.now()
    with database.backend.engine.begin() as late:
        late.execute(sa.update(groups).values(ready_at=due))
        for _ in range(3):
            advance_routed(table.context, UNASSIGNED)
    with database.backend.engine.begin() as plain:
        plain.execute(sa.update(table.context.rows).values(time_next=due, claim_id=None))
    assert [one.id for one in table.receive()] == [claimed.id]


def test_the_highest_priority_goes_first_even_if_no_bound_of_it_is_known(
    make_table: Callable[..., MessageTable], connect: Callable[..., Database], database: Database
) -> None:
    table, other = make_table(groups="sequenced"), connect().table("orders")
    for priority in (3, 8):
        pass_through(table, priority=priority)
    let_bounds_advance(table)
    for priority in (3, 9, 8, 5, 1):
        other.put("x", group=f"g{priority}", priority=priority)
    other.nack(other.receive(1), "0s")  # it has routed them
    assert [one.priority for _ in range(5) for one in table.receive(1)] == [9, 8, 5, 3, 1]
    table.put("x", group="later", priority=20, delay="1h")
    assert table.receive(wait="1ms") == []


def test_priorities_without_bounds_do_not_hide_lower_ones(
    make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MOST_PRIORITIES", 3)
    table = make_table(groups="sequenced")
    table.put_many([{"payload": "x", "group": f"g{each}", "priority": each} for each in range(10)])
    table.ack(table.receive(10))
    assert len(table.context.reached.groups.of_unassigned()) == 3
    table.put_many([{"payload": "x", "group": f"g{each}", "priority": each, "delay": "1h"} for each in range(2, 10)])
    assert table.receive() == []
    for priority in (0, 1):
        table.put("x", group=f"g{priority}", priority=priority)
    assert [one.priority for _ in range(2) for one in table.receive(1)] == [1, 0]


def test_a_claim_looks_once_at_each_of_many_priorities(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table, priorities = make_table(groups="sequenced"), bounds.MOST_PRIORITIES + 2
    each = [{"payload": "x", "group": f"g{priority}", "priority": priority} for priority in range(priorities)]
    table.put_many(each)
    while claimed := table.receive(1):
        table.ack(claimed)
    table.put_many([one | {"delay": "1h"} for one in each])
    assert table.receive() == []
    with statements_of(database.backend, "AS first_new") as seen:
        table.put("x", group="due", priority=0)
        assert len(table.receive()) == 1
    assert len(seen) < 2 * priorities


def test_a_group_is_due_when_it_is_written_and_not_when_the_statement_began(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="sequenced")
    now = database.backend.now_sql()
    with database.backend.engine.connect() as connection:
        taken = sa.select(sa.func.sleep(0.01), table.context.sql.at_write(now) - now)
        assert connection.execute(taken).one()[1] >= 10_000_000
    table.put_many([{"payload": "x", "group": "a"}] * 2)
    with statements_of(database.backend, "UPDATE waterclock_groups") as seen:
        table.ack(table.receive(1))
    assert all("SYSDATE" in text for text, _ in seen if "head=" in text)
    assert len([text for text, _ in seen if "SYSDATE" in text]) == 2  # routing and the ack


def test_no_bound_advances_while_a_statement_waits_for_a_lock(
    make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(groups="sequenced")
    pass_through(table)
    let_bounds_advance(table)
    before = table.context.reached.groups.low(UNASSIGNED, 0)
    monkeypatch.setattr(type(table.context.sql), "now_without_lock_waits", lambda *_: None)
    for _ in range(3):
        advance_routed(table.context, UNASSIGNED)
    assert table.context.reached.groups.low(UNASSIGNED, 0) == before
