"""An exclusive consumer's heartbeat: its groups stay with a subscription while a message takes long.

One statement renews the leases of all consumers that a process has for a table. If it fails, which may be the fault of
one whose row is locked, each is renewed by itself the next time.
"""

from __future__ import annotations

import logging
import os
import threading
from weakref import WeakSet

from waterclock._support import moments
from waterclock.database.deadlines import at_most
from waterclock.database.per_database_cache import PerDatabaseCache
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


class _Living:
    """The consumers of a table that this process has. Safe to share between threads."""

    def __init__(self) -> None:
        self.beating = threading.Lock()
        """Held during a renewal."""
        self._lock = threading.Lock()
        # Weak, because a subscription that is given up unclosed lets its consumer go.
        self._all: WeakSet[ConsumerHeartbeat] = WeakSet()

    def add(self, one: ConsumerHeartbeat) -> None:
        with self._lock:
            self._all.add(one)

    def now(self) -> list[ConsumerHeartbeat]:
        with self._lock:
            self._all -= {one for one in self._all if one.over}
            return list(self._all)


_living = PerDatabaseCache[dict[int, _Living]](lambda _: {})
"""By the number of the table."""


class ConsumerHeartbeat:
    """Renews a consumer's lease until it is closed, or its subscription is given up without being closed.

    Attributes
    ----------
    beat_at
        When it is due, in ns of the monotonic clock.
    name
        The consumer's.
    is_alone
        Whether the next beat renews no other consumer.
    claims_fail_since
        Since when the consumer's claims have failed, in seconds of the monotonic clock; None if they do not.
    """

    def __init__(self, row: TableRow, name: str) -> None:
        self._row = row
        self.name = name
        self._closed = False
        self._process = os.getpid()
        self.claims_fail_since: float | None = None
        self._has_given_up = False
        self.is_alone = False
        self.beat_at = moments.monotonic_ns() + self._interval()
        context = row.last_seen
        self._living = _living.of(context.backend).setdefault(context.table_id, _Living())
        self._living.add(self)

    @property
    def over(self) -> bool:
        """Whether it is closed, or belongs to the process from which this one was forked."""
        return self._closed or self._process != os.getpid()

    def beat(self) -> None:
        """Renew the leases of all consumers that the process has for the table, and move their ``beat_at``."""
        with moments.holding(self._living.beating):
            if self.over:
                return
            together = [self] if self.is_alone else self._living.now()
            now = moments.monotonic_ns()
            for one in together:
                # Moved also where the renewal fails: the next one may be in time. Else others take over, as they must.
                one.beat_at, one.is_alone = now + self._interval(), False
            renewed = [one for one in together if not one.gives_up()]
            if renewed and not self._renew([one.name for one in renewed]):
                for one in renewed:
                    one.beat_at, one.is_alone = now, True

    def _renew(self, names: list[str]) -> bool:
        """Renew the leases of these; False where each is to be renewed by itself."""
        context = self._row.last_seen
        patience = patience_of(context.options.ack_wait)
        try:
            with at_most(patience + SLACK):
                context.backend.transact_within(patience, lambda own: consumers.renew_all(context, own, names))
        except WaterclockError as error:
            if len(names) > 1:
                return False
            _log.warning("cannot renew the lease of consumer %s of %s: %s", *names, context.name, error)
        return True

    def close(self) -> None:
        """Leave: the consumer's groups go to others at once."""
        context = self._row.last_seen
        self._closed = True
        # A renewal under way is waited for, else it could follow. Where writers take turns, it may wait for the caller,
        # who ends its transaction only after this; a renewal of a consumer that has left then renews nothing.
        if moments.acquire(self._living.beating, PATIENCE if context.sql.one_writer else -1):
            self._living.beating.release()
        with leaving(context, self.name):
            while not context.backend.transact(lambda own: consumers.leave(context, own, self.name)):
                pass

    def gives_up(self) -> bool:
        """Return whether the groups go to others when the lease ends, because this consumer's claims keep failing."""
        since = self.claims_fail_since
        gives_up = since is not None and moments.monotonic() - since >= GIVE_UP_AFTER
        if gives_up and not self._has_given_up:
            _log.warning(
                "consumer %s gives up its groups of %r: its claims have failed for %g s",
                self.name,
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
