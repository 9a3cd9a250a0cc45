"""A process that tests run and kill: it fails messages until they are dead letters, and redrives them.

It prints a line when the first is redriven.
"""

from __future__ import annotations

from contextlib import suppress

from waterclock.connection import connect
from waterclock.errors import LeaseLostError


def main(url: str, table_name: str) -> None:
    table = connect(url, "unused").table(table_name)
    printed = False
    while True:
        for delivery in table.receive(5):
            with suppress(LeaseLostError):  # a lease is short, and a machine may be busy
                if delivery.epoch % 2:
                    delivery.nack("0s")
                else:
                    delivery.dead_letter("why not")
        if table.redrive(limit=3) and not printed:
            print("brought back", flush=True)
            printed = True
