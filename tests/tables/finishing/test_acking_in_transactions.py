"""Acks in callers' transactions: nothing counts before the commit, for any end of the transaction."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.moments import SteppedHeartbeat
from tests.tables.conftest import MovableClock
from tests.tables.connections.callers import ways
from tests.tables.received import payloads

import waterclock as wc
from waterclock.connection import Database
from waterclock.errors import LeaseLostError, UnavailableError
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.message_table import MessageTable

pytestmark = pytest.mark.both_servers

MakeTable = Callable[..., MessageTable]
GROUPS = [{}, {"groups": "sequenced"}, {"groups": "exclusive"}, {"groups": "sequenced", "ack_order": "hold"}]

ways_to_ack = pytest.mark.parametrize("together", [False, True])


def acks(table: MessageTable, delivery: Delivery, connection: Any, *, together: bool) -> None:
    if together:
        table.ack([delivery], connection=connection)
    else:
        delivery.ack(connection=connection)


@ways
@ways_to_ack
def test_an_ack_is_written_again_after_a_rollback(
    orders: MessageTable, database: Database, open_transaction: Callable[[Database], Any], together: bool
) -> None:
    orders.put("tea")
    [delivery] = orders.receive()
    caller = open_transaction(database)
    acks(orders, delivery, caller, together=together)
    caller.rollback()
    acks(orders, delivery, caller, together=together)
    caller.commit()
    caller.close()
    assert orders.stats().acked == 1


@pytest.mark.parametrize("options", GROUPS)
@ways_to_ack
def test_an_ack_twice_is_an_ack_once_in_one_transaction_and_in_two(
    make_table: MakeTable, database: Database, options: dict[str, Any], together: bool
) -> None:
    table = make_table(**options)
    table.put_many([{"payload": name, "group": "g"} for name in "ab"])
    first, second = table.receive(2)
    for delivery in (second, first) if "ack_order" in options else (first, second):
        with database.backend.engine.connect() as connection:
            acks(table, delivery, connection, together=together)
            acks(table, delivery, connection, together=together)
            connection.rollback()
            acks(table, delivery, connection, together=together)
            connection.commit()
            acks(table, delivery, connection, together=together)
            connection.commit()
        delivery.ack()
    assert table.receive() == []  # on MariaDB the next claim sees to what was held back
    assert table.stats().acked == 2


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
@pytest.mark.parametrize("groups", ["sequenced", "exclusive"])
@pytest.mark.parametrize("order", ["123", "132", "213", "231", "312", "321"])
def test_acks_in_transactions_that_began_to_read_before_the_others_hold_back_nothing_forever(
    make_table: MakeTable, database: Database, groups: str, order: str
) -> None:
    table = make_table(groups=groups, ack_order="hold")
    table.put_many([{"payload": name, "group": "g"} for name in "123"])
    deliveries = {one.payload: one for one in table.receive()}
    with ExitStack() as opened:
        callers = [
            opened.enter_context(database.backend.engine.connect().execution_options(isolation_level="REPEATABLE READ"))
            for _ in order
        ]
        for caller in callers:
            caller.execute(sa.text("SELECT * FROM orders, waterclock_groups")).all()
        for caller, payload in zip(callers, order, strict=True):
            try:
                deliveries[payload].ack(connection=caller)
            except UnavailableError:  # the server refuses what was changed meanwhile, so the caller begins anew
                caller.rollback()
                deliveries[payload].ack(connection=caller)
            caller.commit()
            assert table.receive() == []
    stats = table.stats()
    assert (stats.acked, stats.in_flight) == (3, 0)


@pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)
def test_an_ack_in_a_transaction_skips_nothing_that_was_put_after_it_began_to_read(
    make_table: MakeTable, database: Database
) -> None:
    table = make_table(groups="exclusive", ack_order="hold")
    table.put("1", group="g")
    [first] = table.receive()
    with database.backend.engine.connect().execution_options(isolation_level="REPEATABLE READ") as caller:
        caller.execute(sa.text("SELECT * FROM orders")).all()
        table.put_many([{"payload": name, "group": "g"} for name in "23"])
        [_, third] = table.receive()
        third.ack()
        first.ack(connection=caller)
        caller.commit()
    assert table.receive() == []
    stats = table.stats()
    assert (stats.acked, stats.in_flight) == (1, 1)


def test_an_ack_in_a_rolled_back_savepoint_does_not_count(orders: MessageTable, database: Database) -> None:
    orders.put("tea")
    [delivery] = orders.receive()
    with database.backend.engine.begin() as connection:
        inner = connection.begin_nested()
        delivery.ack(connection=connection)
        inner.rollback()
    assert orders.stats().in_flight == 1
    delivery.ack()
    assert orders.stats().acked == 1


def test_acks_in_a_transaction_are_counted_once(orders: MessageTable, database: Database) -> None:
    orders.put_many([{"payload": "a"}, {"payload": "b"}])
    deliveries = orders.receive()
    with database.backend.engine.begin() as connection:
        assert orders.ack(deliveries[:1], connection=connection) == 1
        assert orders.ack(deliveries, connection=connection) == 1
        assert orders.ack([1, 2], connection=connection) == 0
    assert orders.ack(deliveries) == 0


def test_a_stale_and_a_fresh_delivery_of_one_message_are_distinguished(
    orders: MessageTable, clock: MovableClock
) -> None:
    orders.put("tea")
    [stale] = orders.receive()
    clock.move("1h")
    [fresh] = orders.receive()
    with pytest.raises(LeaseLostError, match="Messages acked: 1"):
        orders.ack([stale, fresh])
    assert (stale.lost, fresh.lost, orders.stats().acked) == (True, False, 1)


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
def test_a_lost_lease_is_reported_each_time(
    orders: MessageTable, clock: MovableClock, database: Database, verb: str
) -> None:
    orders.put("tea")
    [stale] = orders.receive()
    clock.move("1h")
    orders.receive()
    for _ in range(2):
        with pytest.raises(LeaseLostError):
            stale.extend("1m") if verb == "extend" else getattr(stale, verb)()
        with database.backend.engine.connect() as connection, pytest.raises(LeaseLostError):
            stale.ack(connection=connection)
        with pytest.raises(LeaseLostError):
            orders.ack([stale])
        assert orders.nack([stale]) == 0


def test_a_lease_that_only_the_callers_transaction_lost_is_ours_after_its_rollback(
    orders: MessageTable, database: Database
) -> None:
    orders.put("tea")
    [delivery] = orders.receive()
    with database.backend.engine.connect() as connection:
        orders.ack(1, connection=connection)
        with pytest.raises(LeaseLostError):
            delivery.ack(connection=connection)
        with pytest.raises(LeaseLostError):
            orders.ack([delivery], connection=connection)
        connection.rollback()
    delivery.ack()
    assert orders.stats().acked == 1


@pytest.mark.parametrize("verb", ["ack", "nack", "extend", "dead_letter", "ack together", "nack together"])
def test_no_call_waits_for_a_transaction_that_acks_the_message(
    make_table: MakeTable, database: Database, verb: str
) -> None:
    table = make_table(max_attempts=3)
    table.put("tea")
    [delivery] = table.receive()
    what: dict[str, Callable[[], object]] = {
        "ack": delivery.ack,
        "nack": delivery.nack,
        "extend": lambda: delivery.extend("1m"),
        "dead_letter": lambda: delivery.dead_letter("why"),
        "ack together": lambda: table.ack([delivery]),
        "nack together": lambda: table.nack([delivery]),
    }
    with database.backend.engine.connect() as connection:
        delivery.ack(connection=connection)
        with pytest.raises(UnavailableError, match="the transaction that acked the message has not ended"):
            what[verb]()
        connection.rollback()
    what[verb]()
    assert delivery.over == (verb != "extend")


@pytest.mark.parametrize("options", GROUPS)
def test_with_gives_back_a_message_whose_ack_was_rolled_back(
    make_table: MakeTable, database: Database, clock: MovableClock, options: dict[str, Any]
) -> None:
    table = make_table(ack_wait="1h", min_backoff="5s", **options)
    table.put("tea")
    [delivery] = table.receive()

    def handle() -> None:
        with delivery, database.backend.engine.begin() as connection:
            delivery.ack(connection=connection)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        handle()
    clock.move("5s")
    assert payloads(table) == ["tea"]


def test_with_leaves_its_ack_to_a_transaction_that_ends_later(orders: MessageTable, database: Database) -> None:
    orders.put_many([{"payload": "good"}, {"payload": "bad"}])
    good, bad = orders.receive()

    def handle_badly(connection: sa.Connection) -> None:
        with bad:
            bad.ack(connection=connection)
            raise ZeroDivisionError

    with database.backend.engine.begin() as connection, good:
        good.ack(connection=connection)
    with database.backend.engine.connect() as connection:
        with pytest.raises(ZeroDivisionError) as raised:
            handle_badly(connection)
        connection.rollback()
    assert "the transaction that acked the message has not ended" in raised.value.__notes__[0]
    assert (orders.stats().acked, orders.stats().in_flight) == (1, 1)


def test_a_subscription_continues_while_transactions_ack_what_it_handed_out(
    make_table: MakeTable, database: Database
) -> None:
    table = make_table(cache_size=2)
    table.put_many([{"payload": str(number)} for number in range(6)])
    handled: list[str] = []
    with table.subscribe() as deliveries, database.backend.engine.connect() as connection:
        for _ in range(2):
            next(deliveries).ack(connection=connection)
        connection.commit()
        for delivery in deliveries:
            delivery.ack(connection=connection)
            connection.commit()
            handled.append(delivery.payload)
            if len(handled) == 4:
                break
    assert handled == ["2", "3", "4", "5"]
    assert table.stats().acked == 6


def test_a_closing_subscription_gives_back_messages_whose_ack_was_rolled_back(
    sequenced: MessageTable, database: Database
) -> None:
    sequenced.put_many([{"payload": name, "group": name} for name in "ab"])
    with sequenced.subscribe(limit=1) as deliveries, database.backend.engine.connect() as connection:
        next(deliveries).ack(connection=connection)
        connection.commit()
        next(deliveries).ack(connection=connection)
        connection.rollback()
    assert payloads(sequenced) == ["b"]


def test_a_heartbeat_skips_what_a_transaction_is_acking_and_continues_after_its_rollback(
    make_table: MakeTable, database: Database, clock: MovableClock
) -> None:
    table = make_table()
    table.put_many([{"payload": "a"}, {"payload": "b"}])
    first, second = table.receive()
    passed = [max(first.beat_at, second.beat_at)]
    heartbeat = SteppedHeartbeat(lambda: passed[0])
    heartbeat.keep(first)
    until = first.lease_until
    with database.backend.engine.connect() as connection:
        first.ack(connection=connection)
        clock.move("20s")
        again_at = heartbeat.beat()
        assert first.lease_until == until
        connection.rollback()
    assert again_at is not None
    passed[0] = again_at
    heartbeat.beat()
    assert first.lease_until == clock.now + table.options.ack_wait
    first.ack()
    passed[0] = first.beat_at
    assert (heartbeat.beat() or 0) > passed[0]  # what is over asks for no beat at once


@pytest.mark.parametrize("options", GROUPS[:2])
def test_a_subscription_is_left_while_the_callers_transaction_that_acks_is_open(
    make_table: MakeTable, database: Database, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    table = make_table(**options)
    table.put("tea")
    with database.backend.engine.connect() as caller:
        with table.subscribe() as deliveries:
            for delivery in deliveries:
                delivery.ack(connection=caller)
                break
        assert "cannot give back its messages" not in caplog.text
        caller.commit()
    assert table.stats().acked == 1


@pytest.mark.parametrize("options", [*GROUPS[:1], *GROUPS[2:3]])
def test_messages_that_a_subscription_cannot_give_back_on_sqlite_keep_their_lease_with_a_warning(
    sqlite_url: str,
    tmp_path: Path,
    clock: MovableClock,
    options: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("waterclock.tables.consumers.heartbeats.leaving.PATIENCE", 0.1)
    with wc.connect(sqlite_url, tmp_path, clock=clock) as database:
        table = database.create_table("orders", payload="text", jitter=0, ack_wait="30s", **options)
        table.put_many([{"payload": name, "group": name} for name in "ab"])
        with database.backend.engine.connect() as caller:
            with table.subscribe(consumer="first") as deliveries:
                next(deliveries).ack(connection=caller)
            assert (
                "consumer first cannot give back its messages of table 'orders', which return when their leases end"
                in caplog.text
            )
            caller.commit()
        assert table.receive(consumer="second") == []
        clock.move("31s")
        assert [delivery.payload for delivery in table.receive(consumer="second")] == ["b"]
