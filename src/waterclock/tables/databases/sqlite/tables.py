"""The statements for message tables on SQLite. They lock no rows, because SQLite has only one writer at a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import DDL

from waterclock.database.backend import Backend
from waterclock.database.driver_fast_path import DirectConnection
from waterclock.database.per_database_cache import built_once
from waterclock.database.shared_compile_cache import alike
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import InvalidArgumentError
from waterclock.tables.databases.claiming_rows import ClaimsInSteps
from waterclock.tables.databases.indexes import index_acked, index_expiring, index_unacked
from waterclock.tables.databases.inserting import NewRows
from waterclock.tables.databases.json_list import JsonList
from waterclock.tables.databases.message_keys import INDEXES, IS_COPIED, column_of, index_of_unrouted
from waterclock.tables.databases.sqlite import adopting
from waterclock.tables.databases.sqlite.waking import SqliteChanges
from waterclock.tables.databases.table_dialect import TableDialect
from waterclock.tables.model.claims.claim import Wanted
from waterclock.tables.model.claims.epochs import after_claim_sql
from waterclock.tables.model.options import IdType
from waterclock.tables.model.schema import MESSAGE_KEY, OWN_COLUMNS, IdItem

_GREATEST_ID = 2**63 - 1
_NOW = "((CAST(strftime('%s','now') AS INTEGER) * 1000 + CAST(substr(strftime('%f','now'), 4) AS INTEGER)) * 1000000)"
# Our own inserts name every column, so that the first trigger runs for plain SQL only. The second keeps a message that
# lost its time_next from being lost. The third marks groups of changes by plain SQL: our own changes always change the
# claim as well. The fourth marks messages that plain SQL copied from another table, or from a dump.
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
        WHEN NEW.routed = 1 AND OLD.routed = 1 AND NEW.claim_id IS OLD.claim_id AND NEW.ack_held_at IS OLD.ack_held_at
            AND NOT (NEW.group_id IS NULL AND OLD.group_id IS NULL AND OLD.time_acked IS NULL)
        BEGIN
            UPDATE %(table)s SET
                routed = 0,
                position = CASE WHEN NEW.group_id IS OLD.group_id AND OLD.time_acked IS NULL THEN position END
            WHERE seq = NEW.seq;
        END""",
    "copied": f"""
        CREATE TRIGGER %(trigger)s AFTER INSERT ON %(table)s WHEN {IS_COPIED}
        BEGIN
            UPDATE %(table)s SET routed = 0, position = NULL WHERE seq = NEW.seq;
        END""",  # noqa: S608  # a constant
}
_OF_GROUPS = ("group", "copied")
_HEADERS = "CAST(%(source)s AS TEXT)"
# SQLite stores any bytes as text, and reads most invalid ones as U+FFFD. The servers refuse them.
_IS_VALID = f"CHECK (replace({MESSAGE_KEY}, char(65533), '') NOT GLOB '*' || char(65533) || '*')"
_KEYS = [
    (
        f"ALTER TABLE %(table)s ADD COLUMN {column_of(key, 'TEXT')} VIRTUAL {_IS_VALID}",
        *INDEXES,
        index_of_unrouted(),
        """
        CREATE TRIGGER %(moved)s AFTER UPDATE OF time_next, time_acked, priority, %(source)s ON %(table)s
        WHEN %(is_moved)s
        BEGIN
            UPDATE %(table)s SET routed = 0 WHERE seq = NEW.seq;
        END""",
        f"""
        CREATE TRIGGER %(copied)s AFTER INSERT ON %(table)s WHEN {IS_COPIED}
        BEGIN
            UPDATE %(table)s SET routed = 0 WHERE seq = NEW.seq;
        END""",  # noqa: S608  # a constant
    )
    for key in (
        "CAST(%(source)s AS TEXT)",
        f"CASE WHEN json_valid({_HEADERS}) THEN json_extract({_HEADERS}, '$.\"%(header)s\"') END",
    )
]
"""The statements for keys in a column of their own, and in headers."""
_DIFFERS = "NEW.%(source)s IS NOT OLD.%(source)s COLLATE BINARY"
_NEW_ID = {
    "bigint": "MAX(NEW.seq, COALESCE((SELECT MAX(id) FROM %(table)s), 0) + 1)",
    "text": "RAISE(ABORT, 'id must be given in a table with text ids')",
    "uuid": (
        "lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2)"
        " || '-8' || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))"
    ),
}

_GLOB = {"%": "*", "_": "?", "*": "[*]", "?": "[?]", "[": "[[]"}


# SQLite stores text or a blob in any column, and an integer of any size in an INTEGER. Claims compare these columns
# with numbers, so one such row would stop them. A payload, headers or an error of another type affect one message.
_CHECKED = frozenset(OWN_COLUMNS) - {"seq", "message", "headers", "last_error"}
_SMALL = {"priority": 2**31, "routed": 2**15, "closes_group": 2**15}
_LAST_SEQ = 2**63 - 2  # beyond 2^63 - 1, SQLite draws no number and reports a full disk

