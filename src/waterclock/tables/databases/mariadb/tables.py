"""The statements for message tables on MariaDB."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import DDL, CreateIndex, CreateSequence, DropSequence

from waterclock.database.engines.mariadb import NOW
from waterclock.database.per_database_cache import built_once
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.databases.claiming_rows import ClaimsInSteps
from waterclock.tables.databases.inserting import NewRows
from waterclock.tables.databases.json_list import JsonList
from waterclock.tables.databases.mariadb import adopting, leased_keys
from waterclock.tables.databases.mariadb.blocked_groups import blocked_groups
from waterclock.tables.databases.mariadb.inserting import insert_new
from waterclock.tables.databases.mariadb.leased_keys import index_of
from waterclock.tables.databases.mariadb.listed_rows import delete_listed
from waterclock.tables.databases.mariadb.partitions import MariadbDays
from waterclock.tables.databases.mariadb.unrouted_keys import SINCE_SQL, SINCE_START, since
from waterclock.tables.databases.message_keys import IS_COPIED, column_of
from waterclock.tables.databases.table_dialect import CHANGED_PLACES, FoundRows, Key, LongKey, TableDialect, adapted
from waterclock.tables.model.claims.bounds import LATE_BY
from waterclock.tables.model.claims.claim import Wanted
from waterclock.tables.model.claims.due_slots import SLOT
from waterclock.tables.model.claims.epochs import after_claim_sql
from waterclock.tables.model.days import Days
from waterclock.tables.model.options import IdType
from waterclock.tables.model.row_conditions import HAS_DUE_TIME, not_acked
from waterclock.tables.model.schema import (
    DUE_SLOT,
    LATE,
    LATE_DUE,
    LATE_PRIORITY,
    LEASED_SINCE,
    MESSAGE_KEY,
    OF_PLAIN_TABLES,
    SEQ_INDEX,
    UNROUTED_SINCE,
    IdItem,
)
from waterclock.tables.model.values.key_names import KeySource

_SO_MANY_ROWS = sa.text(
    "JSON_TABLE(CONCAT('[1', REPEAT(',1', :more), ']'), '$[*]' COLUMNS (one INT PATH '$')) AS numbers"
)
_COLUMNS = sa.text(
    "SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = :name"
)
_NOW_WITHOUT_LOCK_WAITS = sa.text(
    f"SELECT IF(variable_value = 0, {NOW}, NULL) FROM information_schema.global_status"  # noqa: S608  # a constant
    " WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'"
)
_TAKEN_AT_ONCE = 250  # messages that one statement claims: the server reads the ends of all leases for each of them

_PUT_TRIGGER = """
    CREATE OR REPLACE TRIGGER %(due)s BEFORE INSERT ON %(table)s FOR EACH ROW
    BEGIN
        SET NEW.time_scheduled = COALESCE(NEW.time_scheduled, %(now)s);
        IF NEW.time_acked IS NULL THEN
            SET NEW.time_next = COALESCE(NEW.time_next, NEW.time_scheduled);
        END IF;%(marks)s
    END"""
_CHANGE_TRIGGER = """
    CREATE OR REPLACE TRIGGER %(kept)s BEFORE UPDATE ON %(table)s FOR EACH ROW
    BEGIN
        IF NEW.time_acked IS NULL THEN
            SET NEW.time_next = COALESCE(NEW.time_next, %(now)s);
        END IF;%(marks)s
    END"""
_LATE = {
    name: f"CASE WHEN routed = 2 AND time_acked IS NULL THEN {column} END"
    for name, column in ((LATE_PRIORITY, "priority"), (LATE_DUE, "time_next"))
}
_IF_LATE = f"""
        IF NEW.time_acked IS NULL AND NEW.time_next < {NOW} - {LATE_BY} + {SINCE_START} THEN
            SET NEW.routed = 2;
        END IF;"""
_IF_COPIED = f"""
        IF {IS_COPIED} THEN
            SET NEW.routed = 2, NEW.position = NULL;
        END IF;"""
# If plain SQL puts a message back that was routed, the row of its key may be gone.
_SINCE = f"""
        SET NEW.routed = 0;
        SET NEW.{UNROUTED_SINCE} = IF(NEW.time_acked IS NULL, {SINCE_SQL}, NULL);
        SET NEW.{LEASED_SINCE} =
            IF(NEW.claim_id IS NULL OR NEW.time_acked IS NOT NULL, NULL, {leased_keys.SINCE_SQL});"""
# Our own updates always change the claim if they change anything that matters to a group.
_GROUP_TRIGGER = """
    CREATE OR REPLACE TRIGGER %(moved)s BEFORE UPDATE ON %(table)s FOR EACH ROW
    BEGIN
        IF NEW.routed = 1 AND OLD.routed = 1 AND NEW.claim_id <=> OLD.claim_id AND NEW.ack_held_at <=> OLD.ack_held_at
        AND NOT (NEW.group_id IS NULL AND OLD.group_id IS NULL AND OLD.time_acked IS NULL) AND NOT (
            NEW.time_next <=> OLD.time_next AND NEW.time_acked <=> OLD.time_acked
            AND NEW.group_id <=> OLD.group_id AND NEW.priority <=> OLD.priority
        ) THEN
            SET NEW.routed = 2;
            IF NOT NEW.group_id <=> OLD.group_id OR OLD.time_acked IS NOT NULL THEN
                SET NEW.position = NULL;
            END IF;
        END IF;
    END"""

_KEY_TRIGGER = f"""
    CREATE OR REPLACE TRIGGER %(moved)s BEFORE UPDATE ON %(table)s FOR EACH ROW
    BEGIN
        IF %(is_moved)s THEN
            SET NEW.routed = 0;
        END IF;
        SET NEW.{UNROUTED_SINCE} =
            IF(NEW.routed = 1 OR NEW.time_acked IS NOT NULL, NULL, COALESCE(OLD.{UNROUTED_SINCE}, {SINCE_SQL}));
        SET NEW.{LEASED_SINCE} = CASE
            WHEN NEW.time_acked IS NOT NULL OR NEW.claim_id IS NULL THEN NULL
            WHEN NEW.{LEASED_SINCE} = OLD.{LEASED_SINCE} AND NEW.claim_id <=> OLD.claim_id
                AND NEW.time_next = OLD.time_next THEN OLD.{LEASED_SINCE}
            ELSE {leased_keys.SINCE_SQL} END;
    END"""  # noqa: S608  # constants
_BYTEWISE = "CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"
_KEYS = [
    (
        f"ALTER TABLE %(table)s ADD COLUMN {column_of(key, f'VARCHAR(255) {_BYTEWISE}')} STORED,"
        f" ADD COLUMN {UNROUTED_SINCE} BIGINT, ADD COLUMN {LEASED_SINCE} BIGINT,"
        # The server would read all due messages by the first one, and sort them.
        f" DROP INDEX %(next)s, DROP INDEX %(late_index)s, "
        f" {', '.join(f'DROP COLUMN {column}' for column in OF_PLAIN_TABLES)},"
        # A search that finds no unacked message of a key ends at its finished ones, not at those of all later keys.
        f" ADD INDEX %(key)s ({MESSAGE_KEY}, priority, time_acked, time_next, seq),"
        f" ADD INDEX %(leased)s ({LEASED_SINCE}, {MESSAGE_KEY}, priority, time_next, seq),"
        f" ADD INDEX %(unrouted)s ({UNROUTED_SINCE}, {MESSAGE_KEY}, priority DESC, time_next)",
        _KEY_TRIGGER,
    )
    for key in ("CAST(%(source)s AS CHAR CHARACTER SET utf8mb4)", "JSON_VALUE(%(source)s, '$.\"%(header)s\"')")
]
"""The statements for keys in a column of their own, and in headers."""
_DIFFERS = "NOT (CAST(NEW.%(source)s AS BINARY) <=> CAST(OLD.%(source)s AS BINARY))"


class MariadbTables(ClaimsInSteps, TableDialect):
    one_writer = False
    key_statements = _KEYS
    source_differs = _DIFFERS
    deletes_wait = True
    locks_in_parts = False
    latest_first = True
    locks_by_key = True
    waits_for_each = True
    keeps_ended = False
    reads_old = True
    orders_groups_by_priority = True
    begins_at_constants = True
    routed_at_once = 2_000
    changed = 2  # in tables with groups
    begins_at_bounds = True
    clock = NOW

    @property
    def days(self) -> Days:
        return MariadbDays(self.create)

    def id_items(self, name: str, id_type: IdType) -> Sequence[IdItem]:
        """Return a sequence for numbers, because a table has only one AUTO_INCREMENT column, and random UUIDs."""
        items: dict[IdType, list[IdItem]] = {
            "bigint": [sa.DefaultClause(sa.Sequence(f"{name}_id_seq").next_value())],
            "uuid": [sa.DefaultClause(sa.text("UUID()"))],
            "text": [],
        }
        return items[id_type]

    def create(self, connection: sa.Connection, rows: sa.Table, id_type: IdType, *, grouped: bool, free: bool) -> None:
        """Create the SQL table, its indexes and triggers, and the sequence of its ids."""
        if id_type == "bigint":
            # An interrupted creation may have left it.
            connection.execute(CreateSequence(sa.Sequence(f"{rows.name}_id_seq"), if_not_exists=True))
        super().create(connection, rows, id_type, grouped=grouped, free=free)

    def is_unrouted(self, rows: sa.FromClause) -> sa.ColumnElement[bool]:
        """Return it in a form that the index of all messages answers."""
        if MESSAGE_KEY in rows.c:
            return since().is_not(None)
        return rows.c.routed.in_([sa.literal_column("0"), sa.literal_column(str(self.changed))])

    def block_of(self, rows: sa.FromClause) -> sa.ColumnElement[int]:
        """Return the second since when it is unrouted."""
        del rows  # the only table of a search that has this column
        return since()

    def routing_place(self, rows: sa.FromClause) -> sa.ColumnElement[int]:
        """Return the place of a message: changed ones are last, so that a search from a bound finds them."""
        behind = sa.func.greatest(rows.c.seq, sa.literal_column("0"), type_=sa.BigInteger).op("DIV")(sa.text("2"))
        return sa.case((_is_new(rows), rows.c.seq), else_=behind + sa.literal_column(str(CHANGED_PLACES)))

    def routing_order(self, rows: sa.FromClause) -> tuple[sa.ColumnElement[int], ...]:
        """Return the columns of the index."""
        return rows.c.routed, rows.c.seq

    def is_unrouted_from(self, rows: sa.FromClause, start: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
        """Return it as two ranges of the index."""
        is_changed = rows.c.routed == sa.literal_column(str(self.changed))
        return (_is_new(rows) & (rows.c.seq >= start)) | (is_changed & (self.routing_place(rows) >= start))

    def by_index(self, found: FoundRows, rows: sa.FromClause, name: str) -> FoundRows:
        """Name the index: with statistics from before messages were put or acked, the server reads all of them."""
        return found.with_hint(rows, index_of(rows, name))

    def equip(self, connection: sa.Connection, rows: sa.Table, id_type: IdType, *, grouped: bool, free: bool) -> None:
        """Create the indexes and triggers of an existing SQL table."""
        del id_type  # shown by the columns
        quote = connection.dialect.identifier_preparer.quote
        name = rows.name
        expiring = (rows.c.time_acked, rows.c.expires_at, rows.c.seq)
        indexes = [sa.Index(f"{name}_expires_idx", *expiring)]
        # With seq before epoch, which is there for counting; otherwise each claim would sort the due messages.
        due = ("time_next", "seq", "epoch") if grouped else (DUE_SLOT, "time_next", "seq", "epoch")
        added = f"ADD INDEX IF NOT EXISTS %(next)s (time_acked, priority, {', '.join(due)})"
        added += f", ADD CONSTRAINT IF NOT EXISTS %(has_triggers)s CHECK ({HAS_DUE_TIME})"
        context = {"table": quote(name), "has_triggers": quote(f"{name}_has_triggers")}
        context |= {which: quote(f"{name}_{which}_idx") for which in ("next", "late")}
        if grouped:
            indexes += [
                sa.Index(f"{name}_group_idx", rows.c.group_id, rows.c.time_acked, rows.c.position),
                sa.Index(f"{name}_unrouted_idx", rows.c.routed, rows.c.seq),
            ]
        else:
            generated = {**_LATE, DUE_SLOT: f"time_next DIV {SLOT}"}
            columns = (
                f"ADD COLUMN IF NOT EXISTS {column} BIGINT AS ({value}) STORED" for column, value in generated.items()
            )
            added = f"{', '.join(columns)}, {added}, ADD INDEX IF NOT EXISTS %(late)s ({', '.join(LATE)})"
        connection.execute(DDL(f"ALTER TABLE %(table)s {added}", context=context))
        if free:
            due = rows.c.group_id, rows.c.time_acked, rows.c.priority, rows.c.time_next
            indexes.append(sa.Index(f"{name}_free_idx", *due))
        for index in indexes:
            connection.execute(CreateIndex(index, if_not_exists=True))  # an adoption may have been interrupted
        self._guard(connection, name, [_PUT_TRIGGER], _IF_COPIED if grouped else _IF_LATE)
        self._guard(connection, name, [_CHANGE_TRIGGER], "" if grouped else _IF_LATE)
        if grouped:
            self._guard(connection, name, [_GROUP_TRIGGER])

    def _guard(self, connection: sa.Connection, name: str, triggers: Sequence[str], marks: str = "") -> None:
        quote = connection.dialect.identifier_preparer.quote
        context = {verb: quote(f"{name}_{verb}") for verb in ("due", "kept", "moved")}
        context |= {"table": quote(name), "now": self.clock, "marks": marks}
        for trigger in triggers:
            connection.execute(DDL(trigger, context=context))

    def equip_keys(self, connection: sa.Connection, rows: sa.Table, source: KeySource) -> None:
        """Add the columns and indexes of keys, and mark new messages in place of late ones."""
        super().equip_keys(connection, rows, source)
        self._guard(connection, rows.name, [_PUT_TRIGGER], _SINCE)
        self._guard(connection, rows.name, [_CHANGE_TRIGGER])

    def first_late(self, rows: sa.FromClause, priority: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
        """Look it up in the index of late messages."""
        late_priority, late_due = (sa.column(name, sa.BigInteger) for name in LATE)
        found = sa.select(late_due).select_from(rows).where(late_priority == priority, late_due.is_not(None))
        return found.order_by(late_due).limit(1).scalar_subquery()

    def now_without_lock_waits(self, connection: SqlConnection) -> int | None:
        """Read how many statements of the server wait for row locks, which needs no privilege."""
        return connection.execute(_NOW_WITHOUT_LOCK_WAITS).scalar()

    def few(self, key: sa.ColumnElement[str]) -> sa.ColumnElement[str]:
        """Return the key itself: the server has no indexes by expressions."""
        return key

    def adopt(self, connection: sa.Connection, rows: sa.Table, id_type: IdType, present: Collection[str]) -> None:
        """Turn a user's SQL table into one as by `create`, without `equip`; ``present`` are its columns."""
        adopting.adopt(connection, rows, id_type, present, self.clock)

    def type_remedy(self, table: str, column: str, wanted: str) -> str:
        """Return the statement that changes the type of a user's column."""
        return adopting.type_remedy(table, column, wanted)

    def drop(self, connection: sa.Connection, rows: sa.Table) -> None:
        """Drop the SQL table with its triggers, and the sequence of its ids."""
        super().drop(connection, rows)
        connection.execute(DropSequence(sa.Sequence(f"{rows.name}_id_seq"), if_exists=True))

    def reserve_ids(self, connection: SqlConnection, rows: sa.Table, count: int, above: int) -> Sequence[int]:
        """Draw ids from the table's sequence; if they collide with given ids, advance it beyond those."""
        sequence = sa.Sequence(f"{rows.name}_id_seq")
        # One row per id, from a source that needs no privilege.
        drawn = sa.select(sequence.next_value()).select_from(_SO_MANY_ROWS.bindparams(more=count - 1))
        ids = list(connection.scalars(drawn))
        if above >= ids[0]:
            greatest = connection.execute(sa.select(sa.func.max(rows.c.id))).scalar()
            taken = max(above, greatest or 0)
            name = sa.literal_column(connection.dialect.identifier_preparer.quote(sequence.name))
            connection.execute(sa.select(sa.func.setval(name, taken)))
            ids = list(connection.scalars(drawn))
        return ids

    def insert_new(
        self, connection: SqlConnection, rows: sa.Table, new: NewRows, now: sa.ColumnElement[int]
    ) -> set[Any]:
        """Insert messages with new ids, and return those ids."""
        return insert_new(connection, rows, new, now)

    def insert_missing(self, connection: SqlConnection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows of the catalogue whose keys are missing."""
        connection.execute(sa.insert(table).prefix_with("IGNORE"), list(rows))

    def change_each(
        self,
        table: sa.Table,
        is_row: sa.ColumnElement[bool],
        key: Mapping[str, Any],
        values: Mapping[str, Any],
        least: Mapping[str, sa.ColumnElement[int]] | None = None,
        **same: sa.ColumnElement[Any],
    ) -> sa.Insert:
        """Return an INSERT of rows that exist, which the driver sends once for all of them.

        It does so only if all values are parameters, and nothing behind them is: the clock of a test is a parameter.

        An UPDATE that names many rows would compute all values before it writes the first one: if a lock then held it
        up, its times would be in the past.
        """
        del is_row  # the key says it
        given = {name: value for name, value in same.items() if isinstance(value, sa.BindParameter)}
        bounds = {name: one for name, one in (least or {}).items() if name in values}
        given |= {
            name: self.larger(values[name], one) for name, one in bounds.items() if isinstance(one, sa.BindParameter)
        }
        needed = [column.name for column in table.c if not column.nullable and column.server_default is None]
        new = mysql.insert(table).values({**dict.fromkeys((*needed, *same), 0), **key, **values, **given})
        own: dict[str, Any] = {name: new.inserted[name] for name in (*values, *given)}
        own |= {name: self.larger(own[name], one) for name, one in bounds.items() if name not in given}
        return new.on_duplicate_key_update({**same, **own})

    def any_of(self, column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[bool]:
        """Return the condition that ``column`` is in the list bound as ``name``."""
        return column.in_(sa.bindparam(name, type_=column.type, expanding=True))

    def lock_keys(
        self, table: sa.Table, value: int, columns: Key, name: str, *, skip_locked: bool = False
    ) -> sa.Select[*tuple[Any, ...]]:
        """Select and lock them by key: the server scans a small table, and waits for locked rows that it skips."""
        chosen = super().lock_keys(table, value, columns, name, skip_locked=skip_locked)
        return chosen.with_hint(table, "FORCE INDEX (PRIMARY)")

    def rows_of_each(
        self, table: sa.Table, value: int, columns: LongKey, name: str, *, skip_locked: bool = False
    ) -> sa.Select[*tuple[Any, ...]]:
        """Select them by key, as `lock_keys` does."""
        chosen = super().rows_of_each(table, value, columns, name, skip_locked=skip_locked)
        return chosen.with_hint(table, "FORCE INDEX (PRIMARY)")

    def by_rank(self, rows: sa.FromClause) -> sa.ColumnElement[int]:
        """Return the priority, the highest first: the index has no expressions."""
        return rows.c.priority.desc()

    def at_write(self, now: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
        """Add the time that the statement has taken: it may have waited for a lock."""
        return now + sa.literal_column(SINCE_START, sa.BigInteger)

    def needs_row(self, column: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
        """Return a condition on a column that the index lacks.

        Only in a search that needs a row does the server check the end of the range before it looks up the row of an
        entry, living or dead.
        """
        return column >= sa.literal_column("0")

    def delete_keys(
        self, table: sa.Table, value: int, columns: Key, name: str, which: sa.ColumnElement[bool]
    ) -> sa.TextClause:
        """Delete them by a JSON text."""
        del table  # known from the columns
        return delete_listed(name, columns[1:], columns[0] == value, which)

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
        """Select them, and lock them as `lock_free` does."""
        rows = columns[0].table
        if not skip_locked:
            return super().of_each(parents, columns, belongs, order, which, skip_locked=skip_locked)

        def search(source: sa.FromClause) -> sa.Select[*tuple[Any, ...]]:
            chosen = [source.c[column.name] for column in columns]
            found = sa.select(*chosen).join_from(parents, source, adapted(source, rows)(belongs)).where(which)
            return found if source is rows else self.by_index(found, source, "group")

        return self.lock_free(rows, search, not_acked(rows))

    def lock_free(
        self,
        rows: sa.Table,
        search: Callable[[sa.FromClause], sa.Select[*tuple[Any, ...]]],
        still: sa.ColumnElement[bool],
    ) -> sa.Select[*tuple[Any, ...]]:
        """Search without locks, and lock the messages by their seqs: see `TableDialect.locks_by_key`.

        Only an outer join makes the server begin with the seqs that were found. Without the hint, it may scan a table
        that has just been filled, and lock all of it.
        """
        seen = rows.alias("unlocked")
        found = search(seen).with_only_columns(seen.c.seq, maintain_column_froms=True).subquery("found")
        its = sa.and_(rows.c.seq == found.c.seq, still)
        columns = search(rows).selected_columns
        locked = sa.select(*columns).select_from(sa.outerjoin(found, rows, its))
        return locked.with_hint(rows, f"FORCE INDEX (`{rows.info[SEQ_INDEX]}`)").with_for_update(skip_locked=True)

    def update_pairs(self, rows: sa.Table) -> tuple[sa.Update, sa.ColumnElement[int]]:
        """Update messages by their seqs. Only an outer join makes the server begin with the pairs."""
        pairs = self.pairs("pairs")
        return sa.update(pairs.outerjoin(rows, rows.c.seq == pairs.c.seq)), pairs.c.number

    def pairs(self, name: str) -> sa.FromClause:
        """Read the pairs from a JSON text."""
        columns = sa.text("'$[*]' COLUMNS (seq BIGINT PATH '$[0]', number BIGINT PATH '$[1]')")
        listed = sa.func.json_table(sa.bindparam(name, type_=JsonList()), columns)
        return listed.table_valued(sa.column("seq", sa.BigInteger), sa.column("number", sa.BigInteger), name="pairs")

    def take(self, connection: SqlConnection, rows: sa.Table, wanted: Wanted, ends: Sequence[tuple[int, int]]) -> None:
        """Claim locked messages, some at a time: an UPDATE neither skips locked rows nor returns any."""
        for start in range(0, len(ends), _TAKEN_AT_ONCE):
            some = ends[start : start + _TAKEN_AT_ONCE]
            by_seq = ",".join(f'"s{seq}":{until}' for seq, until in some)
            values = {"seqs": [seq for seq, _ in some], "ends": f"{{{by_seq}}}"}
            connection.execute(_taking(rows), {**values, "by": wanted.claim_id, "who": wanted.consumer})

    def blocked_groups(self, connection: sa.Connection, table_id: int) -> sa.ColumnElement[bool]:
        """Name the owners and priorities with which the index of due groups begins."""
        return blocked_groups(connection, table_id)

    def column_names(self, connection: SqlConnection, name: str) -> set[str]:
        """Read the column names from the information schema."""
        return set(connection.scalars(_COLUMNS, {"name": name}))


def _is_new(rows: sa.FromClause) -> sa.ColumnElement[bool]:
    return rows.c.routed == sa.literal_column("0")


@built_once(maxsize=256)
def _taking(rows: sa.Table) -> sa.Update:
    # The ends are looked up in a value, not joined: a join may scan the table, and would then wait for rows that others
    # have locked.
    end = sa.func.json_value(sa.bindparam("ends", type_=sa.Text), sa.func.concat("$.s", rows.c.seq))
    return (
        sa.update(rows)
        .where(rows.c.seq.in_(sa.bindparam("seqs", expanding=True)))
        .values(
            time_next=sa.cast(end, sa.BigInteger),
            epoch=after_claim_sql(rows.c.epoch),
            claim_id=sa.bindparam("by"),
            consumer=sa.bindparam("who"),
        )
    )
