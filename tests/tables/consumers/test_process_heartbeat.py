"""Counting who takes messages, and how fast: seen from every process, at no cost for those who take them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from tests.support.moments import ReadFrom, SteppedHeartbeat, later_each_time
from tests.support.statements import statements_of
from tests.tables.conftest import MovableClock
from tests.tables.consumers.consuming import start

from waterclock._support import moments
from waterclock.connection import Database
from waterclock.database.schema.table_catalogue import heartbeats
from waterclock.errors import UnavailableError
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.rows.process_heartbeat import BEAT_EVERY, LASTS, RATE_SECONDS, Lately, process_heartbeat

SECOND = 1_000_000_000


@pytest.fixture
def elsewhere(orders: MessageTable, connect: Callable[..., Database], clock: MovableClock) -> MessageTable:
    """Give the table as another process has it."""
    return connect(clock=clock).table(orders.name)


@pytest.mark.parametrize("groups", [None, "exclusive"])
def test_two_subscriptions_count_as_two_and_when_one_is_closed_as_one_everywhere(
    make_table: Callable[..., MessageTable], connect: Callable[..., Database], clock: MovableClock, groups: str | None
) -> None:
    table = make_table(groups=groups)
    elsewhere = connect(clock=clock).table("orders")
    with table.subscribe() as first, elsewhere.subscribe():
        assert (table.stats().subscribers, elsewhere.stats().subscribers) == (2, 2)
        first.close()
        assert (table.stats().subscribers, elsewhere.stats().subscribers) == (1, 1)
    assert (table.stats().subscribers, elsewhere.stats().subscribers) == (0, 0)


def test_a_subscription_counts_for_as_long_as_it_is_open_whether_it_is_asked_or_not(
    orders: MessageTable, elsewhere: MessageTable, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    heartbeat = SteppedHeartbeat(later_each_time(BEAT_EVERY))
    monkeypatch.setattr("waterclock.tables.consumers.subscription.heartbeat_of", lambda _backend: heartbeat)
    with elsewhere.subscribe():
        for _ in range(4):
            clock.move(BEAT_EVERY)
            heartbeat.beat()
        assert orders.stats().subscribers == 1
    assert heartbeat.beat() is None


@pytest.mark.both_servers
def test_a_killed_process_counts_no_more_when_its_lease_is_over(
    connect: Callable[..., Database], database_url: str
) -> None:
    table = connect().create_table("orders", payload="text")
    later = connect(clock=lambda: time.time_ns() + LASTS).table("orders")
    table.put("tea")
    holder = start(database_url, "hold")
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "took 1 1\n"
        assert table.stats().subscribers == 1
    finally:
        holder.kill()
        holder.wait()
    assert later.stats().subscribers == 0


def test_a_row_of_a_process_that_is_gone_is_removed_by_the_next_that_comes(
    orders: MessageTable, elsewhere: MessageTable, clock: MovableClock, database: Database
) -> None:
    gone = elsewhere.subscribe()
    clock.move(LASTS)
    with orders.subscribe(), database.backend.engine.connect() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(heartbeats)).scalar() == 1
    gone.close()


@pytest.mark.one_database
@pytest.mark.usefixtures("young_heap")
def test_a_subscription_that_is_gone_does_not_count(orders: MessageTable) -> None:
    left = orders.subscribe()
    assert orders.stats().subscribers == 1
    left._changes.close()
    del left
    gc.collect()
    assert orders.stats().subscribers == 0


def test_a_database_that_is_closed_has_no_subscriptions_here(
    orders: MessageTable, connect: Callable[..., Database], clock: MovableClock
) -> None:
    other = connect(clock=clock)
    left = other.table("orders").subscribe()
    other.close()
    assert orders.stats().subscribers == 0
    left._changes.close()


def test_taking_messages_writes_nothing_but_their_rows(orders: MessageTable, database: Database) -> None:
    orders.put_many([{"payload": str(number)} for number in range(20)])
    with orders.subscribe(limit=2) as deliveries, statements_of(database.backend) as seen:
        for _ in range(20):
            next(deliveries).ack()
    assert seen
    assert not [text for text, _ in seen if heartbeats.name in text]


def test_a_process_that_only_receives_says_so_every_ten_seconds(
    orders: MessageTable, elsewhere: MessageTable, database: Database
) -> None:
    orders.put_many([{"payload": str(number)} for number in range(9)])
    with statements_of(database.backend) as seen:
        orders.receive(4)
        with moments.replaced(ReadFrom(lambda: time.monotonic_ns() + BEAT_EVERY)):
            orders.receive(2)
        orders.receive(3)
    assert sum(f"INSERT INTO {heartbeats.name}" in text for text, _ in seen) == 1
    # The others hear of what was taken until then.
    assert elsewhere.stats().sent_rate == pytest.approx(6 / RATE_SECONDS)
    assert orders.stats().sent_rate == pytest.approx(9 / RATE_SECONDS)


def test_the_sent_rate_counts_each_time_a_message_is_taken_and_nothing_that_was_given_back_unstarted(
    orders: MessageTable, elsewhere: MessageTable, clock: MovableClock
) -> None:
    orders.put_many([{"payload": str(number)} for number in range(5)])
    with orders.subscribe(limit=3) as deliveries:
        next(deliveries).nack("0s")
    assert orders.stats().sent_rate == pytest.approx(1 / RATE_SECONDS)
    assert len(orders.receive(5)) == 5
    assert orders.stats().sent_rate == pytest.approx(6 / RATE_SECONDS)
    with elsewhere.subscribe() as deliveries:
        orders.put("more")
        next(deliveries)
        assert orders.stats().sent_rate == pytest.approx(6 / RATE_SECONDS)
        process_heartbeat(elsewhere.context).beat()
        assert orders.stats().sent_rate == pytest.approx(7 / RATE_SECONDS)
        clock.move(LASTS)
        assert orders.stats().sent_rate == pytest.approx(6 / RATE_SECONDS)


def test_recent_counts_cover_the_last_minute() -> None:
    lately = Lately()
    lately.note(5, 0)
    lately.note(7, 30 * SECOND)
    lately.note(1, 30 * SECOND + 1)
    assert lately.count(59 * SECOND) == 13
    assert lately.count(60 * SECOND) == 8
    lately.note(-8, 61 * SECOND)
    assert lately.count(61 * SECOND) == 0
    assert lately.count(90 * SECOND) == 0
    assert lately.count(121 * SECOND) == 0


def test_figures_that_cannot_be_written_stop_no_consumer(
    orders: MessageTable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    orders.put("tea")
    own = process_heartbeat(orders.context)
    monkeypatch.setattr(own, "_write", _fail)
    caplog.set_level("INFO")
    with orders.subscribe() as deliveries:
        next(deliveries).ack()
    assert "cannot write this process's heartbeat" in caplog.text
    assert orders.stats().acked == 1


def _fail(*_arguments: object) -> None:
    raise UnavailableError("the database is away")
