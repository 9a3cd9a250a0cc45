"""Servers that restart, and connections that they end: a worker goes on, loses nothing, and hears new messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import pytest
import sqlalchemy as sa
from tests.support.services import Service
from tests.work.conftest import running, until

import waterclock as wc
from waterclock.database.engines import pool

COUNT = 3000
IDLE = 300
ENDING = {
    "postgresql": "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    "mariadb": "SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()",
}


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Generator[tuple[Service, str]]:
    found: Service = request.getfixturevalue(f"{request.param}_server")
    with found.new_database() as url:
        yield found, url


def end_connections(engine: sa.Engine, kind: str) -> None:
    with engine.connect() as connection:
        for row in connection.execute(sa.text(ENDING[kind])).all():
            if kind == "mariadb":
                try:
                    connection.execute(sa.text(f"KILL {row.id}"))
                except sa.exc.OperationalError:
                    continue  # it ended by itself


@contextmanager
def idle_connections(service: Service) -> Generator[None]:
    """Have connections to the same server that do nothing."""
    engine = sa.create_engine(service.url, poolclass=sa.NullPool)
    with ExitStack() as stack:
        for _ in range(IDLE):
            stack.enter_context(engine.connect())
        yield
        # Those that a restart has ended cannot be left as others are.
        stack.pop_all()
    engine.dispose()


@pytest.mark.slow
def test_a_worker_is_as_quick_as_a_new_one_after_a_restart_and_ended_connections_next_to_300_idle_ones(
    server: tuple[Service, str],
) -> None:
    service, url = server
    engine = sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")

    def seconds(table: wc.MessageTable, done: list[int]) -> float:
        before, began = len(done), time.monotonic()
        table.put_many([{"payload": number} for number in range(COUNT)])
        until(lambda: len(done) == before + COUNT)
        return time.monotonic() - began

    with wc.connect(url) as first, idle_connections(service):
        old, old_done = first.create_table("old", payload="json", poll_interval="1h"), []
        with running(wc.Worker(old, lambda one: old_done.append(one.payload), concurrency=8)):
            old.put(0)
            until(lambda: len(old_done) == 1)
            for _ in range(10):
                end_connections(engine, service.name)
                threading.Event().wait(0.2)
            service.restart(immediate=True)
            with idle_connections(service), wc.connect(url) as second:
                new, new_done = second.create_table("new", payload="json", poll_interval="1h"), []
                with running(wc.Worker(new, lambda one: new_done.append(one.payload), concurrency=8)):
                    # One turn is enough: what is lost for good would be lost in each of them.
                    until(lambda: seconds(old, old_done) * 0.95 <= seconds(new, new_done))
                until(lambda: new.stats().acked == len(new_done))
            until(lambda: old.stats().acked == len(old_done))
    engine.dispose()


def test_a_connection_that_ended_between_two_handlers_is_not_used_again(
    server: tuple[Service, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_IDLE", 0)  # a server that restarts is away for longer
    service, url = server
    engine = sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with wc.connect(url) as database:
        orders = database.create_table("orders", payload="json")
        done: list[tuple[int, int]] = []

        def handle(delivery: wc.Delivery) -> None:
            with database.begin() as connection:
                delivery.ack(connection=connection)
            done.append((delivery.payload, delivery.epoch))

        with running(wc.Worker(orders, handle)):
            for number in range(3):
                orders.put(number)
                until(lambda number=number: len(done) == number + 1)
                end_connections(engine, service.name)
    engine.dispose()
    assert done == [(0, 1), (1, 1), (2, 1)]


@pytest.mark.slow
def test_a_restart_and_connections_that_are_ended_lose_nothing(server: tuple[Service, str]) -> None:
    service, url = server
    engine = sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with wc.connect(url) as database:
        orders = database.create_table("orders", payload="json", ack_wait="5s")
        orders.put_many([{"payload": number} for number in range(COUNT)])
        seen: set[int] = set()
        at_once = threading.Semaphore(8)

        def handle(delivery: wc.Delivery) -> None:
            with at_once:
                threading.Event().wait(0.005)
                seen.add(delivery.payload)

        worker = wc.Worker(orders, handle, concurrency=8)
        with running(worker):
            until(lambda: len(seen) > 200)
            for _ in range(10):
                end_connections(engine, service.name)
                threading.Event().wait(0.2)
            service.restart(immediate=True)
            until(lambda: len(seen) == COUNT)
            until(lambda: orders.stats().acked == COUNT)
            end_connections(engine, service.name)
            for number in range(COUNT, COUNT + 5):
                orders.put(number)
                until(lambda number=number: number in seen)
            until(lambda: orders.stats().acked == COUNT + 5)
    engine.dispose()
