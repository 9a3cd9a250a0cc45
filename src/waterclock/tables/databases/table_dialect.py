"""The base class of the database-specific statements for message tables. Each database has a folder.

The methods contain standard SQL. A database overrides a method if it does not support the SQL or runs it slowly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.schema import CreateTable, DropTable
from sqlalchemy.sql.util import ClauseAdapter

from waterclock.database.backend import Backend
from waterclock.database.schema.table_catalogue import groups
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.databases.changes import Changes, Polling
from waterclock.tables.databases.inserting import NewRows
from waterclock.tables.databases.message_keys import LEASED_SQL, add_keys, level_of
from waterclock.tables.model.claims.claim import Claimed, Wanted
from waterclock.tables.model.days import Days
from waterclock.tables.model.options import IdType
from waterclock.tables.model.schema import IdItem
from waterclock.tables.model.values.key_names import KeySource

KEPT = "kept"  # parameter name for the names that the transaction keeps

NAMED_AT_ONCE = 5000
"""Rows that one statement names: servers limit the length of a statement, and planners have limits, too."""

Key = tuple[sa.Column[Any], sa.Column[Any]]
LongKey = tuple[sa.Column[Any], sa.Column[Any], sa.Column[Any]]
"""The columns of a key: the table's id, and a name within the table."""

_T = TypeVar("_T")
FoundRows = TypeVar("FoundRows", bound=sa.Select[*tuple[Any, ...]])


def adapted(source: sa.FromClause, rows: sa.Table) -> Callable[[Any], Any]:
    """Return a function that makes an expression about ``rows`` one about ``source``, which is an alias of it."""
    return ClauseAdapter(source).traverse if source is not rows else lambda expression: expression


def pieces(items: Sequence[_T], size: int | None = None) -> list[Sequence[_T]]:
    """Split a list into chunks for one statement each: of ``size``, or `NAMED_AT_ONCE`."""
    size = size or NAMED_AT_ONCE
    return [items[start : start + size] for start in range(0, len(items), size)]


CHANGED_PLACES = 2**62  # the first place of messages that plain SQL changed after they were routed, behind every bound


