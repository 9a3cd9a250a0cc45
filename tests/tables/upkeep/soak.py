"""Producers and consumers that tests run as processes of their own, kill and start again.

Each writes what it did to a file, a line a deed: the time (ns), the deed, the message's id, and for ``took`` the
end of its lease. A line is written after the deed, but for ``releasing``, which is written before.
"""

from __future__ import annotations

import os
import random
import time
from typing import TextIO

from waterclock.connection import connect
from waterclock.errors import LeaseLostError, OrderError, UnavailableError
from waterclock.tables.message_table import MessageTable

chance = random.Random()  # noqa: S311  # no secret


def say(log: TextIO, deed: str, message_id: object, more: object = "") -> None:
    log.write(f"{time.time_ns()} {deed} {message_id} {more}\n")
    log.flush()


def produce(table: MessageTable, log: TextIO) -> None:
    for number in range(10**9):
        rows = [
            {"payload": "x", "id": f"{os.getpid()}-{number}-{index}", "group": f"g{chance.randrange(20)}"}
            for index in range(chance.randrange(1, 20))
        ]
        for message_id in table.put_many(rows):
            say(log, "put", message_id)
        time.sleep(0.01)


def consume(table: MessageTable, log: TextIO) -> None:
    while True:
        deliveries = table.receive(chance.randrange(1, 20), wait="1s")
        for delivery in deliveries:
            say(log, "took", delivery.id, delivery.lease_until)
        for delivery in deliveries:
            luck = chance.random()
            try:
                if luck < 0.9:
                    delivery.ack()
                    say(log, "acked", delivery.id)
                elif luck < 0.97:
                    # What is behind it in its group goes back with it.
                    for other in deliveries[deliveries.index(delivery) :]:
                        if other is delivery or (table.options.groups and other.group == delivery.group):
                            say(log, "releasing", other.id)
                    delivery.nack("100ms")
            except (LeaseLostError, OrderError):
                say(log, "refused", delivery.id)


def main(url: str, role: str, path: str) -> None:
    with open(path, "a", encoding="utf-8") as log:  # noqa: PTH123  # a plain path from the command line
        while True:
            try:
                table = connect(url, "unused").table("orders")
                {"produce": produce, "consume": consume}[role](table, log)
            except UnavailableError:
                say(log, "unavailable", "-")
                time.sleep(0.2)
