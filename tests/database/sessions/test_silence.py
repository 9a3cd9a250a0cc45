"""What a server needs to know how long a client has said nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from waterclock.connection import Database


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_nothing_follows_what_ends_a_pipeline(connect: Callable[..., Database], tmp_path: Path) -> None:
    """PostgreSQL counts from its answer to a Sync, until anything comes: it would never count again."""
    log = tmp_path / "sent"

    def work(connection: Any) -> None:
        with log.open("w") as file:
            connection._connection.pgconn.trace(file.fileno())
            connection.exec_driver_sql("SELECT pg_sleep(0.02)")  # so slow that the client has to wait for the answer
            connection._connection.pgconn.untrace()

    connect().backend.transact(work, indexed=True)
    sent = [line.split("\t")[3] for line in log.read_text().splitlines() if line.split("\t")[1] == "F"]
    assert sent.index("Sync") == len(sent) - 1
