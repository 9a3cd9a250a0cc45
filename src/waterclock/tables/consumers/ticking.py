"""Putting what a table's schedules have due, also while all consumers are busy: the heartbeat's thread sees to it."""

from __future__ import annotations

import logging

from waterclock._support import moments
from waterclock.errors import ForbiddenError, WaterclockError
from waterclock.tables.catalogue.table_row import ASK_AGAIN, TableRow
from waterclock.tables.messages.putting.scheduling import tick

_SECOND = 1_000_000_000
_PATIENCE = 1.0  # s; other beats are not held up for longer
_log = logging.getLogger(__name__)


class Ticking:
    """Looks at a table's schedules once a second, where it has any, until its subscription is closed or given up.

    It asks the database where a tick is due. Where schedules change, the table is loaded anew: by its subscription, or
    by this while that is busy.

    Attributes
    ----------
    beat_at
        When it looks next, in ns of the monotonic clock.
    over
        Whether it is closed.
    """

    def __init__(self, row: TableRow) -> None:
        self._row = row
        self.over = False
        self.beat_at = moments.monotonic_ns() + _SECOND

    def beat(self) -> None:
        """Put what is due; what fails is tried again a second later, and what was forbidden a minute later."""
        context, now = self._row.last_seen, moments.monotonic_ns()
        self.beat_at = now + _SECOND
        try:
            context = self._row.now()
            if context.ticks.is_due(context.backend.now_about()):
                with context.backend.patience(_PATIENCE):
                    if tick(context, pieces=1):
                        self.beat_at = now  # there may be more, and others beat in between
        except ForbiddenError:
            _log.info("the schedules of %r are left to other processes: they take rights of their own", context.name)
            self.beat_at = now + int(ASK_AGAIN * _SECOND)
        except WaterclockError as error:
            _log.info("the schedules of %r are looked at again later: %s", context.name, error)

    def close(self) -> None:
        """Look no more."""
        self.over = True
