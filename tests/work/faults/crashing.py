"""A worker that tests run as a process of its own. Handling a message with the payload ``"deadly"`` kills it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

from waterclock.connection import connect
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.inspecting.stats import TableStats
from waterclock.work.worker import Worker

DEADLY = "deadly"


def main(url: str, mode: str, slots: str) -> None:
    """Handle messages until none is left, or one of them kills this process."""
    table = connect(url).table("orders")
    if mode == "subscribe":
        with table.subscribe() as deliveries:
            end_when_done(table, deliveries.stop)
            for delivery in deliveries:
                with delivery:
                    handle(delivery)
        return
    worker = Worker(table, handle_async if mode == "async" else handle, concurrency=int(slots), grace=0)
    end_when_done(table, worker.stop)
    worker.run(signals=False)


def end_when_done(table: MessageTable, stop: Callable[[], object]) -> None:
    def watch() -> None:
        tick = threading.Event()
        while is_open(table.stats()):
            tick.wait(0.05)
        stop()

    threading.Thread(target=watch, daemon=True).start()


def is_open(stats: TableStats) -> bool:
    """Return whether the table has messages that are not over."""
    return bool(stats.ready or stats.scheduled or stats.in_flight or stats.delayed)


def handle(delivery: Delivery) -> None:
    os.write(1, f"{delivery.payload} {delivery.epoch}\n".encode())  # at once, and whole
    if delivery.payload == DEADLY:
        os.kill(os.getpid(), signal.SIGKILL)


async def handle_async(delivery: Delivery) -> None:
    handle(delivery)
