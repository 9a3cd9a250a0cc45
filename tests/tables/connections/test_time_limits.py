"""A database that ends statements for the time they take ends no subscription."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from waterclock.connection import Database
from waterclock.errors import TimedOutError
from waterclock.tables.consumers import claim_failures, consumer_purge, receiving, subscription
from waterclock.tables.message_table import MessageTable


@contextmanager
def warnings_of(name: str, note: Callable[[str], object]) -> Generator[None]:
    """Call ``note`` with each warning of a logger."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            note(record.getMessage())

    handler = Handler(logging.WARNING)
    logging.getLogger(name).addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger(name).removeHandler(handler)


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_subscription_whose_statements_time_out_warns_and_continues_when_they_do_not_any_more(
    connect: Callable[..., Database],
) -> None:
    database = connect()
    backend = database.backend

    @sa.event.listens_for(backend.engine, "connect")
    def limit(connection: Any, _record: Any) -> None:
        statement = (
            "SET statement_timeout = 100" if backend.dialect.name == "postgresql" else "SET max_statement_time=0.1"
        )
        with connection.cursor() as cursor:
            cursor.execute(statement)
        connection.commit()

    backend.close()
    table = database.create_table("orders", payload="text")
    table.put("tea")
    warnings: list[str] = []
    warned = threading.Event()

    def note(text: str) -> None:
        warnings.append(text)
        if "cannot claim" in text:
            warned.set()

    lock = "LOCK TABLE orders IN ACCESS EXCLUSIVE MODE"
    if backend.dialect.name != "postgresql":
        lock = "LOCK TABLES orders WRITE"
    received: list[str] = []
    deliveries = table.subscribe(consumer="me")
    deliveries.patience = 0
    with sa.create_engine(backend.url).connect() as other, warnings_of(claim_failures.__name__, note):
        other.exec_driver_sql(lock)

        def consume() -> None:
            with deliveries:
                delivery = next(deliveries)
                delivery.ack()
                received.append(delivery.payload)

        consumer = threading.Thread(target=consume)
        consumer.start()
        assert warned.wait(60)
        other.invalidate()  # the lock goes with its session
        consumer.join(60)
    assert received == ["tea"]
    assert any("consumer me cannot claim from table 'orders', retrying in 0.2 s" in text for text in warnings)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_pauses_grow_to_half_a_minute_and_restart_after_a_success(
    orders: MessageTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: list[bool] = [False] * 10 + [True] + [False, True]
    receive = receiving.receive

    def receive_or_time_out(*arguments: Any) -> Any:
        if outcomes and not outcomes.pop(0):
            raise TimedOutError("a statement took longer")
        return receive(*arguments)

    monkeypatch.setattr(subscription, "receive", receive_or_time_out)
    orders.put_many([{"payload": "a"}, {"payload": "b"}])
    with orders.subscribe(limit=1) as deliveries:
        pauses: list[float] = []
        monkeypatch.setattr(deliveries._stop, "wait", lambda seconds, *_: pauses.append(seconds))
        for _ in range(2):
            next(deliveries).ack()
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0, 0.2]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_purge_that_times_out_holds_up_no_delivery(orders: MessageTable, monkeypatch: pytest.MonkeyPatch) -> None:
    def time_out(_context: object) -> int:
        raise TimedOutError("a statement took longer")

    monkeypatch.setattr(consumer_purge, "purge_some", time_out)
    orders.put("tea")
    warnings: list[str] = []
    with warnings_of(consumer_purge.__name__, warnings.append), orders.subscribe() as deliveries:
        assert next(deliveries).payload == "tea"
    assert ["cannot purge table 'orders'" in text for text in warnings] == [True]
