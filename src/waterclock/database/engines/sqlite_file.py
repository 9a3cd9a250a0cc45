"""Opens an SQLite file, even if the file or its folder is read-only, or the URL asks for read-only access.

A database with a write-ahead log needs two more files in its folder. The first reader creates these files. If they are
missing and the folder is read-only, SQLite opens the database only as ``immutable``. This module then reopens the
database as soon as the file, or a log next to it, changes.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import sqlalchemy as sa
from sqlalchemy import event, exc

_URI = "file:"
_SEEN = "waterclock_file_as_opened"


def file_of(url: sa.URL) -> Path:
    """Return the file of a database, also from a URI (``sqlite:///file:x.db?mode=ro&uri=true``)."""
    name = str(url.database)
    return Path(unquote(name.removeprefix(_URI)) if name.startswith(_URI) else name)


def open_also_read_only(engine: sa.Engine) -> None:
    """Enable an engine to open databases in read-only folders."""
    event.listen(engine, "do_connect", _open)
    event.listen(engine, "checkout", _look)


def _open(dialect: sa.Dialect, record: Any, arguments: Any, options: Any) -> Any:
    connection: Any = dialect.connect(*arguments, **options)
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_DIRECTORY:
            return connection  # busy, or no database: the first statement reports it
        path = Path(connection.execute("PRAGMA database_list").fetchone()[2])
        connection.close()
        if log_of(path).exists():
            raise  # the log holds data that the file does not have yet
        record.info[_SEEN] = (path, _state(path))
        return dialect.connect(f"{_URI}{quote(str(path))}?mode=ro&immutable=1", **{**options, "uri": True})
    record.info.pop(_SEEN, None)
    return connection


def _look(_connection: Any, record: Any, _proxy: Any) -> None:
    seen = record.info.get(_SEEN)
    if seen is not None and (seen[1] != _state(seen[0]) or log_of(seen[0]).exists()):
        raise exc.DisconnectionError(f"{seen[0]} has changed")  # the pool then opens it again


def _state(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def log_of(path: Path) -> Path:
    """Return the file of the write-ahead log."""
    return path.with_name(f"{path.name}-wal")
