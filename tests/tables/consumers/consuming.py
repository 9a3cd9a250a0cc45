"""Consumers that run beside a test: in a process of their own, in a thread, or up to the end of a claim."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

import sqlalchemy as sa
from tests.support.forked import Forked

from waterclock.tables.consumers.subscription import TableSubscription
from waterclock.tables.databases.changes import Stop
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.claiming.claiming import claim_within
from waterclock.tables.model.claims.claim import Wanted


def start(url: str, behaviour: str) -> Forked:
    """Run `worker` in a process."""
    return Forked("tests.tables.upkeep.worker", url, "orders", behaviour)


@contextmanager
def running(deliveries: TableSubscription) -> Generator[list[str]]:
    """Run a consumer in a thread; go on when it waits."""
    received: list[str] = []
    waits = threading.Event()
    wait = deliveries._changes.wait

    def wait_and_tell(seconds: float, stop: Stop) -> None:
        waits.set()
        wait(seconds, stop)

    deliveries._changes.wait = wait_and_tell

    def run() -> None:
        for delivery in deliveries:
            received.append(delivery.payload)
            delivery.ack()
            deliveries.stop()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert waits.wait(60)
        yield received
    finally:
        thread.join(60)
        deliveries.close()
    assert not thread.is_alive()


def claim(table: MessageTable, then: Callable[[], object]) -> None:
    """Claim one message for a consumer, and do something before the claim is committed."""
    context = table._context
    wanted = Wanted(1, "x", 17, context.options.lease_length)

    def work(own: sa.Connection) -> None:
        if claim_within(context, own, wanted):  # else it is the second try, and another consumer has the message
            then()

    context.backend.transact(work, indexed=True)
