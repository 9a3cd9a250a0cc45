"""Pages of the server over a large table, many groups, and a topic of many ledgers: how long each takes to answer.

Requests are made inside this process, so that the figures are of the server and its database alone. The processor time
is that of Python; a database server's own is not in it.
"""

from __future__ import annotations

import logging
import statistics
import sys
import tempfile
import time

from fastapi.testclient import TestClient

from benchmarks.measure import write_results
from benchmarks.topics_append import databases
from benchmarks.topics_catalogue import LARGE, build
from waterclock.connection import connect
from waterclock.server.access import Policy
from waterclock.server.app import create_app
from waterclock.tables.message_table import MessageTable

MESSAGES, GROUPS = 1_000_000, 100_000
ROWS_AT_ONCE = 50_000
ROUNDS = 7
RANGE = "since=2026-01-01T00:00:00Z&until=2036-01-01T00:00:00Z"
PAGES = {
    "overview": "/",
    "table": "/tables/orders",
    "table, by text in the payload": "/tables/orders?text=x17",
    "table, by group": "/tables/grouped?group=g17",
    "preview of cancel": "/tables/orders/act/cancel?state=failed",
    "groups": "/tables/grouped/groups",
    "topic": f"/topics/{LARGE}%20ledgers",
    "topic, one time": f"/topics/{LARGE}%20ledgers?to=2026-02-01T00:00:00Z",
    "timeline of the newest minute": f"/topics/{LARGE}%20ledgers/batches",
    "timeline of ten years": f"/topics/{LARGE}%20ledgers/batches?{RANGE}",
}


def fill(table: MessageTable, *, grouped: bool) -> None:
    for first in range(0, MESSAGES, ROWS_AT_ONCE):
        rows = range(first, first + ROWS_AT_ONCE)
        table.put_many([{"payload": f"x{n}", "group": f"g{n % GROUPS}" if grouped else None} for n in rows])
    for delivery in table.receive(100):
        delivery.nack("1h", error=f"ValueError: card {delivery.id} declined")


def measure(url: str, ledgers: str) -> dict[str, dict[str, float]]:
    """Fill a database, and time its pages. The topic's files do not exist, so its newest messages are not read."""
    logging.getLogger("waterclock").setLevel(logging.ERROR)
    with connect(url, ledgers) as database:
        fill(database.create_table("orders", payload="text"), grouped=False)
        fill(database.create_table("grouped", payload="text", groups="sequenced"), grouped=True)
        build(database, LARGE)
        found: dict[str, dict[str, float]] = {}
        with TestClient(create_app(database, Policy()), base_url="http://localhost:8040") as client:
            for name, path in PAGES.items():
                taken: list[tuple[float, float]] = []
                size = 0
                for _ in range(ROUNDS + 1):
                    began, used = time.perf_counter(), time.process_time()
                    answer = client.get(path, headers={"accept": "text/html"})
                    taken.append((time.perf_counter() - began, time.process_time() - used))
                    assert answer.status_code == 200, answer.text
                    size = len(answer.content)
                wall, processor = (statistics.median(each) for each in zip(*taken[1:], strict=True))
                found[name] = {
                    "ms": round(wall * 1e3, 1),
                    "processor_ms": round(processor * 1e3, 1),
                    "kB": round(size / 1e3, 1),
                }
                print(name, found[name], file=sys.stderr, flush=True)
        return found


def main() -> None:
    with databases() as urls, tempfile.TemporaryDirectory() as folder:
        figures = {name: measure(urls[name], f"{folder}/{name}") for name in ("sqlite", "postgresql")}
    write_results("server", figures, ("fastapi", "sqlalchemy"))


if __name__ == "__main__":
    main()
