"""Purges a message table from time to time, as a side task of its consumers.

Only one of a process's idle consumers purges. A consumer without the database privileges to purge leaves this to other
consumers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from waterclock._support import moments
from waterclock._support.quoting import in_a_line, said_of
from waterclock.errors import ForbiddenError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.table_row import ASK_AGAIN
from waterclock.tables.consumers.idling import IdleConsumers
from waterclock.tables.messages.finishing.expiring import expire_some
from waterclock.tables.messages.putting.unique_keys import purge_keys
from waterclock.tables.messages.upkeep.purging import purge_some

PURGE_EVERY = 1.0  # seconds between two purges by an idle consumer; while messages are due, a purge waits twice as long
_PAUSE_AFTER_NONE = 30  # after a purge that removed nothing, the next one waits this many times as long
_KEYS_EVERY = 60.0  # s
_AGAIN_AFTER = 10.0  # s after a failure: a purge that keeps failing must not take up consumers' time

_log = logging.getLogger(__name__)


class ConsumerPurge:
    """The purges by one consumer. ``idle`` are the consumers of its process that wait for the same messages."""

    def __init__(self, consumer: str | None, idle: IdleConsumers) -> None:
        self._consumer = consumer
        self._idle = idle
        self._purged_at = -math.inf
        self._removed = False
        self._keys_purged_at = moments.monotonic()
        # Failed kinds of purge, each with the time of its next try.
        self._later: dict[Callable[[TableContext], int], float] = {}

    def purge(self, context: TableContext, after: float, *, has_messages: bool) -> None:
        """Purge some messages if the last purge was so many seconds ago.

        A consumer that holds no messages leaves it to the others of its process: they wake at the same time.
        """
        now = moments.monotonic()
        if not self._removed:
            after *= _PAUSE_AFTER_NONE
        if now - self._purged_at < after:
            return
        is_idle = self._purged_at > -math.inf and not has_messages
        if is_idle and now - self._idle.purged_at < after:
            return
        self._idle.purged_at = now
        self._removed = sum(self._purge_by(kind, context) for kind in (expire_some, purge_some)) > 0
        if moments.monotonic() - self._keys_purged_at >= _KEYS_EVERY:
            self._keys_purged_at = moments.monotonic()
            self._purge_by(purge_keys, context)
        self._purged_at = moments.monotonic()

    def _purge_by(self, kind: Callable[[TableContext], int], context: TableContext) -> int:
        """Purge in one way, unless recently forbidden: expiring needs fewer privileges than deleting."""
        if moments.monotonic() < self._later.get(kind, 0):
            return 0
        try:
            removed = kind(context)
        except ForbiddenError:
            if kind not in self._later:
                _log.info(
                    "consumer %s lacks the privilege to %s messages of table %r and leaves this work to other"
                    " consumers",
                    self._consumer,
                    "expire" if kind is expire_some else "delete",
                    context.name,
                )
            self._later[kind] = moments.monotonic() + ASK_AGAIN
        except Exception as error:  # noqa: BLE001  # upkeep never ends a subscription: due messages must not wait for it
            said = in_a_line(said_of(error))
            _log.warning(
                "consumer %s cannot purge table %r, retrying in %g s: %s",
                self._consumer,
                context.name,
                _AGAIN_AFTER,
                said,
            )
            self._later[kind] = moments.monotonic() + _AGAIN_AFTER
        else:
            self._later.pop(kind, None)
            return removed
        return 0
