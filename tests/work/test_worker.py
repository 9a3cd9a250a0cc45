"""A worker handles what is due, says what became of it, and stops without losing or keeping anything."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from tests.work.conftest import PATIENCE, Waiting, running, until

import waterclock as wc
from waterclock.connection import Database
from waterclock.database.schema.table_catalogue import heartbeats
from waterclock.tables.consumers.subscription import TableSubscription
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.rows.process_heartbeat import process_heartbeat
from waterclock.work import worker as worker_module
from waterclock.work.flow import dispatch_queue, fetcher

MakeTable = Callable[..., MessageTable]


def put(table: MessageTable, *payloads: Any, **more: Any) -> None:
    table.put_many([{"payload": each, **more} for each in payloads])


def handlers_of(table: MessageTable) -> tuple[int, list[tuple[str, bool]]]:
    """Return what this process's heartbeat says of its handlers: how many are stuck, and the longest-running."""
    process_heartbeat(table.context).beat()
    with table.context.backend.snapshot() as connection:
        [row] = connection.execute(sa.select(heartbeats.c.stuck, heartbeats.c.handlers))
    return row.stuck, [(one["id"], one["stuck"]) for one in json.loads(row.handlers or "[]")]


def test_each_message_is_handled_and_acked(orders: MessageTable) -> None:
    put(orders, *range(300))
    seen: list[int] = []
    with running(wc.Worker(orders, lambda delivery: seen.append(delivery.payload), concurrency=4)):
        until(lambda: len(seen) == 300)
        put(orders, "later")
        until(lambda: orders.stats().acked == 301)
    assert sorted(seen[:300]) == list(range(300))
    assert orders.stats().sent == 301


@pytest.mark.one_database
def test_asynchronous_handlers_run_in_one_loop_as_many_at_a_time_as_there_are_slots(orders: MessageTable) -> None:
    put(orders, *range(20))
    at_a_time: list[int] = []
    most = 0

    async def handle(delivery: wc.Delivery) -> None:
        nonlocal most
        at_a_time.append(delivery.payload)
        most = max(most, len(at_a_time))
        await asyncio.sleep(0.02)
        at_a_time.remove(delivery.payload)

    worker = wc.Worker(orders, handle, concurrency=5)
    with running(worker):
        until(lambda: worker.counts.done == 20)
    assert most == 5
    assert orders.stats().acked == 20


@pytest.mark.one_database
def test_a_handler_chooses_the_outcome_of_its_message(make_table: MakeTable) -> None:
    orders = make_table(dead_letter="dead", ack_wait="10m", min_backoff="20m")
    says: dict[str, Callable[[], Exception]] = {
        "retry": lambda: wc.Retry("5m"),
        "snooze": lambda: wc.Snooze("1h"),
        "dead": lambda: wc.DeadLetter("no such customer"),
        "discard": lambda: wc.Discard("too old"),
        "error": lambda: ValueError("no number"),
    }
    ids = {name: orders.put(name) for name in says}

    def handle(delivery: wc.Delivery) -> None:
        raise says[delivery.payload]()

    worker = wc.Worker(orders, handle, concurrency=2)
    with running(worker):
        until(lambda: orders.stats().in_flight == 0 and sum(vars(worker.counts).values()) == 5)
    now = orders.context.backend.now()
    peeked = {each.payload: each for each in orders.peek(10)}
    minutes = {name: round((peeked[name].due_at - now) / 60e9) for name in ("retry", "snooze", "error")}
    assert minutes == {"retry": 5, "snooze": 60, "error": 20}
    assert {name: each.epoch for name, each in peeked.items()} == {"retry": 1, "snooze": 0, "error": 1}
    [dead] = orders.dead_letters()
    assert (dead["payload"], dead["dead_reason"]) == ("dead", "no such customer")
    assert "acked" in str(orders.explain(ids["discard"]))
    counts = worker.counts
    assert (counts.done, counts.failed, counts.snoozed, counts.dead, counts.discarded) == (0, 2, 1, 1, 1)


