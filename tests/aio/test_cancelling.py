"""A cancelled await loses no message and leaves no connection in a transaction."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.aio.conftest import Run
from tests.work.conftest import until

import waterclock
from waterclock import InvalidArgumentError, UnavailableError, aio
from waterclock.aio.waiting import DatabaseWaits
from waterclock.tables.consumers import subscription
from waterclock.tables.consumers.heartbeats.heartbeat import heartbeat_of


async def _use_some(orders: aio.MessageTable, seed: int, kept: list[aio.Delivery]) -> None:
    match seed % 4:
        case 0:
            kept += await orders.receive(limit=3)
        case 1:
            kept += await orders.receive(limit=2, wait="1s")
        case 2:
            async with orders.subscribe() as deliveries, await anext(deliveries):
                await asyncio.Event().wait()
        case _:
            await orders.put("more")


def _open_transactions(database: waterclock.Database) -> list[Any]:
    """Return the sessions on a server that are idle in a transaction; on SQLite check that it can be written."""
    with database.begin() as connection:
        if database.backend.dialect.name == "postgresql":
            idle = (
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
            )
            return list(connection.exec_driver_sql(idle))
        if database.backend.dialect.name == "sqlite":
            return []  # this transaction has the write lock, so no other one has
        return list(
            connection.exec_driver_sql(
                "SELECT p.id FROM information_schema.innodb_trx t JOIN information_schema.processlist p"
                " ON p.id = t.trx_mysql_thread_id WHERE p.db = database() AND p.command = 'Sleep'"
            )
        )


@pytest.mark.parametrize("count", [120, pytest.param(10_000, marks=pytest.mark.slow)])
def test_only_what_a_caller_received_stays_claimed_after_cancelled_calls(run: Run, count: int) -> None:
    async def use(database: aio.Database) -> None:
        orders = await database.create_table("orders", payload="text", ack_wait="10m")
        await orders.put_many({"payload": str(number)} for number in range(2 * count))
        chance = random.Random(count)  # noqa: S311  # the same on each run
        kept: list[aio.Delivery] = []
        for first in range(0, count, 8):
            tasks = [asyncio.ensure_future(_use_some(orders, seed, kept)) for seed in range(first, first + 8)]
            for task in tasks:
                await asyncio.sleep(chance.random() * 0.004)
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        began = time.process_time()  # which another process that needs the machine does not lengthen
        async with asyncio.timeout(30):  # the calls under way end, and give back what they got
            while (await orders.stats()).in_flight > len(kept):
                pass
        assert time.process_time() - began < 1
        assert (await orders.stats()).in_flight == len(kept)
        assert _open_transactions(database.sync) == []
        assert await orders.nack(kept) == len(kept)
        assert len(await asyncio.gather(*(orders.put("last") for _ in range(20)))) == 20

    run(use, threads=2)


def test_a_task_that_is_cancelled_while_it_handles_a_message_gives_it_back_without_an_attempt(run: Run) -> None:
    async def use(database: aio.Database) -> None:
        orders = await database.create_table("orders", payload="text", max_attempts=5)
        await orders.put("one")
        handling = asyncio.Event()

        async def handle() -> None:
            async with orders.subscribe() as deliveries, await anext(deliveries):
                handling.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(handle())
        await handling.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        [again] = await orders.receive()
        assert again.epoch == 1

    run(use)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_lease_is_not_extended_after_a_cancelled_message_could_not_be_given_back(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_delivery: object, _delay: object) -> None:
        raise UnavailableError("the database is away")

    async def use(database: aio.Database) -> None:
        orders = await database.create_table("orders", payload="text")
        await orders.put("one")
        [delivery] = await orders.receive()
        released: list[object] = []
        beating = heartbeat_of(database.sync.backend)
        monkeypatch.setattr(type(delivery.sync), "snooze", fail)
        monkeypatch.setattr(beating, "release", released.append)

        async def handle() -> None:
            async with delivery:
                await asyncio.Event().wait()

        task = asyncio.ensure_future(handle())
        await asyncio.sleep(0)
        task.cancel()
        [error] = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(error, UnavailableError)
        assert released == [delivery.sync]

    run(use)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_lease_of_a_message_ends_if_the_database_is_closed_before_its_block(run: Run) -> None:
    async def use(database: aio.Database) -> list[bool]:
        orders = await database.create_table("orders", payload="text")
        await orders.put_many([{"payload": "cancelled"}, {"payload": "ended"}])
        cancelled, ended = await orders.receive(2)
        beating = heartbeat_of(database.sync.backend)
        for delivery in (cancelled, ended):
            await delivery.__aenter__()
        await database.close()
        stop = asyncio.CancelledError()
        for end in (cancelled.__aexit__(type(stop), stop, None), ended.__aexit__(None, None, None)):
            with pytest.raises(InvalidArgumentError, match="it was closed"):
                await end
        return [id(delivery.sync) in beating._deliveries for delivery in (cancelled, ended)]

    assert run(use) == [False, False]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_wait_that_is_cancelled_when_its_message_is_due_wakes_the_next_one(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(database: aio.Database) -> str:
        orders = await database.create_table("orders", payload="text")
        until_due = database.waiting.until_due
        first, second = (asyncio.ensure_future(anext(orders.subscribe())) for _ in range(2))

        async def until_due_and_cancelled(*wanted: Any) -> bool:
            due = await until_due(*wanted)
            if not first.done():
                asyncio.get_running_loop().call_soon(first.cancel)
            return due

        monkeypatch.setattr(database.waiting, "until_due", until_due_and_cancelled)
        while sum(len(watch.waiters) for watch in [*database.waiting._watches.values()]) < 2:
            await asyncio.sleep(0)
        await orders.put("one")
        async with await asyncio.wait_for(second, 30) as delivery:
            assert first.cancelled()
            return delivery.payload

    assert run(use) == "one"


async def _cancel_before_it_begins(database: aio.Database, call: Coroutine[Any, Any, object]) -> None:
    """Cancel a call while it waits for the database's only thread, and then let it have the thread."""
    go_on = threading.Event()
    database.threads.submit(lambda: go_on.wait(60))
    task = asyncio.ensure_future(call)
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    go_on.set()


