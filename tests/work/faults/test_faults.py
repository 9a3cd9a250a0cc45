"""What goes wrong around a worker: messages that are cancelled, answers that are lost, loops that are blocked."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.work import shop
from tests.work.conftest import PATIENCE, Waiting, running, until

import waterclock as wc
from waterclock.tables.consumers.heartbeats.heartbeat import Heartbeat
from waterclock.tables.consumers.subscription import TableSubscription
from waterclock.tables.message_table import MessageTable
from waterclock.work.flow.outcome_writer import OutcomeWriter
from waterclock.work.metrics import WorkerMetrics
from waterclock.work.running import event_loop, supervisor

MakeTable = Callable[..., MessageTable]


@pytest.mark.parametrize("kind", ["thread", "task"])
@pytest.mark.parametrize("is_notified", [True, False], ids=["notified", "polling"])
def test_a_cancel_reaches_a_handler_during_the_drain_even_if_only_polling_is_possible(
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


def test_messages_of_a_claim_in_progress_when_the_worker_stops_are_due_immediately(
    orders: MessageTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed, answers = threading.Event(), threading.Event()
    take = TableSubscription.take

    def slow(self: TableSubscription, most: int) -> list[wc.Delivery]:
        found = take(self, most)
        if found:
            claimed.set()
            assert answers.wait(PATIENCE)
        return found

    monkeypatch.setattr(TableSubscription, "take", slow)
    orders.put("x")
    handled: list[Any] = []
    worker = wc.Worker(orders, handled.append)
    with running(worker):
        assert claimed.wait(PATIENCE)
        worker.stop()
        until(lambda: worker._queue._closed)
        answers.set()
    assert [(each.payload, each.epoch) for each in orders.receive()] == [("x", 1)]
    assert not handled


@pytest.mark.both_servers
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


@pytest.mark.one_database
def test_a_handler_that_blocks_the_loop_keeps_its_lease_and_is_named(
    make_table: MakeTable, caplog: pytest.LogCaptureFixture
) -> None:
    orders = make_table(ack_wait="3s")
    message_id = orders.put("x")
    go_on = threading.Event()
    blocked: list[tuple[wc.Delivery, int]] = []

    async def blocks(delivery: wc.Delivery) -> None:
        blocked.append((delivery, delivery.lease_until))
        assert go_on.wait(PATIENCE)  # what it must not do

    worker = wc.Worker(orders, blocks, concurrency=2)
    with caplog.at_level(logging.WARNING), running(worker):
        until(lambda: any("blocks the event loop" in each.getMessage() for each in caplog.records))
        [(delivery, first_lease)] = blocked
        until(lambda: delivery.lease_until > first_lease)
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


def test_while_all_slots_are_taken_leases_are_kept_cancels_arrive_and_the_worker_answers(
    make_table: MakeTable,
) -> None:
    orders = make_table(ack_wait="2s")
    orders.put_many([{"payload": number} for number in range(3)])
    handler = Waiting()
    worker = wc.Worker(orders, handler, concurrency=2)
    with running(worker):
        handler.wait_for(2)
        first, second = handler.deliveries
        before = first.lease_until
        until(lambda: first.lease_until > before)
        orders.cancel(second.id)
        until(lambda: second.cancelled)
        assert not first.cancelled
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
    observer = WorkerMetrics(lambda: worker.counts, worker.facts, lambda: worker.unfinished)
    with running(worker):

        def metrics() -> dict[str, float]:
            return {sample.name: sample.value for family in observer.collect() for sample in family.samples}

        until(lambda: worker.counts.stuck == 2)
        orders.put_many([{"payload": number} for number in range(20)])
        until(lambda: len(done) == 20)
        found = metrics()
        assert (found["waterclock_worker_stuck"], found["waterclock_worker_slots"]) == (2, 2)
        assert found["waterclock_worker_replaced_slots_total"] == 2
        os.write(write, b"..")
        until(lambda: metrics()["waterclock_worker_stuck"] == 0)
        assert metrics()["waterclock_worker_slots"] == 2
    os.close(read)
    os.close(write)
    assert (orders.stats().acked, orders.stats().delayed) == (20, 2)


@pytest.mark.one_database
def test_a_blocked_loop_costs_the_messages_whose_handlers_have_not_begun_no_attempt(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_STUCK_AFTER", 0)
    orders = make_table(max_attempts=1)
    orders.put_many([{"payload": number} for number in range(4)])
    go_on = threading.Event()

    async def handle(delivery: wc.Delivery) -> None:
        if delivery.payload == 0:
            go_on.wait(PATIENCE)

    worker = wc.Worker(orders, handle, concurrency=4, timeout="300ms")
    with running(worker):
        until(lambda: worker.counts.stuck)
        until(lambda: worker.facts()["running"] == 3)
        worker._watch.look()
        go_on.set()
        until(lambda: worker.counts.done == 3)
    assert (worker.counts.stuck, worker.counts.failed) == (1, 1)


@pytest.mark.parametrize("beside", ["nothing", "threads"])
def test_messages_waiting_for_a_blocked_loop_go_to_other_workers_uncounted(
    make_table: MakeTable, beside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "_BLOCKED_FOR", 100_000_000)
    orders = make_table(max_attempts=1)
    orders.put_many([{"payload": number, "headers": {"kind": "async"}} for number in range(4)])
    go_on = threading.Event()
    done: list[int] = []

    async def handle(delivery: wc.Delivery) -> None:
        if delivery.payload == 0:
            go_on.wait(PATIENCE)  # what it must not do
        done.append(delivery.payload)

    handlers: dict[str, Any] = {"async": handle}
    if beside == "threads":
        handlers["plain"] = print
    worker = wc.Worker(orders, handlers, concurrency=4)
    with running(worker):
        until(lambda: worker.counts.given_back == 3)
        with running(wc.Worker(orders, lambda delivery: done.append(delivery.payload))):
            until(lambda: len(done) == 3)
        assert sorted(done) == [1, 2, 3]
        go_on.set()
        until(lambda: worker.counts.done == 1)
        orders.put(4, headers={"kind": "async"})
        until(lambda: worker.counts.done == 2)
    assert (worker.counts.failed, worker.counts.lost, orders.stats().sent) == (0, 0, 5)


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.one_database
def test_an_async_handler_behind_an_ordinary_decorator_is_run_and_timed(
    make_table: MakeTable, processes: int, tmp_path: Path
) -> None:
    orders = make_table(min_backoff="1h", ack_wait="1h")
    orders.put(str(tmp_path / "done"))
    worker = wc.Worker(orders, shop.decorated, processes=processes, timeout="10s")
    with running(worker):
        until(lambda: worker.counts.done == 1)
        assert (tmp_path / "done").exists()
        waiting = orders.put("for ever")
        until(lambda: worker.facts()["running"])
        orders.cancel(waiting)
        until(lambda: worker.counts.given_back)
    assert (worker.counts.failed, worker.counts.lost) == (0, 0)


class Unspeakable(Exception):  # noqa: N818  # it is one, and cannot say so
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.one_database
@pytest.mark.parametrize("kind", ["thread", "task"])
def test_an_exception_with_a_broken_repr_does_not_end_a_slot(
    make_table: MakeTable, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    orders = make_table(max_attempts=1, dead_letter="dead")
    orders.put_many([{"payload": 1}, {"payload": 2}])

    def in_thread(_: wc.Delivery) -> None:
        raise Unspeakable

    async def in_task(_: wc.Delivery) -> None:
        raise Unspeakable

    worker = wc.Worker(orders, in_thread if kind == "thread" else in_task)
    with running(worker):
        until(lambda: worker.counts.failed == 2)
    assert "Unspeakable" in caplog.text
    assert [one["dead_reason"] for one in orders.dead_letters()] == ["sent once without an ack"] * 2


@pytest.mark.one_database
def test_a_handlers_exception_is_one_line_of_the_log_and_a_reason_may_be_an_exception(
    make_table: MakeTable, caplog: pytest.LogCaptureFixture
) -> None:
    orders = make_table(dead_letter="dead", max_attempts=1)
    orders.put_many([{"payload": 1}, {"payload": 2}])

    def handle(delivery: wc.Delivery) -> None:
        if delivery.payload == 1:
            raise wc.DeadLetter(ValueError("wrong\npress"))
        raise ValueError("first\nsecond\x1b[31m" + "x" * 10_000)

    worker = wc.Worker(orders, handle)
    with running(worker):
        until(lambda: worker.counts.failed + worker.counts.dead == 2)
    said = [each.getMessage() for each in caplog.records if "message" in each.getMessage()]
    assert any("ValueError: wrong\\npress" in each for each in said)
    assert all(each.isprintable() and len(each) < 2_000 for each in said)
    assert {one["dead_reason"] for one in orders.dead_letters()} >= {"ValueError: wrong\npress"}


@pytest.mark.one_database
def test_a_child_process_that_dies_while_one_of_its_own_lives_is_noticed(make_table: MakeTable) -> None:
    orders = make_table(max_attempts=1)
    orders.put(1)
    worker = wc.Worker(orders, forks_and_dies, processes=1)
    with running(worker):
        until(lambda: worker.counts.failed)
    assert worker.counts.replaced == 1


def forks_and_dies(_: wc.Delivery) -> None:
    if os.fork() == 0:
        threading.Event().wait(PATIENCE / 4)
    os._exit(1)


def test_an_ack_that_the_database_cannot_take_does_not_block_others(
    orders: MessageTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.put_many([{"payload": text} for text in ("first", "large", "small", "small")])
    ack, put = MessageTable.ack, OutcomeWriter.put
    handled, acked = [], []

    def put_and_count(self: OutcomeWriter, *what: Any) -> None:
        put(self, *what)
        handled.append(what)

    def refuse_large(self: MessageTable, deliveries: Any) -> None:
        if not acked:  # until the others are acked together
            until(lambda: len(handled) == 4)
        acked.append(len(deliveries))
        if any(one.payload == "large" for one in deliveries):
            raise wc.InvalidArgumentError("it is too large")
        ack(self, deliveries)

    monkeypatch.setattr(OutcomeWriter, "put", put_and_count)
    monkeypatch.setattr(MessageTable, "ack", refuse_large)
    began = threading.Barrier(4)
    with running(wc.Worker(orders, lambda _: began.wait(PATIENCE), concurrency=4)):
        until(lambda: orders.stats().acked == 3)
    assert max(acked) > 1
