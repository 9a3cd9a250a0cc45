"""Cancelled messages: waiting ones are dropped at once, and consumers of leased ones are notified."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Any

import pytest
from tests.support.moments import SteppedHeartbeat, later_each_time
from tests.support.statements import statements_of
from tests.tables.conftest import MovableClock
from tests.tables.kinds import group_of
from tests.tables.options.plain_sql import run

from waterclock.connection import Database
from waterclock.errors import InvalidArgumentError
from waterclock.tables.consumers.heartbeats.heartbeat import LOOK_EVERY
from waterclock.tables.message_table import MessageTable

MakeTable = Callable[..., MessageTable]


def test_waiting_messages_are_dropped_and_leased_ones_never_sent_again(
    make_table: MakeTable, clock: MovableClock, kind: dict[str, Any]
) -> None:
    table = make_table(ack_wait="30s", min_backoff="1s", **kind)
    group = group_of(kind)
    acked, given_back, lapsed = table.put_many([{"payload": text, **group} for text in ("acked", "back", "lapsed")])
    out = table.receive(3)
    waits = [table.put("waits", **group), table.put("later", delay="1h", **group)]
    stays = table.put("stays", **group)
    assert table.cancel([acked, given_back, lapsed, *waits], "the order was withdrawn") == 5
    assert table.cancel([acked, *waits]) == 0
    assert (table.stats().in_flight, table.stats().cancelled) == (3, 2)
    assert [table.explain(one).state for one in (acked, *waits)] == ["leased", "cancelled", "cancelled"]
    assert "the order was withdrawn" in str(table.explain(waits[0]))
    assert "it is cancelled" in str(table.explain(acked))
    assert "it is cancelled" not in str(table.explain(stays))
    out[0].ack()
    out[1].nack("1s")
    clock.move("1h")
    assert [one.id for one in table.receive(9)] == [stays]
    with pytest.raises(Exception, match=r"cannot ack message .* its lease until .* was lost"):
        out[2].ack()
    stats = table.stats()
    assert (stats.acked, stats.cancelled, stats.in_flight, stats.expired) == (1, 4, 1, 0)
    table.alter(purge_after="0s")
    clock.move("1s")
    table.purge()
    assert table.stats().cancelled == 0


def test_a_cancelled_message_becomes_no_dead_letter(
    make_table: MakeTable, clock: MovableClock, kind: dict[str, Any]
) -> None:
    table = make_table(ack_wait="30s", max_attempts=1, on_expired="dead_letter", on_exhausted="dead_letter", **kind)
    for ended in ("nacked", "nacked with others", "lapsed"):
        table.put(ended, **group_of(kind))
    first, second, third = table.receive(3)
    table.cancel([first.id, second.id, third.id])
    first.nack()
    if not table.options.groups:
        table.nack([second])
    clock.move("1h")
    assert table.receive() == []
    table.purge()
    assert (table.dead_letters(), table.stats().cancelled, table.stats().dead) == ([], 3, 0)


def test_a_cancelled_message_does_not_count_as_sent_again(make_table: MakeTable, kind: dict[str, Any]) -> None:
    table = make_table(**kind)
    [one, other, third] = table.put_many([{"payload": "tea", **group_of(kind)}] * 3)
    table.receive(3)
    table.cancel([one, other])
    assert table.retry([one, third]) == 1
    assert table.reschedule([other, third], at=0) == 1
    assert [each.id for each in table.receive(9)] == [third]


def test_a_transaction_of_the_callers_cancels_when_it_commits(
    database: Database, make_table: MakeTable, kind: dict[str, Any]
) -> None:
    table = make_table(**kind)
    [one, other] = table.put_many([{"payload": "tea", **group_of(kind)}] * 2)
    with database.backend.engine.connect() as connection:
        assert table.cancel(one, connection=connection) == 1
        connection.rollback()
    assert table.stats().cancelled == 0
    with database.backend.engine.begin() as connection:
        assert table.cancel([one, other], connection=connection) == 2
    assert table.stats().cancelled == 2
    assert table.receive() == []


def test_a_heartbeat_sees_within_a_second_that_a_message_is_cancelled(orders: MessageTable, database: Database) -> None:
    beating = SteppedHeartbeat(later_each_time(LOOK_EVERY))
    orders.put_many([{"payload": "tea"}] * 2)
    first, second = orders.receive()
    seen: list[object] = []
    first.when_cancelled(lambda: seen.append(first.id))
    for delivery in (first, second):
        beating.keep(delivery)
    with statements_of(database.backend) as statements:
        orders.cancel(first.id)
        beating.beat()
        beating.beat()
    assert (first.cancelled, second.cancelled, seen) == (True, False, [first.id])
    assert first.lease_until == second.lease_until
    second.when_cancelled(lambda: seen.append(second.id))
    orders.cancel(second.id)
    second.extend("1h")  # tells it as well
    assert seen == [first.id, second.id]
    assert len([text for text, _ in statements if text.startswith("SELECT")]) <= 2


def test_a_process_sees_its_own_cancellations_at_once(orders: MessageTable) -> None:
    orders.put("tea")
    [delivery] = orders.receive()
    with delivery:
        stopped = _wait_for(lambda: orders.cancel(delivery.id), delivery)
    assert stopped
    assert orders.stats().acked == 1


def _wait_for(cancel: Callable[[], object], delivery: Any) -> bool:
    called = Event()
    delivery.when_cancelled(called.set)
    cancel()
    return called.wait(30)


def test_a_subscription_hands_out_nothing_that_was_cancelled_while_it_waited_there(orders: MessageTable) -> None:
    ids = orders.put_many([{"payload": "tea"}] * 3)
    with orders.subscribe(limit=3) as deliveries:
        first = next(deliveries)
        orders.cancel(ids[1])
        first.ack()
        assert next(deliveries).id == ids[2]
    assert orders.stats().cancelled == 1
    assert orders.explain(ids[1]).state == "cancelled"


def test_a_redelivered_message_is_not_taken_for_the_cancelled_one(orders: MessageTable, clock: MovableClock) -> None:
    orders.put("tea")
    [before] = orders.receive()
    clock.move("1h")
    [after] = orders.receive()
    orders.cancel(after.id)
    beating = SteppedHeartbeat(later_each_time(LOOK_EVERY))
    for delivery in (before, after):
        beating.keep(delivery)
    beating.beat()
    beating.beat()
    assert (before.cancelled, after.cancelled) == (False, True)


def test_cancelling_a_thousand_messages_is_one_statement(orders: MessageTable, database: Database) -> None:
    ids = orders.put_many([{"payload": "tea"}] * 1000)
    orders.cancel(ids[:1])
    with statements_of(database.backend) as statements:
        assert orders.cancel(ids) == 999
    assert len([text for text, _ in statements if text.startswith("UPDATE")]) == 1


@pytest.mark.one_database
@pytest.mark.parametrize("reason", [7, b"why"])
def test_a_reason_other_than_text_is_refused(orders: MessageTable, reason: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="reason"):
        orders.cancel(1, reason)


def test_plain_sql_cancels_too(orders: MessageTable, database: Database) -> None:
    orders.put("tea")
    run(database, "UPDATE orders SET expires_at = -9223372036854775807 - 1")
    assert orders.receive() == []
    assert orders.explain(1).state == "cancelled"
