"""A consumer that tests run as a process of its own and kill: messages fail until they die, and are brought back."""

from __future__ import annotations

import sys

from waterclock.connection import connect


def main(url: str, table_name: str) -> None:
    table = connect(url, "unused").table(table_name)
    print("ready", flush=True)
    while True:
        for delivery in table.receive(5):
            if delivery.epoch % 2:
                delivery.nack("0s")
            else:
                delivery.dead_letter("why not")
        table.redrive(limit=3)


if __name__ == "__main__":
    main(*sys.argv[1:])
