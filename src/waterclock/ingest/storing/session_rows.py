"""The catalogue's rows of sessions: the owner of each, its filters on the broker, and its appended messages."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from waterclock.database.backend import Backend
from waterclock.database.schema.ingest_catalogue import ingest_retained, ingest_sessions
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import LeaseLostError
from waterclock.ingest.storing.taking import take_rows

_OWNER_BITS = 63

# Built once: building a statement takes longer than running it.
_MINE = (ingest_sessions.c.name == sa.bindparam("session"), ingest_sessions.c.owner == sa.bindparam("mine"))
_WRITE = (
    sa.update(ingest_sessions)
    .where(*_MINE)
    .values({name: sa.bindparam(f"new_{name}") for name in ("unacked", "dropped", "seen_at")})
)
_WRITE_FILTERS = sa.update(ingest_sessions).where(*_MINE).values(filters=sa.bindparam("new_filters"))
_TOUCH = sa.update(ingest_sessions).where(*_MINE).values(seen_at=sa.bindparam("new_seen_at"))
_READ_OWNER = sa.select(ingest_sessions.c.owner).where(ingest_sessions.c.name == sa.bindparam("session"))
_FORGET_RETAINED = sa.delete(ingest_retained).where(
    ingest_retained.c.session == sa.bindparam("of_session"), ingest_retained.c.topic_hash == sa.bindparam("of_topic")
)
_NOTE_RETAINED = sa.insert(ingest_retained)
_READ_RETAINED = sa.select(ingest_retained.c.topic_hash, ingest_retained.c.content_hash).where(
    ingest_retained.c.session == sa.bindparam("session")
)


class SessionTakenError(LeaseLostError):
    """Another process uses the session now; this one must neither append nor connect."""


class SessionState(NamedTuple):
    """The catalogue's row of a session."""

    filters: frozenset[str]  # the filters that the broker may have for it
    unacked: bytes  # `Evidence`, packed
    dropped: int | None  # messages that the broker had dropped by its last report; None: no report


class SilentSession(NamedTuple):
    """A session whose process has not written for a while."""

    name: str
    filters: frozenset[str]
    seen_at: int


@dataclass(frozen=True)
class SessionRow:
    """One session's row, for the process that took it."""

    backend: Backend
    name: str  # the session's name
    owner: int  # the random number of this process for the session

    @classmethod
    def take(cls, backend: Backend, name: str) -> tuple[SessionRow, SessionState]:
        """Take a session for this process; an earlier one is refused from now on."""
        owner = secrets.randbits(_OWNER_BITS)
        row = cls(backend, name, owner)

        def write_owner(connection: sa.Connection) -> SessionState:
            here = ingest_sessions.c.name == name
            found = connection.execute(sa.select(ingest_sessions).where(here).with_for_update()).one_or_none()
            now = backend.now(connection)
            if found is None:
                values = {"name": name, "owner": owner, "filters": "[]", "unacked": b"", "seen_at": now}
                connection.execute(sa.insert(ingest_sessions), values)
                return SessionState(frozenset(), b"", None)
            connection.execute(sa.update(ingest_sessions).where(here).values(owner=owner, seen_at=now))
            return SessionState(frozenset(json.loads(found.filters)), bytes(found.unacked), found.dropped)

        return row, take_rows(backend, write_owner)

    def write(self, connection: SqlConnection, unacked: bytes, dropped: int | None, now: int) -> None:
        """Write the state of the session, in the transaction of the append.

        Raises `SessionTakenError` if another process has taken the session.
        """
        values = {
            "session": self.name,
            "mine": self.owner,
            "new_unacked": unacked,
            "new_dropped": dropped,
            "new_seen_at": now,
        }
        if connection.execute(_WRITE, values).rowcount != 1:
            raise self.taken_over()

    def write_filters(self, filters: Sequence[str] | frozenset[str]) -> None:
        """Write which filters the broker may have for the session; SessionTakenError as of `write`."""
        values = {"session": self.name, "mine": self.owner, "new_filters": json.dumps(sorted(filters))}

        def write_if_owner(connection: sa.Connection) -> None:
            if connection.execute(_READ_OWNER, {"session": self.name}).scalar() != self.owner:
                raise self.taken_over()
            connection.execute(_WRITE_FILTERS, values)

        self.backend.transact(write_if_owner)

    def touch(self, now: int) -> None:
        """Note that the session is in use."""
        self.backend.transact(
            lambda connection: connection.execute(
                _TOUCH, {"session": self.name, "mine": self.owner, "new_seen_at": now}
            )
        )

    def check_owner(self) -> None:
        """Raise SessionTakenError if another process has taken the session."""
        with self.backend.snapshot() as connection:
            if connection.execute(_READ_OWNER, {"session": self.name}).scalar() != self.owner:
                raise self.taken_over()

    def read_retained(self) -> dict[int, int]:
        """Return the retained messages that were taken: hash of the content by hash of the topic."""
        with self.backend.snapshot() as connection:
            return {row[0]: row[1] for row in connection.execute(_READ_RETAINED, {"session": self.name})}

    def note_retained(self, connection: SqlConnection, taken: Mapping[int, int]) -> None:
        """Note retained messages that are taken, in the transaction of the append."""
        if taken:
            connection.execute(_FORGET_RETAINED, [{"of_session": self.name, "of_topic": topic} for topic in taken])
            rows = [
                {"session": self.name, "topic_hash": topic, "content_hash": content} for topic, content in taken.items()
            ]
            connection.execute(_NOTE_RETAINED, rows)

    def taken_over(self) -> SessionTakenError:
        """Build the error of a session that another process has taken."""
        return SessionTakenError(
            f"cannot use session {self.name!r}: another process has taken it over. Give each ingest its own client_id"
        )


def silent_sessions(backend: Backend, before: int) -> list[SilentSession]:
    """Return the sessions whose processes last wrote before a time, ns."""
    statement = sa.select(ingest_sessions).where(ingest_sessions.c.seen_at < before).order_by(ingest_sessions.c.name)
    with backend.snapshot() as connection:
        rows = connection.execute(statement).all()
    return [SilentSession(row.name, frozenset(json.loads(row.filters)), row.seen_at) for row in rows]
