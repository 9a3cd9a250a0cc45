"""Finds failed unacked messages, and dead letters, to group them by error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import sqlalchemy as sa

from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.messages.inspecting.searching import ScanWindow
from waterclock.tables.model.attempts import read_attempts
from waterclock.tables.model.failure_groups import FailedMessage
from waterclock.tables.model.row_conditions import is_cancelled, is_waiting
from waterclock.tables.model.schema import REASON, SOURCE

MOST_READ = 10_000
"""Maximum messages to group, the latest ones: this takes a fifth of a second, and shows which errors occur."""


def failed_messages(
    context: TableContext, connection: sa.Connection, window: ScanWindow | None = None
) -> Iterator[FailedMessage]:
    """Yield unacked messages that failed, latest first; at most `MOST_READ`, or only those of a window."""
    rows = context.rows
    within = [] if window is None else [window.holds(context)]
    waiting = (
        sa.select(rows.c.id, rows.c.last_error.label("error"), rows.c.failed_attempts)
        .where(is_waiting(rows), rows.c.last_error.is_not(None), ~sa.func.coalesce(is_cancelled(rows), sa.false()))
        .where(*within)
        .order_by(rows.c.seq.desc())
        .limit(MOST_READ)
    )
    yield from _read(connection, waiting, {} if window is None else window.parameters)


def dead_messages(context: TableContext, connection: sa.Connection) -> Iterator[FailedMessage]:
    """Yield the table's dead letters, latest first; at most `MOST_READ`."""
    if context.dead is None:
        return
    dead = context.dead.rows
    why = sa.func.coalesce(dead.c.last_error, dead.c[REASON], "")
    buried = (
        sa.select(dead.c.id, why.label("error"), dead.c.failed_attempts)
        .where(is_waiting(dead), dead.c[SOURCE] == context.name)
        .order_by(dead.c.seq.desc())
        .limit(MOST_READ)
    )
    yield from _read(connection, buried, {})


def _read(
    connection: sa.Connection, statement: sa.Select[*tuple[object, ...]], parameters: Mapping[str, object]
) -> Iterator[FailedMessage]:
    for row in connection.execute(statement, parameters):
        attempts = read_attempts(row.failed_attempts)
        failed_at = attempts[-1].claimed_at + attempts[-1].duration if attempts else None
        yield FailedMessage(row.id, row.error, failed_at)
