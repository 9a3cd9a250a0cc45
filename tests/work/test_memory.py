"""What a worker keeps of a message that it has handled: nothing, and nothing waits for the collector of cycles."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakSet

import pytest
from tests.work.conftest import PATIENCE, running, until

import waterclock as wc
from waterclock.tables.message_table import MessageTable

_go_on = threading.Event()


def _raising(error: Callable[[], Exception]) -> Callable[[wc.Delivery], None]:
    def handle(delivery: wc.Delivery) -> None:
        raise error()

    return handle


async def _fail(delivery: wc.Delivery) -> None:
    raise ValueError("no number")


async def _hang(delivery: wc.Delivery) -> None:
    await asyncio.sleep(PATIENCE)


def _hang_in_a_thread(delivery: wc.Delivery) -> None:
    assert _go_on.wait(PATIENCE)


async def _return(delivery: wc.Delivery) -> None:
    pass


_IN_LOOP = {"hangs": _hang, "returns": _return, "fails": _fail}
_IN_THREADS = {
    "is stuck": _hang_in_a_thread,
    "retries": _raising(lambda: wc.Retry("1h")),
    "snoozes": _raising(lambda: wc.Snooze("1h")),
    "dies": _raising(lambda: wc.DeadLetter("no such customer")),
    **{f"{name} in the loop": handler for name, handler in _IN_LOOP.items()},
    "fails": _raising(lambda: ValueError("no number")),
}


@pytest.mark.one_database
@pytest.mark.parametrize("handlers", [_IN_LOOP, _IN_THREADS], ids=["in the loop", "in threads"])
def test_nothing_is_kept_of_a_message_that_was_handled(
    make_table: Callable[..., MessageTable], handlers: Mapping[str, Any], kept: WeakSet[Any]
) -> None:
    orders = make_table(dead_letter="dead", min_backoff="1h")
    _go_on.clear()
    worker = wc.Worker(orders, handlers, concurrency=2, timeout="20ms")
    with running(worker):
        for kind in handlers:  # the last one fails: the subscription, too, looks then what is over
            orders.put(kind, headers={"kind": kind})
        until(lambda: sum(vars(worker.counts).values()) >= len(handlers))
        until(lambda: worker.counts.stuck == ("is stuck" in handlers))  # counted after its timeout
        _go_on.set()
        until(lambda: not kept)
