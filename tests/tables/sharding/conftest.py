"""Two databases as shards of one table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from tests.support.catalogues import sqlite_with_catalogue
from tests.support.services import Service
from tests.tables.conftest import MovableClock

import waterclock as wc
from waterclock.tables.messages.putting.putting import MessageId
from waterclock.tables.sharding.sharded_database import ShardedDatabase
from waterclock.tables.sharding.sharded_table import ShardedTable

SHARDS = ("files", "servers")


@pytest.hookimpl(tryfirst=True)  # before slow tests are deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow one of a test's two forms, chosen by its name: the shards differ, what joins them does not."""
    forms: dict[str, dict[str, pytest.Item]] = defaultdict(dict)
    for item in items:
        with_parameters: Any = getattr(item, "callspec", None)
        on = with_parameters.params.get("urls") if with_parameters else None
        if on in SHARDS:
            forms[item.nodeid.replace(on, "")][on] = item
    for name, both in forms.items():
        if len(both) == len(SHARDS):
            both[SHARDS[crc32(name.encode()) % 2]].add_marker("slow")


@pytest.fixture(params=SHARDS)
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[dict[str, str]]:
    """Two SQLite files, or PostgreSQL and MariaDB together."""
    if request.param == "files":
        yield {"-80": sqlite_with_catalogue(tmp_path / "low.db"), "80-": sqlite_with_catalogue(tmp_path / "high.db")}
        return
    postgresql: Service = request.getfixturevalue("postgresql_server")
    mariadb: Service = request.getfixturevalue("mariadb_server")
    with postgresql.new_database() as low, mariadb.new_database() as high:
        yield {"-80": low, "80-": high}


@pytest.fixture
def keyspace(urls: dict[str, str], clock: MovableClock) -> Generator[ShardedDatabase]:
    with wc.connect(shards=urls, clock=clock) as database:
        yield database


@pytest.fixture
def orders(keyspace: ShardedDatabase) -> ShardedTable:
    return keyspace.create_table("orders", payload="text", jitter=0)


def many(table: ShardedTable, count: int = 40) -> list[MessageId]:
    return table.put_many([{"payload": str(number), "id": number} for number in range(count)])
