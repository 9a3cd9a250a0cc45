"""Messages that are too large are refused at once, and not tried in vain for as long as a database may be away."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from tests.support.services import Service

import waterclock as wc
from waterclock.connection import Database
from waterclock.errors import ConstraintError
from waterclock.tables import message_table
from waterclock.tables.message_table import MessageTable

SMALL_LIMIT = 100_000  # bytes
MakeTable = Callable[..., MessageTable]


@pytest.fixture(params=["sqlite", "mariadb"])
def narrow(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Give a database with a limit that a test can pass: SQLite's lowered, MariaDB's as it is."""
    if request.param == "sqlite":
        with wc.connect(f"sqlite:///{tmp_path / 'narrow.db'}") as database:

            @event.listens_for(database.backend.engine, "connect")
            def lower(connection: Any, _record: Any) -> None:
                connection.setlimit(0, SMALL_LIMIT)  # SQLITE_LIMIT_LENGTH

            database.close()  # connections that are opened from now on have it
            yield database
        return
    server: Service = request.getfixturevalue("mariadb_server")
    with server.new_database() as url, wc.connect(url, tmp_path) as database:
        yield database


def too_large(database: Database, kind: str) -> Any:
    """Make a payload that is just too large, counting how it is written into a statement."""
    largest = database.backend.largest_value
    if kind == "bytes":
        return b"x" * (largest + 100_000)
    count = largest * (2 if database.backend.dialect.name == "mysql" else 1) + 200_000
    return "x" * count if kind == "text" else {"x": "y" * count}


def test_the_limit_is_asked_for_before_the_transaction_begins(
    database: Database, make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, backend = make_table(), database.backend
    vars(backend).pop("largest_value", None)
    steps: list[str] = []
    limit, put_rows = backend.dialect.largest_value, message_table.put_rows
    monkeypatch.setattr(backend.dialect, "largest_value", lambda own: (steps.append("asked"), limit(own))[1])
    monkeypatch.setattr(message_table, "put_rows", lambda *given: (steps.append("begun"), put_rows(*given))[1])
    table.put("x" * 70_000)
    assert steps == ["asked", "begun"]


@pytest.mark.parametrize("kind", ["bytes", "text", "json"])
def test_a_message_that_is_too_large_is_refused_at_once_with_its_size(narrow: Database, kind: str) -> None:
    table = narrow.create_table("orders", payload=kind)
    small = too_large(narrow, kind)[:10] if kind != "json" else {}
    began = time.monotonic()
    with pytest.raises(wc.InvalidArgumentError, match=r"^payload of message 8 has \d+ bytes, more than"):
        table.put_many([{"id": 7, "payload": small}, {"id": 8, "payload": too_large(narrow, kind)}])
    # Not tried again for as long as a database may be away.
    assert time.monotonic() - began < 20
    assert table.stats().ready == 0
    table.put(small)
    assert table.stats().ready == 1


def test_one_in_the_callers_transaction_is_refused_and_so_are_other_columns(narrow: Database) -> None:
    table = narrow.create_table("orders", payload="text", columns={"note": "text"})
    with (
        narrow.backend.engine.connect() as connection,
        pytest.raises(wc.InvalidArgumentError, match=r"^note of message 1 has"),
    ):
        table.put("tea", note=too_large(narrow, "text"), connection=connection)
    assert table.stats().ready == 0


def test_a_payload_that_is_refused_leaves_the_callers_transaction_as_it_was(narrow: Database) -> None:
    table = narrow.create_table("orders", payload="text")
    with narrow.backend.engine.begin() as connection:
        table.put("tea", connection=connection)
        with pytest.raises(wc.InvalidArgumentError, match=r"^payload of a message has"):
            table.put(too_large(narrow, "text"), connection=connection)
        table.put("coffee", connection=connection)
    assert table.stats().ready == 2


def test_a_large_message_that_fits_is_put_and_read(narrow: Database) -> None:
    table = narrow.create_table("orders", payload="bytes")
    payload = b"\xff" * (narrow.backend.largest_value - 10_000)
    table.put(payload)
    assert table.receive()[0].payload == payload


def test_another_error_stays_as_it_is_however_large_the_message(make_table: MakeTable, database: Database) -> None:
    table = make_table()
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text("CREATE UNIQUE INDEX only_one ON orders(priority)"))
    table.put("tea")
    with pytest.raises(ConstraintError):
        table.put("x" * 500_000)
