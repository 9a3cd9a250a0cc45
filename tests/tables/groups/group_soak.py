"""Senders and receivers of groups that tests run as processes of their own; receivers write down what they did.

``send URL SENDER GROUPS INTERLEAVE`` puts groups, given by their sizes, as many side by side as INTERLEAVE says.
``receive URL LOG PREFETCH ACK_EVERY`` takes messages until it is killed, and acks them so many at a time. A line of its
log is a deed: the time (ns), the deed, the message, and the end of its lease. ``acking`` is written before the ack.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

from waterclock.connection import connect
from waterclock.errors import LeaseLostError, OrderError
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.message_table import MessageTable


def send(table: MessageTable, sender: str, sizes: list[int], interleave: int) -> None:
    waiting = deque((f"{sender}.{number}", iter(range(size))) for number, size in enumerate(sizes))
    active = deque(waiting.popleft() for _ in range(min(interleave, len(waiting))))
    while active:
        group, numbers = active.popleft()
        number = next(numbers, None)
        if number is not None:
            table.put(f"{group}/{number}", group=group)
            active.append((group, numbers))
        elif waiting:
            active.append(waiting.popleft())


def receive(table: MessageTable, path: str, prefetch: int, ack_every: int) -> None:
    with Path(path).open("a", encoding="utf-8") as log:

        def say(deed: str, delivery: Delivery) -> None:
            log.write(f"{time.time_ns()} {deed} {delivery.payload} {delivery.lease_until}\n")
            log.flush()

        while True:
            pending: list[Delivery] = []
            while len(pending) < ack_every:
                found = table.receive(prefetch, wait=None if pending else "1s")
                for delivery in found:
                    say("took", delivery)
                pending += found
                if not found:
                    break
            for delivery in pending:
                say("acking", delivery)
                try:
                    delivery.ack()
                except (LeaseLostError, OrderError):
                    say("refused", delivery)


def main(role: str, url: str, name: str, *numbers: str) -> None:
    table = connect(url, "unused").table("orders")
    if role == "send":
        send(table, name, [int(size) for size in numbers[0].split(",")], int(numbers[1]))
    else:
        receive(table, name, int(numbers[0]), int(numbers[1]))
