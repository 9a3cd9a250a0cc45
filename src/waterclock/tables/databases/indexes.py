"""The indexes of message tables on SQLite and PostgreSQL, which have partial indexes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa


def index_acked(connection: sa.Connection, rows: sa.Table) -> None:
    """Create the index for purging acked messages, if they are stored among the others."""
    _make(connection, rows, "acked", (rows.c.time_acked, rows.c.epoch), rows.c.time_acked.is_not(None))


def index_expiring(connection: sa.Connection, rows: sa.Table) -> None:
    """Create the index for expiring messages."""
    # With seq, by which messages that expire together are ordered.
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
    new: sa.ColumnElement[int] | None = None,
) -> None:
    """Create the indexes for claims.

    ``due`` are the columns of their order. ``which`` is the condition of unacked messages; None if the others are
    stored elsewhere. ``grouped`` and ``free`` are as in `TableDialect.create`. ``new`` is the order of the messages
    that must be routed; None: by seq.
    """
    # Always a partial index: a planner that believes the table empty, as it was when analyzed, thinks any index with
    # seq as good as the key, and would scan it to find a message by its seq.
    some = rows.c.time_next.is_not(None) if which is None else which
    if not grouped:
        _make(connection, rows, "next", due, some)
    else:
        _make(connection, rows, "group", (rows.c.group_id, rows.c.position), which)
        _make(connection, rows, "unrouted", (rows.c.seq if new is None else new,), rows.c.routed != 1)
    if free:
        _make(connection, rows, "free", due, some & rows.c.group_id.is_(None))


def index_late(
    connection: sa.Connection, rows: sa.Table, by: sa.ColumnElement[int], which: sa.ColumnElement[bool]
) -> None:
    """Create the index for late messages, by an expression of their priority."""
    _make(connection, rows, "late", (by, rows.c.time_next), which)


def _make(
    connection: sa.Connection,
    rows: sa.Table,
    name: str,
    columns: Sequence[sa.ColumnElement[Any]],
    where: sa.ColumnElement[bool] | None,
) -> None:
    index = sa.Index(f"{rows.name}_{name}_idx", *columns, sqlite_where=where, postgresql_where=where)
    # Created without a check: these databases roll back interrupted changes, and reflecting indexes takes longer than
    # creating them.
    index.create(connection, checkfirst=False)
