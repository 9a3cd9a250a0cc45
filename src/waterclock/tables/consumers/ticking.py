"""Putting what a table's schedules have due, also while all consumers are busy: the heartbeat's thread sees to it."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from waterclock._support import moments
from waterclock.database.per_database_cache import PerDatabaseCache
from waterclock.errors import ForbiddenError, WaterclockError
from waterclock.tables.catalogue.table_row import ASK_AGAIN, TableRow
from waterclock.tables.messages.putting.scheduling import tick

_SECOND = 1_000_000_000
_PATIENCE = 1.0  # s; other beats are not held up for longer
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _NextLook:
    at: int = 0


_next_looks = PerDatabaseCache[dict[int, _NextLook]](lambda _: {})
"""By the number of the table, for all its subscriptions in this process."""


class Ticking:
    """Looks at a table's schedules once a second, where it has any, until its subscription is closed or given up.

    One look serves all subscriptions of the process. It asks the database where a tick is due. Where schedules change,
    the table is loaded anew: by its subscription, or by this while that is busy.

    Attributes
    ----------
    over
        Whether it is closed.
    """

    def __init__(self, row: TableRow) -> None:
        self._row = row
        self.over = False
        context, now = row.last_seen, moments.monotonic_ns()
        self._next_look = _next_looks.of(context.backend).setdefault(context.table_id, _NextLook())
        if self._next_look.at < now:
            self._next_look.at = now + _SECOND

    @property
    def beat_at(self) -> int:
        """When one of them looks next, in ns of the monotonic clock."""
        return self._next_look.at

    def beat(self) -> None:
        """Put what is due; what fails is tried again a second later, and what was forbidden a minute later."""
        context, now = self._row.last_seen, moments.monotonic_ns()
        self._next_look.at = now + _SECOND
        try:
            context = self._row.now()
            if context.ticks.is_due(context.backend.now_about()):
                with context.backend.patience(_PATIENCE):
                    if tick(context, pieces=1):
                        self._next_look.at = now  # there may be more, and others beat in between
        except ForbiddenError:
            _log.info("the schedules of %r are left to other processes: they take rights of their own", context.name)
            self._next_look.at = now + int(ASK_AGAIN * _SECOND)
        except WaterclockError as error:
            _log.info("the schedules of %r are looked at again later: %s", context.name, error)

    def close(self) -> None:
        """Look no more."""
        self.over = True
