"""A consumer that tests run as a process of its own and kill: messages fail until they die, and are brought back.

It says so once, when the first came back.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from waterclock.connection import connect
from waterclock.errors import LeaseLostError


def main(url: str, table_name: str) -> None:
    table = connect(url, "unused").table(table_name)
    told = False
    while True:
        for delivery in table.receive(5):
            with suppress(LeaseLostError):  # a lease is short, and a machine may be busy
                if delivery.epoch % 2:
                    delivery.nack("0s")
                else:
                    delivery.dead_letter("why not")
        if table.redrive(limit=3) and not told:
            print("brought back", flush=True)
            told = True


if __name__ == "__main__":
    main(*sys.argv[1:])
