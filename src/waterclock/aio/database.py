"""Opens a database for asyncio."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from waterclock.aio.calling import Facade, awaited, awaited_as
from waterclock.aio.tables import MessageTable
from waterclock.aio.threads import CallThreads
from waterclock.aio.topics import Topic
from waterclock.aio.waiting import DatabaseWaits
from waterclock.connection import Database as SyncDatabase
from waterclock.connection import connect as sync_connect
from waterclock.errors import InvalidArgumentError
from waterclock.tables.message_table import MessageTable as SyncTable
from waterclock.tables.model.options import check_count
from waterclock.time import Clock, Duration
from waterclock.topics.topic import Topic as SyncTopic

_MOST_THREADS = 64  # maximum threads: each may use a connection, and a server has about a hundred


def _table(database: Database, table: SyncTable) -> MessageTable:
    return MessageTable(table, database.threads, database.waiting)


def _topic(database: Database, topic: SyncTopic) -> Topic:
    return Topic(topic, database.threads)


class Database(Facade[SyncDatabase]):
    """A database with its topics and message tables; see `waterclock.Database`. Usable in ``async with``.

    It may be used from several loops, each in its own thread.
    """

    def __init__(self, sync: SyncDatabase, threads: CallThreads) -> None:
        super().__init__(sync, threads)
        self.waiting = DatabaseWaits()

    create_topic = awaited_as(SyncDatabase.create_topic, _topic)
    topic = awaited_as(SyncDatabase.topic, _topic)
    topics = awaited(SyncDatabase.topics)
    topic_infos = awaited(SyncDatabase.topic_infos)
    create_table = awaited_as(SyncDatabase.create_table, _table)
    table = awaited_as(SyncDatabase.table, _table)
    tables = awaited(SyncDatabase.tables)
    archive = awaited(SyncDatabase.archive)
    backup = awaited(SyncDatabase.backup)

    async def close(self) -> None:
        """Wait for the calls under way, and close the connections."""
        await asyncio.shield(asyncio.ensure_future(asyncio.to_thread(self._close)))  # also if this is cancelled

    def _close(self) -> None:
        self.waiting.close()
        self.threads.close()
        self.sync.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def connect(
    url: str,
    ledgers: str | Path | None = None,
    filesystem: Any = None,
    *,
    create: bool | None = None,
    timeout: Duration = "30s",
    clock: Clock | None = None,
    threads: int = 8,
) -> Database:
    """Open a database for use with ``await``; see `waterclock.connect`.

    Parameters
    ----------
    threads
        How many calls run at a time. Others wait in the loop. At most 64.
    """
    if check_count(threads, "threads") > _MOST_THREADS:
        raise InvalidArgumentError(f"threads must be at most {_MOST_THREADS}, got {threads}")
    pool = CallThreads(threads)
    opened = partial(sync_connect, url, ledgers, filesystem, create=create, timeout=timeout, clock=clock)
    return Database(await pool.call(opened, undo=SyncDatabase.close), pool)
