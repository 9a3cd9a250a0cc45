"""Pages of the server over a large table, many groups, and large topics: how long each takes to answer.

Requests are made inside this process, so that the figures are of the server and its database alone. The processor time
is that of Python; a database server's own is not in it.
"""

from __future__ import annotations

import logging
import statistics
import sys
import tempfile
import time

import numpy as np
import pyarrow as pa
from fastapi.testclient import TestClient

from benchmarks.measure import write_results
from benchmarks.servers import databases
from benchmarks.topics.append import BEGIN
from benchmarks.topics.catalogue import LARGE, build
from waterclock.connection import Database, connect
from waterclock.server.access import Policy
from waterclock.server.app import create_app
from waterclock.tables.message_table import MessageTable
from waterclock.time import format_time

MESSAGES, GROUPS = 1_000_000, 100_000
ROWS_AT_ONCE = 50_000
ROUNDS = 7
STORED = 10_000_000
"""Messages of a topic whose files exist: 100 a second, of ten sources and five streams, a day and four hours long."""
LEDGERS = 100
SPACING = 10_000_000  # ns


def _range(hours: float) -> str:
    """Return the query of a range of the topic with files, from its first hour on."""
    since = BEGIN + 3_600_000_000_000
    return f"since={format_time(since)}&until={format_time(since + int(hours * 3_600_000_000_000))}"


PAGES = {
    "overview": "/",
    "table": "/tables/orders",
    "table, by text in the payload": "/tables/orders?text=x17",
    "table, by group": "/tables/grouped?group=g17",
    "preview of cancel": "/tables/orders/act/cancel?state=failed",
    "groups": "/tables/grouped/groups",
    "topic": f"/topics/{LARGE}%20ledgers",
    "topic, one time": f"/topics/{LARGE}%20ledgers?to=2026-02-01T00:00:00Z",
    "timeline, all of 10^8 messages": f"/topics/{LARGE}%20ledgers/batches?{_range(26)}",
    "timeline, newest minute of 10^7": "/topics/stored/batches",
    "timeline, all of 10^7": f"/topics/stored/batches?{_range(26)}",
    "timeline, an hour": f"/topics/stored/batches?{_range(1)}",
    "timeline, ten minutes": f"/topics/stored/batches?{_range(1 / 6)}",
    "timeline, a second": f"/topics/stored/batches?{_range(1 / 3600)}&window=100ms&max_delay=10ms",
}


def fill(table: MessageTable, *, grouped: bool) -> None:
    for first in range(0, MESSAGES, ROWS_AT_ONCE):
        rows = range(first, first + ROWS_AT_ONCE)
        table.put_many([{"payload": f"x{n}", "group": f"g{n % GROUPS}" if grouped else None} for n in rows])
    for delivery in table.receive(100):
        delivery.nack("1h", error=f"ValueError: card {delivery.id} declined")


def store(database: Database) -> None:
    """Append and seal 10^7 messages."""
    topic = database.create_topic("stored", roll_after=None, roll_size=1 << 40)
    count = STORED // LEDGERS
    rows = np.arange(count)
    names = [pa.array([f"{kind}{n}" for n in range(many)]) for kind, many in (("press-", 10), ("sensor-", 5))]
    pairs = (rows % 10, rows // 10 % 5)
    source, stream = (
        pa.DictionaryArray.from_arrays(n, name).cast("string") for n, name in zip(pairs, names, strict=True)
    )
    for first in range(0, STORED, count):
        at = BEGIN + (first + rows) * SPACING
        columns = {"source": source, "stream": stream, "event_time": at, "receive_time": at + 5_000_000}
        topic.append(pa.table(columns))
        topic.roll()
        topic.seal()


def fill_all(database: Database) -> None:
    """Fill a database. The files of the topic with the most ledgers do not exist, so its messages are not read."""
    fill(database.create_table("orders", payload="text"), grouped=False)
    fill(database.create_table("grouped", payload="text", groups="sequenced"), grouped=True)
    build(database, LARGE)
    store(database)


def measure(database: Database) -> dict[str, dict[str, float]]:
    """Time the pages of a filled database: the median of some rounds, and the fastest, which others disturb least."""
    logging.getLogger("waterclock").setLevel(logging.ERROR)
    found: dict[str, dict[str, float]] = {}
    with TestClient(create_app(database, Policy()), base_url="http://localhost:8040") as client:
        for name, path in PAGES.items():
            taken: list[tuple[float, float]] = []
            client.get(path, headers={"accept": "text/html"})  # compiles statements, and reads what is not cached
            size = 0
            for _ in range(ROUNDS):
                began, used = time.perf_counter(), time.process_time()
                answer = client.get(path, headers={"accept": "text/html"})
                taken.append((time.perf_counter() - began, time.process_time() - used))
                assert answer.status_code == 200, answer.text
                size = len(answer.content)
            walls, processor = zip(*taken, strict=True)
            found[name] = {
                "ms": round(statistics.median(walls) * 1e3, 1),
                "fastest_ms": round(min(walls) * 1e3, 1),
                "processor_ms": round(statistics.median(processor) * 1e3, 1),
                "kB": round(size / 1e3, 1),
            }
            print(name, found[name], file=sys.stderr, flush=True)
    return found


def main() -> None:
    figures: dict[str, dict[str, dict[str, float]]] = {}
    with databases() as urls, tempfile.TemporaryDirectory() as folder:
        for name in ("sqlite", "postgresql"):
            with connect(urls[name], f"{folder}/{name}") as database:
                fill_all(database)
                figures[name] = measure(database)
    write_results("server", figures, ("fastapi", "sqlalchemy"))


if __name__ == "__main__":
    main()