def test_a_message_is_acked_though_the_end_of_its_block_is_cancelled(run: Run) -> None:
    async def use(database: aio.Database) -> None:
        orders = await database.create_table("orders", payload="text")
        await orders.put("one")
        [delivery] = await orders.receive()
        await delivery.__aenter__()
        await _cancel_before_it_begins(database, delivery.__aexit__(None, None, None))
        assert (await orders.stats()).acked == 1

    run(use, threads=1)


def test_messages_are_given_back_though_closing_their_subscription_is_cancelled(run: Run) -> None:
    async def use(database: aio.Database) -> None:
        orders = await database.create_table("orders", payload="text")
        await orders.put_many([{"payload": str(number)} for number in range(10)])
        deliveries = orders.subscribe()
        first = await anext(deliveries)
        await _cancel_before_it_begins(database, deliveries.close())
        await first.ack()
        assert (await orders.stats()).in_flight == 0

    run(use, threads=1)


def test_a_producer_appends_what_it_has_though_the_end_of_its_block_is_cancelled(run: Run) -> None:
    async def use(database: aio.Database) -> None:
        topic = await database.create_topic("telemetry")
        producer = await topic.producer("gateway", linger="1h")
        await producer.send(waterclock.Message("press", "load", 1))
        await _cancel_before_it_begins(database, producer.__aexit__(None, None, None))
        assert (await topic.head).entry == 1

    run(use, threads=1)


def test_a_reading_position_and_a_producer_are_closed_if_opening_them_is_cancelled(run: Run) -> None:
    async def use(database: aio.Database) -> None:
        topic = await database.create_topic("telemetry")
        for open_one in (lambda: topic.subscribe("billing"), lambda: topic.producer("gateway")):
            task = asyncio.ensure_future(open_one())
            await asyncio.sleep(0)
            until(lambda: database.threads._unfinished == 0)  # the call is over, and the loop has not learnt of it
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        async with await topic.subscribe("billing") as again:
            assert await again.read(1) == []
        assert not [one for one in threading.enumerate() if "producer" in one.name]

    run(use, threads=1)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_wait_that_begins_while_the_database_is_closed_ends(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(database: aio.Database) -> None:
        orders = await database.create_table("orders", payload="text")
        monkeypatch.setattr(database.waiting, "_lock", ClosedFirst(database.waiting))
        async with asyncio.timeout(30):
            with pytest.raises(InvalidArgumentError, match="was closed"):
                await orders.receive(wait="1h")

    run(use)


class ClosedFirst:
    """A lock before which another thread gets there, and closes the waits."""

    def __init__(self, waits: DatabaseWaits) -> None:
        self._waits, self._lock = waits, waits._lock
        self._has_closed = False

    def __enter__(self) -> None:
        if not self._has_closed:
            self._has_closed = True
            self._waits.close()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("groups", [None, "sequenced"])
def test_closing_does_not_wait_for_a_claim_that_takes_long(
    run: Run, monkeypatch: pytest.MonkeyPatch, groups: str | None
) -> None:
    claimed, goes_on = threading.Event(), threading.Event()
    claim = subscription.receive

    def claim_slowly(*given: Any) -> Any:
        found = claim(*given)
        claimed.set()
        assert goes_on.wait(60)
        return found

    async def use(database: aio.Database) -> None:
        orders = await database.create_table("orders", payload="text", groups=groups, ack_wait="1h")
        await orders.put_many([{"payload": payload, "group": "a"} for payload in ("a1", "a2")])
        monkeypatch.setattr(subscription, "receive", claim_slowly)
        deliveries = orders.subscribe()
        task = asyncio.ensure_future(anext(deliveries))
        await asyncio.to_thread(claimed.wait, 60)
        task.cancel()
        try:
            async with asyncio.timeout(30):
                await deliveries.close()
        finally:
            goes_on.set()
        await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(30):
            while (await orders.stats()).in_flight:
                await asyncio.sleep(0.01)

    monkeypatch.setattr(subscription, "PATIENCE", 0.01)
    monkeypatch.setattr(subscription, "_CLAIM_ENDS_WITHIN", 0.01)
    run(use)
