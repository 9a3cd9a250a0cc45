"""The statements for tables whose messages have keys, such as customers, that take turns and may have limits."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.schema import DDL

from waterclock.tables.model.schema import MESSAGE_KEY
from waterclock.tables.model.values.key_names import LONGEST_KEY, KeySource

_IS_MOVED = """
    NEW.time_acked IS NULL AND (
        OLD.time_acked IS NOT NULL
        OR (NEW.routed = 1 AND OLD.routed = 1 AND (
            COALESCE(NEW.time_next < OLD.time_next, TRUE) OR NEW.priority <> OLD.priority OR %(differs)s
            OR (NEW.time_next > OLD.time_next AND OLD.claim_id IS NULL AND NEW.claim_id IS NULL)
        ))
    )"""
"""The condition that a changed message may be due at a time when none of its key is known to be.

One that was acked before it was routed is behind the bound of searches for unrouted ones."""

IS_COPIED = "NEW.routed <> 0 AND NEW.time_acked IS NULL"
"""The condition that plain SQL puts a message back that was routed: the row of its key or group may be gone."""


UNACKED_SQL = "COALESCE(time_acked, -1) = CAST(-1 AS BIGINT)"
"""The condition `not_acked` on PostgreSQL: indexes of other messages do not answer it."""

LEASED_SQL = f"{UNACKED_SQL} AND COALESCE(claim_id IS NOT NULL, FALSE)"
"""The condition of leased messages on PostgreSQL. That a message is unacked and has a certain claim does not imply it:
a planner that believes few messages leased would search all of them for the few that are acked."""


def index_of_unrouted(first: str = "", unacked: str = "time_acked IS NULL") -> str:
    """Return the statement for the partial index of unrouted messages, by key and `level_of`.

    ``first`` stands before the key.
    """
    return (
        f"CREATE INDEX %(unrouted)s ON %(table)s"
        f" ({first}({MESSAGE_KEY} || ''), (-CAST(priority AS BIGINT)), time_next)"
        f" WHERE {unacked} AND routed <> 1"
    )


def level_of(rows: sa.FromClause) -> sa.ColumnElement[int]:
    """Return the negated priority, in the form of that index: a search meets the highest priority of a key first."""
    return -sa.cast(rows.c.priority, sa.BigInteger)  # the lowest priority has no 32-bit negation


def column_of(key: str, column_type: str) -> str:
    """Return the definition of the generated column.

    ``key`` is the key as an SQL expression; NULL if a message has none.
    """
    return f"{MESSAGE_KEY} {column_type} GENERATED ALWAYS AS (COALESCE(substr({key}, 1, {LONGEST_KEY}), ''))"


def add_keys(
    connection: sa.Connection,
    rows: sa.Table,
    source: KeySource,
    statements: Sequence[str],
    *,
    differs: str,
    leased: str,
) -> None:
    """Run statements that add the column, its indexes and its trigger.

    ``differs`` is the condition that a changed message has another ``source``, by bytes, whatever the collation of that
    column. ``leased`` is the condition of the index of leased messages.
    """
    quote = connection.dialect.identifier_preparer.quote
    names = ("next", "key", "leased", "unrouted")
    context = {
        "table": quote(rows.name),
        "source": quote(source.column),
        "header": source.header or "",
        "is_leased": leased,
        "is_moved": _IS_MOVED % {"differs": differs % {"source": quote(source.column)}},
        "late_index": quote(f"{rows.name}_late_idx"),
        **{verb: quote(f"{rows.name}_{verb}") for verb in ("moved", "copied")},
        **{name: quote(f"{rows.name}_{name}_idx") for name in names},
    }
    for statement in statements:
        connection.execute(DDL(statement, context=context))


INDEXES = (
    # Claims search this one. Without it, a planner without statistics may search all due messages for those of a key.
    "DROP INDEX %(next)s",
    f"CREATE INDEX %(key)s ON %(table)s ({MESSAGE_KEY}, priority, time_next, seq) WHERE time_acked IS NULL",
    # By an expression, because a planner may think the index above as good, and would search all messages of a key.
    # With seq, so that a search passes those of acked messages without reading their rows.
    f"CREATE INDEX %(leased)s ON %(table)s (({MESSAGE_KEY} || ''), priority, time_next, seq) WHERE %(is_leased)s",
)
"""The indexes on databases that have partial ones, except that of unrouted messages."""
