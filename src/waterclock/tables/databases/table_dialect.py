"""What message tables need that differs between the databases, as one base. Each database has a folder for it.

A method here has the statement as one would write it; a database overrides those that it does not know or does badly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.schema import CreateTable, DropTable

from waterclock.database.backend import Backend
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.databases.changes import Changes, Polling
from waterclock.tables.databases.inserting import NewRows
from waterclock.tables.model.claims.claim import Claimed, Wanted
from waterclock.tables.model.days import Days
from waterclock.tables.model.options import IdType
from waterclock.tables.model.schema import IdItem

KEPT = "kept"
"""The list of the names that the transaction has kept."""

NAMED_AT_ONCE = 5000
"""Rows that one statement names: a server refuses a statement that is too long, and its planner has bounds, too."""

_T = TypeVar("_T")


def pieces(items: Sequence[_T], size: int | None = None) -> Iterator[Sequence[_T]]:
    """Cut what is to be named into as much as one statement names: ``size``, or `NAMED_AT_ONCE`."""
    size = size or NAMED_AT_ONCE
    for start in range(0, len(items), size):
        yield items[start : start + size]


class TableDialect(ABC):
    """One database's statements for message tables."""

    one_writer: bool
    """Whether a transaction that writes keeps all others from writing."""

    locks_in_parts: bool
    """Whether a part of a statement may lock rows, those and no others that it gives: this spares a round trip."""

    deletes_wait: bool
    """Whether a DELETE waits for rows that it only looks at, such as a message that a caller is just putting."""

    reads_old: bool
    """Whether a SELECT in a caller's transaction may give rows as they were when it began, and change them all the
    same."""

    unacked_apart: bool
    """Whether, in a table with partitions, what is not acked has one of its own, which ``time_acked IS NULL`` tells."""

    at_once = False
    """Whether statements of a transaction can be sent at once, and pass names to those behind them: `keep`."""

    clock: str
    """The start of the statement in SQL, ns, for what plain SQL leaves out."""

    @property
    def days(self) -> Days | None:
        """Partitions by day; None where the database has none."""
        return None

    @abstractmethod
    def id_items(self, name: str, id_type: IdType) -> Sequence[IdItem]:
        """Give what the id's column needs so that the database generates ids; ``name`` is the table's."""

    def create(self, connection: sa.Connection, rows: sa.Table, id_type: IdType, *, grouped: bool, free: bool) -> None:
        """Make the SQL table with its defaults and indexes, so that plain SQL works with nothing of ours installed.

        Parameters
        ----------
        grouped
            Whether its messages are in groups.
        free
            Whether some of them are in none all the same.
        """
        self.create_bare(connection, rows)
        self.equip(connection, rows, id_type, grouped=grouped, free=free)

    def create_bare(self, connection: sa.Connection, rows: sa.Table) -> None:
        """Make the SQL table with its defaults alone."""
        for column in ("time_scheduled", "time_created"):
            rows.c[column].server_default = sa.DefaultClause(sa.text(self.clock))
        connection.execute(CreateTable(rows))

    @abstractmethod
    def equip(self, connection: sa.Connection, rows: sa.Table, id_type: IdType, *, grouped: bool, free: bool) -> None:
        """Make the indexes and triggers of an SQL table that is there."""

    @abstractmethod
    def adopt(self, connection: sa.Connection, rows: sa.Table, id_type: IdType, present: Collection[str]) -> None:
        """Give an SQL table of the user's what `create` makes but for `equip`; ``present`` are the columns it has."""

    @abstractmethod
    def type_remedy(self, table: str, column: str, wanted: str) -> str:
        """Say how a column of the user's gets another type."""

    def drop(self, connection: sa.Connection, rows: sa.Table) -> None:
        """Remove the SQL table with what `create` made beside it."""
        connection.execute(DropTable(rows, if_exists=True))

    @abstractmethod
    def reserve_ids(self, connection: SqlConnection, rows: sa.Table, count: int, above: int) -> Sequence[int]:
        """Give ``count`` ids above ``above`` that no other caller gets."""

    @abstractmethod
    def insert_new(
        self, connection: SqlConnection, rows: sa.Table, new: NewRows, now: sa.ColumnElement[int]
    ) -> set[Any]:
        """Insert messages whose ids are new, and return those ids as the driver has them; ``now`` is the clock, ns."""

    @abstractmethod
    def insert_missing(self, connection: SqlConnection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows of the catalogue whose keys are not there."""

    def smaller(self, one: sa.ColumnElement[int], another: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
        """Give the smaller of two values, which must not be NULL."""
        return sa.func.least(one, another, type_=sa.BigInteger)

    @abstractmethod
    def any_of(self, column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[bool]:
        """Say that ``column`` is one of the values in the list bound as ``name``."""

    def computed_any_of(self, value: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[bool]:
        """Say that a value, which no index has, is one of those in the list bound as ``name``.

        It takes no longer for each row where the list is long.
        """
        return self.any_of(value, name)

    def any_key(
        self, table: sa.Table, value: int, columns: tuple[sa.Column[Any], sa.Column[Any]], name: str
    ) -> sa.ColumnElement[bool]:
        """Say that a row's key is ``value`` with one of the values in the list bound as ``name``, in these columns.

        It goes down the key's index even where a database believes that few rows have ``value``. For rows that are only
        read, or that the transaction has locked: other rows may be left out where they change meanwhile.
        """
        del table  # the columns know it
        return (columns[0] == value) & self.any_of(columns[1], name)

    def lock_keys(
        self,
        table: sa.Table,
        value: int,
        columns: tuple[sa.Column[Any], sa.Column[Any]],
        name: str,
        *,
        skip_locked: bool = False,
    ) -> sa.Select[*tuple[Any, ...]]:
        """Select and lock the rows that `any_key` chooses, as they are once they are locked.

        One after another, in an order that is the same for all transactions, for a list in the order of its values.

        Parameters
        ----------
        skip_locked
            Whether to leave out those that another transaction has locked, instead of waiting for them.
        """
        chosen = sa.select(table).where(columns[0] == value, self.any_of(columns[1], name))
        return chosen.order_by(columns[1]).with_for_update(skip_locked=skip_locked)

    def key_is(self, key: sa.Column[int], value: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
        """Compare a row's key with a computed value, so that the row is looked up for any statistics."""
        return key == value

    def update_pairs(self, rows: sa.Table) -> tuple[sa.Update, sa.ColumnElement[int]]:
        """Update messages by their seqs, each to a number of its own; both are bound as pairs, in the list ``pairs``.

        It looks at no other rows, which another transaction may have locked. Given back is the statement, to which the
        values are added, and the number.
        """
        pairs = self.pairs("pairs")
        return sa.update(rows).where(self.key_is(rows.c.seq, pairs.c.seq)), pairs.c.number

    @abstractmethod
    def pairs(self, name: str) -> sa.FromClause:
        """Give the pairs in the list bound as ``name`` as rows, with the columns seq and number."""

    def of_each(
        self,
        parents: sa.Table,
        columns: Sequence[sa.Column[Any]],
        belongs: sa.ColumnElement[bool],
        order: sa.Column[int],
        *,
        skip_locked: bool = False,
    ) -> sa.Select[*tuple[Any, ...]]:
        """Select rows of another table that belong to rows of ``parents``.

        They are looked up parent by parent, by an index that has them in this order, even where a database believes
        that there are hardly any of them.

        Parameters
        ----------
        skip_locked
            Whether to lock them, and leave out those that another transaction has locked. The transaction has locked
            their parents.
        """
        del order  # the index has it
        found = sa.select(*columns).join_from(parents, columns[0].table, belongs)
        return found.with_for_update(skip_locked=True) if skip_locked else found

    def both(self, one: sa.Update, another: sa.Update | sa.Delete) -> Sequence[sa.Update | sa.Delete]:
        """Give what two statements do that change different rows and do not see each other."""
        return one, another

    def keep(self, names: sa.FromClause, which: sa.ColumnElement[bool]) -> sa.Select[Any]:
        """Keep names, as rows of ``name`` and ``nth``, in their order until the transaction ends or others are kept.

        `any_key`, `lock_keys` and `computed_any_of` find them as the list that is bound as `KEPT`.
        """
        raise NotImplementedError

    def kept(self) -> sa.FromClause:
        """Give the names that were kept, as rows of ``name`` and ``nth``."""
        raise NotImplementedError

    def has_name(
        self, table: sa.Table, value: int, columns: tuple[sa.Column[Any], sa.Column[Any]], names: sa.FromClause
    ) -> sa.ColumnElement[bool]:
        """Say as `any_key` does that a row's key is ``value`` with one of the rows of ``name``."""
        raise NotImplementedError

    def value_of(self, name: sa.Column[Any], values: sa.FromClause, column: sa.ColumnElement[int]) -> Any:
        """Look the value up that a row of ``values`` has for its ``name``; quick also where there are many."""
        raise NotImplementedError

    @abstractmethod
    def claim(
        self,
        connection: SqlConnection,
        rows: sa.Table,
        wanted: Wanted,
        begin: Mapping[int, int],
        now: sa.ColumnElement[int],
    ) -> list[Claimed]:
        """Take messages that are due in a table without groups.

        Parameters
        ----------
        begin
            Where to begin, as `Marks` gives it.
        now
            The clock, ns.
        """

    @abstractmethod
    def column_names(self, connection: SqlConnection, name: str) -> set[str]:
        """Name the columns that the SQL table has now; none where it is gone."""

    def columns_and_row(
        self, connection: SqlConnection, name: str, facts: sa.Select[*tuple[Any, ...]]
    ) -> tuple[set[str], Any]:
        """Give what `column_names` gives, and the row of a statement with ``name`` bound in it, None where it has none.

        In one round trip where that can be.
        """
        return self.column_names(connection, name), connection.execute(facts, {"name": name}).first()

    def like(self, column: sa.ColumnElement[Any], pattern: str) -> sa.ColumnElement[bool]:
        """Say that a text is like a pattern, case by case; % and _ alone have a meaning in it."""
        # The backslash, which escapes there, escapes itself.
        return column.like(sa.literal(pattern.replace("\\", "\\\\"), sa.String()))

    def has_in_it(self, column: sa.ColumnElement[Any], part: str) -> sa.ColumnElement[bool]:
        """Say that a text has another in it, case by case, for any signs in that one."""
        return sa.func.instr(column, sa.literal(part, sa.String()), type_=sa.Integer()) > 0

    def changes(self, backend: Backend, name: str) -> Changes:
        """Watch the database for changes of the table of this name."""
        del backend, name
        return Polling()
