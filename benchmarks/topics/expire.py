"""Expiring all of a topic of a hundred thousand sealed ledgers: what the catalogue's part of it takes, by database."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from benchmarks.measure import write_results
from benchmarks.servers import SCRATCH, databases
from benchmarks.topics.find import build
from waterclock.database.backend import Backend
from waterclock.database.schema.topic_catalogue import ledgers

SIZES = (10_000, 100_000)
"""Ledgers."""


def _each_with(path: sa.ColumnElement[str], mine: sa.ColumnElement[bool]) -> sa.Update:
    """Give each ledger a file of its own, as sealing does: none of them is there, and none is looked at."""
    return sa.update(ledgers).where(mine).values(path=path)


def measure(backend: Backend, folder: Path) -> dict[str, float]:
    taken: dict[str, float] = {}
    for count in SIZES:
        topic = build(backend, folder, count, set())
        own = sa.literal(f"expire-{count}/") + sa.cast(ledgers.c.ledger, sa.String(20))
        mine = ledgers.c.topic_id == topic.storage.topic_id
        backend.transact(lambda connection, own=own, mine=mine: connection.execute(_each_with(own, mine)))
        topic.subscribe("s")
        began = time.perf_counter()
        assert topic.expire("1h").ledgers == count
        taken[f"{count}_s"] = round(time.perf_counter() - began, 2)
    return taken


def main() -> None:
    figures: dict[str, Any] = {}
    with databases() as urls, tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        for kind, url in urls.items():
            backend = Backend(url)
            figures[kind] = measure(backend, Path(folder) / kind)
            print(f"{kind}: {figures[kind]}", flush=True)
            backend.close()
    write_results("topics_expire", figures, ("waterclock", "sqlalchemy"))


if __name__ == "__main__":
    main()