@pytest.mark.one_database
def test_a_failure_is_one_line_with_the_id_the_attempt_and_the_next_try(
    make_table: MakeTable, caplog: pytest.LogCaptureFixture
) -> None:
    orders = make_table(max_attempts=2, min_backoff="1s", ack_wait="1s", dead_letter="dead")
    orders.put("x", id=17)

    def handle(delivery: wc.Delivery) -> None:
        raise KeyError("customer")

    with caplog.at_level(logging.WARNING), running(wc.Worker(orders, handle)):
        until(orders.dead_letters)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("waterclock.work")]
    assert lines == [
        "message 17 of table 'orders' failed, attempt 1; next try in 1s: KeyError: 'customer'",
        "message 17 of table 'orders' failed, attempt 2; it is now a dead letter: KeyError: 'customer'",
    ]
    tracebacks = [record.exc_text or "" for record in caplog.records if record.name.startswith("waterclock.work")]
    assert all('raise KeyError("customer")\nKeyError' in each for each in tracebacks)
    [dead] = orders.dead_letters()
    assert re.fullmatch(r"KeyError: 'customer' \(work/test_worker.py:\d+ in handle\)", dead["last_error"])


def test_a_dead_letter_without_a_table_for_it_backs_off(orders: MessageTable) -> None:
    put(orders, "x")

    def handle(delivery: wc.Delivery) -> None:
        raise wc.DeadLetter("why")

    worker = wc.Worker(orders, handle)
    with running(worker):
        until(lambda: worker.counts.failed == 1)
    assert orders.stats().delayed == 1


@pytest.mark.parametrize("groups", ["sequenced", "exclusive"])
def test_the_messages_of_a_group_are_handled_in_order_and_one_at_a_time(make_table: MakeTable, groups: str) -> None:
    orders = make_table(groups=groups)
    orders.put_many([{"payload": number, "group": f"g{number % 4}"} for number in range(60)])
    seen: dict[str, list[int]] = {}
    at_a_time: set[str] = set()
    failed = threading.Event()

    def handle(delivery: wc.Delivery) -> None:
        assert delivery.group is not None
        assert delivery.group not in at_a_time
        at_a_time.add(delivery.group)
        try:
            if delivery.payload == 8 and not failed.is_set():
                failed.set()
                raise wc.Retry("0s")
            seen.setdefault(delivery.group, []).append(delivery.payload)
        finally:
            at_a_time.remove(delivery.group)

    with running(wc.Worker(orders, handle, concurrency=4)):
        until(lambda: orders.stats().acked == 60)
    assert failed.is_set()
    assert seen == {f"g{first}": list(range(first, 60, 4)) for first in range(4)}
    assert orders.stats().sent == 61  # those behind the one that failed went back uncounted


def test_a_running_handler_ends_within_the_grace_and_its_message_is_sent_once_although_it_takes_three_leases(
    make_table: MakeTable,
) -> None:
    orders = make_table(ack_wait="1500ms")
    put(orders, *range(10))
    handler = Waiting()
    worker = wc.Worker(orders, handler, grace="10m")
    with running(worker):
        handler.wait_for(1)
        began = handler.deliveries[0].lease_until
        worker.stop()
        # What was not begun is due at once; what runs is kept.
        until(lambda: orders.stats().ready == 9)
        until(lambda: handler.deliveries[0].lease_until > began + 2 * 1_500_000_000)
        handler.go_on.set()
    stats = orders.stats()
    assert (stats.acked, stats.ready, stats.sent) == (1, 9, 1)


