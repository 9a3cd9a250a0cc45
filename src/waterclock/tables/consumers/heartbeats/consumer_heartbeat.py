"""Renews the leases of consumers of exclusive groups, so that they keep their groups during long handlers.

One statement renews the leases of all consumers that a process has for a table. If this statement fails, for example
because one row is locked, the next renewal uses one statement for each consumer.
"""

from __future__ import annotations

import logging
import os
import threading
from weakref import WeakSet

from waterclock._support import moments
from waterclock._support.log_events import event
from waterclock.database.backend import Backend
from waterclock.database.deadlines import at_most
from waterclock.database.per_database_cache import PerDatabaseCache
from waterclock.errors import WaterclockError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.table_row import TableRow
from waterclock.tables.consumers.heartbeats.heartbeat import SLACK, heartbeat_of, patience_of
from waterclock.tables.consumers.heartbeats.leaving import PATIENCE, leaving
from waterclock.tables.groups import consumers

_BEATS_OF_A_LEASE = 4

GIVE_UP_AFTER = 30.0
"""Seconds of failed claims after which a consumer's groups are no longer renewed: longer than a database restarts."""

_log = logging.getLogger(__name__)


class _Living:
    """A table's consumers in this process. Thread-safe."""

    def __init__(self) -> None:
        self.beating = threading.Lock()
        """Held during a renewal."""
        self._lock = threading.Lock()
        # Weak references, so that a subscription that is dropped without being closed is collected.
        self._all: WeakSet[ConsumerHeartbeat] = WeakSet()

    def add(self, one: ConsumerHeartbeat) -> None:
        with self._lock:
            self._all.add(one)

    def now(self) -> list[ConsumerHeartbeat]:
        with self._lock:
            self._all -= {one for one in self._all if one.over}
            return list(self._all)


_living = PerDatabaseCache[dict[int, _Living]](lambda _: {})  # by table id


class ConsumerHeartbeat:
    """Renew a consumer's lease until it is closed or its subscription is collected."""

    def __init__(self, row: TableRow, name: str) -> None:
        self._row = row
        self.name = name  # name of the consumer
        self._closed = False
        self._process = os.getpid()
        # Since when the consumer's claims have failed, in seconds of the monotonic clock; None if they do not.
        self.claims_fail_since: float | None = None
        self._has_given_up = False
        self.is_alone = False  # whether the next beat renews only this consumer
        # When the next beat is due, in ns of the monotonic clock.
        self.beat_at = moments.monotonic_ns() + self._interval()
        context = row.last_seen
        self._living = _living.of(context.backend).setdefault(context.table_id, _Living())
        self._living.add(self)

    @property
    def over(self) -> bool:
        """Return whether it is closed or belongs to the parent of a forked process."""
        return self._closed or self._process != os.getpid()

    def beat(self) -> None:
        """Renew the leases of all consumers of this process for the table, and update their ``beat_at``."""
        with moments.holding(self._living.beating):
            if self.over:
                return
            together = [self] if self.is_alone else self._living.now()
            now = moments.monotonic_ns()
            for one in together:
                # Also if the renewal fails: the next one may still be in time. Otherwise other consumers rightly take
                # over.
                one.beat_at, one.is_alone = now + self._interval(), False
            renewed = [one for one in together if not one.gives_up()]
            if renewed and not self._renew([one.name for one in renewed]):
                for one in renewed:
                    one.beat_at, one.is_alone = now, True

    def _renew(self, names: list[str]) -> bool:
        """Renew the leases of these consumers; return False if each must be renewed separately."""
        context = self._row.last_seen
        patience = patience_of(context.options.ack_wait)
        try:
            with at_most(patience + SLACK):
                context.backend.transact_within(patience, lambda own: consumers.renew_all(context, own, names))
        except WaterclockError as error:
            if len(names) > 1:
                return False
            _log.warning("cannot renew the lease of consumer %s of table %s: %s", *names, context.name, error)
        return True

    def close(self) -> None:
        """Leave: other consumers get the groups at once."""
        context = self._row.last_seen
        self._closed = True
        # Wait for a running renewal, which could otherwise follow. On SQLite it may itself wait for the caller, whose
        # transaction ends only after this; renewing a consumer that has left changes nothing.
        if not context.sql.one_writer:
            with moments.holding(self._living.beating):
                pass
        elif moments.acquire(self._living.beating, PATIENCE):
            self._living.beating.release()
        with leaving(context, self.name):
            while not context.backend.transact(lambda own: consumers.leave(context, own, self.name)):
                pass

    def gives_up(self) -> bool:
        """Return whether the groups are released at the end of the lease because claims keep failing."""
        since = self.claims_fail_since
        gives_up = since is not None and moments.monotonic() - since >= GIVE_UP_AFTER
        if gives_up and not self._has_given_up:
            _log.warning(
                "consumer %s releases its groups of table %r: its claims have failed for %g s",
                self.name,
                self._row.last_seen.name,
                GIVE_UP_AFTER,
                extra=event("groups_released", table=self._row.last_seen.name, consumer=self.name),
            )
        self._has_given_up = gives_up
        return gives_up

    def _interval(self) -> int:
        return self._row.last_seen.options.ack_wait // _BEATS_OF_A_LEASE


class NoHeartbeat:
    """A heartbeat for tables whose groups do not stay with a consumer: does nothing."""

    claims_fail_since: float | None = None

    def close(self) -> None:
        """Do nothing."""


def keep_alive(row: TableRow, consumer: str | None) -> ConsumerHeartbeat | NoHeartbeat:
    """Renew a consumer's lease from now on if groups stay with it. The caller must keep the result, and close it."""
    context: TableContext = row.last_seen
    if context.options.groups != "exclusive" or consumer is None:
        return NoHeartbeat()
    made = ConsumerHeartbeat(row, consumer)
    heartbeat_of(context.backend).add(made)
    return made


def forget(backend: Backend) -> None:
    """Stop renewing the consumers of a database that this process closes: others get their groups."""
    _living.forget(backend)
    heartbeat_of(backend).forget_beatings()
