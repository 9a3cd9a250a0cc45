"""Takes a snapshot of an SQLite database while others write, and lists the ledger files that its catalogue names.

SQLite's backup function copies pages, so the copy equals the database byte for byte. It includes the tables of other
programs. Unlike VACUUM INTO, it needs none of the functions and collations that these tables use, and it keeps row
numbers. But if another process commits between two steps of the backup, SQLite begins the backup again. So in a busy
database, a backup might never end. A read transaction on the connection prevents this restart, because all steps of the
backup then see the same snapshot. Writers do not wait for this transaction, but the write-ahead log grows while it
lasts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import exc

from waterclock._support.durable import sync
from waterclock._support.urls import shown
from waterclock.backup.copying import Report
from waterclock.database.backend import Backend
from waterclock.database.schema.topic_catalogue import ledgers, topics
from waterclock.errors import InvalidArgumentError, UnavailableError

_PAGES = 256  # copied in one step; 4 MiB
_WITHOUT_SYNC = ("PRAGMA journal_mode=OFF", "PRAGMA synchronous=OFF")
_NAMED = (
    sa.select(topics.c.name, ledgers.c.path, sa.func.max(ledgers.c.file_bytes))
    .join(topics, topics.c.id == ledgers.c.topic_id)
    .where(ledgers.c.state == "sealed")
    .group_by(topics.c.name, ledgers.c.path)
    .order_by(topics.c.name, ledgers.c.path)
)


class Named(NamedTuple):
    """A ledger file that the catalogue names: its topic, its name in the topic's store, and its bytes."""

    topic: str
    path: str
    size: int


def database_file(url: str | sa.URL) -> Path:
    """Return the file of an SQLite database; InvalidArgumentError for a database on a server."""
    try:
        parsed = sa.make_url(url)
    except exc.ArgumentError:
        # From None, because SQLAlchemy's own error quotes the whole URL.
        raise InvalidArgumentError(
            f"url must be a database URL such as sqlite:///factory.db, got {shown(url)!r}"
        ) from None
    if parsed.drivername.partition("+")[0] != "sqlite":
        raise InvalidArgumentError(
            f"url must be an SQLite database, got {shown(parsed)}. For a database server, run pg_dump or mariadb-dump,"
            " and then copy the folder of the ledger files. See docs/how-to/operation/back-up-and-restore.md"
        )
    return Path(str(parsed.database)).absolute()


def named_files(backend: Backend) -> list[Named]:
    """List the ledger files that the catalogue names now."""
    with backend.snapshot() as connection:
        return list(_named(connection))


def take_snapshot(backend: Backend, target: Path, report: Report) -> tuple[int, list[Named]]:
    """Copy the database into a new file; return the copy's moment, ns, and the ledger files that it names.

    Raises `UnavailableError` if the file cannot be written, or the database not be read.
    """
    with backend.snapshot() as connection:
        named = list(_named(connection))  # the first read fixes the snapshot of all later ones
        taken_at = backend.now(connection)
        try:
            _copy_pages(connection.connection.driver_connection, target, report)
            sync(target)
        except (sqlite3.Error, OSError) as error:
            raise UnavailableError(f"cannot copy {backend.name} into {target}: {error}") from error
    return taken_at, named


def _copy_pages(source: Any, target: Path, report: Report) -> None:
    page = source.execute("PRAGMA page_size").fetchone()[0]

    def tell(_status: int, remaining: int, pages: int) -> None:
        report("database", (pages - remaining) * page, pages * page)

    target.unlink(missing_ok=True)
    with closing(sqlite3.connect(target, isolation_level=None)) as copy:
        for statement in _WITHOUT_SYNC:  # it is used completely or not at all, so one sync at the end is enough
            copy.execute(statement)
        source.backup(copy, pages=_PAGES, progress=tell)


def _named(connection: sa.Connection) -> Iterator[Named]:
    for topic, path, size in connection.execute(_NAMED):
        yield Named(topic, path, size)
