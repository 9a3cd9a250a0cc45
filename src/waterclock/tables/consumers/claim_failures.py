"""Handles failed claims: decides how long a subscription pauses, when it logs, and when it releases its groups."""

from __future__ import annotations

import logging
from typing import Any

from waterclock._support import moments
from waterclock._support.log_events import event
from waterclock.errors import TimedOutError, UnavailableError, WaterclockError
from waterclock.tables.consumers.heartbeats.consumer_heartbeat import ConsumerHeartbeat, NoHeartbeat
from waterclock.tables.messages.rows.process_heartbeat import OpenSubscription, ProcessHeartbeat

RETRY_EVERY = 0.2  # seconds between two claims while the database is unavailable: it may return at any moment

LONGEST_PAUSE = 30.0
"""Maximum seconds between two claims that the database refuses: its limits, or a trigger, may be changed."""

WARN_EVERY = 60.0  # seconds between two warnings about the same failure, so that it does not flood the log

_log = logging.getLogger(__name__)


class ClaimFailures:
    """Tracks for how long a subscription's claims have failed."""

    def __init__(
        self,
        subscription: OpenSubscription,
        consumer: str | None,
        process: ProcessHeartbeat,
        groups: ConsumerHeartbeat | NoHeartbeat,
    ) -> None:
        self._subscription = subscription
        self._consumer = consumer
        self._process = process
        self._groups = groups
        self._pause = RETRY_EVERY
        self._warned_at = 0.0
        # When the first of them failed, in seconds of the monotonic clock; None if the last one succeeded.
        self.since: float | None = None

    def note(self, table: str, error: WaterclockError) -> float:
        """Report a failed claim; return the seconds until the next try.

        The failure is logged at once and then every `WARN_EVERY` seconds, and shown by `stats` and `explain`. After a
        while the heartbeat stops renewing the consumer's groups, so that other consumers get them.
        """
        now = moments.monotonic()
        is_away = isinstance(error, UnavailableError) and not isinstance(error, TimedOutError)
        pause = RETRY_EVERY if is_away else self._pause
        self._pause = RETRY_EVERY if is_away else min(self._pause * 2, LONGEST_PAUSE)
        extra = self._event("claims_fail", table)
        if self.since is None:
            self.since = self._warned_at = now
            _log.warning(
                "consumer %s cannot claim from table %r, retrying in %g s: %s",
                self._consumer,
                table,
                pause,
                error,
                extra=extra,
            )
        elif now - self._warned_at >= WARN_EVERY:
            self._warned_at = now
            said = "consumer %s has been unable to claim from table %r for %.0f s: %s"
            _log.warning(said, self._consumer, table, now - self.since, error, extra=extra)
        self._process.note_failing(self._subscription, str(error))
        self._groups.claims_fail_since = self.since
        return pause

    def _event(self, name: str, table: str, **fields: Any) -> dict[str, Any]:
        return event(name, table=table, consumer=self._consumer, **fields)

    def end(self, table: str) -> None:
        if self.since is None:
            return
        lasted = moments.monotonic() - self.since
        extra = self._event("claims_succeed", table, seconds=lasted)
        _log.info(
            "consumer %s claims from table %r again, after %.1f s of failures",
            self._consumer,
            table,
            lasted,
            extra=extra,
        )
        self._pause = RETRY_EVERY
        self.since = None
        self._process.note_failing(self._subscription, None)
        self._groups.claims_fail_since = None
