"""Two processes that take the same rows for the first time, at once, both succeed: the later one has them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from waterclock.connection import Database
from waterclock.database.backend import Backend
from waterclock.ingest.local_files.file_rows import FileRows
from waterclock.ingest.local_files.fingerprint import FileKey
from waterclock.ingest.storing.partition_rows import PartitionKey, PartitionRow
from waterclock.ingest.storing.session_rows import SessionRow

TAKES: dict[str, Callable[[Backend], object]] = {
    "partition": lambda backend: PartitionRow.take(backend, PartitionKey(1, "cluster", "topic id", 3), "plant", 0),
    "session": lambda backend: SessionRow.take(backend, "gateway@broker:1883"),
    "file": lambda backend: FileRows(backend, 1).take({FileKey(1, 2): "a.jsonl"}),
}


@pytest.mark.parametrize("name", list(TAKES))
def test_rows_taken_twice_at_once_are_taken_one_after_the_other(
    database: Database, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    both = threading.Barrier(2)
    insert, failures = Backend.now, list[Exception]()

    def wait_before_insert(backend: Backend, *arguments: object) -> int:
        with suppress(threading.BrokenBarrierError):  # on SQLite, the second transaction begins after the first
            both.wait(0.3)
        return insert(backend, *arguments)  # type: ignore[arg-type]

    def take() -> None:
        try:
            TAKES[name](database.backend)
        except Exception as error:  # noqa: BLE001  # for the test to look at
            failures.append(error)

    monkeypatch.setattr(Backend, "now", wait_before_insert)
    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