_ROWS_OF_A_STATEMENT = 100  # the statement's text is built once for each number of rows


def _pair(name: str) -> list[sa.ColumnElement[int]]:
    listed = sa.func.json_each(sa.bindparam(name, type_=JsonList())).table_valued("value")
    return [sa.func.json_extract(listed.c.value, f"$[{place}]", type_=sa.BigInteger) for place in (0, 1)]


@built_once(maxsize=256)
def _taking(rows: sa.Table, *, one: bool) -> sa.Update:
    # A list of one message costs as much as the rest of the statement.
    seq, until = map(sa.bindparam, ("of", "until")) if one else _pair("ends")
    return (
        sa.update(rows)
        .where(rows.c.seq == seq)
        .values(
            time_next=until,
            epoch=after_claim_sql(rows.c.epoch),
            claim_id=sa.bindparam("by"),
            consumer=sa.bindparam("who"),
        )
    )


def _has_its_type(column: sa.Column[Any]) -> str:
    # As text, since building twenty expressions took a third of the time to create a table.
    name = column.name
    condition = f"typeof({name}) IN ('{'integer' if isinstance(column.type, sa.Integer) else 'text'}', 'null')"
    most = _SMALL.get(name)
    return condition if most is None else f"{condition} AND {name} BETWEEN {-most} AND {most - 1}"


