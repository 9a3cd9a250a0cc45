"""The statements for message tables on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.schema import DDL
from sqlalchemy.sql.elements import Grouping

from waterclock.database.backend import Backend
from waterclock.database.driver_fast_path import DirectConnection
from waterclock.database.engines.postgresql import is_pooled
from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import groups, message_keys
from waterclock.database.shared_compile_cache import alike
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.databases.changes import Changes, Polling
from waterclock.tables.databases.indexes import index_acked, index_expiring, index_late, index_unacked
from waterclock.tables.databases.inserting import NewRows
from waterclock.tables.databases.json_list import JsonList
from waterclock.tables.databases.message_keys import INDEXES, IS_COPIED, UNACKED_SQL, column_of, index_of_unrouted
from waterclock.tables.databases.postgresql import adopting
from waterclock.tables.databases.postgresql.arrays import KEPT_SETTING, Bigints, kept, listed, unnested
from waterclock.tables.databases.postgresql.claiming_without_groups import (
    by_priority,
    claim_statement,
    first_late,
    key_is,
)
from waterclock.tables.databases.postgresql.inserting import insert_fresh, insert_unknown
from waterclock.tables.databases.postgresql.listening_connection import CHANNEL
from waterclock.tables.databases.postgresql.newest_versions import (
    has_key,
    has_neighbour,
    look_up,
    names_downward,
    newest_of_each,
    of_table,
    place_in,
)
from waterclock.tables.databases.postgresql.partitions import PostgresqlDays, insert_unacked
from waterclock.tables.databases.postgresql.unrouted_keys import BLOCK_SQL, CHANGED, DRAWN_SQL, SEQS_SQL, block_of
from waterclock.tables.databases.postgresql.waking import TRIGGERS, Listening
from waterclock.tables.databases.table_dialect import CHANGED_PLACES, Key, LongKey, TableDialect
from waterclock.tables.model.claims.bounds import LATE_BY
from waterclock.tables.model.claims.claim import Claimed, Wanted
from waterclock.tables.model.days import Days
from waterclock.tables.model.options import IdType
from waterclock.tables.model.row_conditions import HAS_DUE_TIME, is_late, not_acked
from waterclock.tables.model.schema import PARTITIONED, IdItem

_COLUMNS = sa.text(
    "SELECT CAST(attname AS text) FROM pg_attribute"
    " WHERE attrelid = to_regclass(:quoted) AND attnum > 0 AND NOT attisdropped"
).columns(sa.column("attname", sa.Text))
_TIME = "(CAST(date_part('epoch', {}()) * 1000000 AS BIGINT) * 1000)"
_NOW = _TIME.format("statement_timestamp")
# The conditions keep our own statements from calling the functions: they name every column, and change the claim.
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
    f"ALTER TABLE %(table)s ADD CONSTRAINT %(has_triggers)s CHECK ({HAS_DUE_TIME})",
)
# A transaction has an id before it draws the seq of a message, or the time: `PostgresqlTables.seen_by`.
_NUMBERED = (
    """
    CREATE FUNCTION %(numbered)s() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM txid_current();
        RETURN NULL;
    END $$""",
    """
    CREATE TRIGGER %(numbered)s BEFORE INSERT ON %(table)s FOR EACH STATEMENT EXECUTE FUNCTION %(numbered)s()""",
)
# The oldest transaction in progress, or if that is old, the oldest one that may have written to the tables in which
# searches have bounds. A transaction locks a table before it draws a seq or reads the time, and until its changes are
# visible. It is passed over if it has no such lock and still runs afterwards: its later changes have keys above all
# bounds. The order matters, because a transaction that has ended releases its locks one by one, that of its id perhaps
# as the last.
_OLDEST = """CASE WHEN txid_snapshot_xmax(txid_current_snapshot()) - txid_snapshot_xmin(txid_current_snapshot()) < 100
    THEN txid_snapshot_xmin(txid_current_snapshot())
    ELSE (
        SELECT coalesce(min(runs), txid_snapshot_xmax(txid_current_snapshot()))
        FROM txid_snapshot_xip(txid_current_snapshot()) AS runs
        WHERE CASE WHEN runs & 4294967295 NOT IN (
            SELECT unnest(array_agg(CAST(CAST(transactionid AS text) AS bigint)) FILTER (
                WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted))
            FROM pg_locks
            WHERE pid IS NOT NULL
            GROUP BY pid
            HAVING NOT bool_or(locktype = 'relation' AND mode <> 'AccessShareLock'
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                AND (relation = ANY (CAST(ARRAY[%(tables)s] AS regclass[]))
                    OR relation IN (SELECT relid FROM pg_partition_tree(%(rows)s))))
        ) THEN true ELSE txid_status(runs) <> 'in progress' END
    )
