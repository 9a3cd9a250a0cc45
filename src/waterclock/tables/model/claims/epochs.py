"""The epoch of a message: its number of deliveries. Plain SQL may set it to any number, so sums are limited."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

MOST_COUNTED = 2**31 - 1
"""The maximum epoch: an adopted table may store it as INTEGER, and the sum of four billion such epochs still fits a
bigint. A message that is sent once a second reaches it in 68 years.
"""

_MOST = sa.literal(MOST_COUNTED, sa.BigInteger)


def after_claim_sql(epoch: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """Return the epoch of a message once it has been sent again."""
    return sa.func.coalesce(sa.case((epoch < _MOST, epoch + 1), else_=epoch), 1)


def before_claim(epoch: int) -> int:
    """Return the epoch that a claimed message had before."""
    return epoch - (epoch <= MOST_COUNTED)


def uncounted_sql(epoch: sa.ColumnElement[Any], by: sa.ColumnElement[int] | int = 1) -> sa.ColumnElement[int]:
    """Return the epoch of a claimed message that no consumer began to handle."""
    return sa.case((epoch > 0, epoch - by), else_=epoch)


def times_sent(epochs: Iterable[int | None]) -> int:
    """Return the total number of deliveries."""
    return sum(min(max(epoch or 0, 0), MOST_COUNTED) for epoch in epochs)


def times_sent_sql(epoch: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """Return `times_sent` as an aggregate in SQL, which is NULL without messages."""
    return sa.func.sum(sa.case((epoch > _MOST, _MOST), (epoch < 0, 0), else_=epoch))