@pytest.mark.parametrize("max_attempts", [1, None])
def test_messages_not_done_within_the_grace_are_due_immediately_without_an_attempt(
    make_table: MakeTable, max_attempts: int | None
) -> None:
    orders = make_table(max_attempts=max_attempts)
    put(orders, "a", "b")
    handler = Waiting()
    worker = wc.Worker(orders, handler, concurrency=2)
    with running(worker, grace="0s"):
        handler.wait_for(2)
    assert worker.unfinished == 2
    assert worker.counts.given_back == 2
    assert [(each.payload, each.epoch) for each in orders.receive()] == [("a", 1), ("b", 1)]
    handler.go_on.set()
    until(lambda: worker.unfinished == 0)
    assert orders.stats().acked == 0


@pytest.mark.one_database
def test_an_asynchronous_handler_is_cancelled_when_the_grace_is_over(orders: MessageTable) -> None:
    put(orders, "cleans up", "ends well")
    began, cancelled = threading.Semaphore(0), []

    async def handle(delivery: wc.Delivery) -> None:
        try:
            began.release()
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            cancelled.append(delivery.payload)
            if delivery.payload == "cleans up":
                raise

    worker = wc.Worker(orders, handle, concurrency=2)
    with running(worker, grace="0s"):
        assert began.acquire(timeout=PATIENCE)
        assert began.acquire(timeout=PATIENCE)
    assert sorted(cancelled) == ["cleans up", "ends well"]
    assert worker.unfinished == 0
    assert [(each.payload, each.epoch) for each in orders.receive()] == [("cleans up", 1)]
    assert orders.stats().acked == 1


@pytest.mark.one_database
def test_nothing_waits_claimed_behind_a_long_handler(orders: MessageTable) -> None:
    handler = Waiting()
    quick: list[int] = []

    def handle(delivery: wc.Delivery) -> None:
        if delivery.payload == "long":
            handler(delivery)
        else:
            quick.append(delivery.payload)

    one, two = wc.Worker(orders, handle), wc.Worker(orders, handle)
    with running(one):
        put(orders, *range(200))  # so quick that it claims ahead
        until(lambda: len(quick) == 200)
        orders.put_many([{"payload": "long", "priority": 1}, *({"payload": number} for number in range(200, 300))])
        handler.wait_for(1)
        with running(two):
            until(lambda: len(quick) == 300)
            handler.go_on.set()
    assert sorted(quick) == list(range(300))
    assert orders.stats().sent == 301


@pytest.mark.one_database
def test_a_thread_that_is_stuck_gives_its_slot_to_another_and_its_message_backs_off(
    make_table: MakeTable, caplog: pytest.LogCaptureFixture
) -> None:
    orders = make_table(min_backoff="1h", ack_wait="1h")
    stuck_id = orders.put("stuck")
    handler = Waiting()
    done: list[str] = []

    def handle(delivery: wc.Delivery) -> None:
        handler(delivery) if delivery.payload == "stuck" else done.append(delivery.payload)

    worker = wc.Worker(orders, handle, timeout="50ms")
    with running(worker):
        handler.wait_for(1)
        put(orders, "next")
        until(lambda: done == ["next"])
        until(lambda: orders.stats().delayed == 1)
        assert (worker.counts.stuck, worker.counts.timed_out, worker.unfinished) == (1, 1, 1)
        assert handlers_of(orders) == (1, [(str(stuck_id), True)])
        handler.go_on.set()
        until(lambda: worker.unfinished == 0)
        assert handlers_of(orders) == (0, [])
    [line] = [record.getMessage() for record in caplog.records if "failed" in record.getMessage()]
    assert (
        f"message {stuck_id} of table 'orders' failed, attempt 1; next try in 1h: TimeoutError: the handler took"
        in line
    )
    assert orders.stats().acked == 1