END"""
# It fires behind the triggers that set the due time, because its name sorts behind theirs. The user's triggers may set
# it in any UPDATE.
_LATE_TRIGGERS = (
    """
    CREATE FUNCTION %(late)s() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        NEW.routed := %(changed)s;
        RETURN NEW;
    END $$""",
    """
    CREATE TRIGGER "~late" BEFORE INSERT OR UPDATE ON %(table)s
    FOR EACH ROW WHEN (NEW.time_next < %(clock)s - %(late_by)s)
    EXECUTE FUNCTION %(late)s()""",
)
_GROUP_TRIGGERS = (
    """
    CREATE FUNCTION %(moved)s() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        NEW.routed := %(changed)s;
        IF TG_OP = 'INSERT' OR NEW.group_id IS DISTINCT FROM OLD.group_id OR OLD.time_acked IS NOT NULL THEN
            NEW.position := NULL;
        END IF;
        RETURN NEW;
    END $$""",
    """
    CREATE TRIGGER %(moved)s BEFORE UPDATE OF time_next, time_acked, group_id, priority, position ON %(table)s
    FOR EACH ROW WHEN (
        NEW.routed = 1 AND OLD.routed = 1
        AND NEW.claim_id IS NOT DISTINCT FROM OLD.claim_id AND NEW.ack_held_at IS NOT DISTINCT FROM OLD.ack_held_at
        AND NOT (NEW.group_id IS NULL AND OLD.group_id IS NULL AND OLD.time_acked IS NULL)
    )
    EXECUTE FUNCTION %(moved)s()""",
    f"""
    CREATE TRIGGER %(copied)s BEFORE INSERT ON %(table)s
    FOR EACH ROW WHEN ({IS_COPIED}) EXECUTE FUNCTION %(moved)s()""",
)
_KEYS = [
    (
        f"ALTER TABLE %(table)s ADD COLUMN {column_of(key, 'VARCHAR(255)')} STORED NOT NULL,"
        " ALTER COLUMN routed TYPE BIGINT",
        'DROP TRIGGER "~late" ON %(table)s',
        *INDEXES,
        # Not in the form of the other indexes, one of which a planner would search that believes few messages unacked.
        index_of_unrouted(f"({BLOCK_SQL}), ", UNACKED_SQL),
        f"""
        CREATE FUNCTION %(moved)s() RETURNS trigger LANGUAGE plpgsql
        SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$  -- roles that change messages may not draw numbers
        DECLARE
            seqs text := {SEQS_SQL};
        BEGIN
            NEW.routed := {DRAWN_SQL};
            RETURN NEW;
        END $$""",
        """
        CREATE TRIGGER %(moved)s BEFORE UPDATE OF time_next, time_acked, priority, %(source)s ON %(table)s
        FOR EACH ROW WHEN (%(is_moved)s) EXECUTE FUNCTION %(moved)s()""",
        f"""
        CREATE TRIGGER %(copied)s BEFORE INSERT ON %(table)s
        FOR EACH ROW WHEN ({IS_COPIED}) EXECUTE FUNCTION %(moved)s()""",
    )
    for key in ("CAST(%(source)s AS TEXT)", "(CAST(%(source)s AS JSON) ->> '%(header)s')")
]
"""The statements for keys in a column of their own, and in headers."""
_DIFFERS = 'CAST(NEW.%(source)s AS TEXT) IS DISTINCT FROM CAST(OLD.%(source)s AS TEXT) COLLATE "C"'


def _by_priority(one: Claimed) -> tuple[int, int, int]:
    return -one.row.priority, one.row.time_next, one.row.seq


@built_once(maxsize=256)
def _both(one: sa.Update, another: sa.Update | sa.Delete) -> sa.Update | sa.Delete:
    return another.add_cte(one.cte("one"))


@built_once(maxsize=256)
def _drawing(rows: sa.Table, dialect: sa.Dialect) -> sa.Select[Any]:
    name = sa.func.pg_get_serial_sequence(dialect.identifier_preparer.quote(rows.name), "id")
    return sa.select(sa.func.nextval(name)).select_from(sa.func.generate_series(1, sa.bindparam("count")).alias())


class PostgresqlTables(TableDialect):
    one_writer = False
    key_statements = _KEYS
    source_differs = _DIFFERS
    deletes_wait = False
    locks_in_parts = True
    keeps_ended = True
    reads_old = False
    sends_at_once = True
    changed = CHANGED
    is_bounded = True
    begins_at_bounds = True
    clock = _NOW

    @property
    def days(self) -> Days:
        return PostgresqlDays(_NOW, _index_unacked, _guard)

    def id_items(self, name: str, id_type: IdType) -> Sequence[IdItem]:
        """Return an identity for numbers, and random UUIDs."""
        del name  # needed only by databases without identities
        items: dict[IdType, list[IdItem]] = {
            "bigint": [sa.Identity()],
            "uuid": [sa.DefaultClause(sa.func.gen_random_uuid())],
            "text": [],
        }
        return items[id_type]

    def equip(self, connection: sa.Connection, rows: sa.Table, id_type: IdType, *, grouped: bool, free: bool) -> None:
        """Create the indexes and triggers of an existing SQL table."""
        del id_type  # the columns show it
        index_acked(connection, rows)
        index_expiring(connection, rows)
        _index_unacked(connection, rows, rows.c.time_acked.is_(None), grouped=grouped, free=free)
        _guard(connection, rows, grouped=grouped)

    def block_of(self, rows: sa.FromClause) -> sa.ColumnElement[int]:
        """Return the first column of the index of unrouted messages."""
        return block_of(rows)

    def adopt(self, connection: sa.Connection, rows: sa.Table, id_type: IdType, present: Collection[str]) -> None:
        """Turn a user's SQL table into one as by `create`, without `equip`; ``present`` are its columns."""
        adopting.adopt(connection, rows, id_type, present, self.clock)

    def type_remedy(self, table: str, column: str, wanted: str) -> str:
        """Return the statement that changes the type of a user's column."""
        return adopting.type_remedy(table, column, wanted)

    def drop(self, connection: sa.Connection, rows: sa.Table) -> None:
        """Drop the SQL table and the functions of its triggers."""
        super().drop(connection, rows)
        quote = connection.dialect.identifier_preparer.quote
        for verb in ("due", "late", "moved", "numbered", "wake", "once"):
            context = {"function": quote(f"{rows.name}_{verb}")}
            connection.execute(DDL("DROP FUNCTION IF EXISTS %(function)s()", context=context))

    def reserve_ids(self, connection: SqlConnection, rows: sa.Table, count: int, above: int) -> Sequence[int]:
        """Draw ids from the table's sequence; if they collide with given ids, advance it beyond those."""
        drawing = _drawing(rows, alike(connection.dialect))
        ids = list(connection.scalars(drawing, {"count": count}))
        if above >= ids[0]:
            # Not as a maximum, for which a planner that believes the table empty would scan it.
            last = sa.select(rows.c.id).order_by(rows.c.id.desc()).limit(1).scalar_subquery()
            greatest = sa.func.coalesce(last, 0)
            name = sa.func.pg_get_serial_sequence(connection.dialect.identifier_preparer.quote(rows.name), "id")
            list(connection.scalars(sa.select(sa.func.setval(name, sa.func.greatest(greatest, above)))))
            ids = list(connection.scalars(drawing, {"count": count}))
        return ids

    def insert_new(
        self, connection: SqlConnection, rows: sa.Table, new: NewRows, now: sa.ColumnElement[int]
    ) -> set[Any]:
        """Insert messages with new ids, and return those ids. One statement, one round trip."""
        # In a transaction, a failed one would abort it.
        if new.fresh and isinstance(connection, DirectConnection) and insert_fresh(connection, rows, new, now):
            return set(new.columns["id"])
        if rows.info.get(PARTITIONED):
            return insert_unacked(connection, rows, new, lambda these: insert_unknown(connection, rows, these, now))
        return insert_unknown(connection, rows, new, now)

    def insert_missing(self, connection: SqlConnection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows of the catalogue whose keys are missing."""
        connection.execute(postgresql.insert(table).on_conflict_do_nothing(), list(rows))

    def routing_place(self, rows: sa.FromClause) -> sa.ColumnElement[int]:
        """Return the place of a message: changed ones are last, so that a search from a bound finds them."""
        return _routing_place(rows)

    def first_late(self, rows: sa.FromClause, priority: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
        """Look it up in the index of late messages."""
        return first_late(rows, priority)

    def seen_by(
        self, marks: sa.ColumnElement[bool], rows: sa.Table
    ) -> tuple[sa.ColumnElement[int], sa.ColumnElement[int]]:
        """Return the oldest transaction that may have changed messages, and if ``marks`` the id of this transaction.

        Messages put by transactions that begin later have greater seqs than those that exist, because a transaction
        has an id before it draws a seq.
        """
        names = [f"'\"{table.name}\"'" for table in (rows, groups, message_keys)]  # which need no escapes
        oldest = sa.literal_column(_OLDEST % {"tables": ", ".join(names), "rows": names[0]}, sa.BigInteger)
        mark = sa.case((marks, sa.type_coerce(sa.func.txid_current(), sa.BigInteger)))
        return oldest, mark

    def any_of(self, column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[bool]:
        """Return the condition that ``column`` is in the array bound as ``name``: one parameter of any length."""
        listed = Bigints() if isinstance(column.type, sa.BigInteger) else sa.ARRAY(column.type)
        return column == sa.any_(sa.bindparam(name, type_=listed))

    def computed_any_of(self, value: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[bool]:
        """Return the condition that a value is in the array bound as ``name``, hashed once.

        A cached plan scans an array for each row. A subquery at the top of a condition becomes a join, which scans as
        well if hash joins are disabled.
        """
        listed = sa.select(sa.type_coerce(unnested(name, value.type), value.type))
        return sa.func.coalesce(value.in_(listed), sa.false())

    def any_key(self, table: sa.Table, value: int, columns: Key, name: str) -> sa.ColumnElement[bool]:
        """Return the condition that a row's key is ``value`` and an element of the array bound as ``name``.

        Each is looked up separately. A planner without statistics believes ``value`` alone to be selective, and would
        scan all rows that have it.
        """
        return has_key(table, value, columns, listed(columns[1], name))

    def of_table(self, column: sa.ColumnElement[int], value: Any) -> sa.ColumnElement[bool]:
        """Return the condition in the form of the index of keys."""
        return of_table(column, value)

    def some_names(self, value: int, columns: Key, *, begins: bool) -> sa.Select[*tuple[Any, ...]]:
        """Walk downward, from the newest version of a row to that of the next."""
        return names_downward(value, columns, begins=begins)

    def look_up(
        self,
        found: sa.Select[*tuple[Any, ...]],
        value: int,
        columns: tuple[sa.ColumnElement[Any], sa.ColumnElement[Any]],
        name: Any,
    ) -> sa.Select[*tuple[Any, ...]]:
        """Search from the end with the newest version of the row.

        The index keeps an entry of each earlier version for as long as a transaction holds an old snapshot. Versions of
        one key are ordered by their positions in the table, and while none may be removed, new ones come last. The
        planner reads backwards for an order, which a range has and an equality does not. The limit prevents a join.
        """
        return look_up(found, value, columns, name)

    def lock_keys(
        self, table: sa.Table, value: int, columns: Key, name: str, *, skip_locked: bool = False
    ) -> sa.Select[*tuple[Any, ...]]:
        """Select and lock rows one by one.

        By key, not by physical position: a transaction that waited for a changed row finds it elsewhere, and since
        15.15, 16.11 and 17.7 PostgreSQL then omits it.
        """
        wanted = listed(columns[1], name)
        newest = look_up(sa.select(table), value, columns, wanted.c.value)
        one = newest.with_for_update(skip_locked=skip_locked).lateral("one")
        return sa.select(*one.c).select_from(sa.join(wanted, one, sa.true()))

    def rows_of_each(
        self, table: sa.Table, value: int, columns: LongKey, name: str, *, skip_locked: bool = False
    ) -> sa.Select[*tuple[Any, ...]]:
        """Look up the newest version of each row, from the greatest third column down, as `look_up`."""
        places = sa.select(newest_of_each(value, columns, name).c.place).scalar_subquery()
        found = sa.select(table).where(place_in(table) == sa.any_(sa.func.array(places)))
        return found.with_for_update(skip_locked=True) if skip_locked else found

    def newest_of_each(self, value: int, columns: LongKey, name: str, *more: str) -> sa.FromClause:
        """Look up the newest version of each row, as `look_up`."""
        return newest_of_each(value, columns, name, *more)

    def is_row(self, columns: LongKey, values: tuple[Any, Any, Any]) -> sa.ColumnElement[bool]:
        """Look up the newest version, as `look_up`."""
        table = columns[0].table
        one = table.alias("one")
        first, second, third = (one.c[column.name] for column in columns)
        place = sa.select(sa.literal_column("one.ctid")).where(second == values[1])
        found = look_up(place, values[0], (first, third), values[2]).correlate_except(one)
        return place_in(table) == found.scalar_subquery()

    def has_neighbour(
        self, table: sa.Table, value: int, columns: LongKey, which: Callable[[Any], sa.ColumnElement[bool]], *more: str
    ) -> sa.ColumnElement[bool]:
        """Look up the newest version of each row of the key, as `look_up`."""
        return has_neighbour(table, value, columns, which, *more)

    def keep(self, names: sa.FromClause, which: sa.ColumnElement[bool]) -> sa.Select[Any]:
        """Keep names in a setting of the transaction."""
        listed = sa.func.array_agg(aggregate_order_by(names.c.name, names.c.nth)).filter(which)
        text = sa.func.coalesce(sa.cast(listed, sa.Text), "{}")
        return sa.select(sa.func.set_config(KEPT_SETTING, text, sa.true()))

    def kept(self) -> sa.FromClause:
        """Read the names from that setting."""
        names = kept(sa.Text()).table_valued(sa.column("name", sa.Text), with_ordinality="nth")
        return names.render_derived("kept")

    def has_name(self, table: sa.Table, value: int, columns: Key, names: sa.FromClause) -> sa.ColumnElement[bool]:
        """Return the condition that a row's key is ``value`` and one of the rows of ``name``, as `any_key`."""
        return has_key(table, value, columns, sa.select(names.c.name.label("value")).subquery("wanted"))

    def value_of(self, name: sa.ColumnElement[Any], values: sa.FromClause, column: sa.ColumnElement[int]) -> Any:
        """Look the value up in a JSON object: a planner may join by scanning one side for each row of the other."""
        each = sa.select(sa.func.jsonb_object_agg(values.c.name, column)).scalar_subquery()
        return sa.cast(each.op("->>", return_type=sa.Text())(name), sa.BigInteger)

    def key_is(self, key: sa.Column[int], value: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
        """Return the condition that a row's key is a computed value."""
        return key_is(key, value)

    def pairs(self, name: str) -> sa.FromClause:
        """Read them from a JSON text."""
        listed = sa.func.json_array_elements(sa.cast(sa.bindparam(name, type_=JsonList()), sa.JSON))
        value = listed.table_valued(sa.column("value", sa.JSON)).render_derived("listed").c.value
        seq, number = (sa.cast(value.op("->>")(sa.literal_column(str(place))), sa.BigInteger) for place in (0, 1))
        return sa.select(seq.label("seq"), number.label("number")).subquery("pairs")

    def of_each(
        self,
        parents: sa.Table,
        columns: Sequence[sa.Column[Any]],
        belongs: sa.ColumnElement[bool],
        order: sa.Column[int],
        which: sa.ColumnElement[bool],
        *,
        skip_locked: bool = False,
    ) -> sa.Select[*tuple[Any, ...]]:
        """Select rows that belong to those rows of ``parents`` for which ``which`` is true.

        Statistics from when all messages were acked claim that none remain. For a join, the planner would then begin
        with those, and look for the parent of each.
        """
        its = sa.select(*columns).where(belongs).order_by(order).correlate(parents)
        if skip_locked:
            its = its.with_for_update(skip_locked=True)
        each = its.offset(sa.literal_column("0")).lateral("each")  # prevents a join
        return sa.select(*each.c).select_from(sa.join(parents, each, sa.true())).where(which)

    def both(self, one: sa.Update, another: sa.Update | sa.Delete) -> Sequence[sa.Update | sa.Delete]:
        """Combine both in one statement, which is cheaper to plan and to run than two."""
        return (_both(one, another),)

    def claim(
        self,
        connection: SqlConnection,
        rows: sa.Table,
        wanted: Wanted,
        begin: Mapping[int, int],
        now: sa.ColumnElement[int],
    ) -> list[Claimed]:
        """Claim messages in one statement."""
        found = connection.execute(
            claim_statement(rows, now, wanted.lease_length, wanted.where, wanted.order),
            {
                "known": list(begin),
                "lows": list(begin.values()),
                "by": wanted.claim_id,
                "who": wanted.consumer,
                "most": wanted.limit,
            },
        ).all()
        claimed = [Claimed(row, row[-1], bool(row[-3])) for row in found]
        places: dict[int, int] = {row.seq: row[-2] for row in found}
        claimed.sort(key=(lambda one: places[one.row.seq]) if wanted.order else _by_priority)
        return claimed

    def column_names(self, connection: SqlConnection, name: str) -> set[str]:
        """Read the catalogue: the plan of a SELECT of all columns is valid only while the columns stay."""
        quoted = connection.dialect.identifier_preparer.quote(name)
        return set(connection.scalars(_COLUMNS, {"quoted": quoted}))

    def columns_and_row(
        self, connection: SqlConnection, name: str, facts: sa.Select[*tuple[Any, ...]]
    ) -> tuple[set[str], Any]:
        """Read both in one statement."""
        quoted = connection.dialect.identifier_preparer.quote(name)
        row = connection.execute(_with_columns(facts), {"name": name, "quoted": quoted}).first()
        return (set(), None) if row is None else (set(row.column_names), row)

    def has_in_it(self, column: sa.ColumnElement[Any], part: str | bytes) -> sa.ColumnElement[bool]:
        """Use strpos, because PostgreSQL lacks instr; for bytes there is position."""
        place = sa.func.strpos if isinstance(part, str) else sa.func.pg_catalog.position
        return place(column, sa.literal(part), type_=sa.Integer()) > 0

    def note_row_changed(self, connection: SqlConnection, name: str) -> None:
        """Notify them: a waiting consumer seldom reads the row by itself."""
        connection.execute(_ROW_CHANGED, {"channel": CHANNEL + name})

    def changes(self, backend: Backend, name: str) -> Changes:
        """Listen for notifications; poll behind a pooler that changes sessions."""
        return Polling() if is_pooled(backend.url) else Listening(backend, name)


_ROW_CHANGED = sa.select(sa.func.pg_notify(sa.bindparam("channel", type_=sa.Text), sa.literal_column("'row'")))


@built_once(maxsize=256)
def _with_columns(facts: sa.Select[*tuple[Any, ...]]) -> sa.Select[*tuple[Any, ...]]:
    names = sa.func.array(_COLUMNS.scalar_subquery(), type_=sa.ARRAY(sa.Text))
    return facts.add_columns(names.label("column_names"))


def _index_unacked(
    connection: sa.Connection, rows: sa.Table, which: sa.ColumnElement[bool] | None, *, grouped: bool, free: bool
) -> None:
    # With seq; otherwise messages that were put together, and so are due together, would be sorted at each claim.
    due = rows.c.priority.desc(), rows.c.time_next, rows.c.seq
    index_unacked(connection, rows, due, which, grouped=grouped, free=free, new=Grouping(_routing_place(rows)))
    if not grouped:
        # Not in the form of the other index, which a planner that believes few messages unacked would search instead.
        unacked = not_acked(rows) if which is not None else rows.c.time_acked.is_(None)
        index_late(connection, rows, by_priority(rows), is_late(rows) & unacked)


def _routing_place(rows: sa.FromClause) -> sa.ColumnElement[int]:
    is_changed = rows.c.routed == sa.literal_column(str(CHANGED))
    # Half of it, because plain SQL may set any seq.
    seq = sa.func.greatest(rows.c.seq, sa.literal_column("0"), type_=sa.BigInteger)
    behind = seq // sa.literal_column("2", sa.BigInteger) + sa.literal_column(str(CHANGED_PLACES))
    return sa.case((is_changed, behind), else_=rows.c.seq)


def _guard(connection: sa.Connection, rows: sa.Table, *, grouped: bool) -> None:
    """Create the triggers."""
    quote = connection.dialect.identifier_preparer.quote
    context = {
        "table": quote(rows.name),
        "due": quote(f"{rows.name}_due"),
        "has_triggers": quote(f"{rows.name}_has_triggers"),
        "moved": quote(f"{rows.name}_moved"),
        "copied": quote(f"{rows.name}_copied"),
        "changed": str(CHANGED),
        "late": quote(f"{rows.name}_late"),
        "late_by": str(LATE_BY),
        "numbered": quote(f"{rows.name}_numbered"),
        "wake": quote(f"{rows.name}_wake"),
        "wake_earlier": quote(f"{rows.name}_wake_earlier"),
        "name": f"'{rows.name}'",  # has only letters, digits and underscores
        "now": _NOW,
        "clock": _TIME.format("clock_timestamp"),
    }
    for statement in (*_TRIGGERS, *TRIGGERS, *_NUMBERED, *(_GROUP_TRIGGERS if grouped else _LATE_TRIGGERS)):
        connection.execute(DDL(statement, context=context))
