"""Partitions a message table on PostgreSQL, at two levels.

The first level separates acked messages from unacked messages, whose ids a unique index checks. The second level
divides acked messages by day. Its default partition is usually empty, so adding a day scans no rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.schema import DDL, CreateSequence, CreateTable

from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.databases.indexes import index_expiring
from waterclock.tables.databases.inserting import NewRows
from waterclock.tables.databases.postgresql.inserting import UNIQUE_VIOLATION
from waterclock.tables.model.claims.epochs import times_sent_sql
from waterclock.tables.model.days import DAY, Gone
from waterclock.tables.model.options import IdType

_ONCE = (
    # It runs after the insert, which has then waited for a concurrent ack of the same id. It runs once per statement
    # and looks each row up: a join might scan all acked messages.
    """
    CREATE FUNCTION %(once)s() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        again text;
    BEGIN
        SELECT put.id INTO again FROM waterclock_put AS put
        WHERE put.time_acked IS NULL AND (SELECT true FROM %(acked)s AS acked WHERE acked.id = put.id LIMIT 1)
        LIMIT 1;
        IF FOUND THEN
            RAISE unique_violation USING MESSAGE = format('message %%s was acked and is not yet purged', again);
        END IF;
        RETURN NULL;
    END $$""",
    """
    CREATE TRIGGER %(once)s AFTER INSERT ON %(table)s REFERENCING NEW TABLE AS waterclock_put
    FOR EACH STATEMENT EXECUTE FUNCTION %(once)s()""",
)

_MOVE = """
    WITH moved AS (DELETE FROM %(undated)s WHERE time_acked >= %(from)s AND time_acked < %(to)s RETURNING *)
    INSERT INTO %(day)s SELECT * FROM moved"""


class PostgresqlDays:
    """Partitions by list and range.

    ``now`` is the current time, as a default of columns. ``index`` and ``guard`` create the indexes of a table, and its
    triggers.
    """

    def __init__(self, now: str, index: Callable[..., None], guard: Callable[..., None]) -> None:
        self._now = now
        self._index = index
        self._guard = guard

    def create(self, connection: sa.Connection, rows: sa.Table, id_type: IdType, *, grouped: bool, free: bool) -> None:
        """Create the SQL table with its partitions, except those of days."""
        parts = _parts(connection, rows.name)
        # Before PostgreSQL 17, partitioned tables had no identity columns, and no value is unique across partitions.
        defaults: dict[str, Any] = {"time_scheduled": sa.text(self._now), "time_created": sa.text(self._now)}
        numbered = ("seq", "id") if id_type == "bigint" else ("seq",)
        for column in numbered:
            sequence = sa.Sequence(f"{rows.name}_{column}_seq", data_type=sa.BigInteger)
            connection.execute(CreateSequence(sequence, if_not_exists=True))
            defaults[column] = sequence.next_value()
        if id_type == "uuid":
            defaults["id"] = sa.func.gen_random_uuid()
        columns = [
            sa.Column(
                column.name,
                column.type,
                *_checks(column.constraints),
                nullable=column.nullable and column.name not in ("id", "seq"),
                server_default=defaults.get(column.name, column.server_default),
            )
            for column in rows.columns
        ]
        items = *columns, *_checks(rows.constraints - {one for column in rows.c for one in column.constraints})
        table = sa.Table(rows.name, sa.MetaData(), *items, postgresql_partition_by="LIST ((time_acked IS NULL))")
        connection.execute(CreateTable(table))
        for column in numbered:
            names = {"sequence": _quoted(connection, f"{rows.name}_{column}_seq"), "column": column, **parts}
            connection.execute(DDL("ALTER SEQUENCE %(sequence)s OWNED BY %(table)s.%(column)s", context=names))
        for statement in (
            "CREATE TABLE %(open)s PARTITION OF %(table)s FOR VALUES IN (true)",
            "CREATE TABLE %(acked)s PARTITION OF %(table)s FOR VALUES IN (false) PARTITION BY RANGE (time_acked)",
            "CREATE TABLE %(undated)s PARTITION OF %(acked)s DEFAULT",
            # Replica identity: these have no key, so a publication of all tables would make the server refuse each
            # DELETE.
            "ALTER TABLE %(undated)s REPLICA IDENTITY FULL",
            "ALTER TABLE %(open)s ADD PRIMARY KEY (seq), ADD UNIQUE (id)",
            "CREATE INDEX ON %(acked)s (id)",
            *(["CREATE INDEX ON %(acked)s (seq) WHERE routed <> 1"] if grouped else []),
            *_ONCE,
        ):
            connection.execute(DDL(statement, context=parts))
        unacked = rows.to_metadata(sa.MetaData(), name=f"{rows.name}_open")
        self._index(connection, unacked, None, grouped=grouped, free=free)
        index_expiring(connection, rows)
        self._guard(connection, rows, grouped=grouped)

    def known(self, connection: sa.Connection, name: str) -> list[int]:
        """Return the days that have partitions."""
        names = connection.scalars(
            sa.text("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = to_regclass(:acked)"),
            {"acked": _parts(connection, name)["acked"]},
        )
        ends = (one.strip('"').rpartition("_")[2] for one in names)
        return [int(end) for end in ends if end.isdigit()]

    def add(self, connection: sa.Connection, name: str, days: Sequence[int]) -> None:
        """Create partitions for days, and move their rows from the default partition.

        Attaching them does not block others.
        """
        parts = _parts(connection, name)
        _hurry(connection)
        connection.execute(DDL("LOCK TABLE %(undated)s IN ACCESS EXCLUSIVE MODE", context=parts))
        for day in days:
            context = {**parts, "day": _quoted(connection, f"{name}_{day}"), "from": day * DAY, "to": (day + 1) * DAY}
            connection.execute(DDL("CREATE TABLE %(day)s (LIKE %(acked)s INCLUDING ALL)", context=context))
            connection.execute(DDL("ALTER TABLE %(day)s REPLICA IDENTITY FULL", context=context))
            connection.execute(DDL(_MOVE, context=context))
            attach = "ALTER TABLE %(acked)s ATTACH PARTITION %(day)s FOR VALUES FROM (%(from)s) TO (%(to)s)"
            connection.execute(DDL(attach, context=context))

    def drop_day(self, connection: sa.Connection, name: str, day: int) -> Gone:
        """Drop a day's partition, and return its totals."""
        part = sa.table(f"{name}_{day}", sa.column("epoch", sa.BigInteger))
        counted = sa.select(sa.func.count(), sa.func.coalesce(times_sent_sql(part.c.epoch), 0)).select_from(part)
        messages, sent = connection.execute(counted).one()
        _hurry(connection)
        connection.execute(DDL("DROP TABLE %(day)s", context={"day": _quoted(connection, part.name)}))
        return Gone(messages, int(sent))

    def undated(self, rows: sa.Table) -> sa.Select[Any, Any, Any]:
        """Select seq, time_acked and epoch of the acked messages whose day has no partition."""
        columns = (sa.column(name, sa.BigInteger) for name in ("seq", "time_acked", "epoch"))
        part = sa.table(f"{rows.name}_undated", *columns)
        return sa.select(part.c.seq, part.c.time_acked, part.c.epoch)


