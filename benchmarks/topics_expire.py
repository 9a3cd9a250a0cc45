"""Expiring all of a topic of a hundred thousand sealed ledgers: what the catalogue's part of it takes, by database."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import write_results
from benchmarks.topics_append import WORK, databases
from benchmarks.topics_find import build
from waterclock.database.backend import Backend

SIZES = (10_000, 100_000)
"""Ledgers."""


def measure(backend: Backend, folder: Path) -> dict[str, float]:
    taken: dict[str, float] = {}
    for count in SIZES:
        topic = build(backend, folder, count, set())
        topic.subscribe("s")
        began = time.perf_counter()
        assert topic.expire("1h").ledgers == count
        taken[f"{count}_s"] = round(time.perf_counter() - began, 2)
    return taken


def main() -> None:
    figures: dict[str, Any] = {}
    with databases() as urls, tempfile.TemporaryDirectory(dir=WORK) as folder:
        for kind, url in urls.items():
            backend = Backend(url)
            figures[kind] = measure(backend, Path(folder) / kind)
            print(f"{kind}: {figures[kind]}", flush=True)
            backend.close()
    write_results("topics_expire", figures, ("waterclock", "sqlalchemy"))


if __name__ == "__main__":
    main()
