"""Groups failed messages and dead letters whose errors are the same except for numbers, ids and paths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from waterclock.server.api.formats import shapes
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.messages.inspecting.failures import dead_messages, failed_messages
from waterclock.tables.messages.inspecting.searching import ScanWindow, read_window
from waterclock.tables.model.failure_groups import group_failures, merge_failures, normalised


def failures_of(
    context: TableContext, connection: sa.Connection, limit: int, window: ScanWindow | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the largest groups of failures among the messages that a search looks at, and among the dead letters."""
    window = window or read_window(context, connection)
    waiting = group_failures(failed_messages(context, connection, window))
    dead = group_failures(dead_messages(context, connection))
    buried = {one.error: one.count for one in dead}
    for one in merge_failures([*waiting, *dead])[:limit]:
        yield {
            "error": one.error,
            "count": one.count,
            "dead": buried.get(one.error, 0),
            "first": shapes.time(one.first),
            "last": shapes.time(one.last),
            "ids": [str(each) for each in one.ids],
        }


def dead_ids(context: TableContext, connection: sa.Connection, error: str, limit: int) -> list[Any]:
    """Return the ids of the dead letters with a normalised error."""
    return [one.id for one in dead_messages(context, connection) if normalised(one.error) == error][:limit]
