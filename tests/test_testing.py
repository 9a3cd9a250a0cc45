"""What tests of programs that use message tables are given."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.tables.connections.callers import Open, ways

import waterclock as wc
from waterclock.connection import Database
from waterclock.tables.message_table import MessageTable
from waterclock.testing import Clock, drain

pytest_plugins = ["waterclock.testing.fixtures"]
GROUPED: list[dict[str, Any]] = [{}, {"groups": "sequenced"}, {"groups": "exclusive"}]


@pytest.fixture
def clock() -> Clock:
    return Clock("2030-07-01T12:00:00Z")


@pytest.fixture
def database(connect: Callable[..., Database], clock: Clock) -> Database:
    return connect(clock=clock)


@pytest.fixture(params=GROUPED, ids=["ungrouped", "sequenced", "exclusive"])
def orders(request: pytest.FixtureRequest, database: Database) -> MessageTable:
    options = {"payload": "text", "jitter": 0, "min_backoff": "10s", "max_attempts": 3, **request.param}
    return database.create_table("orders", **options)


def test_all_due_messages_are_handled_in_order_including_those_that_the_handler_puts(
    orders: MessageTable, clock: Clock
) -> None:
    seen: list[str] = []

    def handle(delivery: wc.Delivery) -> None:
        seen.append(delivery.payload)
        if delivery.payload == "a":
            orders.put("b", group="g")

    orders.put("a", group="g")
    orders.put("later", group="h", delay="1h")
    assert (drain(orders, handle), seen) == (2, ["a", "b"])
    clock.move("1h")
    assert (drain(orders, handle), seen) == (1, ["a", "b", "later"])
    assert orders.stats().acked == 3


def test_exceptions_of_a_handler_mean_the_same_as_in_a_worker(orders: MessageTable, clock: Clock) -> None:
    says: dict[str, BaseException] = {
        "retry": wc.Retry("5s"),
        "snooze": wc.Snooze("5s"),
        "dead": wc.DeadLetter("why"),
        "gone": wc.Discard("why"),
    }

    async def handle(delivery: wc.Delivery) -> None:
        raise says[delivery.payload]

    orders.put_many([{"payload": name, "group": name} for name in says])
    assert drain(orders, handle) == 4
    stats = orders.stats()
    assert (stats.acked, stats.dead, stats.delayed, stats.scheduled) == (1, 1, 1, 1)
    clock.move("5s")
    epochs: dict[str, int] = {}
    assert drain(orders, lambda one: epochs.update({one.payload: one.epoch})) == 2
    assert epochs == {"retry": 2, "snooze": 1}
    orders.put("x", group="x")
    with pytest.raises(ZeroDivisionError):
        drain(orders, lambda _: 1 / 0)
    assert orders.stats().delayed == 1


def test_handlers_by_kind_leave_unknown_kinds(orders: MessageTable) -> None:
    for number, kind in enumerate(("welcome", "invoice", "refund", "invoice")):
        orders.put(str(number), headers={"kind": kind}, group=f"g{number % 2}")
    seen: list[str] = []

    def handle(delivery: wc.Delivery) -> None:
        seen.append(delivery.payload)

    assert drain(orders, {"welcome": handle, "invoice": handle}) == 3
    assert sorted(seen) == ["0", "1", "3"]
    assert (orders.stats().acked, orders.stats().sent) == (3, 3)
    assert drain(orders, {"welcome": handle}) == 0


@pytest.mark.one_database
@pytest.mark.parametrize("kind", ["plain", "asynchronous"])
def test_handlers_may_come_from_a_context_manager(orders: MessageTable, kind: str) -> None:
    happened: list[Any] = []

    @contextmanager
    def plain() -> Generator[object]:
        happened.append("begin")
        yield lambda delivery: happened.append(delivery.payload)
        happened.append("end")

    @asynccontextmanager
    async def asynchronous() -> AsyncGenerator[object]:
        loop = asyncio.get_running_loop()
        happened.append("begin")

        async def handle(delivery: wc.Delivery) -> None:
            assert asyncio.get_running_loop() is loop  # what it opened belongs to it
            happened.append(delivery.payload)

        yield {"x": handle}
        happened.append("end")

    orders.put("a", headers={"kind": "x"}, group="a")
    orders.put("b", headers={"kind": "x"}, group="b")
    assert drain(orders, plain if kind == "plain" else asynchronous) == 2
    assert (happened[0], sorted(happened[1:3]), happened[3]) == ("begin", ["a", "b"], "end")

    async def in_a_loop() -> None:
        drain(orders, asynchronous)

    with pytest.raises(wc.InvalidArgumentError, match="Drain in another thread"):
        asyncio.run(in_a_loop())


@dataclass
class Order:
    press: int


@pytest.mark.one_database
def test_a_handler_gets_the_arguments_of_a_worker(database: Database) -> None:
    table = database.create_table("typed", payload="json")
    seen: list[Order] = []

    def handle(order: Order) -> None:
        seen.append(order)

    table.put({"press": 17})
    assert drain(table, handle) == 1
    assert seen == [Order(17)]


@pytest.mark.one_database
@pytest.mark.parametrize("options", [{"rate_limit": 1}, {"rate": {"kind": "1/h"}, "limit": {"kind": 1}}])
def test_it_does_not_wait_for_a_rate(database: Database, options: dict[str, Any]) -> None:
    table = database.create_table("paced", payload="text", **options)
    table.put_many([{"payload": "x", "headers": {"kind": "a"}} for _ in range(3)])
    assert len(table.receive(1)) == 1
    assert drain(table, lambda _: None) == (0 if "limit" in options else 2)
    table.put("y", headers={"kind": "b"})
    assert drain(table, lambda _: None) == 1


@pytest.mark.one_database
def test_it_takes_messages_of_a_higher_priority_first_if_keys_have_a_rate(database: Database) -> None:
    table = database.create_table("paced", payload="text", rate={"kind": "1/h"})
    table.put_many([{"payload": f"low {kind}", "headers": {"kind": kind}} for kind in "ab"])
    table.put_many([{"payload": f"high {n}", "headers": {"kind": "a"}, "priority": 1} for n in range(2)])
    seen: list[object] = []
    assert drain(table, lambda delivery: seen.append(delivery.payload)) == 4
    assert seen[:2] == ["high 0", "high 1"]


def test_a_handler_that_always_puts_another_is_stopped(orders: MessageTable) -> None:
    orders.put("x")
    with pytest.raises(wc.InvalidArgumentError, match="limit"):
        drain(orders, lambda _: orders.put("x"), limit=5)


@ways
def test_it_runs_in_the_transaction_of_the_test_which_leaves_nothing(
    database: Database, orders: MessageTable, open_transaction: Open
) -> None:
    connection = open_transaction(database)
    seen: list[Any] = []
    orders.put("a", group="g", connection=connection)
    orders.put("b", group="g", connection=connection)
    assert drain(orders, lambda one: seen.append(one.payload), connection=connection) == 2
    assert drain(orders, lambda one: seen.append(one.payload), connection=connection) == 0
    connection.rollback()
    connection.close()
    assert seen == ["a", "b"]
    assert (orders.stats().acked, orders.stats().ready) == (0, 0)


def test_the_fixtures_give_a_database_by_a_clock_that_the_test_moves(
    waterclock_database: Database, waterclock_clock: Clock
) -> None:
    table = waterclock_database.create_table("orders", payload="text")
    table.put("x", delay="1d")
    assert table.receive() == []
    waterclock_clock.move("1d")
    assert [one.payload for one in table.receive()] == ["x"]


DJANGO = """
import unittest, django
from django.conf import settings

