"""What message tables need of MariaDB. MySQL itself lacks sequences and RETURNING, and is not supported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import DDL, CreateTable, DropSequence, DropTable

from waterclock.database.backend import Backend
from waterclock.database.table_catalogue import groups
from waterclock.tables.changes import Changes, Polling
from waterclock.tables.options import IdType
from waterclock.tables.schema import IdItem

_NOW = "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED) * 1000"
_TRIGGERS = (
    """
    CREATE TRIGGER %(due)s BEFORE INSERT ON %(table)s FOR EACH ROW
    BEGIN
        SET NEW.time_scheduled = COALESCE(NEW.time_scheduled, %(now)s);
        IF NEW.time_acked IS NULL THEN
            SET NEW.time_next = COALESCE(NEW.time_next, NEW.time_scheduled);
        END IF;
    END""",
    """
    CREATE TRIGGER %(kept)s BEFORE UPDATE ON %(table)s FOR EACH ROW
    BEGIN
        IF NEW.time_acked IS NULL THEN
            SET NEW.time_next = COALESCE(NEW.time_next, %(now)s);
        END IF;
    END""",
)
# Ours always change the lease where they change what matters to a group.
_GROUP_TRIGGER = """
    CREATE TRIGGER %(moved)s BEFORE UPDATE ON %(table)s FOR EACH ROW
    BEGIN
        IF NEW.routed = 1 AND OLD.routed = 1 AND NEW.lease <=> OLD.lease AND NOT (
            NEW.time_next <=> OLD.time_next AND NEW.time_acked <=> OLD.time_acked
            AND NEW.group_id <=> OLD.group_id AND NEW.priority <=> OLD.priority
        ) THEN
            SET NEW.routed = 0;
            IF NOT NEW.group_id <=> OLD.group_id OR OLD.time_acked IS NOT NULL THEN
                SET NEW.position = NULL;
            END IF;
        END IF;
    END"""


class MysqlTables:
    """MariaDB's statements for message tables."""

    one_writer = False

    def id_items(self, name: str, id_type: IdType) -> Sequence[IdItem]:
        """Let a sequence number the ids, because a table has one AUTO_INCREMENT only, and draw UUIDs."""
        items: dict[IdType, list[IdItem]] = {
            "bigint": [sa.DefaultClause(sa.Sequence(f"{name}_id_seq").next_value())],
            "uuid": [sa.DefaultClause(sa.text("UUID()"))],
            "text": [],
        }
        return items[id_type]

    def create(self, connection: sa.Connection, rows: sa.Table, id_type: IdType, *, grouped: bool) -> None:
        """Make the SQL table, its indexes and its triggers."""
        quote = connection.dialect.identifier_preparer.quote
        name = rows.name
        for column in ("time_scheduled", "time_created"):
            rows.c[column].server_default = sa.DefaultClause(sa.text(f"({_NOW})"))
        if id_type == "bigint":
            sa.Sequence(f"{name}_id_seq").create(connection)
        connection.execute(CreateTable(rows))
        indexes = [sa.Index(f"{name}_next_idx", rows.c.time_acked, rows.c.priority, rows.c.time_next)]
        if grouped:
            indexes += [
                sa.Index(f"{name}_group_idx", rows.c.group_id, rows.c.time_acked, rows.c.position),
                sa.Index(f"{name}_unrouted_idx", rows.c.routed, rows.c.seq),
            ]
        for index in indexes:
            index.create(connection)
        triggers = {verb: quote(f"{name}_{verb}") for verb in ("due", "kept", "moved")}
        for statement in (*_TRIGGERS, *([_GROUP_TRIGGER] if grouped else [])):
            connection.execute(DDL(statement, context={"table": quote(name), "now": _NOW, **triggers}))

    def drop(self, connection: sa.Connection, rows: sa.Table) -> None:
        """Remove the SQL table and the sequence of its ids; its triggers go with it."""
        connection.execute(DropTable(rows, if_exists=True))
        connection.execute(DropSequence(sa.Sequence(f"{rows.name}_id_seq"), if_exists=True))

    def reserve_ids(self, connection: sa.Connection, rows: sa.Table, count: int, above: int) -> Sequence[int]:
        """Draw ids from the table's sequence, which is first brought up to the ids that were given by hand."""
        sequence = sa.Sequence(f"{rows.name}_id_seq")
        numbers = sa.table(f"seq_1_to_{count:d}")  # a table that MariaDB makes up
        drawn = sa.select(sequence.next_value()).select_from(numbers)
        ids = list(connection.scalars(drawn))
        greatest = connection.execute(sa.select(sa.func.max(rows.c.id))).scalar()
        taken = max(above, greatest or 0)
        if ids[0] <= taken:
            name = sa.literal_column(connection.dialect.identifier_preparer.quote(sequence.name))
            connection.execute(sa.select(sa.func.setval(name, taken)))
            ids = list(connection.scalars(drawn))
        return ids

    def insert_new(
        self, connection: sa.Connection, rows: sa.Table, values: dict[str, Any], messages: list[dict[str, Any]]
    ) -> set[Any]:
        """Insert messages whose ids are new, and return those ids."""
        ids = {message["id"] for message in messages}
        statement = sa.select(rows.c.id).where(self.any_of(rows.c.id, "ids"))
        known = set(connection.scalars(statement, {"ids": list(ids)}))
        insert = mysql.insert(rows).values(values)
        connection.execute(insert.on_duplicate_key_update(id=rows.c.id), messages)
        return ids - known

    def add_groups(self) -> sa.Insert:
        """Insert rows of groups that are not there yet."""
        return mysql.insert(groups).on_duplicate_key_update(table_id=groups.c.table_id)

    def any_of(self, column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[bool]:
        """Say that ``column`` is in the list bound as ``name``."""
        return column.in_(sa.bindparam(name, type_=column.type, expanding=True))

    def take(
        self, connection: sa.Connection, rows: sa.Table, values: dict[str, Any], seqs: list[int]
    ) -> dict[int, int]:
        """Change rows, and return the time_next that each of them has now."""
        these = self.any_of(rows.c.seq, "seqs")
        connection.execute(sa.update(rows).where(these).values(values), {"seqs": seqs})
        changed = connection.execute(sa.select(rows.c.seq, rows.c.time_next).where(these), {"seqs": seqs})
        return {row.seq: row.time_next for row in changed}

    def swing(self) -> sa.ColumnElement[float]:
        """Give a random number from -1 to 1, another one for each row."""
        return 2 * sa.func.rand(type_=sa.Float) - 1

    def clamp(self, low: int, value: sa.ColumnElement[int], high: int) -> sa.ColumnElement[int]:
        """Bring a value between two bounds."""
        return sa.func.least(sa.func.greatest(value, low), high, type_=sa.BigInteger)

    def changes(self, backend: Backend) -> Changes:
        """Look at intervals."""
        del backend
        return Polling()
