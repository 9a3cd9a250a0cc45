"""Indexes of message tables on databases that can index some of the rows, SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa


def index_acked(connection: sa.Connection, rows: sa.Table) -> None:
    """Make the index by which acked messages are purged, where they lie among the others."""
    _make(connection, rows, "acked", (rows.c.time_acked, rows.c.epoch), rows.c.time_acked.is_not(None))


def index_expiring(connection: sa.Connection, rows: sa.Table) -> None:
    """Make the index by which messages that expire are found."""
    # With seq, in whose order those go that expire together.
    expiring = rows.c.time_acked, rows.c.expires_at, rows.c.seq
    _make(connection, rows, "expires", expiring, rows.c.expires_at.is_not(None))


def index_unacked(
    connection: sa.Connection,
    rows: sa.Table,
    due: Sequence[sa.ColumnElement[Any]],
    which: sa.ColumnElement[bool] | None,
    *,
    grouped: bool,
    free: bool,
) -> None:
    """Make the indexes by which messages are claimed.

    Parameters
    ----------
    due
        The order in which they are.
    which
        Tells those that are not acked; None where the others lie elsewhere.
    grouped, free
        As in `TableDialect.create`.
    """
    # Of some rows in any case: a planner that takes the table for empty, as it was when analyzed, thinks any index that
    # has seq as good as the key, and would go through all of it to find a message by its seq.
    some = rows.c.time_next.is_not(None) if which is None else which
    if not grouped:
        _make(connection, rows, "next", due, some)
    else:
        _make(connection, rows, "group", (rows.c.group_id, rows.c.position), which)
        _make(connection, rows, "unrouted", (rows.c.seq,), rows.c.routed == 0)
    if free:
        _make(connection, rows, "free", due, some & rows.c.group_id.is_(None))


def _make(
    connection: sa.Connection,
    rows: sa.Table,
    name: str,
    columns: Sequence[sa.ColumnElement[Any]],
    where: sa.ColumnElement[bool] | None,
) -> None:
    index = sa.Index(f"{rows.name}_{name}_idx", *columns, sqlite_where=where, postgresql_where=where)
    # Not looked for before: these databases undo what was broken off, and to reflect indexes takes longer than to make
    # them.
    index.create(connection, checkfirst=False)
