"""A topic's storage: its row in the catalogue, and the store of its sealed ledgers' files."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from waterclock._support import moments
from waterclock.database.backend import Backend
from waterclock.database.schema.topic_catalogue import stores, topics
from waterclock.errors import NotFoundError
from waterclock.message import Position
from waterclock.time import Time, to_time
from waterclock.topics.model.clock_skew_limit import LOOK_EVERY, AheadLimit, KnownLimit
from waterclock.topics.model.counter import Counter
from waterclock.topics.store.ledger_files import LedgerFiles, StoreError

# Built once: building a statement takes longer than running it.
_ROW = sa.select(topics).where(topics.c.id == sa.bindparam("topic"))
_STORE = (
    sa.select(stores.c.identity, stores.c.root)
    .join_from(topics, stores, topics.c.store_id == stores.c.id)
    .where(topics.c.id == sa.bindparam("topic"))
)


@dataclass(frozen=True)
class Storage:
    """One topic's storage. Every part of the package works on it."""

    topic_id: int  # key of the topic in the catalogue
    name: str
    backend: Backend
    files: LedgerFiles  # the sealed ledgers' folder
    known_limit: KnownLimit = field(default_factory=KnownLimit, repr=False, compare=False)
    """The limit that `ahead_limit` read last."""

    def lock(self, connection: sa.Connection) -> tuple[sa.RowMapping, int]:
        """Lock the topic's row for this transaction, so that writers take turns; return it, and the time, ns.

        Raises `NotFoundError` if the topic was removed meanwhile.
        """
        row = connection.execute(self._locking).mappings().one_or_none()
        present = self.present(row)
        return present, present["now"]

    def row(self, connection: sa.Connection) -> sa.RowMapping:
        """Read the topic's row; NotFoundError if the topic was removed meanwhile."""
        row = connection.execute(_ROW, {"topic": self.topic_id}).mappings().one_or_none()
        return self.present(row)

    def ahead_limit(self) -> AheadLimit | None:
        """Return how far ahead of the clock messages may be, at most `LOOK_EVERY` seconds old; None: any distance."""
        known = self.known_limit
        if moments.monotonic() - known.read_at >= LOOK_EVERY:
            with self.backend.snapshot() as connection:
                known.limit = AheadLimit.of_row(self.row(connection))
            known.read_at = moments.monotonic()
        return known.limit

    @cached_property
    def _locking(self) -> sa.Select[*tuple[Any, ...]]:
        statement = sa.select(topics, self.backend.now_sql().label("now")).where(topics.c.id == self.topic_id)
        # key_share: PostgreSQL then lets readers of the row's key pass, and no statement changes the key.
        return statement.with_for_update(key_share=True)

    def refuse_moved(self, connection: sa.Connection) -> None:
        """Check that the topic's files are still in this store; StoreError if it was relocated meanwhile."""
        if self.files.identity is None:
            return
        row = connection.execute(_STORE, {"topic": self.topic_id}).one_or_none()
        if row is not None and row.identity != self.files.identity:
            raise StoreError(
                f"topic {self.name!r} was relocated from {self.files.place} to {row.root}. Open the topic again"
            )

    @property
    def origin(self) -> str:
        """The number that sets the topic's files apart from those of topics of its name in other databases."""
        with self.backend.snapshot() as connection:
            return self.row(connection)["origin"]

    def head(self) -> Position:
        """Read the position of the next message to be written."""
        with self.backend.snapshot() as connection:
            return Counter.of_row(self.row(connection)).position

    def time(self, time: Time, name: str) -> int:
        """Parse a point in time, ns, including one written as how long ago."""
        # Only a string can be relative to now, and only then the clock is read.
        now = self.backend.now() if isinstance(time, str) else None
        return to_time(time, name, now=now)

    def present(self, row: sa.RowMapping | None) -> sa.RowMapping:
        """Raise NotFoundError if the topic's row is missing."""
        if row is None:
            raise NotFoundError(f"topic {self.name!r} was removed")
        return row
