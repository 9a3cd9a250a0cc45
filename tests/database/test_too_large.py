"""Values that are too large for a database are refused at once: a server that hangs up for one is not away."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event, exc

import waterclock as wc
from waterclock.connection import Database
from waterclock.database.engines import mariadb_packets, postgresql
from waterclock.errors import InvalidArgumentError, UnavailableError

SMALL_LIMIT = 100_000  # bytes, above `ALWAYS_FITS`
LARGE = SMALL_LIMIT + 50_000
ON_POSTGRESQL = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
ON_MARIADB = pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)
WITH_LIMIT = pytest.mark.parametrize("database_url", ["sqlite", "mariadb"], indirect=True)


@pytest.fixture
def narrow(database: Database, monkeypatch: pytest.MonkeyPatch) -> Database:
    """Return a database that takes values up to `SMALL_LIMIT`, of which Waterclock knows nothing beforehand."""
    if database.backend.dialect.name == "sqlite":

        def lower(connection: Any, _record: Any) -> None:
            connection.setlimit(0, SMALL_LIMIT)  # SQLITE_LIMIT_LENGTH

        database.backend.largest_value  # noqa: B018  # as it was
        event.listen(database.backend.engine, "connect", lower)
        database.close()  # connections that are opened from now on have it
    else:
        monkeypatch.setattr(mariadb_packets.Sending, "session_limit", lambda *_: SMALL_LIMIT)
    return database


def run_once(database: Database, statement: str, values: dict[str, Any], **options: Any) -> None:
    """Run a statement in a transaction that must not be tried again."""
    tries: list[str] = []

    def work(connection: Any) -> None:
        tries.append(statement)
        connection.execute(sa.text(statement), values)

    try:
        database.backend.transact(work, **options)
    finally:
        assert len(tries) == 1


@ON_MARIADB
def test_rows_are_streamed_from_a_server(database: Database) -> None:
    with database.backend.engine.connect() as connection:
        rows = connection.execution_options(stream_results=True).execute(sa.text("SELECT 1 UNION SELECT 2"))
        assert [*rows.scalars()] == [1, 2]


@ON_MARIADB
def test_a_statement_above_max_allowed_packet_is_refused_before_it_is_sent(database: Database) -> None:
    with database.backend.snapshot() as connection:
        limit = connection.execute(sa.text("SELECT @@max_allowed_packet")).scalar_one()
    prefix = len("SELECT LENGTH('')")
    run_once(database, "SELECT LENGTH(:value)", {"value": "x" * (limit - 2 - prefix)})
    with database.backend.engine.connect() as connection:
        before = connection.scalar(sa.func.connection_id())
        with pytest.raises(exc.DataError, match=f"statement of {limit - 1} bytes .* max_allowed_packet .{limit} bytes"):
            connection.execute(sa.text("SELECT LENGTH(:value)"), {"value": "x" * (limit - 1 - prefix)})
        assert connection.scalar(sa.func.connection_id()) == before
    large = {"value": b"x" * limit}
    with pytest.raises(InvalidArgumentError, match=rf"cannot write a value of {limit} bytes .* or raise max_allowed"):
        run_once(database, "SELECT LENGTH(:value)", large)


WRITES: dict[str, Callable[[Database], object]] = {
    "put": lambda database: database.table("orders").put("x" * LARGE),
    "put_many": lambda database: database.table("orders").put_many([{"payload": "x"}, {"payload": "x" * LARGE}]),
    "header": lambda database: database.table("orders").put("x", headers={"trace": "x" * LARGE}),
    "group": lambda database: database.table("orders").put("x", group="g" * LARGE),
    "schedule": lambda database: database.table("orders").schedule("daily", cron="@daily", payload="x" * LARGE),
    "table": lambda database: database.create_table("big", group_header="h" * LARGE, groups="sequenced"),
    "append": lambda database: database.topic("ticks").append(
        [wc.Message("a", "b", 1, random.Random(1).randbytes(LARGE))]  # noqa: S311  # so that it cannot be compressed
    ),
}


@WITH_LIMIT
@pytest.mark.parametrize("write", WRITES)
def test_each_write_refuses_oversized_values_at_once(narrow: Database, write: str) -> None:
    narrow.create_table("orders", payload="text", groups="sequenced")
    narrow.create_topic("ticks")
    with narrow.backend.patience(5), pytest.raises(InvalidArgumentError):
        WRITES[write](narrow)
    assert narrow.table("orders").stats().ready == 0


@WITH_LIMIT
def test_reasons_of_any_length_are_written_shortened(narrow: Database) -> None:
    table = narrow.create_table("orders", payload="text", max_attempts=5)
    table.put("x")
    (delivery,) = table.receive()
    delivery.nack(error="e" * 20_000_000, delay=0)
    (delivery,) = table.receive()
    delivery.dead_letter("e" * 20_000_000)
    assert table.stats().ready == 0


@ON_POSTGRESQL
def test_a_row_that_no_index_takes_is_too_large(database: Database) -> None:
    table = database.create_table("orders", payload="text")
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text("CREATE INDEX of_messages ON orders(message)"))
    long = random.Random(1).randbytes(9_000).hex()  # noqa: S311  # so that it cannot be compressed
    with pytest.raises(InvalidArgumentError, match=r"(?s)a value of 18000 bytes .*index row .*\. Store large"):
        table.put(long)


@ON_POSTGRESQL
@pytest.mark.parametrize("indexed", [False, True])
def test_a_connection_that_a_server_closed_for_a_large_statement_is_an_error_of_size(
    database: Database, monkeypatch: pytest.MonkeyPatch, indexed: bool
) -> None:
    monkeypatch.setattr(postgresql, "_LARGEST_MESSAGE", 1000)
    ends = "SELECT pg_terminate_backend(pg_backend_pid()), CAST(:value AS text)"

    def end_with(size: int) -> None:
        statement = sa.text(ends).bindparams(value="x" * size)
        # Tries are not counted: if the server's last words are lost, another statement is blamed and tried again.
        database.backend.transact(lambda connection: connection.execute(statement), indexed=indexed)

    with pytest.raises(InvalidArgumentError, match=r"(?s)a value of 1001 bytes .* takes at most 1000 bytes"):
        end_with(1001)
    with database.backend.patience(0), pytest.raises(UnavailableError):
        end_with(1000)


@ON_POSTGRESQL
def test_more_memory_than_a_value_may_take_is_too_large(database: Database) -> None:
    raising = "DO $$ BEGIN RAISE 'invalid memory alloc request size 1073741824' USING ERRCODE = 'XX000'; END $$"
    with pytest.raises(InvalidArgumentError, match=r"(?s)alloc request size 1073741824.* bytes"):
        run_once(database, raising, {})