@pytest.mark.one_database
def test_an_asynchronous_handler_that_takes_too_long_is_cancelled(make_table: MakeTable) -> None:
    orders = make_table(min_backoff="1h", ack_wait="1h")
    put(orders, "x")
    cancelled = threading.Event()

    async def handle(delivery: wc.Delivery) -> None:
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            cancelled.set()

    worker = wc.Worker(orders, handle, timeout="20ms")
    with running(worker):
        assert cancelled.wait(PATIENCE)
        until(lambda: worker.counts.failed == 1)
    assert (worker.counts.timed_out, worker.counts.stuck) == (1, 0)
    assert orders.stats().delayed == 1


@pytest.mark.one_database
def test_several_tables_share_the_slots(make_table: MakeTable) -> None:
    orders, mails = make_table("orders"), make_table("mails")
    put(orders, *range(50))
    put(mails, *range(50))

    async def mail(delivery: wc.Delivery) -> None:
        pass

    worker = wc.Worker({orders: lambda _: None, mails: mail}, concurrency=2)
    with running(worker):
        until(lambda: worker.counts.done == 100)
    assert (orders.stats().acked, mails.stats().acked) == (50, 50)


@pytest.mark.one_database
def test_a_claim_that_does_not_return_keeps_no_slot_from_other_tables(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, mails = make_table("orders"), make_table("mails")
    claims, returns = threading.Event(), threading.Event()
    take = TableSubscription.take

    def take_orders_late(subscription: TableSubscription, limit: int) -> list[wc.Delivery]:
        if subscription._row.last_seen.name == "orders":
            claims.set()
            assert returns.wait(PATIENCE)
        return take(subscription, limit)

    monkeypatch.setattr(TableSubscription, "take", take_orders_late)
    monkeypatch.setattr(dispatch_queue, "_LONGEST_CLAIM", 0)
    monkeypatch.setattr(worker_module, "_IDLE", 0.01)
    worker = wc.Worker(dict.fromkeys((orders, mails), lambda _: None))
    with running(worker):
        try:
            assert claims.wait(PATIENCE)
            put(mails, "x")
            until(lambda: worker.counts.done == 1)
        finally:
            returns.set()


@pytest.mark.one_database
def test_messages_that_do_not_go_back_hold_up_neither_other_tables_nor_the_end(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, mails = make_table("orders"), make_table("mails")
    goes_back, returns = threading.Event(), threading.Event()
    handler = Waiting()
    put(orders, "long", "waits")
    take = TableSubscription.take

    def take_orders_late(subscription: TableSubscription, limit: int) -> list[wc.Delivery]:
        if subscription._row.last_seen.name == "orders" and handler.began:
            assert returns.wait(PATIENCE)
        return take(subscription, limit)

    def give_back_late(*_: Any) -> None:
        goes_back.set()
        assert returns.wait(PATIENCE)

    monkeypatch.setattr(TableSubscription, "take", take_orders_late)
    monkeypatch.setattr(TableSubscription, "give_back", give_back_late)
    monkeypatch.setattr(dispatch_queue, "_MOMENT", 10**12)  # so that it claims ahead
    monkeypatch.setattr(dispatch_queue, "_LONGEST_WAIT_IN_FLOW", 0)
    monkeypatch.setattr(dispatch_queue, "_LONGEST_CLAIM", 0)
    monkeypatch.setattr(worker_module, "_IDLE", 0.01)
    monkeypatch.setattr(worker_module, "ENDING", 0.5)
    worker = wc.Worker({orders: handler, mails: lambda _: None})
    with running(worker) as thread:
        try:
            assert goes_back.wait(PATIENCE)
            monkeypatch.setattr(dispatch_queue, "_LONGEST_WAIT_IN_FLOW", 10**12)  # the next one need not go back
            handler.go_on.set()
            put(mails, "x")
            until(lambda: worker.counts.done == 2)
            worker.stop()
            thread.join(PATIENCE)
            assert not thread.is_alive()
        finally:
            returns.set()


@pytest.mark.one_database
def test_an_ack_that_does_not_return_keeps_no_ack_of_other_tables_waiting(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, mails = make_table("orders"), make_table("mails")
    acks, returns = threading.Event(), threading.Event()
    ack = orders.ack

    def ack_late(*given: Any) -> int:
        acks.set()
        assert returns.wait(PATIENCE)
        return ack(*given)

    monkeypatch.setattr(orders, "ack", ack_late)
    put(orders, "x")
    with running(wc.Worker(dict.fromkeys((orders, mails), lambda _: None))):
        try:
            assert acks.wait(PATIENCE)
            put(mails, "x")
            until(lambda: mails.stats().acked == 1)
        finally:
            returns.set()
    assert orders.stats().acked == 1


def test_messages_of_kinds_that_a_worker_does_not_know_stay_for_others(orders: MessageTable) -> None:
    known = ["welcome", 'a "kind": of \\ its own', "später", "send_mail", "100%", "mail/new"]
    others = ["invoice", "Welcome", "send-mail", "100 of 100"]
    kinds = [*known, *others]
    orders.put_many([{"payload": kind, "headers": {"kind": kind}, "priority": -at} for at, kind in enumerate(kinds)])
    with orders.context.backend.engine.begin() as connection:  # as other languages write a slash
        of_mail = sa.text("UPDATE orders SET headers = :headers WHERE headers LIKE '%mail/new%'")
        connection.execute(of_mail, {"headers": '{"kind":"mail\\/new"}'})
    orders.put("a trap", headers={"x": '"kind": "welcome"'}, priority=9)
    orders.put("none", priority=9)
    seen: list[str] = []

    def handle(delivery: wc.Delivery) -> None:
        seen.append(delivery.payload)

    with running(wc.Worker(orders, dict.fromkeys(known, handle))):
        until(lambda: len(seen) == 6)
    assert seen == known
    stats = orders.stats()
    assert (stats.acked, stats.ready, stats.sent) == (6, 6, 6)


def test_new_columns_new_kinds_and_a_newer_catalogue_come_while_a_worker_runs(
    orders: MessageTable, database: Database
) -> None:
    seen: list[tuple[Any, ...]] = []

    def handle(delivery: wc.Delivery) -> None:
        seen.append((delivery.payload, delivery.columns.get("region")))

    def run(statement: str) -> None:
        with database.backend.engine.begin() as connection:
            connection.execute(sa.text(statement))

    known = {"headers": {"kind": "order"}}
    worker = wc.Worker(orders, {"order": handle}, concurrency=2)
    with running(worker):
        orders.put("old", **known)
        until(lambda: len(seen) == 1)
        run("ALTER TABLE orders ADD COLUMN region VARCHAR(9)")
        run("ALTER TABLE waterclock_message_tables ADD COLUMN of_a_newer_version BIGINT NOT NULL DEFAULT 0")
        run("UPDATE waterclock_migrations SET version_num = '9999'")
        newer = database.table("orders")
        until(lambda: (newer.put("probe", **known, region="eu"), seen[-1] == ("probe", "eu"))[1])
        newer.put("of a newer program", headers={"kind": "refund"}, region="eu")
        newer.put("last", **known, region="eu")
        until(lambda: ("last", "eu") in seen)
        until(lambda: worker.counts.done == len(seen))
    assert seen[0] == ("old", None)
    assert [each.payload for each in newer.peek()] == ["of a newer program"]
    assert (worker.counts.failed, worker.counts.lost) == (0, 0)


def test_a_group_waits_for_a_worker_that_knows_the_kind_of_its_first_message(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "UNKNOWN_FOR", "200ms")
    orders = make_table(groups="sequenced")
    for group, kind in (("a", "old"), ("a", "new"), ("a", "old"), ("b", "old")):
        orders.put(kind, headers={"kind": kind}, group=group)
    seen: list[tuple[str | None, str]] = []

    def handle(delivery: wc.Delivery) -> None:
        seen.append((delivery.group, delivery.payload))

    with running(wc.Worker(orders, {"old": handle}, concurrency=2)):
        until(lambda: orders.stats().delayed + orders.stats().scheduled == 1 and len(seen) == 2)
        assert sorted(seen) == [("a", "old"), ("b", "old")]
        with running(wc.Worker(orders, {"old": handle, "new": handle})):
            until(lambda: orders.stats().acked == 4)
    assert [kind for group, kind in seen if group == "a"] == ["old", "new", "old"]


@pytest.mark.one_database
def test_handlers_may_come_from_a_context_manager_that_lasts_as_long_as_the_worker(orders: MessageTable) -> None:
    put(orders, 1, 2, 3)
    happened: list[Any] = []

    @contextmanager
    def factory() -> Generator[Callable[[wc.Delivery], None]]:
        happened.append("begin")
        yield lambda delivery: happened.append(delivery.payload)
        happened.append("end")

    worker = wc.Worker(orders, factory)
    with running(worker):
        until(lambda: worker.counts.done == 3)
    assert happened == ["begin", 1, 2, 3, "end"]


@pytest.mark.one_database
def test_a_factory_may_be_asynchronous_and_so_may_what_is_around_each_message(orders: MessageTable) -> None:
    put(orders, 1, 2)
    happened: list[Any] = []

    @asynccontextmanager
    async def factory() -> Any:
        happened.append("begin")

        async def handle(delivery: wc.Delivery) -> None:
            happened.append(delivery.payload)

        yield handle
        happened.append("end")

    @asynccontextmanager
    async def around(delivery: wc.Delivery) -> Any:
        happened.append("before")
        yield
        happened.append("after")

    worker = wc.Worker(orders, factory, around=around)
    with running(worker):
        until(lambda: worker.counts.done == 2)
    assert happened == ["begin", "before", 1, "after", "before", 2, "after", "end"]


def test_an_ack_in_a_transaction_of_the_handlers_own_is_left_to_it(orders: MessageTable) -> None:
    put(orders, "committed")

    def handle(delivery: wc.Delivery) -> None:
        with delivery.context.backend.engine.begin() as connection:
            delivery.ack(connection=connection)

    worker = wc.Worker(orders, handle)
    with running(worker):
        until(lambda: orders.stats().acked == 1)
    assert worker.counts.failed == 0


def test_a_table_that_is_dropped_ends_the_worker_with_an_error(make_table: MakeTable) -> None:
    orders = make_table()
    worker = wc.Worker(orders, print)
    orders.drop()
    with pytest.raises(wc.NotFoundError, match="orders"):
        worker.run()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"handler": None}, "handler is missing for table 'orders'"),
        ({"handler": "shop"}, "handler must be a function, got 'shop'"),
        ({"handler": {}}, "handler must be a dict of functions by kind, got {}"),
        ({"handler": print, "concurrency": 0}, "concurrency"),
        ({"handler": print, "timeout": "soon"}, "timeout"),
        ({"handler": print, "timeout": 0}, "timeout"),
        ({"handler": print, "rate_limit": 0}, "rate_limit"),
        ({"handler": print, "where": "regoin = 'eu'"}, "where"),
        ({"handler": print, "where": "id >"}, "where"),
        ({"handler": print, "where": "id > :low", "parameters": {}}, "low"),
        ({"handler": print, "consumer": 7}, "consumer"),
        ({"handler": print, "around": 7}, "around"),
        ({"handler": print, "grace": -1}, "grace"),
    ],
)
@pytest.mark.one_database
def test_an_invalid_argument_is_refused(orders: MessageTable, arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(wc.InvalidArgumentError, match=error):
        wc.Worker(orders, **arguments)


@pytest.mark.one_database
def test_a_worker_runs_once(orders: MessageTable) -> None:
    worker = wc.Worker(orders, print)
    with running(worker):
        pass
    with pytest.raises(wc.InvalidArgumentError, match="cannot run this worker again"):
        worker.run()
