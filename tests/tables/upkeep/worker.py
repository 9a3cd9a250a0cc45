"""A consumer that tests run as a process of its own, to kill it: takes messages, says so, and may hold them."""

from __future__ import annotations

import time

from waterclock.connection import connect


def main(url: str, table_name: str, behaviour: str) -> None:
    table = connect(url, "unused").table(table_name)
    with table.subscribe(limit=5) as deliveries:
        for delivery in deliveries:
            print("took", delivery.id, delivery.epoch, flush=True)
            if behaviour == "hold":
                time.sleep(3600)
            if behaviour == "handle":
                with delivery:
                    time.sleep(3600)
            delivery.ack()
            print("acked", delivery.id, flush=True)