class SqliteTables(ClaimsInSteps, TableDialect):
    one_writer = True
    key_statements = _KEYS
    source_differs = _DIFFERS
    deletes_wait = False
    locks_in_parts = True  # a writer has locked everything
    latest_first = False
    keeps_ended = False
    reads_old = False
    clock = _NOW

    def id_items(self, name: str, id_type: IdType) -> Sequence[IdItem]:
        """Leave ids to the trigger, which sees the row's number."""
        del name, id_type
        return []

    def create_bare(self, connection: sa.Connection, rows: sa.Table) -> None:
        """Create the SQL table, with constraints that refuse the values that the servers refuse by column types."""
        for column in rows.columns:
            if column.name in _CHECKED:
                check = sa.CheckConstraint(_has_its_type(column), f"{rows.name}_{column.name}_type")
                rows.append_constraint(check)
        rows.append_constraint(sa.CheckConstraint(f"seq BETWEEN 1 AND {_LAST_SEQ}", f"{rows.name}_seq_range"))
        super().create_bare(connection, rows)

    def equip(self, connection: sa.Connection, rows: sa.Table, id_type: IdType, *, grouped: bool, free: bool) -> None:
        """Create the indexes and triggers of an existing SQL table."""
        name = rows.name
        index_acked(connection, rows)
        index_expiring(connection, rows)
        due = rows.c.priority.desc(), rows.c.time_next
        index_unacked(connection, rows, due, rows.c.time_acked.is_(None), grouped=grouped, free=free)
        quote = connection.dialect.identifier_preparer.quote
        table = quote(name)
        for verb, statement in _TRIGGERS.items():
            if grouped or verb not in _OF_GROUPS:
                context = {
                    "table": table,
                    "trigger": quote(f"{name}_{verb}"),
                    "now": self.clock,
                    "new_id": _NEW_ID[id_type] % {"table": table},
                }
                connection.execute(DDL(statement, context=context))

    def adopt(self, connection: sa.Connection, rows: sa.Table, id_type: IdType, present: Collection[str]) -> None:
        """Turn a user's SQL table into one as by `create`, without `equip`; ``present`` are its columns."""
        del id_type  # known to the trigger that numbers them
        adopting.adopt(connection, rows, present, lambda: self.create_bare(connection, rows))

    def type_remedy(self, table: str, column: str, wanted: str) -> str:
        """Describe how to change the type of a user's column."""
        return adopting.type_remedy(table, column, wanted)

    def reserve_ids(self, connection: SqlConnection, rows: sa.Table, count: int, above: int) -> Sequence[int]:
        """Return ``count`` ids above ``above`` and above all former ones; the write lock reserves them.

        Raises `InvalidArgumentError` if a caller's own id has used up the numbers.
        """
        if not isinstance(connection, DirectConnection):
            # Changes nothing, but takes the write lock, which a caller's transaction may not have yet.
            connection.execute(_locking(rows))
        found = connection.execute(_greatest_id(rows), {"above": above}).one()
        greatest: int = found.greatest
        if greatest + count > _GREATEST_ID:
            raise InvalidArgumentError(
                f"cannot generate {count} ids for table {rows.name!r}: id {greatest} is taken, and the largest possible"
                f" id is {_GREATEST_ID}. Pass your own ids, or delete the row with that id"
            )
        # After the caller's own ids: otherwise a drawn id could be drawn again once its message is gone. Not up to the
        # maximum, because the counter also advances for callers' own ids.
        if found.counted < greatest < _GREATEST_ID // 2:
            connection.execute(_counting(rows), {"to": greatest})
        return range(greatest + 1, greatest + 1 + count)

    def insert_new(
        self, connection: SqlConnection, rows: sa.Table, new: NewRows, now: sa.ColumnElement[int]
    ) -> set[Any]:
        """Insert messages with new ids, and return those ids.

        Many rows per statement: SQLite keeps a journal for each statement on a table with triggers, which costs four
        times as much as a row.
        """
        time = now.effective_value if isinstance(now, sa.BindParameter) else 0
        times = [time] * new.count
        columns = new.columns.copy()
        at = [time if at is None else at for at in columns.pop("at")] if "at" in columns else times
        columns |= {"time_created": times, "time_scheduled": at, "time_next": at}
        tuples = list(zip(*columns.values(), strict=True))
        inserted: set[Any] = set()
        for start in range(0, len(tuples), _ROWS_OF_A_STATEMENT):
            some = tuples[start : start + _ROWS_OF_A_STATEMENT]
            text = _insert_text(rows, tuple(columns), len(some), alike(connection.dialect))
            found = connection.exec_driver_sql(text, tuple(chain.from_iterable(some)))
            inserted.update(map(itemgetter(0), found))
        return inserted

    def insert_missing(self, connection: SqlConnection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows of the catalogue whose keys are missing."""
        connection.execute(sqlite.insert(table).on_conflict_do_nothing(), list(rows))

    def smaller(self, one: sa.ColumnElement[int], another: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
        """Return the smaller of two values, which must not be NULL."""
        return sa.func.min(one, another, type_=sa.BigInteger)

    def larger(self, one: sa.ColumnElement[int], another: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
        """Return the larger of two values, which must not be NULL."""
        return sa.func.max(one, another, type_=sa.BigInteger)

    def any_of(self, column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[bool]:
        """Return the condition that ``column`` is in the JSON array bound as ``name``: one parameter of any length."""
        listed = sa.func.json_each(sa.bindparam(name, type_=JsonList())).table_valued("value")
        return column.in_(sa.select(listed.c.value))

    def pairs(self, name: str) -> sa.FromClause:
        """Read them from a JSON text."""
        seq, number = _pair(name)
        return sa.select(seq.label("seq"), number.label("number")).subquery("pairs")

    def column_names(self, connection: SqlConnection, name: str) -> set[str]:
        """Read the schema, which every connection has in memory."""
        column = sa.column("name")
        return set(connection.scalars(sa.select(column).select_from(sa.func.pragma_table_xinfo(name))))

    def take(self, connection: SqlConnection, rows: sa.Table, wanted: Wanted, ends: Sequence[tuple[int, int]]) -> None:
        """Claim messages: their seqs, each with the end of its lease in ns."""
        given = {"of": ends[0][0], "until": ends[0][1]} if len(ends) == 1 else {"ends": ends}
        given |= {"by": wanted.claim_id, "who": wanted.consumer}
        connection.execute(_taking(rows, one=len(ends) == 1), given)

    def like(self, column: sa.ColumnElement[Any], pattern: str) -> sa.ColumnElement[bool]:
        """Match a pattern with GLOB, because LIKE ignores case here."""
        globbed = "".join(_GLOB.get(sign, sign) for sign in pattern)
        return column.op("GLOB", is_comparison=True, return_type=sa.Boolean())(sa.literal(globbed, sa.String()))

    def changes(self, backend: Backend, name: str) -> SqliteChanges:
        """Watch the data version and the log, which belong to the whole file."""
        del name
        return SqliteChanges(backend)


@built_once(maxsize=256)
def _locking(rows: sa.Table) -> sa.Delete:
    return sa.delete(rows).where(rows.c.seq == sa.literal_column("-1"))


_COUNTER = sa.table("sqlite_sequence", sa.column("name"), sa.column("seq"))


@built_once(maxsize=256)
def _counting(rows: sa.Table) -> sa.Update:
    return sa.update(_COUNTER).where(_COUNTER.c.name == rows.name).values(seq=sa.bindparam("to", type_=sa.BigInteger))


@built_once(maxsize=256)
def _greatest_id(rows: sa.Table) -> sa.Select[Any, Any]:
    # As a plain string, because the driver asks a subclass such as SQLAlchemy's names how to adapt it.
    last = sa.select(_COUNTER.c.seq).where(_COUNTER.c.name == str(rows.name)).scalar_subquery()
    greatest = sa.select(sa.func.max(rows.c.id)).scalar_subquery()
    above = sa.bindparam("above", type_=sa.BigInteger)
    counted = sa.func.coalesce(last, 0)
    every = sa.func.max(counted, sa.func.coalesce(greatest, 0), above)
    return sa.select(every.label("greatest"), counted.label("counted"))


@built_once(maxsize=1024)
def _insert_text(rows: sa.Table, names: tuple[str, ...], count: int, dialect: sa.Dialect) -> str:
    into = sa.table(rows.name, *(sa.column(name) for name in names))
    values = [{name: sa.bindparam(f"{name}_{row}") for name in names} for row in range(count)]
    insert = sqlite.insert(into).values(values).on_conflict_do_nothing(index_elements=["id"])
    return str(insert.returning(into.c.id).compile(dialect=dialect))
