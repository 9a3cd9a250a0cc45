"""Messages of a group that wait in a subscription while the first of them is lost: none of them may overtake it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from tests.tables.conftest import MovableClock
from tests.tables.grouped import put

from waterclock.connection import Database
from waterclock.database.backend import Backend
from waterclock.errors import UnavailableError
from waterclock.tables.consumers import waiting_deliveries
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.consumers.discarding import give_back_groups
from waterclock.tables.consumers.subscription import TableSubscription
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.finishing.extending import extend_all

MakeTable = Callable[..., MessageTable]
MILLISECOND = 1_000_000


@pytest.fixture(params=["sequenced", "exclusive"])
def table(request: pytest.FixtureRequest, make_table: MakeTable) -> MessageTable:
    return make_table(groups=request.param)


def handed_out(deliveries: TableSubscription) -> Delivery:
    """Return the next delivery without waiting for one that does not come."""
    found = (deliveries.poll() for _ in range(20))
    return next(each for each in found if isinstance(each, Delivery))


def acked(deliveries: TableSubscription, count: int) -> list[str]:
    """Ack the next messages, each before the next, and return their payloads."""
    received: list[str] = []
    for _ in range(count):
        delivery = handed_out(deliveries)
        received.append(delivery.payload)
        delivery.ack()
    return received


def extend(table: MessageTable, deliveries: list[Delivery], duration: str) -> None:
    """Extend leases as a heartbeat does."""
    seconds = int(duration.removesuffix("s")) * 1_000_000_000
    context = table.context
    leased = [one.leased for one in deliveries]
    held = context.backend.transact(lambda own: extend_all(context, own, leased, seconds))
    for one in deliveries:
        one.extended(held.get((one.leased.seq, one.leased.claim_id)))


def test_a_lease_that_the_process_believes_ended_is_given_back_first(
    table: MessageTable, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(table, "a1", "a2", "a3", "a4")
    with table.subscribe(consumer="x", limit=3) as deliveries:
        assert acked(deliveries, 1) == ["a1"]
        # The estimate is ahead of the database's clock by a round trip.
        monkeypatch.setattr(Backend, "now_about", lambda _: clock.now + MILLISECOND)
        clock.now = deliveries._waiting[0].lease_until - MILLISECOND
        assert acked(deliveries, 3) == ["a2", "a3", "a4"]


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)  # which lock rows
def test_messages_behind_one_whose_lease_a_lock_kept_from_being_extended_wait_for_it(
    table: MessageTable, database: Database, clock: MovableClock
) -> None:
    put(table, "b1", "a1", "a2")
    rows = table.context.rows
    with table.subscribe(consumer="x", limit=3) as deliveries:
        assert acked(deliveries, 1) == ["b1"]
        waiting = list(deliveries._waiting)
        with database.backend.engine.begin() as other:
            other.execute(sa.select(rows).where(rows.c.message == "a1").with_for_update())
            clock.move("20s")
            extend(table, waiting, "30s")
            clock.move("11s")
            put(table, "c1")
            assert acked(deliveries, 1) == ["c1"]
        assert acked(deliveries, 2) == ["a1", "a2"]


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_other_messages_do_not_wait_for_a_lost_one_that_is_locked(
    table: MessageTable, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.put_many([{"payload": str(number), "group": str(number)} for number in range(50)])
    rows = table.context.rows
    attempts: list[object] = []

    def attempt(*given: Any) -> Any:
        attempts.append(given)
        return give_back_groups(*given)

    monkeypatch.setattr(waiting_deliveries, "give_back_groups", attempt)
    with table.subscribe(consumer="x", limit=50) as deliveries, database.backend.engine.begin() as other:
        first = handed_out(deliveries)
        second = deliveries._waiting[0]
        other.execute(sa.select(rows).where(rows.c.id == second.id).with_for_update())
        second.lost = True
        others = {handed_out(deliveries).id for _ in range(48)}
        assert len(others) == 48
        assert others.isdisjoint({first.id, second.id})
    assert 1 <= len(attempts) < 10  # each takes two transactions


def test_messages_behind_one_whose_lease_ends_during_a_heartbeat_wait_for_it(
    table: MessageTable, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(table, "a1", "a2", "a3", "a4")
    with table.subscribe(consumer="x", limit=3) as deliveries:
        assert acked(deliveries, 1) == ["a1"]
        waiting = list(deliveries._waiting)
        is_ours = waiting_deliveries._is_ours

        def beat_after_look(delivery: Delivery, now: int) -> bool:
            before = is_ours(delivery, now)
            extend(table, waiting, "30s")
            return before

        clock.now = waiting[0].lease_until - 1
        monkeypatch.setattr(Backend, "now_about", lambda _: clock.now + 2)
        monkeypatch.setattr(waiting_deliveries, "_is_ours", beat_after_look)
        assert acked(deliveries, 3) == ["a2", "a3", "a4"]


def test_messages_behind_one_that_plain_sql_puts_off_wait_for_it(
    table: MessageTable, database: Database, clock: MovableClock
) -> None:
    put(table, "a1", "a2", "a3")
    rows = table.context.rows
    with table.subscribe(consumer="x", limit=3) as deliveries:
        assert acked(deliveries, 1) == ["a1"]
        with database.begin() as connection:
            put_off = sa.update(rows).where(rows.c.message == "a2").values(time_next=clock.now + 1, claim_id=None)
            connection.execute(put_off)
        clock.move("2s")
        assert acked(deliveries, 2) == ["a2", "a3"]


def test_the_attempt_of_a_message_that_waited_too_long_counts_for_the_first_of_its_group(
    table: MessageTable, clock: MovableClock
) -> None:
    table.alter(max_attempts=3)
    put(table, "a1", "a2", "a3")
    with table.subscribe(consumer="x", limit=3) as deliveries:
        handed_out(deliveries).ack()
        clock.move("31s")
        delivery = handed_out(deliveries)
        assert (delivery.payload, delivery.epoch) == ("a2", 2)
        delivery.ack()
        delivery = handed_out(deliveries)
        assert (delivery.payload, delivery.epoch) == ("a3", 1)


def test_messages_that_could_not_be_let_go_come_next(table: MessageTable, monkeypatch: pytest.MonkeyPatch) -> None:
    put(table, "a1", "a2", "a3", "a4")
    with table.subscribe(consumer="x", limit=3) as deliveries:
        delivery = handed_out(deliveries)

        def fail(*_: object) -> None:
            raise UnavailableError("the server is away")

        with monkeypatch.context() as patch:
            patch.setattr(Backend, "transact", fail)
            with pytest.raises(UnavailableError):
                deliveries.let_go(delivery)
        assert acked(deliveries, 4) == ["a1", "a2", "a3", "a4"]


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)  # which lock rows
def test_other_groups_go_on_while_a_lost_message_of_one_is_locked(
    table: MessageTable, database: Database, clock: MovableClock
) -> None:
    put(table, "c1", "a1", "a2", "b1", "b2")
    rows = table.context.rows
    with table.subscribe(consumer="x", limit=5) as deliveries:
        assert acked(deliveries, 1) == ["c1"]
        alive = [one for one in deliveries._waiting if one.payload in ("a2", "b2")]
        with database.backend.engine.begin() as other:
            other.execute(sa.select(rows).where(rows.c.message == "a1").with_for_update())
            clock.move("31s")
            for each in alive:
                each.lease_until = clock.now + 1_000_000_000
            assert acked(deliveries, 2) == ["b1", "b2"]
        assert acked(deliveries, 2) == ["a1", "a2"]