class TableDialect(ABC):
    one_writer: bool  # whether a writing transaction excludes all others

    locks_in_parts: bool
    """Whether a part of a statement may lock exactly the rows that it returns, which saves a round trip."""

    deletes_wait: bool  # whether a DELETE waits for rows that it only reads, such as a message that a caller is putting

    keeps_ended: bool
    """Whether the row of a group stays for a while after its last message, because a search for a missing row would
    read all its earlier versions that an old snapshot shows.
    """

    reads_old: bool
    """Whether a SELECT in a caller's transaction may return old versions of rows that it can still change."""

    key_statements: Sequence[Sequence[str]]
    """The statements of `equip_keys`: for keys in a column, and for keys in a header."""

    source_differs: str  # the condition that a changed message has another source of its key, as of `add_keys`

    orders_groups_by_priority = False
    """Whether a table with groups has an index of unacked messages that begins with their priority."""

    locks_by_key = False
    """Whether due messages and groups are found without locks, and then locked by their keys.

    MariaDB locks each index entry that a locking search passes, also those of finished messages, and it passes those
    behind the end of the search, too. While a transaction holds an old snapshot, these pile up. A search without locks
    passes an entry in a hundredth of the time.
    """

    waits_for_each = False
    """Whether each statement costs a round trip: then one statement reads, changes or deletes what belongs to many
    keys.
    """

    begins_at_constants = False
    """Whether a search begins at a lower bound only if that is a constant: see `first_in_group`. An UPDATE then reads
    values that it has set before.
    """

    routed_at_once = 50_000
    """How many new messages of groups one transaction routes.

    On MariaDB, every search by the index of new messages passes the entries of an unfinished routing, and takes ten
    times as long for each: eight consumers that look for messages would slow it down to a thousand messages a second.
    """

    sends_at_once = False  # whether statements of a transaction can be sent together, and pass on names: `keep`

    clock: str  # the current time of a statement in SQL, ns, for columns that plain SQL omits

    @property
    def days(self) -> Days | None:
        """Return the day partitions; None if the database has none."""
        return None

    @abstractmethod
    def id_items(self, name: str, id_type: IdType) -> Sequence[IdItem]:
        """Return the column options by which the database generates ids; ``name`` is the table's."""

    def create(self, connection: sa.Connection, rows: sa.Table, id_type: IdType, *, grouped: bool, free: bool) -> None:
        """Create the SQL table with its defaults and indexes, so that plain SQL works without Waterclock.

        ``grouped`` says whether its messages are in groups. ``free`` says whether some of them may still be ungrouped.
        """
        self.create_bare(connection, rows)
        self.equip(connection, rows, id_type, grouped=grouped, free=free)

    def create_bare(self, connection: sa.Connection, rows: sa.Table) -> None:
        """Create the SQL table with its defaults only."""
        for column in ("time_scheduled", "time_created"):
            rows.c[column].server_default = sa.DefaultClause(sa.text(self.clock))
        connection.execute(CreateTable(rows))

    @abstractmethod
    def equip(self, connection: sa.Connection, rows: sa.Table, id_type: IdType, *, grouped: bool, free: bool) -> None:
        """Create the indexes and triggers of an existing SQL table."""

    def equip_keys(self, connection: sa.Connection, rows: sa.Table, source: KeySource) -> None:
        """Add the column of keys with its indexes and its trigger, in place of the index of due messages."""
        statements = self.key_statements[source.header is not None]
        leased = LEASED_SQL if self.is_bounded else "time_acked IS NULL AND claim_id IS NOT NULL"
        add_keys(connection, rows, source, statements, differs=self.source_differs, leased=leased)

    def few(self, key: sa.ColumnElement[str]) -> sa.ColumnElement[str]:
        """Return a key in the form of the indexes of unrouted and leased messages."""
        return key.concat(sa.literal_column("''"))

    def block_of(self, rows: sa.FromClause) -> sa.ColumnElement[int]:
        """Return the block of a message, with which the index of unrouted ones begins in a table with keys.

        Blocks are in the order in which messages were put. Only a database that `begins_at_bounds` has them.
        """
        del rows
        return sa.literal_column("0", sa.BigInteger)

    def by_rank(self, rows: sa.FromClause) -> sa.ColumnElement[int]:
        """Return the order of the messages of a key in the index of unrouted ones: the highest priority first."""
        return level_of(rows)

    @abstractmethod
    def adopt(self, connection: sa.Connection, rows: sa.Table, id_type: IdType, present: Collection[str]) -> None:
        """Turn a user's SQL table into one as by `create`, without `equip`; ``present`` are its columns."""

    @abstractmethod
    def type_remedy(self, table: str, column: str, wanted: str) -> str:
        """Describe how to change the type of a user's column."""

    def drop(self, connection: sa.Connection, rows: sa.Table) -> None:
        """Drop the SQL table and everything else that `create` made."""
        connection.execute(DropTable(rows, if_exists=True))

    @abstractmethod
    def reserve_ids(self, connection: SqlConnection, rows: sa.Table, count: int, above: int) -> Sequence[int]:
        """Return ``count`` ids above ``above`` that no other caller gets."""

    @abstractmethod
    def insert_new(
        self, connection: SqlConnection, rows: sa.Table, new: NewRows, now: sa.ColumnElement[int]
    ) -> set[Any]:
        """Insert messages with new ids; return those ids in the driver's form. ``now`` is the current time, ns."""

    @abstractmethod
    def insert_missing(self, connection: SqlConnection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows of the catalogue whose keys are missing."""

    def change_each(
        self,
        table: sa.Table,
        is_row: sa.ColumnElement[bool],
        key: Mapping[str, Any],
        values: Mapping[str, Any],
        least: Mapping[str, sa.ColumnElement[int]] | None = None,
        **same: sa.ColumnElement[Any],
    ) -> sa.Update | sa.Insert:
        """Return the statement that changes locked rows of the catalogue, to be run with the parameters of each.

        ``is_row`` is the condition that a row has the ``key``. A column gets no value below that in ``least``, which is
        computed when its row is written.
        """
        del key  # the condition says it
        bounded = {name: self.larger(values[name], one) for name, one in (least or {}).items() if name in values}
        return sa.update(table).where(is_row).values({**values, **bounded, **same})

    changed = 0  # the value of ``routed`` of a message that was routed, and that plain SQL changed since

    def is_unrouted(self, rows: sa.FromClause) -> sa.ColumnElement[bool]:
        """Return the condition that a message has no position yet, or that plain SQL changed it."""
        # Written out, because the database uses a partial index only if it can see that the condition implies the
        # index's.
        return rows.c.routed != sa.literal_column("1")

    def by_index(self, found: FoundRows, rows: sa.FromClause, name: str) -> FoundRows:
        """Return a search for messages that are unrouted, or of groups, in a form that the index of that name answers.

        ``name`` is "unrouted" or "group".
        """
        del rows, name
        return found

    def routing_place(self, rows: sa.FromClause) -> sa.ColumnElement[int]:
        """Return the order of the index of messages that must be routed: by seq."""
        return rows.c.seq

    def routing_order(self, rows: sa.FromClause) -> tuple[sa.ColumnElement[int], ...]:
        """Return `routing_place` in the form in which the index of unrouted messages is ordered by it."""
        return (self.routing_place(rows),)

    def is_unrouted_from(self, rows: sa.FromClause, start: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
        """Return the condition that a message must be routed and its `routing_place` is at least ``start``."""
        return self.is_unrouted(rows) & (self.routing_place(rows) >= start)

    is_bounded = False
    """Whether a snapshot tells which transactions it sees: then searches for groups and keys begin at bounds."""

    begins_at_bounds = False
    """Whether searches of claims begin at bounds, and triggers mark the messages that may be below these."""

    def first_late(self, rows: sa.FromClause, priority: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
        """Return the time of the first unacked late message of a priority."""
        raise NotImplementedError

    def now_without_lock_waits(self, connection: SqlConnection) -> int | None:
        """Return the current time in ns, or None if a statement may wait for a lock after a trigger read the clock."""
        raise NotImplementedError

    def seen_by(
        self, marks: sa.ColumnElement[bool], rows: sa.Table
    ) -> tuple[sa.ColumnElement[int], sa.ColumnElement[int]]:
        """Return the oldest transaction that may have changed messages, and if ``marks`` the id of this one."""
        raise NotImplementedError

    def smaller(self, one: sa.ColumnElement[int], another: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
        """Return the smaller of two values, which must not be NULL."""
        return sa.func.least(one, another, type_=sa.BigInteger)

    def larger(self, one: sa.ColumnElement[int], another: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
        """Return the larger of two values, which must not be NULL."""
        return sa.func.greatest(one, another, type_=sa.BigInteger)

    @abstractmethod
    def any_of(self, column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[bool]:
        """Return the condition that ``column`` is in the list bound as ``name``."""

    def computed_any_of(self, value: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[bool]:
        """Return the condition that a value without an index is in the list bound as ``name``.

        The time per row does not grow with the list.
        """
        return self.any_of(value, name)

    def any_key(self, table: sa.Table, value: int, columns: Key, name: str) -> sa.ColumnElement[bool]:
        """Return the condition that a row's key is ``value`` and an element of the list bound as ``name``.

        It uses the key's index even if the database believes that few rows have ``value``. Use it for rows that are
        only read, or that the transaction has locked: other rows may be missed if they change meanwhile.
        """
        del table  # known from the columns
        return (columns[0] == value) & self.any_of(columns[1], name)

    def lock_keys(
        self, table: sa.Table, value: int, columns: Key, name: str, *, skip_locked: bool = False
    ) -> sa.Select[*tuple[Any, ...]]:
        """Select and lock the rows that `any_key` selects, in their state after locking.

        They are locked one after another, in the same order in all transactions if the list is sorted.

        ``skip_locked`` says whether to skip rows that another transaction has locked, instead of waiting for them.
        """
        chosen = sa.select(table).where(columns[0] == value, self.any_of(columns[1], name))
        return chosen.order_by(columns[1]).with_for_update(skip_locked=skip_locked)

    def rows_of_each(
        self, table: sa.Table, value: int, columns: LongKey, name: str, *, skip_locked: bool = False
    ) -> sa.Select[*tuple[Any, ...]]:
        """Select all rows whose key begins with ``value`` and an element of the list bound as ``name``.

        They are looked up even if the database believes that few rows have ``value``.

        ``skip_locked`` says whether to lock them, and skip those that another transaction has locked.
        """
        chosen = sa.select(table).where(columns[0] == value, self.any_of(columns[1], name))
        return chosen.with_for_update(skip_locked=True) if skip_locked else chosen

    def newest_of_each(self, value: int, columns: LongKey, name: str, *more: str) -> sa.FromClause:
        """Return what `rows_of_each` finds, as rows of ``key``, ``level`` and the columns ``more``; if `is_bounded`."""
        raise NotImplementedError

    def is_row(self, columns: LongKey, values: tuple[Any, Any, Any]) -> sa.ColumnElement[bool]:
        """Return the condition that a row has a key, for a row that the transaction has locked."""
        return sa.and_(*(column == value for column, value in zip(columns, values, strict=True)))

    def has_neighbour(
        self, table: sa.Table, value: int, columns: LongKey, which: Callable[[Any], sa.ColumnElement[bool]], *more: str
    ) -> sa.ColumnElement[bool]:
        """Return whether a row for which ``which`` is true has the same key except for its third column.

        The first column is ``value``. ``which`` gets the third column and the columns ``more`` of that row.
        """
        del more  # which all are there
        other = table.alias("other")
        first, second, third = (other.c[column.name] for column in columns)
        its = first == value, second == columns[1], third != columns[2], which(other.c)
        return sa.exists().where(*its).correlate(table)

    def at_write(self, now: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
        """Return the time when a row is written, ns. ``now`` is the server's clock, which may stop in a statement."""
        return now

    def needs_row(self, column: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
        """Return a condition that is true for a column without negative numbers, if that ends searches earlier."""
        del column
        return sa.true()

    def delete_keys(
        self, table: sa.Table, value: int, columns: Key, name: str, which: sa.ColumnElement[bool]
    ) -> sa.Delete | sa.TextClause:
        """Delete those of the rows that `any_key` selects for which ``which`` is true. Waits for no other row."""
        return sa.delete(table).where(self.any_key(table, value, columns, name), which)

    def of_table(self, column: sa.ColumnElement[int], value: Any) -> sa.ColumnElement[bool]:
        """Return the condition that a row belongs to a table, for rows searched by key or read in key order."""
        return column == value

    def some_names(self, value: int, columns: Key, *, begins: bool) -> sa.Select[*tuple[Any, ...]]:
        """Return the names of ``count`` rows of a table in the order of a key, behind the name bound as ``after``.

        ``begins`` says whether to begin with the first name instead.
        """
        behind = sa.true() if begins else columns[1] > sa.bindparam("after", type_=columns[1].type)
        found = sa.select(columns[1].label("name")).where(columns[0] == value, behind)
        return found.order_by(columns[1]).limit(sa.bindparam("count", type_=sa.Integer))

    def look_up(
        self,
        found: sa.Select[*tuple[Any, ...]],
        value: int,
        columns: tuple[sa.ColumnElement[Any], sa.ColumnElement[Any]],
        name: Any,
    ) -> sa.Select[*tuple[Any, ...]]:
        """Return ``found`` for the one row whose key is ``value`` and ``name``, in these columns; for a subquery."""
        return found.where(columns[0] == value, columns[1] == name)

    def key_is(self, key: sa.Column[int], value: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
        """Compare a row's key with a computed value, so that any plan looks the row up."""
        return key == value

    def update_pairs(self, rows: sa.Table) -> tuple[sa.Update, sa.ColumnElement[int]]:
        """Update messages by their seqs, each to its own number; both are bound in the list ``pairs``.

        It reads no other rows, which another transaction may have locked. Return the statement, to which the values are
        added, and the number.
        """
        pairs = self.pairs("pairs")
        return sa.update(rows).where(self.key_is(rows.c.seq, pairs.c.seq)), pairs.c.number

    @abstractmethod
    def pairs(self, name: str) -> sa.FromClause:
        """Return the pairs in the list bound as ``name`` as rows, with the columns seq and number."""

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
        """Select rows of another table that belong to those rows of ``parents`` for which ``which`` is true.

        They are looked up parent by parent, by an index in this order, even if the database believes that there are
        hardly any.

        ``skip_locked`` says whether to lock them, and skip those that another transaction has locked. The transaction
        has locked their parents.
        """
        del order  # part of the index
        found = sa.select(*columns).join_from(parents, columns[0].table, belongs).where(which)
        return found.with_for_update(skip_locked=True) if skip_locked else found

    def lock_free(
        self,
        rows: sa.Table,
        search: Callable[[sa.FromClause], sa.Select[*tuple[Any, ...]]],
        still: sa.ColumnElement[bool],
    ) -> sa.Select[*tuple[Any, ...]]:
        """Select messages, and lock those that no other transaction has locked. Skip rows whose seq is NULL.

        ``search`` selects the messages from ``rows``, or from an alias of it. ``still`` is the condition that a message
        still is one of them, in a form that no index answers.
        """
        del still  # the conditions of a locking search are checked again for a row that changes meanwhile
        return search(rows).with_for_update(skip_locked=True)

    def both(self, one: sa.Update, another: sa.Update | sa.Delete) -> Sequence[sa.Update | sa.Delete]:
        """Return the results of two statements that change different rows and do not see each other."""
        return one, another

    def keep(self, names: sa.FromClause, which: sa.ColumnElement[bool]) -> sa.Select[Any]:
        """Keep names in order, as rows of ``name`` and ``nth``, until the transaction ends or others are kept.

        `any_key`, `lock_keys` and `computed_any_of` find them in the list bound as `KEPT`.
        """
        raise NotImplementedError

    def kept(self) -> sa.FromClause:
        """Return the kept names, as rows of ``name`` and ``nth``."""
        raise NotImplementedError

    def has_name(self, table: sa.Table, value: int, columns: Key, names: sa.FromClause) -> sa.ColumnElement[bool]:
        """Return the condition that a row's key is ``value`` and one of the rows of ``name``, as `any_key`."""
        raise NotImplementedError

    def value_of(self, name: sa.ColumnElement[Any], values: sa.FromClause, column: sa.ColumnElement[int]) -> Any:
        """Look up the value that a row of ``values`` has for its ``name``; fast for many rows, too."""
        raise NotImplementedError

    @abstractmethod
    def claim(
        self,
        connection: SqlConnection,
        rows: sa.Table,
        wanted: Wanted,
        begin: Mapping[int, int],  # start of the search, from `ClaimCursor`
        now: sa.ColumnElement[int],  # the current time, ns
    ) -> list[Claimed]:
        """Claim due messages in a table without groups."""

    @abstractmethod
    def column_names(self, connection: SqlConnection, name: str) -> set[str]:
        """Return the current column names of the SQL table; none if it is missing."""

    def columns_and_row(
        self, connection: SqlConnection, name: str, facts: sa.Select[*tuple[Any, ...]]
    ) -> tuple[set[str], Any]:
        """Return the `column_names`, and the row of a statement with ``name`` bound in it, None if it has none.

        In one round trip if possible.
        """
        return self.column_names(connection, name), connection.execute(facts, {"name": name}).first()

    def blocked_groups(self, connection: sa.Connection, table_id: int) -> sa.ColumnElement[bool]:
        """Return the condition of a table's groups that have messages and are never due by themselves.

        The condition is in a form that uses an index. It may need to query the values that begin the index.
        """
        del connection  # used by other databases
        return (groups.c.table_id == table_id) & groups.c.ready_at.is_(None) & groups.c.head.is_not(None)

    def like(self, column: sa.ColumnElement[Any], pattern: str) -> sa.ColumnElement[bool]:
        """Match a pattern case-sensitively; only % and _ have a meaning in it."""
        # The backslash, the escape character there, escapes itself.
        return column.like(sa.literal(pattern.replace("\\", "\\\\"), sa.String()))

    def has_in_it(self, column: sa.ColumnElement[Any], part: str | bytes) -> sa.ColumnElement[bool]:
        """Return the condition that a text contains another, case-sensitively, whatever its characters; or bytes."""
        return sa.func.instr(column, sa.literal(part), type_=sa.Integer()) > 0

    def note_row_changed(self, connection: SqlConnection, name: str) -> None:
        """Report to waiting consumers that the transaction has changed a table's row in the catalogue."""
        del connection, name

    def changes(self, backend: Backend, name: str) -> Changes:
        """Watch the database for changes of the table of this name."""
        del backend, name
        return Polling()
