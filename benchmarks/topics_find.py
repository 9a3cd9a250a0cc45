"""Finding a moment: its time and its reads in topics of ten thousand to a hundred million messages, beside scans.

The largest topic's ledgers are rows of the catalogue as sealing would have written them; those that are looked into
have files, the others would fill the disk.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import sqlalchemy as sa

from benchmarks.measure import write_results
from benchmarks.topics_append import BEGIN, WORK, databases
from waterclock.database.backend import Backend
from waterclock.database.topic_catalogue import BOUNDED, TIMES, ledgers, topics
from waterclock.topics.creating import create_topic, open_topic
from waterclock.topics.entries import PLACED_SCHEMA
from waterclock.topics.ledger_files import LedgerFiles
from waterclock.topics.sealed_file import row_groups_to_json, write_ledger
from waterclock.topics.topic import Topic

LEDGER_MESSAGES = 1_000
SPACING = 1_000_000  # ns between messages
SIZES = (10, 1_000, 100_000)
"""Ledgers, of a thousand messages each."""
LOOKED_INTO = 64
SCANS = 5


class CountedFiles(LedgerFiles):
    """Ledger files that count their reads."""

    reads = 0

    def read_range(self, path: str, size: int, offset: int, length: int) -> pa.Buffer:
        self.reads += 1
        return super().read_range(path, size, offset, length)


def ledger_batch(number: int) -> pa.RecordBatch:
    at = BEGIN + (number * LEDGER_MESSAGES + np.arange(LEDGER_MESSAGES)) * SPACING
    columns: dict[str, Any] = {
        "source": [f"press-{i % 20:02d}" for i in range(LEDGER_MESSAGES)],
        "stream": ["load"] * LEDGER_MESSAGES,
        "event_time": at,
        "publish_time": at,
        "receive_time": at,
        "headers": [None] * LEDGER_MESSAGES,
        "payload": [b"0.123456"] * LEDGER_MESSAGES,
        "entry": np.zeros(LEDGER_MESSAGES, np.int64),
        "index": np.arange(LEDGER_MESSAGES, dtype=np.int32),
    }
    return pa.RecordBatch.from_pydict(columns, schema=PLACED_SCHEMA)


def write_file(topic: Topic, number: int) -> dict[str, Any]:
    """Write a ledger's file; give what the catalogue says of it."""
    path = f"find-{topic.storage.topic_id}/{number:010d}.parquet"
    with topic.storage.files.create(path) as sink:
        groups, footer = write_ledger(sink, [ledger_batch(number)])
    size = topic.storage.files.size(path)
    return {"path": path, "file_bytes": size, "row_groups": row_groups_to_json(groups), "footer": footer}


def catalogue_rows(topic: Topic, count: int, with_files: set[int]) -> Iterable[dict[str, Any]]:
    template = write_file(topic, 0)
    for number in range(count):
        first = BEGIN + number * LEDGER_MESSAGES * SPACING
        last = first + (LEDGER_MESSAGES - 1) * SPACING
        file = write_file(topic, number) if number in with_files else template
        yield {
            "topic_id": topic.storage.topic_id,
            "ledger": number,
            "state": "sealed",
            "entries": 1,
            "messages": LEDGER_MESSAGES,
            "bytes": 20_000,
            "first_ordinal": number * LEDGER_MESSAGES,
            "opened_at": last,
            "closed_at": last,
            "sealed_at": last,
            **{f"begin_{at}": first for at in TIMES},
            **{f"{kind}_{at}": last for kind in ("end", "peak") for at in BOUNDED},
            **file,
        }


