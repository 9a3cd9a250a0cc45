from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from tests.tables.conftest import MovableClock
from tests.tables.received import payloads

from waterclock.database.driver_fast_path import DirectConnection
from waterclock.errors import LeaseLostError
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.finishing.acking import FARTHEST
from waterclock.time import MAX_NS

FULL = 2  # PRAGMA synchronous


def test_an_acked_message_is_never_sent_again(orders: MessageTable, clock: MovableClock) -> None:
    orders.put("tea")
    [delivery] = orders.receive()
    delivery.ack()
    delivery.ack()
    clock.move("365d")
    assert orders.receive() == []


def test_acking_ids_counts_those_that_were_not_acked_before(orders: MessageTable) -> None:
    orders.put_many([{"payload": str(number)} for number in range(4)])
    assert orders.ack(4) == 1
    assert orders.ack([1, 4]) == 1
    assert orders.ack([1, 4, 99]) == 0
    assert orders.ack([]) == 0
    assert payloads(orders) == ["1", "2"]


def test_deliveries_are_acked_together(orders: MessageTable) -> None:
    orders.put_many([{"payload": str(number)} for number in range(4)])
    assert orders.ack(orders.receive()) == 4
    assert orders.stats().acked == 4


@pytest.mark.one_database
def test_a_delivery_that_was_given_back_is_not_acked_in_silence(orders: MessageTable) -> None:
    orders.put("tea")
    [delivery] = orders.receive()
    delivery.nack("1h")
    delivery.nack()
    with pytest.raises(LeaseLostError, match=r"^cannot ack message 1 of table 'orders': it was given back"):
        delivery.ack()
    with pytest.raises(LeaseLostError, match=r"^cannot ack message 1 of table 'orders': .* Messages acked: 0"):
        orders.ack([delivery])
    assert orders.stats().acked == 0


@pytest.mark.one_database
def test_a_delivery_that_was_acked_is_not_given_back_in_silence(orders: MessageTable) -> None:
    orders.put("tea")
    [delivery] = orders.receive()
    delivery.ack()
    with pytest.raises(LeaseLostError, match=r"^cannot nack message 1 of table 'orders': it was acked"):
        delivery.nack()
    assert orders.stats().acked == 1


@pytest.mark.one_database
def test_a_handler_may_end_its_delivery_by_itself(orders: MessageTable) -> None:
    orders.put("tea")
    [delivery] = orders.receive()
    with delivery:
        delivery.nack("1h")
    with pytest.raises(ValueError, match="after the ack") as raised, delivery:
        raise ValueError("after the ack")
    assert not hasattr(raised.value, "__notes__")


def test_an_ack_after_the_lease_counts_as_long_as_no_other_consumer_has_the_message(
    orders: MessageTable, clock: MovableClock
) -> None:
    orders.put("tea")
    [delivery] = orders.receive()
    clock.move("1h")
    delivery.ack()
    assert orders.stats().acked == 1


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
def test_a_delivery_whose_message_another_consumer_has_is_refused(
    orders: MessageTable, clock: MovableClock, verb: str
) -> None:
    orders.put("tea")
    [stale] = orders.receive()
    clock.move("1h")
    [fresh] = orders.receive()
    with pytest.raises(LeaseLostError, match=rf"^cannot {verb} message 1"):
        stale.extend("1m") if verb == "extend" else getattr(stale, verb)()
    fresh.ack()
    assert orders.stats().acked == 1


def test_acking_deliveries_together_reports_those_that_were_lost_and_acks_the_others(
    orders: MessageTable, clock: MovableClock
) -> None:
    orders.put_many([{"payload": "a"}, {"payload": "b"}])
    deliveries = orders.receive()
    orders.reschedule(1, clock.now)
    with pytest.raises(LeaseLostError, match=r"^cannot ack message 1 of"):
        orders.ack(deliveries)
    assert orders.stats().acked == 1
    assert payloads(orders) == ["a"]


def test_nack_backs_off_and_a_delay_can_be_given(orders: MessageTable, clock: MovableClock) -> None:
    orders.put("tea")
    for wait in ("30s", "60s", "120s"):
        orders.receive()[0].nack()
        clock.move(wait)
        clock.move(0)
    orders.receive()[0].nack("1s")
    clock.move("1s")
    [delivery] = orders.receive()
    assert delivery.epoch == 5


def test_with_acks_in_the_end_and_backs_off_on_an_exception(orders: MessageTable, clock: MovableClock) -> None:
    orders.put_many([{"payload": "good"}, {"payload": "bad"}])
    for delivery in orders.receive():
        try:
            with delivery:
                assert delivery.payload == "good"
        except AssertionError:
            pass
    stats = orders.stats()
    assert (stats.acked, stats.delayed) == (1, 1)
    clock.move("30s")
    assert payloads(orders) == ["bad"]


