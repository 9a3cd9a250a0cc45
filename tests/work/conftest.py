"""What the tests of workers share: workers that run beside a test, and handlers that wait for it."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakSet

import pytest

from waterclock.connection import Database
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.message_table import MessageTable
from waterclock.work.flow import fetcher
from waterclock.work.flow.dispatch_queue import Handling
from waterclock.work.worker import Worker

PATIENCE = 60  # s; far more than is needed, where a machine is busy


class Waiting:
    """A handler that says what it began, and waits for the test. What it ended is in ``done``."""

    def __init__(self) -> None:
        self.began: list[Any] = []
        self.done: list[Any] = []
        self.deliveries: list[Delivery] = []
        self.go_on = threading.Event()
        self._has_begun = threading.Semaphore(0)

    def __call__(self, delivery: Delivery) -> None:
        self.began.append(delivery.payload)
        self.deliveries.append(delivery)
        self._has_begun.release()
        assert self.go_on.wait(PATIENCE)
        self.done.append(delivery.payload)

    def wait_for(self, count: int) -> None:
        for _ in range(count):
            assert self._has_begun.acquire(timeout=PATIENCE)


@contextmanager
def running(worker: Worker, *, grace: str | None = None) -> Generator[threading.Thread]:
    """Run a worker beside the test, and stop it in the end."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001  # it is raised in the test
            raised.append(error)

    thread = threading.Thread(target=run, name="worker")
    thread.start()
    try:
        yield thread
    finally:
        worker.stop(grace)
        thread.join(PATIENCE)
    assert not thread.is_alive()
    if raised:
        raise raised[0]


def until(comes_true: Callable[[], object]) -> None:
    """Wait for something that a worker does."""
    tick = threading.Event()
    for _ in range(PATIENCE * 100):
        if comes_true():
            return
        tick.wait(0.01)
    raise AssertionError("it does not come true")


@pytest.fixture
def make_table(database: Database) -> Generator[Callable[..., MessageTable]]:
    with ExitStack():
        yield lambda name="orders", **options: database.create_table(
            name, **{"payload": "json", "jitter": 0, **options}
        )


@pytest.fixture
def orders(make_table: Callable[..., MessageTable]) -> MessageTable:
    return make_table()


class Mark:
    """Something that is kept for as long as a delivery, or an error, is."""


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Generator[WeakSet[Any]]:
    """Give what workers keep of messages. What would wait for the collector of cycles stays."""
    known: WeakSet[Any] = WeakSet()

    def noted(delivery: Delivery, *more: Any) -> Handling:
        delivery.columns["mark"] = Mark()
        made = Handling(delivery, *more)
        known.update((made, delivery.columns["mark"]))
        return made

    def recorded(*arguments: Any, **more: Any) -> logging.LogRecord:
        record = make_record(*arguments, **more)
        record.msg, record.args = record.getMessage(), None  # pytest keeps records, and so the frames of their errors
        return record

    make_record = logging.getLogRecordFactory()
    logging.setLogRecordFactory(recorded)
    monkeypatch.setattr(fetcher, "Handling", noted)
    gc.disable()
    try:
        yield known
    finally:
        gc.enable()
        logging.setLogRecordFactory(make_record)
