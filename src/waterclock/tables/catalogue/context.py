"""The data of an open message table that every operation needs: database, options, SQL table and statements."""

from __future__ import annotations

from dataclasses import dataclass, field

import sqlalchemy as sa

from waterclock.database.backend import Backend
from waterclock.database.shared_compile_cache import alike
from waterclock.tables.databases.claiming_rows import ClaimCursor
from waterclock.tables.databases.inserting import DrawnIds
from waterclock.tables.databases.mariadb.tables import MariadbTables
from waterclock.tables.databases.postgresql.tables import PostgresqlTables
from waterclock.tables.databases.sqlite.tables import SqliteTables
from waterclock.tables.databases.table_dialect import TableDialect
from waterclock.tables.model.claims.claim import Reached
from waterclock.tables.model.claims.passed_by import Narrowing, PassedBy
from waterclock.tables.model.claims.turns import KeyTurns
from waterclock.tables.model.options import TableOptions
from waterclock.tables.model.purge_place import PurgePlace
from waterclock.tables.model.row_conditions import not_acked
from waterclock.tables.model.schema import PARTITIONED
from waterclock.tables.model.timing.cron import Ticks
from waterclock.tables.model.timing.lease_length import LeaseLength
from waterclock.tables.model.timing.sweeps import EndedRows, ExpiredPlace, Sweeps

_DIALECTS: dict[str, TableDialect] = {
    "sqlite": SqliteTables(),
    "postgresql": PostgresqlTables(),
    "mysql": MariadbTables(),
}


@dataclass(frozen=True, slots=True, eq=False)
class TableContext:
    """A message table, for its operations.

    Two contexts are equal if all their statements are equal, so that each statement is built once. They may belong to
    different databases, or to one table that was opened twice.
    """

    backend: Backend  # the database it is in
    # Its key and its name in the catalogue; the SQL table has the same name.
    table_id: int
    name: str
    options: TableOptions  # the options at the time when the table was opened
    rows: sa.Table  # its SQL table
    sql: TableDialect  # the database-specific statements
    revision: int  # the version of its row in the catalogue
    paused_until: int | None  # no message is sent before then, ns; None if it is not paused
    marks: ClaimCursor = field(default_factory=ClaimCursor)  # the cursor of its claims
    reached: Reached = field(default_factory=Reached)  # the cursor of routing
    turns: KeyTurns = field(default_factory=KeyTurns)  # the progress of routing in a table whose keys take turns
    sweeps: Sweeps = field(default_factory=Sweeps)  # the progress of checks for groups that contradict their messages
    ended_rows: EndedRows = field(default_factory=EndedRows)  # when to delete the rows of ended groups or keys
    expired_place: ExpiredPlace = field(default_factory=ExpiredPlace)  # from when on expired messages are searched
    purge_place: PurgePlace = field(default_factory=PurgePlace)  # the progress of purging
    # Messages and groups that claims skip; new messages of those groups are not routed.
    refused_seqs: PassedBy[int] = field(default_factory=PassedBy[int])
    refused_groups: PassedBy[str] = field(default_factory=PassedBy[str])
    # Consumers of this process that joined and must still get their share of the groups that others have.
    unbalanced: set[str] = field(default_factory=set[str])
    narrowing: Narrowing = field(default_factory=Narrowing)  # when a refused claim may be narrowed down again
    probing: Narrowing = field(default_factory=Narrowing)  # when skipped messages may be retried
    ticks: Ticks = field(default_factory=Ticks)  # when its schedules must be checked
    drawn_ids: DrawnIds = field(default_factory=DrawnIds)  # ids drawn ahead for messages that are put through it
    dead: TableContext | None = None  # its dead-letter table; None if it has none
    lease_length: LeaseLength = field(init=False)  # the length of leases by its options
    rows_have_bounds: bool = field(init=False)  # whether claims of messages without groups begin at bounds
    _facts: tuple[object, ...] = field(init=False)
    _hash: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lease_length", self.options.lease_length)
        options = self.options
        is_plain = options.groups is None and options.turns_by is None
        its_triggers_clock = self.backend.has_own_clock
        object.__setattr__(self, "rows_have_bounds", self.sql.begins_at_bounds and is_plain and its_triggers_clock)
        # Compared by identity: SQLAlchemy's objects have no other equality, and equal ones share one object.
        shared = id(self.rows), id(self.sql), id(self.backend.now_sql()), id(alike(self.backend.engine.dialect))
        object.__setattr__(self, "_facts", (*shared, self.table_id, self.options.to_json(), self.dead))
        object.__setattr__(self, "_hash", hash(self._facts))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, TableContext) and self._facts == other._facts)

    def __hash__(self) -> int:
        return self._hash

    def unacked(self, name: str = "seqs") -> sa.ColumnElement[bool]:
        """Select unacked messages by their seqs, bound as ``name``."""
        return self.sql.any_of(self.rows.c.seq, name) & not_acked(self.rows)

    def acked(self) -> sa.ColumnElement[bool]:
        """Select acked messages by seq and id, bound as ``seqs`` and ``ids``.

        By id, because a partition of acked messages has no index by seq.
        """
        these = self.sql.any_of(self.rows.c.seq, "seqs") & ~not_acked(self.rows)
        return these & self.sql.any_of(self.rows.c.id, "ids") if self.rows.info.get(PARTITIONED) else these


def table_dialect(backend: Backend) -> TableDialect:
    """Return the statements for a database."""
    return _DIALECTS[backend.dialect.name]
