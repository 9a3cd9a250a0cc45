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
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import sqlalchemy as sa

from benchmarks.measure import write_results
from benchmarks.servers import SCRATCH, databases
from benchmarks.topics.append import BEGIN
from waterclock.database.backend import Backend
from waterclock.database.schema.topic_catalogue import BOUNDED, TIMES, ledgers, topics
from waterclock.topics.catalogue.creating import create_topic, open_topic
from waterclock.topics.format.entries import PLACED_SCHEMA
from waterclock.topics.format.row_groups import row_groups_to_json
from waterclock.topics.store.ledger_files import LedgerFiles
from waterclock.topics.store.sealed_file import write_ledger
from waterclock.topics.topic import Topic

LEDGER_MESSAGES = 1_000
SPACING = 1_000_000  # ns between messages
SIZES = (10, 1_000, 100_000)
"""Ledgers, of a thousand messages each."""
SCANNED = (10, 1_000)
LOOKED_INTO = 64
FINDS = 400
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
        groups, footer, _ = write_ledger(sink, [(0, ledger_batch(number))])
    size = topic.storage.files.size(path)
    return {"path": path, "file_bytes": size, "row_groups": row_groups_to_json(groups), "footer": footer}


def sealed_row(topic: Topic, number: int, first: int, last: int) -> dict[str, Any]:
    """Give what the rows of all sealed ledgers have in common; ``first`` and ``last`` are times, ns."""
    return {
        "topic_id": topic.storage.topic_id,
        "ledger": number,
        "state": "sealed",
        "entries": 1,
        "messages": LEDGER_MESSAGES,
        "first_ordinal": number * LEDGER_MESSAGES,
        "opened_at": last,
        "closed_at": last,
        "sealed_at": last,
        **{f"begin_{at}": first for at in TIMES},
    }


def catalogue_rows(topic: Topic, count: int, with_files: set[int]) -> Iterable[dict[str, Any]]:
    template = write_file(topic, 0)
    for number in range(count):
        first = BEGIN + number * LEDGER_MESSAGES * SPACING
        last = first + (LEDGER_MESSAGES - 1) * SPACING
        file = write_file(topic, number) if number in with_files else template
        yield {
            **sealed_row(topic, number, first, last),
            "bytes": 20_000,
            **{f"{kind}_{at}": last for kind in ("end", "peak") for at in BOUNDED},
            **file,
        }


def build(backend: Backend, folder: Path, count: int, chosen: set[int]) -> Topic:
    name = f"{count} ledgers"
    create_topic(backend, str(folder), name, roll_after=None, roll_size=1 << 40, retention=None, exist_ok=False)
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


def measure_scans(folder: Path, times: list[int]) -> dict[str, float]:
    """Find by scanning the same files: with pyarrow.dataset and a filter, and with DuckDB."""
    scanned = ds.dataset(folder, format="parquet")
    files = duckdb.read_parquet(f"{folder}/*.parquet")

    def with_dataset(at: int) -> None:
        table = scanned.to_table(columns=["publish_time", "entry", "index"], filter=pc.field("publish_time") >= at)
        assert pc.min(table["publish_time"]).as_py() == at

    def with_duckdb(at: int) -> None:
        assert files.filter(f"publish_time >= {at:d}").min("publish_time").fetchall() == [(at,)]

    return {
        "pyarrow.dataset_ms": milliseconds(with_dataset, times),
        "duckdb_ms": milliseconds(with_duckdb, times),
    }


def milliseconds(run: Callable[[int], object], times: Iterable[int]) -> float:
    taken: list[float] = []
    for at in times:
        began = time.perf_counter()
        run(at)
        taken.append(time.perf_counter() - began)
    return round(statistics.median(taken) * 1e3, 3)


def count_reads(topic: Topic, times: list[int]) -> float:
    """Give the reads of a file that a find needs, and check what it finds."""
    counted = CountedFiles(topic.storage.files.root)
    counting = Topic(replace(topic.storage, files=counted))
    for at in times:
        position = counting.find(at).position
        assert (position.ledger * LEDGER_MESSAGES + position.index) * SPACING + BEGIN == at
    return counted.reads / len(times)


def measure(backend: Backend, folder: Path, *, scans: bool) -> dict[str, Any]:
    dice = random.Random(1)  # noqa: S311  # not a secret
    built: dict[int, tuple[Topic, list[int]]] = {}
    for count in SIZES:
        complete = scans and count in SCANNED
        chosen = set(range(count) if complete else dice.sample(range(count), min(LOOKED_INTO, count)))
        topic = build(backend, folder, count, chosen)
        built[count] = (
            topic,
            [
                BEGIN + (number * LEDGER_MESSAGES + dice.randrange(LEDGER_MESSAGES)) * SPACING
                for number in dice.choices(sorted(chosen), k=LOOKED_INTO)
            ],
        )
    # In turns, so that what disturbs the machine disturbs all sizes.
    taken: dict[int, list[float]] = {count: [] for count in SIZES}
    for turn in range(-1, FINDS):
        for count, (topic, times) in built.items():
            began = time.perf_counter()
            topic.find(times[turn % LOOKED_INTO])
            taken[count] += [time.perf_counter() - began] if turn >= 0 else []
    rows: dict[str, Any] = {}
    for count, (topic, times) in built.items():
        p50 = round(statistics.median(taken[count]) * 1e3, 3)
        row = {"messages": count * LEDGER_MESSAGES, "p50_ms": p50, "reads": count_reads(topic, times)}
        if scans and count in SCANNED:
            row |= measure_scans(folder / f"find-{topic.storage.topic_id}", times[:SCANS])
        rows[str(count)] = row
    slowest, fastest = (pick(row["p50_ms"] for row in rows.values()) for pick in (max, min))
    return {**rows, "slowest_to_fastest": round(slowest / fastest, 2)}


def main() -> None:
    figures: dict[str, Any] = {}
    with databases() as urls, tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        for kind, url in urls.items():
            backend = Backend(url)
            figures[kind] = measure(backend, Path(folder) / kind, scans=kind == "sqlite")
            print(f"{kind}: {figures[kind]}", flush=True)
            backend.close()
    write_results("topics_find", figures, ("waterclock", "pyarrow", "sqlalchemy", "duckdb"))


if __name__ == "__main__":
    main()
