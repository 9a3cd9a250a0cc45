"""Appending to a topic: messages a second by size of entry on each database, in turns with plain inserts.

Also by several threads, whose appends share transactions, and by how much a database grows with an entry.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Any

import numpy as np
import pyarrow as pa
import sqlalchemy as sa

from benchmarks.measure import in_turns, write_results
from benchmarks.servers import SCRATCH, databases
from waterclock.database.backend import Backend
from waterclock.database.schema.types import Blob, Key
from waterclock.topics.catalogue.creating import create_topic, open_topic
from waterclock.topics.format.entries import encode_entry
from waterclock.topics.topic import Topic

BEGIN = 1_700_000_000_000_000_000
ENTRIES = {1: 640, 100: 320, 10_000: 12}
"""Messages of an entry, and how many entries are appended in a round."""
APPENDERS = (1, 4, 32)
ROUNDS = 9
UNCOMPRESSED = "plain insert"
"""Of the same messages, as Arrow lays them out."""
COMPRESSED = "plain insert of compressed bytes"
"""Of the bytes that appending stores; another program has compressed them."""

raw = sa.Table("raw", sa.MetaData(), sa.Column("id", Key, primary_key=True), sa.Column("data", Blob, nullable=False))


def messages(count: int, seed: int) -> pa.Table:
    """Lay out messages of 20 sources, each with a short JSON payload."""
    chance = np.random.default_rng(seed)
    at = BEGIN + np.arange(count) * 1_000_000 + chance.integers(0, 10_000_000, count)
    readings = chance.normal(50, 20, (count, 3))
    return pa.table(
        {
            "source": [f"press-{i % 20:02d}" for i in range(count)],
            "stream": [("load", "heat", "noise")[i % 3] for i in range(count)],
            "event_time": at,
            "publish_time": at + 5_000_000,
            "receive_time": at + chance.integers(6_000_000, 9_000_000, count),
            "payload": [
                f'{{"value": {a:.6f}, "low": {b:.6f}, "high": {c:.6f}, "unit": "kN", "status": "ok"}}'.encode()
                for a, b, c in readings
            ],
        }
    )


def uncompressed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def plain_insert(backend: Backend) -> Callable[[bytes], None]:
    """Give a function that inserts a row with the least that the driver needs, and commits it durably."""
    raw.drop(backend.engine, checkfirst=True)
    raw.create(backend.engine)
    if backend.dialect.name == "postgresql":
        with backend.engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE raw ALTER COLUMN data SET STORAGE EXTERNAL")
    statement = str(sa.insert(raw).values(data=b"").compile(backend.engine)).split(" RETURNING")[0]
    connection = backend.engine.raw_connection()
    cursor = connection.cursor()

    def insert(data: bytes) -> None:
        if backend.dialect.name == "sqlite":
            cursor.execute("BEGIN IMMEDIATE")
            cursor.execute(statement, (data,))
        else:
            cursor.execute(statement, {"data": data})
        connection.commit()

    return insert


_SIZES = {
    "sqlite": "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()",
    "postgresql": "SELECT pg_total_relation_size('waterclock_entries')",
    "mysql": "SELECT data_length + index_length FROM information_schema.tables"
    " WHERE table_schema = database() AND table_name = 'waterclock_entries'",
}


def bytes_stored(backend: Backend) -> int:
    """Tell how many bytes the database, or on a server the table of entries, takes."""
    with backend.engine.connect() as connection:
        if backend.dialect.name == "mysql":
            connection.exec_driver_sql("ANALYZE TABLE waterclock_entries").close()
        return int(connection.exec_driver_sql(_SIZES[backend.dialect.name]).scalar_one())


def growth(backend: Backend, topic: Topic) -> int:
    """Give by how many bytes the database grows with an entry of one message."""
    threads, each = APPENDERS[-1], 200
    with ThreadPoolExecutor(threads) as pool:
        before = bytes_stored(backend)
        list(pool.map(topic.append, [messages(1, seed) for seed in range(threads * each)]))
    return round((bytes_stored(backend) - before) / (threads * each))


def measure(backend: Backend, folder: str, size: int) -> dict[str, Any]:
    tables = [messages(size, seed) for seed in range(8)]
    encoded = [encode_entry(table, lambda: 0).data for table in tables]
    loose = [uncompressed(table) for table in tables]
    count = ENTRIES[size]
    name = f"entries of {size}"
    create_topic(backend, folder, name, roll_after=None, roll_size=1 << 40, retention=None, exist_ok=False)
    topic = Topic(open_topic(backend, folder, name))
    insert = plain_insert(backend)
    work = list(zip(range(count), cycle(tables), strict=False))

    def insert_plainly(rows: list[bytes]) -> None:
        for _, data in zip(range(count), cycle(rows), strict=False):
            insert(data)

    def append(pool: ThreadPoolExecutor) -> None:
        list(pool.map(lambda item: topic.append(item[1]), work))

    pools = {number: ThreadPoolExecutor(number) for number in APPENDERS}
    runs: dict[str, Callable[[], object]] = {
        UNCOMPRESSED: lambda: insert_plainly(loose),
        COMPRESSED: lambda: insert_plainly(encoded),
    }
    runs |= {f"{number} appending": lambda pool=pool: append(pool) for number, pool in pools.items()}
    seconds = in_turns(runs, ROUNDS, time.perf_counter)
    for pool in pools.values():
        pool.shutdown()
    grown = {"bytes_stored_of_an_entry": growth(backend, topic)} if size == 1 else {}
    payload = sum(len(data) for data in encoded) / len(encoded)
    return {
        "bytes_of_an_entry": round(payload),
        "bytes_of_an_entry_uncompressed": len(loose[0]),
        **grown,
        **{
            run: {
                "messages_per_second": round(size * count / taken),
                "megabytes_per_second": round(payload * count / taken / 1e6, 2),
                "of_one_appending": round(seconds["1 appending"] / taken, 2),
                "of_the_plain_insert": round(seconds[UNCOMPRESSED] / taken, 2),
                "of_the_plain_insert_of_compressed_bytes": round(seconds[COMPRESSED] / taken, 2),
            }
            for run, taken in seconds.items()
        },
    }


def main() -> None:
    figures: dict[str, Any] = {}
    with databases() as urls, tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        for kind, url in urls.items():
            backend = Backend(url)
            figures[kind] = {}
            for size in ENTRIES:
                row = figures[kind][str(size)] = measure(backend, folder, size)
                speeds = ", ".join(
                    f"{run} {each['messages_per_second']:,}/s"
                    f" ({each['of_one_appending']:.1f}, {each['of_the_plain_insert']:.0%},"
                    f" {each['of_the_plain_insert_of_compressed_bytes']:.0%})"
                    for run, each in row.items()
                    if isinstance(each, dict)
                )
                print(f"{kind}, entries of {size}: {speeds}", flush=True)
            backend.close()
    write_results("topics_append", figures, ("waterclock", "pyarrow", "sqlalchemy"))


if __name__ == "__main__":
    main()
