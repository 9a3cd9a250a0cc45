"""The catalogue's rows of ingested files: the process that reads each file, and how far it has read."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock.database.backend import Backend
from waterclock.database.schema.ingest_catalogue import ingest_files
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import LeaseLostError
from waterclock.ingest.local_files.fingerprint import FileKey
from waterclock.ingest.storing.taking import take_rows

_OWNER_BITS = 63

# Built once: building a statement takes longer than running it.
_KEY = tuple(ingest_files.c[name] == sa.bindparam(f"of_{name}") for name in ("topic_id", "device", "inode"))
_READ = sa.select(ingest_files).where(*_KEY).with_for_update()
_NEW = ("path", "offset", "lines", "fingerprint", "seen_at")
_WRITE = (
    sa.update(ingest_files)
    .where(*_KEY, ingest_files.c.owner == sa.bindparam("mine"))
    .values({name: sa.bindparam(f"new_{name}") for name in _NEW})
)
_FIND_MOVED = (
    sa.select(ingest_files)
    .where(
        ingest_files.c.topic_id == sa.bindparam("of_topic_id"),
        ingest_files.c.path.in_(sa.bindparam("paths", expanding=True)),
    )
    .order_by(ingest_files.c.seen_at)
)
_PATHS_AT_ONCE = 500
_TAKE = sa.update(ingest_files).where(*_KEY).values(owner=sa.bindparam("mine"))


class FilePosition(NamedTuple):
    """The progress of a file."""

    offset: int = 0  # bytes; of Parquet, all of them once its rows are appended
    lines: int = 0  # lines, with the header; of Parquet, rows
    fingerprint: bytes = b""  # fingerprint of the file at the offset


class FileRows:
    """The rows of one topic, as this process writes them.

    Parameters
    ----------
    backend
        The database.
    topic_id
        The topic that takes the messages.
    """

    def __init__(self, backend: Backend, topic_id: int) -> None:
        self._backend = backend
        self._topic_id = topic_id
        self._owner = secrets.randbits(_OWNER_BITS)

    def take(self, files: Mapping[FileKey, str]) -> dict[FileKey, FilePosition]:
        """Take files for this process, and return the progress of each; an earlier process is refused from now on.

        Parameters
        ----------
        files
            The path of each.
        """

        def take_all(connection: sa.Connection) -> dict[FileKey, FilePosition]:
            now = self._backend.now(connection)
            known = {key: found for key in sorted(files) if (found := self._take_known(connection, key)) is not None}
            new = {key: _as_text(path) for key, path in files.items() if key not in known}
            moved = self._find_moved(connection, new)
            for key, path in sorted(new.items()):
                known[key] = moved.get((key.inode, path), FilePosition())
                identity = {"topic_id": self._topic_id, **key._asdict(), "owner": self._owner}
                row = {**identity, **known[key]._asdict(), "path": path, "seen_at": now}
                connection.execute(sa.insert(ingest_files), row)
            return known

        return take_rows(self._backend, take_all)

    def write(self, connection: SqlConnection, key: FileKey, path: str, position: FilePosition, now: int) -> None:
        """Write a file's progress, in the transaction of the append.

        Raises `LeaseLostError` if another process reads the file.
        """
        new = {"new_path": _as_text(path), **{f"new_{name}": value for name, value in position._asdict().items()}}
        values = {**self._key(key), **new, "new_seen_at": now, "mine": self._owner}
        if connection.execute(_WRITE, values).rowcount != 1:
            raise LeaseLostError(
                f"cannot append {path}: another process is ingesting this file. Stop one of the processes"
            )

    def _take_known(self, connection: sa.Connection, key: FileKey) -> FilePosition | None:
        found = connection.execute(_READ, self._key(key)).one_or_none()
        if found is None:
            return None
        connection.execute(_TAKE, {**self._key(key), "mine": self._owner})
        return _position(found)

    def _find_moved(self, connection: sa.Connection, new: Mapping[FileKey, str]) -> dict[tuple[int, str], FilePosition]:
        """Find the progress of files of these paths, by inode and path.

        The device of a file system may have another number after it was mounted again, as of a container's volume. Its
        file continues if the fingerprint matches.
        """
        paths, found = sorted(set(new.values())), dict[tuple[int, str], FilePosition]()
        for first in range(0, len(paths), _PATHS_AT_ONCE):
            values = {"of_topic_id": self._topic_id, "paths": paths[first : first + _PATHS_AT_ONCE]}
            for row in connection.execute(_FIND_MOVED, values):
                found[row.inode, row.path] = _position(row)
        return found

    def _key(self, key: FileKey) -> dict[str, int]:
        return {"of_topic_id": self._topic_id, "of_device": key.device, "of_inode": key.inode}


def _position(row: sa.Row[Any]) -> FilePosition:
    return FilePosition(row.offset, row.lines, bytes(row.fingerprint))


def _as_text(path: str) -> str:
    """Return a path as text, in which bytes of its name that are not UTF-8 are escaped."""
    return path.encode(errors="backslashreplace").decode()
