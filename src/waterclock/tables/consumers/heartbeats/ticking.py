"""Puts the due messages of a table's schedules, in the heartbeat thread, so that busy consumers do not delay them."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from waterclock._support import moments
from waterclock.database.per_database_cache import PerDatabaseCache
from waterclock.errors import ForbiddenError, WaterclockError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.table_row import ASK_AGAIN, TableRow
from waterclock.tables.consumers.heartbeats.heartbeat import heartbeat_of
from waterclock.tables.messages.putting.scheduling import tick

_SECOND = 1_000_000_000
_WITHOUT_SCHEDULES = 10 * _SECOND  # ns
_PATIENCE = 1.0  # s; delays other beats no longer than this
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _NextLook:
    at: int = 0


_next_looks = PerDatabaseCache[dict[int, _NextLook]](lambda _: {})
"""By the number of the table, for all its subscriptions in this process."""


class Ticking:
    """Check a table's schedules once a second until its subscription is closed or collected.

    One check serves all subscriptions of the process. It queries the database only if a tick is due. If schedules
    change, the subscription reloads the table and calls `see`.
    """

    def __init__(self, row: TableRow) -> None:
        self._row = row
        self.over = False  # whether it is closed
        context, now = row.last_seen, moments.monotonic_ns()
        self._seen = context
        self._next_look = _next_looks.of(context.backend).setdefault(context.table_id, _NextLook())
        if self._next_look.at < now:
            self._next_look.at = now + _SECOND

    @property
    def beat_at(self) -> int:
        """When one of them checks next, in ns of the monotonic clock."""
        return self._next_look.at

    def see(self, context: TableContext) -> None:
        """Check at once if the table was reloaded: it may have its first schedule."""
        if context is not self._seen:
            self._seen = context
            self._next_look.at = moments.monotonic_ns()
            heartbeat_of(context.backend).add(self)

    def beat(self) -> None:
        """Put due messages; retry failures after a second, and refusals after a minute."""
        context, now = self._row.last_seen, moments.monotonic_ns()
        self._next_look.at = now + _SECOND
        try:
            context = self._row.now()
            if context.ticks.is_due(context.backend.now_about):
                with context.backend.patience(_PATIENCE):
                    if tick(context, pieces=1):
                        self._next_look.at = now  # there may be more; other beats run in between
            elif not context.ticks.has_any:
                self._next_look.at = now + _WITHOUT_SCHEDULES
        except ForbiddenError:
            _log.info(
                "this process lacks the privileges for the schedules of table %r and leaves them to other processes",
                context.name,
            )
            self._next_look.at = now + int(ASK_AGAIN * _SECOND)
        except WaterclockError as error:
            _log.info("cannot run the schedules of table %r now: %s", context.name, error)

    def close(self) -> None:
        self.over = True
