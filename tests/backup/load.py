"""A process that uses a database as hard as it can, until its input ends; it prints what is done."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from tests.topics.writing.killable_workers import batch, shorten_leases

import waterclock as wc
from waterclock.errors import UnavailableError

TOPIC, TABLE = "busy", "orders"
GROUPS = 5


def append(database: wc.Database, say: Callable[[str], None]) -> Callable[[], None]:
    topic = database.topic(TOPIC)
    number = 0

    def step() -> None:
        nonlocal number
        count = 1 + number % 7
        topic.append(batch(number, count, database.backend.now()), producer="p", sequence=number)
        number += count
        say(f"appended {number}")

    return step


def put_and_ack(database: wc.Database, say: Callable[[str], None]) -> Callable[[], None]:
    table = database.table(TABLE)
    number = 0

    def step() -> None:
        nonlocal number
        table.put(str(number), id=number, group=f"g{number % GROUPS}")
        say(f"put {number}")
        number += 1
        if number % 3 == 0:
            for delivery in table.receive(limit=2):
                delivery.ack()
                say(f"acked {delivery.id}")

    return step


def keep(database: wc.Database, say: Callable[[str], None]) -> Callable[[], None]:
    """Seal, join, and let go of what a subscription has read, without any grace."""
    topic = database.topic(TOPIC)
    reader = topic.subscribe("reader")

    def step() -> None:
        with suppress(UnavailableError):
            topic.roll()
            topic.seal()
            topic.compact(40_000)
            if len(reader.read(limit=200)) == 200:
                reader.commit()
            topic.truncate(reader.position)
            say("kept 0")

    return step


def main(url: str, ledgers: str) -> None:
    shorten_leases()
    stop = threading.Event()
    turn = threading.Lock()

    def say(text: str) -> None:
        with turn:
            print(text, flush=True)

    def run(make: Callable[[wc.Database, Callable[[str], None]], Callable[[], None]]) -> None:
        with wc.connect(url, ledgers) as database:
            step = make(database, say)
            while not stop.is_set():
                step()

    threads = [threading.Thread(target=run, args=(make,)) for make in (append, put_and_ack, keep)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stop.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
