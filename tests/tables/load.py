"""A process that tests run several times at once: puts, takes, gives back, acks and purges, and says how often."""

from __future__ import annotations

import json

from waterclock.connection import connect
from waterclock.tables.message_table import MessageTable

ROUNDS = 5


def work(table: MessageTable, name: str) -> dict[str, int]:
    done = dict.fromkeys(("put", "taken", "acked"), 0)
    for number in range(ROUNDS):
        done["put"] += len(table.put_many([{"payload": "x", "id": f"{name}-{number}-{one}"} for one in range(9)]))
        deliveries = table.receive(7)
        done["taken"] += len(deliveries)
        for delivery in deliveries[:2]:
            delivery.nack("0s")
        if number % 2:
            done["acked"] += table.ack(deliveries[2:])
        else:
            done["acked"] += table.ack([delivery.id for delivery in deliveries[2:]])
        with table.subscribe(limit=4) as subscription:
            next(subscription).ack()  # and three go back that were not taken
        done["taken"] += 1
        done["acked"] += 1
        table.purge()
    return done


def main(url: str, name: str) -> None:
    with connect(url, "unused") as database:
        print(json.dumps(work(database.table("orders"), name)))