def test_with_leaves_acked_and_returned_messages_alone(orders: MessageTable) -> None:
    orders.put("tea")
    with orders.receive()[0] as delivery:
        delivery.nack("0s")
    assert payloads(orders) == ["tea"]


def test_an_exception_is_not_hidden_by_a_lost_lease(orders: MessageTable, clock: MovableClock) -> None:
    orders.put("tea")
    [stale] = orders.receive()
    clock.move("1h")
    orders.receive()
    with pytest.raises(ZeroDivisionError) as raised, stale:
        raise ZeroDivisionError
    assert "cannot nack message" in raised.value.__notes__[0]


def test_extend_keeps_the_message_and_never_shortens_the_lease(orders: MessageTable, clock: MovableClock) -> None:
    orders.put("tea")
    [delivery] = orders.receive()
    delivery.extend("10s")
    assert delivery.lease_until == clock.now + 30_000_000_000
    clock.move("20s")
    delivery.extend("5m")
    assert delivery.lease_until == clock.now + 300_000_000_000
    clock.move("299s")
    assert orders.receive() == []
    delivery.ack()


def test_reschedule_moves_messages_and_their_epoch(orders: MessageTable, clock: MovableClock) -> None:
    orders.put("tea")
    for _ in range(5):
        [delivery] = orders.receive()
        clock.now = delivery.lease_until
    [delivery] = orders.receive()
    assert orders.reschedule([1, 99], clock.now, epoch=0) == 1
    [delivery] = orders.receive()
    assert (delivery.epoch, delivery.lease_until) == (1, clock.now + 30_000_000_000)


def test_acked_messages_are_purged_when_they_are_old_enough(
    make_table: Callable[..., MessageTable], clock: MovableClock
) -> None:
    table = make_table(purge_after="1h")
    table.put_many([{"payload": str(number)} for number in range(2500)])
    table.ack(range(1, 2301))
    clock.move("3599s")
    assert table.purge() == 0
    clock.move("1s")
    assert table.purge() == 2300
    assert table.stats().ready == 200


def test_without_purge_after_nothing_is_purged(make_table: Callable[..., MessageTable], clock: MovableClock) -> None:
    table = make_table(purge_after=None)
    table.put("tea")
    table.ack(1)
    clock.move("3650d")
    assert table.purge() == 0


def test_stats_count_each_message_once(orders: MessageTable, clock: MovableClock) -> None:
    orders.put_many([{"payload": str(number)} for number in range(6)])
    orders.put("later", at=clock.now + 10**12)
    first, second, *_ = orders.receive(4)
    first.ack()
    second.nack()
    clock.move("5s")
    stats = orders.stats()
    assert (stats.ready, stats.scheduled, stats.in_flight, stats.delayed, stats.acked) == (2, 1, 2, 1, 1)
    assert stats.oldest_age == 5_000_000_000


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("max_attempts", [None, 3])
@pytest.mark.parametrize("groups", [None, "sequenced"])
def test_puts_and_acks_wait_for_the_disk_and_claims_only_where_attempts_are_limited(
    make_table: Callable[..., MessageTable],
    monkeypatch: pytest.MonkeyPatch,
    groups: str | None,
    max_attempts: int | None,
) -> None:
    table = make_table(groups=groups, max_attempts=max_attempts)
    synced: dict[str, bool] = {}
    translated = DirectConnection._translated

    def note(self: DirectConnection, execute: Any, *given: Any) -> Any:
        text = next(one for one in given if isinstance(one, str))
        verb = text.split(maxsplit=1)[0]
        if text.startswith(("INSERT INTO orders", "UPDATE orders")):
            step = "ack" if "time_acked=" in text else {"INSERT": "put", "UPDATE": "claim"}[verb]
            synced[step] = self._connection.execute("PRAGMA synchronous").fetchone()[0] == FULL
        return translated(self, execute, *given)

    monkeypatch.setattr(DirectConnection, "_translated", note)
    for number in range(2):
        table.put(str(number))
        table.ack(table.receive(1))
    assert synced == {"put": True, "claim": max_attempts is not None, "ack": True}


@pytest.mark.parametrize("groups", [None, "sequenced"])
def test_a_lease_or_delay_beyond_the_end_of_time_stays_an_integer(
    make_table: Callable[..., MessageTable], clock: MovableClock, groups: str | None
) -> None:
    orders = make_table(groups=groups)
    ends: list[Callable[[Delivery], object]] = [
        lambda one: one.extend(MAX_NS),
        lambda one: one.nack(MAX_NS),
        lambda one: orders.nack([one], MAX_NS),
    ]
    for number, end in enumerate(ends):
        orders.put("x", group=f"g{number}")
        end(orders.receive(1)[0])
    with orders.context.backend.snapshot() as connection:
        due = connection.execute(sa.select(orders.context.rows.c.time_next)).scalars().all()
    assert due == [clock.now + FARTHEST] * len(ends)
