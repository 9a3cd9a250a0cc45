"""Finds leased messages of keys on MariaDB without reading dead index entries.

A trigger writes the slot of time in which its lease was set into each leased message, and NULL once that is acked or
given back. The index is ordered by slot, and within a slot by key. Searches name the slots from a lower bound on. So
they skip the entries of earlier leases, which remain while a transaction holds an old snapshot.
"""

from __future__ import annotations

import sqlalchemy as sa

from waterclock.tables.databases.json_list import JsonList
from waterclock.tables.databases.mariadb.unrouted_keys import CLOCK_SQL
from waterclock.tables.model.claims.leased_bound import NAMED, SLOT
from waterclock.tables.model.row_conditions import not_acked
from waterclock.tables.model.schema import LEASED_SINCE

SINCE_SQL = f"{CLOCK_SQL} DIV {SLOT}"
"""The slot in which a message is leased, for triggers."""

MOVED_AT_ONCE = 100  # messages that remain leased, in one transaction

MOST_MOVES = 10  # such transactions in one search: a claim waits for them


def index_of(rows: sa.FromClause, name: str) -> str:
    """Return the hint that names an index of a table, or of its alias."""
    table = rows.element if isinstance(rows, sa.Alias) else rows
    assert isinstance(table, sa.Table)  # noqa: S101  # of messages
    return f"FORCE INDEX (`{table.name}_{name}_idx`)"


def since() -> sa.ColumnClause[int]:
    """Return the first column of the index."""
    return sa.column(LEASED_SINCE, sa.BigInteger)


def is_leased() -> sa.ColumnElement[bool]:
    """Return the condition that a message is leased, as ranges of the index.

    Its parameters, and that of `listed`, are `LeasedBound.values`.
    """
    slots = [sa.bindparam(f"slot_{nth}", type_=sa.BigInteger) for nth in range(NAMED)]
    earlier = (since() >= sa.bindparam("leased_from", type_=sa.BigInteger)) & (since() < slots[0])
    return since().in_(slots) | earlier | (since() > slots[-1])


def lock_first(rows: sa.Table) -> sa.Select[int]:
    """Lock some messages of the first slot from the bound on, unless others have locked them."""
    found = sa.select(rows.c.seq).where(since() == sa.bindparam("slot", type_=sa.BigInteger), not_acked(rows))
    found = found.with_hint(rows, index_of(rows, "leased")).limit(MOVED_AT_ONCE)
    return found.with_for_update(skip_locked=True)


def move(rows: sa.Table) -> sa.Update:
    """Return the statement that moves locked messages to the current slot, which the trigger sets at any change."""
    light = sa.table(rows.name, sa.column("seq", sa.BigInteger), since())
    moved = light.c.seq.in_(sa.bindparam("seqs", type_=sa.BigInteger, expanding=True))
    return sa.update(light).where(moved).values({LEASED_SINCE: sa.null()})


def listed(rows: sa.Table, is_chosen: sa.ColumnElement[bool]) -> sa.FromClause:
    """Return the slots, each with the leased messages for which a condition is true.

    The condition may depend on a row of the outer statement, unlike the ranges of `is_leased`. Only an outer join makes
    the server begin with the slots.
    """
    columns = sa.text("'$[*]' COLUMNS (slot BIGINT PATH '$')")
    slots = sa.func.json_table(sa.bindparam("slots", type_=JsonList()), columns)
    each = slots.table_valued(sa.column("slot", sa.BigInteger), name="slots", joins_implicitly=True)
    return sa.outerjoin(each, rows, (since() == each.c.slot) & is_chosen)
