"""The rows of files: the process that reads each, and its progress."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import NamedTuple

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
_TAKE = sa.update(ingest_files).where(*_KEY).values(owner=sa.bindparam("mine"))


class FilePosition(NamedTuple):
    """The progress of a file.

    Attributes
    ----------
    offset
        Bytes; of Parquet, all of them once its rows are appended.
    lines
        Lines, with the header; of Parquet, rows.
    fingerprint
        Fingerprint of the file at the offset.
    """

    offset: int = 0
    lines: int = 0
    fingerprint: bytes = b""


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
            return {key: self._take(connection, key, files[key], now) for key in sorted(files)}

        return take_rows(self._backend, take_all)

    def write(self, connection: SqlConnection, key: FileKey, path: str, position: FilePosition, now: int) -> None:
        """Write a file's progress, in the transaction of the append.

        Raises
        ------
        LeaseLostError
            If another process reads the file.
        """
        new = {"new_path": path, **{f"new_{name}": value for name, value in position._asdict().items()}}
        values = {**self._key(key), **new, "new_seen_at": now, "mine": self._owner}
        if connection.execute(_WRITE, values).rowcount != 1:
            raise LeaseLostError(f"cannot append {path}: another process ingests it. Stop one of them")

    def _take(self, connection: sa.Connection, key: FileKey, path: str, now: int) -> FilePosition:
        found = connection.execute(_READ, self._key(key)).one_or_none()
        if found is None:
            position = FilePosition()
            identity = {"topic_id": self._topic_id, **key._asdict(), "owner": self._owner}
            row = {**identity, **position._asdict(), "path": path, "seen_at": now}
            connection.execute(sa.insert(ingest_files), row)
            return position
        connection.execute(_TAKE, {**self._key(key), "mine": self._owner})
        return FilePosition(found.offset, found.lines, bytes(found.fingerprint))

    def _key(self, key: FileKey) -> dict[str, int]:
        return {"of_topic_id": self._topic_id, "of_device": key.device, "of_inode": key.inode}
