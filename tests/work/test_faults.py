"""What goes wrong around a worker: messages that are cancelled, answers that are lost, loops that are blocked."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from tests.work.conftest import PATIENCE, Waiting, running, until

import waterclock as wc
from waterclock.tables.consumers.heartbeat import Heartbeat
from waterclock.tables.consumers.subscription import Subscription
from waterclock.tables.message_table import MessageTable
from waterclock.work.metrics import answering

MakeTable = Callable[..., MessageTable]


@pytest.mark.parametrize("kind", ["thread", "task"])
@pytest.mark.parametrize("is_notified", [True, False], ids=["notified", "polling"])
def test_a_cancel_reaches_a_handler_during_the_drain_also_where_only_polling_is_possible(
    orders: MessageTable, kind: str, is_notified: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_notified:  # as where another process cancels
        monkeypatch.setattr(Heartbeat, "look_now", lambda _: None)
    message_id = orders.put("x")
    began = threading.Event()
    ends: list[str] = []

    def in_thread(delivery: wc.Delivery) -> None:
        cancelled = threading.Event()
        delivery.when_cancelled(cancelled.set)
        began.set()
        assert cancelled.wait(PATIENCE)
        ends.append("cancelled")
        raise RuntimeError("stops")

    async def in_task(delivery: wc.Delivery) -> None:
        began.set()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    worker = wc.Worker(orders, in_thread if kind == "thread" else in_task, concurrency=2, grace="10m")
    with running(worker) as thread:
        assert began.wait(PATIENCE)
        worker.stop()
        orders.cancel(message_id)
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert ends == ["cancelled"]
    assert worker.counts.failed == 0
    assert not orders.receive()


def test_what_a_claim_under_way_brings_when_the_worker_stops_is_due_at_once(
    orders: MessageTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed, answers = threading.Event(), threading.Event()
    take = Subscription.take

    def slow(self: Subscription, most: int) -> list[wc.Delivery]:
        found = take(self, most)
        if found:
            claimed.set()
            assert answers.wait(PATIENCE)
        return found

    monkeypatch.setattr(Subscription, "take", slow)
    orders.put("x")
    handled: list[Any] = []
    worker = wc.Worker(orders, handled.append)
    with running(worker):
        assert claimed.wait(PATIENCE)
        worker.stop()
        until(lambda: worker._lanes._closed)
        answers.set()
    assert [(each.payload, each.epoch) for each in orders.receive()] == [("x", 1)]
    assert not handled


def test_an_ack_that_meets_a_database_that_is_away_is_tried_again_and_nothing_is_sent_twice(
    orders: MessageTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    ack, tries = orders.ack, []

    def fails_twice(*arguments: Any, **more: Any) -> int:
        tries.append(arguments)
        if len(tries) < 3:
            raise wc.UnavailableError("away")
        return ack(*arguments, **more)

    monkeypatch.setattr(orders, "ack", fails_twice)
    orders.put("x")
    worker = wc.Worker(orders, lambda _: None)
    with running(worker):
        until(lambda: worker.counts.done == 1)
    assert (len(tries), orders.stats().acked, orders.stats().sent) == (3, 1, 1)


def test_a_handler_that_blocks_the_loop_keeps_its_lease_and_is_named(
    make_table: MakeTable, caplog: pytest.LogCaptureFixture
) -> None:
    orders = make_table(ack_wait="400ms")
    message_id = orders.put("x")
    go_on = threading.Event()

    async def blocks(delivery: wc.Delivery) -> None:
        assert go_on.wait(PATIENCE)  # what it must not do

    worker = wc.Worker(orders, blocks, concurrency=2)
    with caplog.at_level(logging.WARNING), running(worker):
        until(lambda: any("blocks the event loop" in each.getMessage() for each in caplog.records))
        go_on.set()
        until(lambda: worker.counts.done == 1)
    assert any(f"the handler of message {message_id!r} blocks" in each.getMessage() for each in caplog.records)
    assert orders.stats().sent == 1


def test_a_handler_whose_lease_was_lost_sees_it_and_acks_nothing(
    orders: MessageTable, caplog: pytest.LogCaptureFixture
) -> None:
    message_id = orders.put("x")
    handler = Waiting()
    worker = wc.Worker(orders, handler)
    with running(worker):
        handler.wait_for(1)
        orders.ack(message_id)  # as another consumer does that got it
        handler.deliveries[0].lose()
        until(lambda: handler.deliveries[0].cancelled)
        handler.go_on.set()
        until(lambda: worker.counts.lost == 1)
    assert worker.counts.done == 0


def test_while_all_slots_are_taken_leases_are_kept_and_the_worker_answers(make_table: MakeTable) -> None:
    orders = make_table(ack_wait="500ms")
    orders.put_many([{"payload": number} for number in range(3)])
    handler = Waiting()
    worker = wc.Worker(orders, handler, concurrency=2)
    with running(worker):
        handler.wait_for(2)
        before = handler.deliveries[0].lease_until
        until(lambda: handler.deliveries[0].lease_until > before)
        assert worker.facts()["running"] == 2
        handler.go_on.set()
        until(lambda: orders.stats().acked == 3)
    assert orders.stats().sent == 3


@pytest.mark.one_database
def test_a_thread_that_is_stuck_in_c_costs_no_slot_and_is_a_metric(make_table: MakeTable) -> None:
    orders = make_table(min_backoff="1h", ack_wait="1h")
    orders.put_many([{"payload": "stuck", "priority": 1}, {"payload": "stuck", "priority": 1}])
    read, write = os.pipe()
    done: list[int] = []

    def handle(delivery: wc.Delivery) -> None:
        if delivery.payload == "stuck":
            os.read(read, 1)  # nothing of Python's reaches a thread in here
        else:
            done.append(delivery.payload)

    worker = wc.Worker(orders, handle, concurrency=2, timeout="50ms")
    with running(worker), answering(":0", lambda: worker.counts, worker.facts, lambda: worker.unfinished) as place:

        def metrics() -> dict[str, float]:
            with urllib.request.urlopen(f"http://{place}/metrics") as answer:  # our own
                lines = answer.read().decode().splitlines()
            return {name: float(value) for name, _, value in (each.rpartition(" ") for each in lines if each[0] != "#")}

        until(lambda: worker.counts.stuck == 2)
        orders.put_many([{"payload": number} for number in range(20)])
        until(lambda: len(done) == 20)
        found = metrics()
        assert (found["waterclock_worker_stuck"], found["waterclock_worker_slots"]) == (2, 2)
        assert found['waterclock_worker_messages_total{outcome="stuck"}'] == 2
        os.write(write, b"..")
        until(lambda: metrics()["waterclock_worker_stuck"] == 0)
        assert metrics()["waterclock_worker_slots"] == 2
    os.close(read)
    os.close(write)
    assert (orders.stats().acked, orders.stats().delayed) == (20, 2)
