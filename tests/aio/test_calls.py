"""Calls, waits and deliveries in a loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import anyio
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from tests.aio.conftest import Run
from tests.database.processes.child import Child

import waterclock
from waterclock import InvalidArgumentError, Message, Position, aio
from waterclock.aio import waiting

NOON = 1_782_907_200_000_000_000  # 2026-07-01T12:00:00Z in ns


def test_a_topic_is_appended_to_read_and_searched(run: Run) -> None:
    async def use(database: aio.Database) -> None:
        topic = await database.create_topic("telemetry")
        messages = [Message("press-01", "load", NOON + number, b"%d" % number) for number in range(1_200)]
        await topic.append(messages, producer="gateway", sequence=1)
        assert (await topic.append(messages, producer="gateway", sequence=1)).duplicate
        assert [message.payload async for message in topic.read()] == [message.payload for message in messages]
        assert (await topic.find(NOON + 7, by="event_time")).position == Position(0, 0, 7)
        assert await topic.head == Position(0, 1, 0)
        async with await topic.subscribe("billing") as billing:
            assert len(await billing.read(5)) == 5
            await billing.commit()
            assert (await billing.backlog).messages == 1_195

    run(use)


@pytest.mark.one_database
def test_deliveries_are_acked_by_their_block_and_come_back_after_an_error(run: Run) -> None:
    async def use(database: aio.Database) -> None:
        orders = await database.create_table("orders", payload="text")
        await orders.put_many([{"payload": "1"}, {"payload": "one"}])
        async with orders.subscribe() as deliveries:
            for _ in range(2):
                delivery = await anext(deliveries)
                with suppress(ValueError):
                    async with delivery:
                        int(delivery.payload)
        stats = await orders.stats()
        assert (stats.acked, stats.delayed) == (1, 1)

    run(use)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_table_acks_extends_and_nacks_the_deliveries_that_it_returned(run: Run) -> None:
    async def use(database: aio.Database) -> None:
        orders = await database.create_table("orders", payload="text")
        await orders.put_many([{"payload": str(number)} for number in range(4)])
        first, second, third, fourth = await orders.receive()
        assert await orders.ack(first) == 1
        assert await orders.ack([second, third.id]) == 2
        assert await orders.extend([fourth], "1m") == 1
        assert await orders.nack(iter([fourth])) == 1
        assert (await orders.stats()).acked == 3

    run(use)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_invalid_arguments_are_refused_as_by_a_synchronous_table(run: Run) -> None:
    async def use(database: aio.Database) -> None:
        orders = await database.create_table("orders", payload="text")
        await orders.put("one")
        for call, argument in (
            (lambda: orders.nack([5]), "deliveries must come from receive"),  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
            (lambda: orders.extend(5, "1s"), "deliveries must be a list"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            (lambda: orders.ack(object()), "id must be"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            (lambda: orders.receive(wait="soon"), "wait must be a duration"),
        ):
            with pytest.raises(InvalidArgumentError, match=argument):
                await call()
        assert (await orders.stats()).ready == 1

    run(use)


@pytest.mark.one_database
def test_a_thousand_puts_at_once_are_all_made(run: Run) -> None:
    async def use(database: aio.Database) -> None:
        orders = await database.create_table("orders", payload="text")
        ids = await asyncio.gather(*(orders.put(str(number)) for number in range(1_000)))
        assert len(set(ids)) == (await orders.stats()).ready == 1_000

    run(use)


def run_in_uvloop(main: Callable[[], Coroutine[Any, Any, object]]) -> None:
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("run_main", [run_in_uvloop, anyio.run])
def test_calls_and_waits_work_in_other_loops_of_asyncio(
    database_url: str, run_main: Callable[[Callable[[], Coroutine[Any, Any, object]]], object]
) -> None:
    async def main() -> None:
        async with await aio.connect(database_url) as database:
            orders = await database.create_table("orders", payload="text")
            with anyio.move_on_after(0):
                await orders.receive(wait="1m")
            async with orders.subscribe() as deliveries:
                coming = asyncio.ensure_future(anext(deliveries))
                await orders.put("one")
                async with await coming as delivery:
                    assert delivery.payload == "one"
            assert (await orders.stats()).acked == 1

    run_main(main)


def test_a_subscription_that_waits_gets_what_is_put_by_another(run: Run) -> None:
    async def use(database: aio.Database) -> None:
        orders = await database.create_table("orders", payload="text")
        async with orders.subscribe() as deliveries:
            coming = asyncio.ensure_future(anext(deliveries))
            assert await orders.receive(wait="20ms") == []
            assert not coming.done()
            await orders.put("one")
            async with await asyncio.wait_for(coming, 30) as delivery:
                assert delivery.payload == "one"

    run(use)


@pytest.mark.one_database
def test_many_subscriptions_of_several_tables_wait_in_one_thread(run: Run) -> None:
    async def use(database: aio.Database) -> None:
        tables = [await database.create_table(f"orders_{number}", payload="text") for number in range(4)]
        subscriptions = [table.subscribe(limit=1) for table in tables for _ in range(10)]
        coming = [asyncio.ensure_future(anext(each)) for each in subscriptions]
        for table in tables:
            for number in range(10):
                await table.put(str(number))
        deliveries = await asyncio.wait_for(asyncio.gather(*coming), 60)
        waiting = [thread for thread in threading.enumerate() if thread.name == "waterclock-aio-waiting"]
        assert len(waiting) <= 1
        assert sorted(delivery.payload for delivery in deliveries) == sorted(4 * [str(each) for each in range(10)])
        await asyncio.gather(*(each.close() for each in subscriptions))

    run(use)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_loop_that_was_stopped_does_not_keep_messages_from_others(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_CLAIM_TAKES", 0.01)

    async def use(database: aio.Database) -> str:
        orders = await database.create_table("orders", payload="text")

        def wait_in_a_loop_that_stops() -> asyncio.AbstractEventLoop:
            loop = asyncio.new_event_loop()

            async def begin() -> asyncio.Task[Any]:
                waits = asyncio.ensure_future(orders.receive(wait="1h"))
                while not any(watch.waiters for watch in [*database.waiting._watches.values()]):
                    await asyncio.sleep(0)
                return waits

            stopped.append(loop.run_until_complete(begin()))
            return loop

        stopped: list[asyncio.Task[Any]] = []
        loop = await asyncio.to_thread(wait_in_a_loop_that_stops)
        coming = asyncio.ensure_future(orders.receive(wait="1h"))
        await orders.put("one")
        [delivery] = await asyncio.wait_for(coming, 30)
        stopped[0].cancel()
        await asyncio.to_thread(loop.run_until_complete, asyncio.gather(*stopped, return_exceptions=True))
        loop.close()
        return delivery.payload

    assert run(use) == "one"


@pytest.mark.one_database
def test_stop_ends_a_subscription_that_waits(run: Run) -> None:
    async def use(database: aio.Database) -> list[Any]:
        orders = await database.create_table("orders")
        async with orders.subscribe() as deliveries:
            asyncio.get_running_loop().call_later(0.01, deliveries.stop)
            return [delivery async for delivery in deliveries]

    assert run(use) == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_subscription_that_was_closed_is_not_opened_again(run: Run) -> None:
    async def use(database: aio.Database) -> None:
        orders = await database.create_table("orders")
        async with orders.subscribe() as closed:
            pass
        assert [delivery async for delivery in closed] == []
        opening = orders.subscribe()
        coming = asyncio.ensure_future(anext(opening))
        await asyncio.sleep(0)
        await opening.close()
        with pytest.raises(StopAsyncIteration):
            await coming
        assert [each._sync for each in (closed, opening)] == [None, None]

    run(use)


ASYNC_DRIVERS = {
    "sqlite": ["sqlite+aiosqlite"],
    "postgresql": ["postgresql+asyncpg", "postgresql+psycopg_async"],
    "mariadb": ["mysql+asyncmy"],
}


@pytest.mark.parametrize(
    ("database_url", "driver"),
    [pytest.param(database, driver, id=driver) for database, drivers in ASYNC_DRIVERS.items() for driver in drivers],
    indirect=["database_url"],
)
def test_a_put_counts_with_the_transaction_of_an_asynchronous_connection(
    run: Run, database_url: str, driver: str
) -> None:
    async def use(database: aio.Database) -> list[str]:
        orders = await database.create_table("orders", payload="text")
        url = sa.make_url(database_url).set(drivername=driver).difference_update_query(["ssl_disabled"])
        engine = create_async_engine(url)
        try:
            async with engine.begin() as connection:
                await orders.put("connection", connection=connection)
            async with AsyncSession(engine) as session:
                await orders.put("session", connection=session)
                await session.commit()
            async with engine.connect() as connection:
                await orders.put("rolled back", connection=connection)
                await connection.rollback()
            [first, *_] = await orders.receive(limit=1)
            async with engine.begin() as connection:
                await first.ack(connection=connection)
        finally:
            await engine.dispose()
        assert (await orders.stats()).acked == 1
        return [each.payload for each in await orders.peek()]

    assert run(use) == ["session"]


@pytest.mark.one_database
def test_a_synchronous_connection_is_refused_by_name(run: Run, database_url: str) -> None:
    async def use(database: aio.Database) -> None:
        orders = await database.create_table("orders", payload="text")
        with (
            sa.create_engine(database_url).connect() as connection,
            pytest.raises(InvalidArgumentError, match="must be an AsyncConnection or AsyncSession"),
        ):
            await orders.put("x", connection=connection)

    run(use)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_closed_database_says_that_it_is_closed(run: Run) -> None:
    async def use(database: aio.Database) -> None:
        orders = await database.create_table("orders")
        await database.close()
        with pytest.raises(InvalidArgumentError, match="it was closed"):
            await orders.put(b"x")

    run(use)


@pytest.mark.one_database
def test_closing_a_database_ends_what_waits_with_an_error(run: Run) -> None:
    async def use(database: aio.Database) -> None:
        orders = await database.create_table("orders")
        waits = [asyncio.ensure_future(each) for each in (orders.receive(wait="1h"), anext(orders.subscribe()))]
        while sum(len(watch.waiters) for watch in [*database.waiting._watches.values()]) < len(waits):
            await asyncio.sleep(0)
        await database.close()
        errors = await asyncio.gather(*waits, orders.receive(wait="1h"), return_exceptions=True)
        assert all(isinstance(error, InvalidArgumentError) and "was closed" in str(error) for error in errors)

    run(use)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("threads", [0, 65, "two"])
def test_a_number_of_threads_that_is_out_of_range_is_refused(database_url: str, threads: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="threads"):
        asyncio.run(aio.connect(database_url, threads=threads))


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_worker_runs_in_the_loop_of_the_application(run: Run) -> None:
    async def use(database: aio.Database) -> None:
        orders = await database.create_table("orders", payload="text")
        loop, seen, handled = asyncio.get_running_loop(), [], asyncio.Event()

        async def handle(delivery: waterclock.Delivery) -> None:
            seen.append((asyncio.get_running_loop() is loop, delivery.payload))
            handled.set()

        working = asyncio.ensure_future(waterclock.Worker(orders.sync, handle).run_async())
        await orders.put("one")
        await asyncio.wait_for(handled.wait(), 30)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert seen == [(True, "one")]
        assert (await orders.stats()).acked == 1

    run(use)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_worker_in_a_loop_raises_its_error_there(run: Run) -> None:
    async def use(database: aio.Database) -> None:
        orders = await database.create_table("orders", payload="text")
        working = asyncio.ensure_future(waterclock.Worker(orders.sync, lambda _: None).run_async())
        await asyncio.sleep(0)
        await orders.drop()
        with pytest.raises(waterclock.WaterclockError):
            await asyncio.wait_for(working, 60)

    run(use)


def test_a_forked_process_goes_on_with_threads_of_its_own(run: Run) -> None:
    async def use(database: aio.Database) -> None:
        orders, others = [await database.create_table(name, payload="text") for name in ("orders", "others")]
        waiting = asyncio.ensure_future(others.receive(1, "1h"))
        while not any(one.name == "waterclock-aio-waiting" for one in threading.enumerate()):
            await asyncio.sleep(0)

        async def put_and_receive() -> str:
            async with asyncio.timeout(60):
                await orders.put("first")
                [first] = await orders.receive(1)
                await first.ack()
                later = asyncio.ensure_future(orders.receive(1, "1h"))
                await orders.put("second")
                [second] = await later
            return f"{first.payload}, {second.payload}"

        child = Child(lambda: asyncio.run(put_and_receive()))
        assert await asyncio.to_thread(child.go) == "first, second"
        await others.put("third")
        assert [one.payload for one in await waiting] == ["third"]

    run(use)
