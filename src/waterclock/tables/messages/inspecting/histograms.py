"""Counts unleased messages by how long they have been due, or how long they must still wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.messages.inspecting.searching import ScanWindow
from waterclock.tables.model.row_conditions import is_waiting

_SECOND = 1_000_000_000
_MINUTE, _HOUR, _DAY = 60 * _SECOND, 3_600 * _SECOND, 86_400 * _SECOND

BOUNDS = (_SECOND, 10 * _SECOND, _MINUTE, 10 * _MINUTE, _HOUR, _DAY)  # the lengths of time between two counts, ns


class Histograms(NamedTuple):
    """Numbers of messages by length of time: up to each of `BOUNDS`, and longer."""

    due: Sequence[int]  # by the time since they became due
    later: Sequence[int]  # by the time until they are sent next


def count_by_time(context: TableContext, connection: sa.Connection, window: ScanWindow) -> Histograms:
    """Count the unleased messages of a window."""
    rows = context.rows
    now = sa.literal(context.backend.now(connection), sa.BigInteger)
    age, ahead = now - rows.c.time_scheduled, rows.c.time_next - now
    is_due, is_later = rows.c.time_next <= now, (rows.c.time_next > now) & rows.c.claim_id.is_(None)
    counts = [*_counts(is_due, age), *_counts(is_later, ahead)]
    which = sa.select(*counts).where(is_waiting(rows), window.holds(context))
    counted = connection.execute(which, window.parameters).one()
    return Histograms(counted[: len(BOUNDS) + 1], counted[len(BOUNDS) + 1 :])


def _counts(which: sa.ColumnElement[bool], length: sa.ColumnElement[Any]) -> list[sa.ColumnElement[int]]:
    lows, highs = (None, *BOUNDS), (*BOUNDS, None)
    return [
        sa.func.count(
            sa.case(
                (
                    sa.and_(
                        which, *([] if low is None else [length > low]), *([] if high is None else [length <= high])
                    ),
                    1,
                )
            )
        )
        for low, high in zip(lows, highs, strict=True)
    ]
