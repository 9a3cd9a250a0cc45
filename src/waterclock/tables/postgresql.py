"""What message tables need of PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import DDL, CreateTable, DropTable

from waterclock.database.backend import Backend
from waterclock.database.table_catalogue import groups
from waterclock.tables.changes import Changes, Polling
from waterclock.tables.options import IdType
from waterclock.tables.schema import IdItem

_NOW = "CAST(EXTRACT(epoch FROM statement_timestamp()) * 1000000000 AS BIGINT)"
# The conditions keep our own statements from calling the functions: they name every column, and change the lease.
_TRIGGERS = (
    """
    CREATE FUNCTION %(due)s() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        NEW.time_scheduled := COALESCE(NEW.time_scheduled, %(now)s);
        IF NEW.time_acked IS NULL THEN
            NEW.time_next := COALESCE(
                NEW.time_next, CASE WHEN TG_OP = 'INSERT' THEN NEW.time_scheduled ELSE %(now)s END);
        END IF;
        RETURN NEW;
    END $$""",
    """
    CREATE TRIGGER %(due)s BEFORE INSERT OR UPDATE OF time_next, time_acked ON %(table)s
    FOR EACH ROW WHEN (NEW.time_scheduled IS NULL OR (NEW.time_next IS NULL AND NEW.time_acked IS NULL))
    EXECUTE FUNCTION %(due)s()""",
)
_GROUP_TRIGGERS = (
    """
    CREATE FUNCTION %(moved)s() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        NEW.routed := 0;
        IF NEW.group_id IS DISTINCT FROM OLD.group_id OR OLD.time_acked IS NOT NULL THEN
            NEW.position := NULL;
        END IF;
        RETURN NEW;
    END $$""",
    """
    CREATE TRIGGER %(moved)s BEFORE UPDATE OF time_next, time_acked, group_id, priority ON %(table)s
    FOR EACH ROW WHEN (NEW.routed = 1 AND OLD.routed = 1 AND NEW.lease IS NOT DISTINCT FROM OLD.lease)
    EXECUTE FUNCTION %(moved)s()""",
)


class PostgresqlTables:
    """PostgreSQL's statements for message tables."""

    one_writer = False

    def id_items(self, name: str, id_type: IdType) -> Sequence[IdItem]:
        """Let an identity number the ids, and draw UUIDs at random."""
        del name  # only databases without identities need it
        items: dict[IdType, list[IdItem]] = {
            "bigint": [sa.Identity()],
            "uuid": [sa.DefaultClause(sa.func.gen_random_uuid())],
            "text": [],
        }
        return items[id_type]

    def create(self, connection: sa.Connection, rows: sa.Table, id_type: IdType, *, grouped: bool) -> None:
        """Make the SQL table, its indexes and its triggers."""
        del id_type  # the columns say it
        for column in ("time_scheduled", "time_created"):
            rows.c[column].server_default = sa.DefaultClause(sa.text(_NOW))
        connection.execute(CreateTable(rows))
        unacked, acked = rows.c.time_acked.is_(None), rows.c.time_acked.is_not(None)
        name = rows.name
        indexes = [
            # With seq, else messages that were put together, and so are due together, were sorted at each claim.
            sa.Index(
                f"{name}_next_idx", rows.c.priority.desc(), rows.c.time_next, rows.c.seq, postgresql_where=unacked
            ),
            sa.Index(f"{name}_acked_idx", rows.c.time_acked, postgresql_where=acked),
        ]
        if grouped:
            indexes += [
                sa.Index(f"{name}_group_idx", rows.c.group_id, rows.c.position, postgresql_where=unacked),
                sa.Index(f"{name}_unrouted_idx", rows.c.seq, postgresql_where=rows.c.routed == 0),
            ]
        for index in indexes:
            index.create(connection)
        quote = connection.dialect.identifier_preparer.quote
        context = {
            "table": quote(name),
            "due": quote(f"{name}_due"),
            "moved": quote(f"{name}_moved"),
            "now": _NOW,
        }
        for statement in (*_TRIGGERS, *(_GROUP_TRIGGERS if grouped else ())):
            connection.execute(DDL(statement, context=context))

    def drop(self, connection: sa.Connection, rows: sa.Table) -> None:
        """Remove the SQL table and the functions of its triggers."""
        connection.execute(DropTable(rows, if_exists=True))
        quote = connection.dialect.identifier_preparer.quote
        for verb in ("due", "moved"):
            context = {"function": quote(f"{rows.name}_{verb}")}
            connection.execute(DDL("DROP FUNCTION IF EXISTS %(function)s()", context=context))

    def reserve_ids(self, connection: sa.Connection, rows: sa.Table, count: int, above: int) -> Sequence[int]:
        """Draw ids from the table's sequence, which is brought up to the ids that were given by hand where it is not.

        A row that somebody inserts meanwhile with a chosen id can still be in the way; inserting notices that.
        """
        name = sa.func.pg_get_serial_sequence(connection.dialect.identifier_preparer.quote(rows.name), "id")
        drawn = sa.select(sa.func.nextval(name)).select_from(sa.func.generate_series(1, sa.bindparam("count")).alias())
        ids = list(connection.scalars(drawn, {"count": count}))
        greatest = connection.execute(sa.select(sa.func.max(rows.c.id))).scalar()
        taken = max(above, greatest or 0)
        if ids[0] <= taken:
            connection.execute(sa.select(sa.func.setval(name, taken)))
            ids = list(connection.scalars(drawn, {"count": count}))
        return ids

    def insert_new(
        self, connection: sa.Connection, rows: sa.Table, values: dict[str, Any], messages: list[dict[str, Any]]
    ) -> set[Any]:
        """Insert messages whose ids are new, and return those ids."""
        statement = postgresql.insert(rows).values(values).on_conflict_do_nothing(index_elements=[rows.c.id])
        return set(connection.scalars(statement.returning(rows.c.id), messages))

    def add_groups(self) -> sa.Insert:
        """Insert rows of groups that are not there yet."""
        return postgresql.insert(groups).on_conflict_do_nothing()

    def any_of(self, column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[bool]:
        """Say that ``column`` is in the array bound as ``name``: one parameter, whatever the length."""
        return column == sa.any_(sa.bindparam(name, type_=sa.ARRAY(column.type)))

    def take(
        self, connection: sa.Connection, rows: sa.Table, values: dict[str, Any], seqs: list[int]
    ) -> dict[int, int]:
        """Change rows, and return the time_next that each of them has now."""
        statement = sa.update(rows).where(self.any_of(rows.c.seq, "seqs")).values(values)
        changed = connection.execute(statement.returning(rows.c.seq, rows.c.time_next), {"seqs": seqs})
        return {row.seq: row.time_next for row in changed}

    def swing(self) -> sa.ColumnElement[float]:
        """Give a random number from -1 to 1, another one for each row."""
        return 2 * sa.func.random(type_=sa.Float) - 1

    def clamp(self, low: int, value: sa.ColumnElement[int], high: int) -> sa.ColumnElement[int]:
        """Bring a value between two bounds."""
        return sa.func.least(sa.func.greatest(value, low), high, type_=sa.BigInteger)

    def changes(self, backend: Backend) -> Changes:
        """Look at intervals."""
        del backend
        return Polling()
