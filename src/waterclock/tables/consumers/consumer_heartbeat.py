"""An exclusive consumer's heartbeat: its groups stay with a subscription while a message takes long."""

from __future__ import annotations

import logging
import os
import threading

from waterclock import moments
from waterclock.database.deadlines import at_most
from waterclock.errors import WaterclockError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.table_row import TableRow
from waterclock.tables.consumers.heartbeat import SLACK, heartbeat_of, patience_of
from waterclock.tables.consumers.leaving import PATIENCE, leaving
from waterclock.tables.groups import consumers

_BEATS_OF_A_LEASE = 4

GIVE_UP_AFTER = 30.0
"""Seconds of failed claims after which a consumer's groups are no longer renewed: longer than a database restarts."""

_log = logging.getLogger(__name__)


class ConsumerHeartbeat:
    """Renews a consumer's lease until it is closed, or its subscription is given up without being closed.

    Attributes
    ----------
    beat_at
        When it is due, in ns of the monotonic clock.
    claims_fail_since
        Since when the consumer's claims have failed, in seconds of the monotonic clock; None if they do not.
    """

    def __init__(self, row: TableRow, name: str) -> None:
        self._row = row
        self._name = name
        self._beating = threading.Lock()
        self._closed = False
        self._process = os.getpid()
        self.claims_fail_since: float | None = None
        self._has_given_up = False
        self.beat_at = moments.monotonic_ns() + self._interval()

    @property
    def over(self) -> bool:
        """Whether it is closed, or belongs to the process from which this one was forked."""
        return self._closed or self._process != os.getpid()

    def beat(self) -> None:
        """Renew the consumer's lease, and move ``beat_at``."""
        context = self._row.last_seen
        with moments.holding(self._beating):
            if self.over:
                return
            # Moved also where the renewal fails: the next one may be in time. Else others take over, as they must.
            self.beat_at = moments.monotonic_ns() + self._interval()
            if self._gives_up():
                return
            patience = patience_of(context.options.ack_wait)
            try:
                with at_most(patience + SLACK):
                    context.backend.transact_within(
                        patience,
                        lambda own: consumers.renew(
                            context, own, self._name, context.backend.now(own) + context.options.ack_wait
                        ),
                    )
            except WaterclockError as error:
                _log.warning("cannot renew the lease of consumer %s of %s: %s", self._name, context.name, error)

    def close(self) -> None:
        """Leave: the consumer's groups go to others at once."""
        context = self._row.last_seen
        self._closed = True
        # A renewal under way is waited for, else it could follow. Where writers take turns, it may wait for the caller,
        # who ends its transaction only after this; a renewal of a consumer that has left then renews nothing.
        under_way = moments.acquire(self._beating, PATIENCE if context.sql.one_writer else -1)
        try:
            with leaving(context, self._name):
                while not context.backend.transact(lambda own: consumers.leave(context, own, self._name)):
                    pass
        finally:
            if under_way:
                self._beating.release()

    def _gives_up(self) -> bool:
        """Return whether the groups go to others when the lease ends, because this consumer's claims keep failing."""
        since = self.claims_fail_since
        gives_up = since is not None and moments.monotonic() - since >= GIVE_UP_AFTER
        if gives_up and not self._has_given_up:
            _log.warning(
                "consumer %s gives up its groups of %r: its claims have failed for %g s",
                self._name,
                self._row.last_seen.name,
                GIVE_UP_AFTER,
            )
        self._has_given_up = gives_up
        return gives_up

    def _interval(self) -> int:
        return self._row.last_seen.options.ack_wait // _BEATS_OF_A_LEASE


class NoHeartbeat:
    """Nothing to do, where groups do not stay with a consumer."""

    claims_fail_since: float | None = None

    def close(self) -> None:
        """Nothing to leave."""


def keep_alive(row: TableRow, consumer: str | None) -> ConsumerHeartbeat | NoHeartbeat:
    """Renew a consumer's lease from now on where groups stay with it; the caller keeps what it gets, and closes it."""
    context: TableContext = row.last_seen
    if context.options.groups != "exclusive" or consumer is None:
        return NoHeartbeat()
    made = ConsumerHeartbeat(row, consumer)
    heartbeat_of(context.backend).add(made)
    return made