default = {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db", "TEST": {"NAME": "test.db"}}
settings.configure(DATABASES={"default": default}, INSTALLED_APPS=[])
django.setup()

import waterclock as wc
from django.db import connection, transaction
from django.test import TestCase
from django.test.runner import DiscoverRunner
from waterclock.testing import drain


class Orders(TestCase):
    def test_put_messages_are_handled(self):
        seen = []
        with transaction.atomic():
            orders.put("a", unique="k", connection=connection)
            orders.put("b", unique="k", on_conflict="replace", connection=connection)
        self.assertEqual(drain(orders, lambda one: seen.append(one.payload), connection=connection), 1)
        self.assertEqual(seen, ["b"])
        orders.put("c", connection=connection)
        with self.assertRaises(ZeroDivisionError):
            drain(orders, lambda one: 1 / 0, connection=connection)

    def test_put_messages_are_handled_again(self):
        self.test_put_messages_are_handled()


runner = DiscoverRunner(verbosity=0, interactive=False)
suite = unittest.defaultTestLoader.loadTestsFromTestCase(Orders)
runner.setup_databases()  # makes it anew
orders = wc.connect("sqlite:///test.db").create_table("orders", payload="text")
assert runner.run_suite(suite).wasSuccessful()
assert orders.stats().ready == orders.stats().acked == 0
"""


def test_it_works_within_the_test_case_of_django(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", DJANGO], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
