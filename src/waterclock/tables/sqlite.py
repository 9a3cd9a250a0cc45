"""What message tables need of SQLite. Writers take turns there, so a transaction has the table to itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import DDL, CreateTable, DropTable

from waterclock.database.backend import Backend
from waterclock.database.table_catalogue import groups
from waterclock.tables.changes import SqliteChanges
from waterclock.tables.options import IdType
from waterclock.tables.schema import IdItem

_NOW = "((CAST(strftime('%s','now') AS INTEGER) * 1000 + CAST(substr(strftime('%f','now'), 4) AS INTEGER)) * 1000000)"
# An insert of ours names every column, so that the first trigger runs for plain SQL only. The second keeps a message
# that lost its time_next from being lost. The third tells the groups of changes that were made past us: ours always
# change the lease as well.
_TRIGGERS = {
    "insert": """
        CREATE TRIGGER %(trigger)s AFTER INSERT ON %(table)s
        WHEN NEW.id IS NULL OR NEW.time_scheduled IS NULL OR (NEW.time_next IS NULL AND NEW.time_acked IS NULL)
        BEGIN
            UPDATE %(table)s SET
                id = COALESCE(id, %(new_id)s),
                time_scheduled = COALESCE(time_scheduled, %(now)s),
                time_next = CASE WHEN time_acked IS NULL THEN COALESCE(time_next, time_scheduled, %(now)s) END
            WHERE seq = NEW.seq;
        END""",
    "time_next": """
        CREATE TRIGGER %(trigger)s AFTER UPDATE OF time_next, time_acked ON %(table)s
        WHEN NEW.time_next IS NULL AND NEW.time_acked IS NULL
        BEGIN
            UPDATE %(table)s SET time_next = %(now)s WHERE seq = NEW.seq;
        END""",
    "group": """
        CREATE TRIGGER %(trigger)s AFTER UPDATE OF time_next, time_acked, group_id, priority ON %(table)s
        WHEN NEW.routed = 1 AND OLD.routed = 1 AND NEW.lease IS OLD.lease
        BEGIN
            UPDATE %(table)s SET
                routed = 0,
                position = CASE WHEN NEW.group_id IS OLD.group_id AND OLD.time_acked IS NULL THEN position END
            WHERE seq = NEW.seq;
        END""",
}
_NEW_ID = {
    "bigint": "MAX(NEW.seq, COALESCE((SELECT MAX(id) FROM %(table)s), 0) + 1)",
    "text": "RAISE(ABORT, 'id: a table with text ids needs one')",
    "uuid": (
        "lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2)"
        " || '-8' || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))"
    ),
}


class _JsonList(sa.TypeDecorator[Any]):
    """A list as JSON text, UUIDs in it as texts."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str:
        del dialect  # there is one
        return json.dumps(list(value), default=str)


class SqliteTables:
    """SQLite's statements for message tables."""

    one_writer = True

    def id_items(self, name: str, id_type: IdType) -> Sequence[IdItem]:
        """Leave ids to the trigger, which sees the row's number."""
        del name, id_type
        return []

    def create(self, connection: sa.Connection, rows: sa.Table, id_type: IdType, *, grouped: bool) -> None:
        """Make the SQL table, its indexes and its triggers."""
        for column in ("time_scheduled", "time_created"):
            rows.c[column].server_default = sa.DefaultClause(sa.text(_NOW))
        connection.execute(CreateTable(rows))
        unacked, acked = rows.c.time_acked.is_(None), rows.c.time_acked.is_not(None)
        name = rows.name
        indexes = [
            sa.Index(f"{name}_next_idx", rows.c.priority.desc(), rows.c.time_next, sqlite_where=unacked),
            sa.Index(f"{name}_acked_idx", rows.c.time_acked, sqlite_where=acked),
        ]
        if grouped:
            indexes += [
                sa.Index(f"{name}_group_idx", rows.c.group_id, rows.c.position, sqlite_where=unacked),
                sa.Index(f"{name}_unrouted_idx", rows.c.seq, sqlite_where=rows.c.routed == 0),
            ]
        for index in indexes:
            index.create(connection)
        quote = connection.dialect.identifier_preparer.quote
        table = quote(name)
        for verb, statement in _TRIGGERS.items():
            if verb != "group" or grouped:
                context = {
                    "table": table,
                    "trigger": quote(f"{name}_{verb}"),
                    "now": _NOW,
                    "new_id": _NEW_ID[id_type] % {"table": table},
                }
                connection.execute(DDL(statement, context=context))

    def drop(self, connection: sa.Connection, rows: sa.Table) -> None:
        """Remove the SQL table; its triggers go with it."""
        connection.execute(DropTable(rows, if_exists=True))

    def reserve_ids(self, connection: sa.Connection, rows: sa.Table, count: int, above: int) -> Sequence[int]:
        """Give ``count`` ids greater than ``above`` and than any there was; the write lock keeps others from them."""
        # Changes nothing, but takes the write lock, which a transaction of the caller's may not have yet.
        connection.execute(sa.delete(rows).where(sa.false()))
        counter = sa.table("sqlite_sequence", sa.column("name"), sa.column("seq"))
        last = sa.select(counter.c.seq).where(counter.c.name == rows.name).scalar_subquery()
        greatest = sa.select(sa.func.max(rows.c.id)).scalar_subquery()
        first = connection.execute(
            sa.select(sa.func.max(sa.func.coalesce(last, 0), sa.func.coalesce(greatest, 0), above))
        ).scalar_one()
        return range(first + 1, first + 1 + count)

    def insert_new(
        self, connection: sa.Connection, rows: sa.Table, values: dict[str, Any], messages: list[dict[str, Any]]
    ) -> set[Any]:
        """Insert messages whose ids are new, and return those ids.

        With RETURNING, rows go many to a statement; one by one, the triggers would cost five times as much.
        """
        statement = sqlite.insert(rows).values(values).on_conflict_do_nothing(index_elements=[rows.c.id])
        return set(connection.scalars(statement.returning(rows.c.id), messages))

    def add_groups(self) -> sa.Insert:
        """Insert rows of groups that are not there yet."""
        return sqlite.insert(groups).on_conflict_do_nothing()

    def any_of(self, column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[bool]:
        """Say that ``column`` is in the JSON array bound as ``name``: one parameter, whatever the length."""
        listed = sa.func.json_each(sa.bindparam(name, type_=_JsonList())).table_valued("value")
        return column.in_(sa.select(listed.c.value))

    def take(
        self, connection: sa.Connection, rows: sa.Table, values: dict[str, Any], seqs: list[int]
    ) -> dict[int, int]:
        """Change rows, and return the time_next that each of them has now."""
        statement = sa.update(rows).where(self.any_of(rows.c.seq, "seqs")).values(values)
        changed = connection.execute(statement.returning(rows.c.seq, rows.c.time_next), {"seqs": seqs})
        return {row.seq: row.time_next for row in changed}

    def swing(self) -> sa.ColumnElement[float]:
        """Give a random number from -1 to 1, another one for each row."""
        return sa.func.random(type_=sa.Float) / float(2**63)

    def clamp(self, low: int, value: sa.ColumnElement[int], high: int) -> sa.ColumnElement[int]:
        """Bring a value between two bounds."""
        return sa.func.min(sa.func.max(value, low), high, type_=sa.BigInteger)

    def changes(self, backend: Backend) -> SqliteChanges:
        """Watch the data version."""
        return SqliteChanges(backend)