def insert_unacked(
    connection: SqlConnection, rows: sa.Table, new: NewRows, insert: Callable[[NewRows], set[Any]]
) -> set[Any]:
    """Insert messages without those whose ids exist, including acked ones."""
    while new.count:
        try:
            with _part_of(connection):
                return insert(new)
        except exc.IntegrityError as error:
            if getattr(error.orig, "sqlstate", None) != UNIQUE_VIOLATION:
                raise
            ids = sa.bindparam("ids", type_=sa.ARRAY(rows.c.id.type))
            acked = sa.select(rows.c.id).where(rows.c.id == sa.any_(ids), rows.c.time_acked.is_not(None))
            known = set(connection.scalars(acked, {"ids": new.columns["id"]}))
            if not known:  # another unique column has the value
                raise
            kept = [index for index, message_id in enumerate(new.columns["id"]) if message_id not in known]
            new = replace(
                new, columns={name: [values[index] for index in kept] for name, values in new.columns.items()}
            )
    return set()


def _part_of(connection: SqlConnection) -> AbstractContextManager[object]:
    # A failed statement aborts a transaction, unless a savepoint undoes it.
    return connection.begin_nested() if isinstance(connection, sa.Connection) else nullcontext()


def _parts(connection: sa.Connection, name: str) -> dict[str, str]:
    parts = {part: _quoted(connection, f"{name}_{part}") for part in ("open", "acked", "undated", "once")}
    return {"table": _quoted(connection, name), **parts}


def _checks(constraints: Iterable[sa.Constraint]) -> list[sa.CheckConstraint]:
    found = (one for one in constraints if isinstance(one, sa.CheckConstraint))
    return [sa.CheckConstraint(one.sqltext, one.name) for one in found]


def _quoted(connection: sa.Connection, name: str) -> str:
    return connection.dialect.identifier_preparer.quote(name)


def _hurry(connection: sa.Connection) -> None:
    # A transaction that waits for a table's lock blocks all later ones.
    connection.exec_driver_sql("SET LOCAL lock_timeout = '500ms'")
