"""From put to receive: how long a message takes to a consumer, in another process, that waits for it."""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from typing import Any

import waterclock as wc
from benchmarks.measure import write_results
from benchmarks.servers import databases

MESSAGES = 500
PAUSE = 0.01  # s between puts on average, so that the consumer has gone to sleep again
TABLE = "latency"


def consume(url: str, folder: str, ready: Any, seen: Any) -> None:
    """Receive messages that hold the time at which they were put; the monotonic clock is the machine's."""
    taken: list[int] = []
    with wc.connect(url, folder) as database, database.table(TABLE).subscribe() as deliveries:
        ready.set()
        for delivery in deliveries:
            now = time.monotonic_ns()
            put = int(delivery.payload)
            delivery.ack()
            if not put:
                break
            taken.append(now - put)
    seen.put(taken)


def measure(url: str, folder: str) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    ready, seen = context.Event(), context.Queue()
    with wc.connect(url, folder) as database:
        table = database.create_table(TABLE, payload="text")
        consumer = context.Process(target=consume, args=(url, folder, ready, seen))
        consumer.start()
        ready.wait()
        calls: list[int] = []
        for number in range(MESSAGES):
            time.sleep((0.5 + number % 11 / 10) * PAUSE)
            began = time.monotonic_ns()
            table.put(str(began))
            calls.append(time.monotonic_ns() - began)
        table.put("0")
        taken = sorted(seen.get(timeout=60))
        consumer.join()
        table.drop()
    assert len(taken) == MESSAGES
    return {
        "messages": MESSAGES,
        "p50_ms": round(statistics.median(taken) / 1e6, 2),
        "p99_ms": round(taken[MESSAGES * 99 // 100] / 1e6, 2),
        "put_p50_ms": round(statistics.median(calls) / 1e6, 2),
    }


def main() -> None:
    figures: dict[str, Any] = {}
    with databases() as urls, tempfile.TemporaryDirectory() as folder:
        for name, url in urls.items():
            figures[name] = measure(url, f"{folder}/{name}")
            print(f"{name}: {figures[name]}", flush=True)
    write_results("tables_latency", figures, ("waterclock", "sqlalchemy", "psycopg", "pymysql"))


if __name__ == "__main__":
    main()
