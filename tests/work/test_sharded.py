"""A worker on a sharded table: it takes messages of all its shards, and one that is away holds up no other."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.catalogues import sqlite_with_catalogue
from tests.work import shop
from tests.work.conftest import running, until

import waterclock as wc
from waterclock.connection import Database
from waterclock.tables.message_table import MessageTable
from waterclock.tables.sharding.sharded_database import ShardedDatabase
from waterclock.tables.sharding.sharded_table import ShardedTable

pytestmark = pytest.mark.one_database


@pytest.fixture
def urls(tmp_path: Path) -> dict[str, str]:
    return {"-80": sqlite_with_catalogue(tmp_path / "low.db"), "80-": sqlite_with_catalogue(tmp_path / "high.db")}


@pytest.fixture
def keyspace(urls: dict[str, str]) -> Generator[ShardedDatabase]:
    with wc.connect(shards=urls) as database:
        yield database


@pytest.fixture
def orders(keyspace: ShardedDatabase) -> ShardedTable:
    return keyspace.create_table("orders", payload="text", jitter=0)


def put(table: ShardedTable, *numbers: int) -> None:
    table.put_many([{"payload": str(number), "id": number} for number in numbers])


def test_a_worker_takes_messages_of_all_shards_and_enters_their_handlers_once(orders: ShardedTable) -> None:
    put(orders, *range(40))
    entered: list[str] = []
    seen: list[int] = []

    @contextmanager
    def factory() -> Generator[Any]:
        entered.append("begin")
        yield lambda delivery: seen.append(delivery.id)
        entered.append("end")

    with running(wc.Worker(orders, factory, concurrency=4)):
        until(lambda: orders.stats().acked == 40)
        put(orders, 40)
        until(lambda: len(seen) == 41)
    assert sorted(seen) == list(range(41))
    assert entered == ["begin", "end"]


@pytest.mark.parametrize("part", [{"shard": "80-"}, {"key_range": "80-"}])
def test_a_worker_may_have_a_part_of_the_shards(orders: ShardedTable, part: dict[str, str]) -> None:
    put(orders, *range(40))
    high = [number for number in range(40) if orders.shard_of(number) == "80-"]
    seen: list[int] = []
    with running(wc.Worker(orders, lambda delivery: seen.append(delivery.id), **part)):
        until(lambda: len(seen) == len(high))
    assert sorted(seen) == high
    assert orders.stats().ready == 40 - len(high)


def test_a_shard_that_is_away_when_a_worker_begins_is_taken_in_when_it_is_back(
    urls: dict[str, str], orders: ShardedTable, tmp_path: Path
) -> None:
    put(orders, *range(40))
    there = sum(orders.shard_of(number) == "-80" for number in range(40))
    away = urls["80-"].replace("high.db", "mounted/high.db")
    seen: list[int] = []
    with wc.connect(shards={**urls, "80-": away}) as keyspace:
        worker = wc.Worker(keyspace.table("orders"), lambda delivery: seen.append(delivery.id), concurrency=2)
        with running(worker):
            until(lambda: len(seen) == there)
            (tmp_path / "new").mkdir()
            for file in tmp_path.glob("high.db*"):
                (tmp_path / "new" / file.name).write_bytes(file.read_bytes())
            (tmp_path / "new").rename(tmp_path / "mounted")
            until(lambda: len(seen) == 40)
    assert sorted(seen) == list(range(40))


def test_a_shard_that_fails_to_record_does_not_keep_others_from_recording(
    orders: ShardedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(orders, *range(40))
    low, high = (part.open() for part in orders.parts())
    back = threading.Event()
    ack = low.ack

    def fails(*given: Any, **more: Any) -> int:
        if not back.is_set():
            raise wc.UnavailableError("away")
        return ack(*given, **more)

    monkeypatch.setattr(low, "ack", fails)
    there = high.stats().ready
    with running(wc.Worker(orders, lambda _: None, concurrency=2)):
        until(lambda: high.stats().acked == there)
        assert low.stats().acked == 0
        back.set()
        until(lambda: orders.stats().acked == 40)


def test_a_database_that_is_away_is_waited_for_before_there_is_room(
    orders: ShardedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    low = orders.parts("-80")[0].open()
    tries: list[int] = []

    def away() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise wc.UnavailableError("away")
        return 0

    monkeypatch.setattr("waterclock.tables.consumers.subscription.RETRY_EVERY", 0)
    with low.subscribe() as deliveries:
        deliveries.wait_until_back()  # it was not away
        deliveries._failures.since = 0
        monkeypatch.setattr(low.context.backend, "now", away)
        deliveries.wait_until_back()
        monkeypatch.undo()
    assert len(tries) == 3


@pytest.mark.slow  # it starts a process
def test_processes_handle_messages_of_all_shards(keyspace: ShardedDatabase, tmp_path: Path) -> None:
    table = keyspace.create_table("files", payload="text", jitter=0)
    table.put_many([{"payload": str(tmp_path), "id": number, "headers": {"kind": "write"}} for number in range(1, 9)])
    worker = wc.Worker(table, shop.factory, processes=1)
    with running(worker):
        until(lambda: worker.counts.done == 8)
    assert all((tmp_path / str(number)).exists() for number in range(1, 9))
    assert len(list(tmp_path.glob("ended-*"))) == 1


def test_an_invalid_part_is_refused(orders: ShardedTable, database: Database) -> None:
    alone: MessageTable = database.create_table("alone")
    for table in (orders, alone):
        for part in ({"shard": "40-80"}, {"key_range": "40-80"}):
            with pytest.raises(wc.InvalidArgumentError, match=next(iter(part))):
                wc.Worker(table, print, **part)
    with pytest.raises(wc.InvalidArgumentError, match="where"):
        wc.Worker(orders, print, where="regoin = 'eu'")