def build(backend: Backend, folder: Path, count: int, chosen: set[int]) -> Topic:
    name = f"{count} ledgers"
    create_topic(backend, name, roll_after=None, roll_size=1 << 40, retention=None, exist_ok=False)
    topic = Topic(open_topic(backend, str(folder), name))
    rows = list(catalogue_rows(topic, count, chosen))
    for first in range(0, count, 1_000):
        part = rows[first : first + 1_000]
        backend.transact(lambda connection, part=part: connection.execute(sa.insert(ledgers), part))
    end = BEGIN + count * LEDGER_MESSAGES * SPACING
    values = {"ledger": count, "ordinal": count * LEDGER_MESSAGES, **{f"peak_{at}": end for at in BOUNDED}}
    mine = topics.c.id == topic.storage.topic_id
    backend.transact(lambda connection: connection.execute(sa.update(topics).where(mine).values(values)))
    if backend.dialect.name == "postgresql":
        with backend.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ANALYZE")
    return topic


def milliseconds(run: Callable[[int], object], times: Iterable[int]) -> float:
    taken: list[float] = []
    for at in times:
        began = time.perf_counter()
        run(at)
        taken.append(time.perf_counter() - began)
    return round(statistics.median(taken) * 1e3, 3)


def moments(chosen: set[int], dice: random.Random) -> list[int]:
    numbers = [number * LEDGER_MESSAGES + dice.randrange(LEDGER_MESSAGES) for number in sorted(chosen)]
    dice.shuffle(numbers)
    return [BEGIN + number * SPACING for number in numbers]


def measure_scans(folder: Path, times: list[int]) -> dict[str, float]:
    """Find by scanning the same files: with pyarrow.dataset and a filter, and with DuckDB."""
    scanned = ds.dataset(folder, format="parquet")

    def with_dataset(at: int) -> None:
        table = scanned.to_table(columns=["publish_time", "entry", "index"], filter=pc.field("publish_time") >= at)
        assert pc.min(table["publish_time"]).as_py() == at

    query = f"SELECT min(publish_time) FROM read_parquet('{folder}/*.parquet') WHERE publish_time >= ?"

    def with_duckdb(at: int) -> None:
        assert duckdb.execute(query, [at]).fetchall() == [(at,)]

    return {
        "pyarrow.dataset_ms": milliseconds(with_dataset, times[:SCANS]),
        "duckdb_ms": milliseconds(with_duckdb, times[:SCANS]),
    }


def measure(backend: Backend, folder: Path, count: int, *, scans: bool) -> dict[str, Any]:
    dice = random.Random(1)
    everything = count <= 1_000 and scans
    chosen = set(range(count) if everything else dice.sample(range(count), min(LOOKED_INTO, count)))
    topic = build(backend, folder, count, chosen)
    times = moments(set(dice.sample(sorted(chosen), min(LOOKED_INTO, count))), dice) * (
        LOOKED_INTO // min(LOOKED_INTO, count)
    )
    for at in times:
        position = topic.find(at).position
        assert (position.ledger * LEDGER_MESSAGES + position.index) * SPACING + BEGIN == at
    row: dict[str, Any] = {"messages": count * LEDGER_MESSAGES, "p50_ms": milliseconds(topic.find, times)}
    counted = CountedFiles(str(folder))
    counting = Topic(type(topic.storage)(topic.storage.topic_id, topic.name, backend, counted))
    for at in times:
        counting.find(at)
    row["reads"] = counted.reads / len(times)
    if everything:
        row |= measure_scans(folder / f"find-{topic.storage.topic_id}", times)
    return row


def main() -> None:
    figures: dict[str, Any] = {}
    with databases() as urls, tempfile.TemporaryDirectory(dir=WORK) as folder:
        for kind, url in urls.items():
            backend = Backend(url)
            rows = figures[kind] = {}
            for count in SIZES:
                rows[str(count)] = measure(backend, Path(folder) / kind, count, scans=kind == "sqlite")
                print(f"{kind}, {count} ledgers: {rows[str(count)]}", flush=True)
            slowest, fastest = (pick(row["p50_ms"] for row in rows.values()) for pick in (max, min))
            rows["slowest_to_fastest"] = round(slowest / fastest, 2)
            backend.close()
    write_results("topics_find", figures, ("waterclock", "pyarrow", "sqlalchemy", "duckdb"))


if __name__ == "__main__":
    main()
