"""Keeps one session of a broker connected and subscribed to the filters of the rules, for one process at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from waterclock._support import moments
from waterclock._support.quoting import quoted
from waterclock.errors import UnavailableError
from waterclock.ingest.inbox import Inbox
from waterclock.ingest.mapping.format_rule import FormatRule, RuleSet
from waterclock.ingest.mqtt.broker import Broker
from waterclock.ingest.mqtt.connection import Connection, RefusedByBrokerError
from waterclock.ingest.progress import Event, IngestProgress, Tell
from waterclock.ingest.storing.received import Received
from waterclock.ingest.storing.session_rows import SessionRow

_FIRST_PAUSE = 0.2  # s
_LONGEST_PAUSE = 30.0

_SHORT = 5.0
_MOST_SHORT = 5
"""After this many connections in a row that the broker closed within this many seconds, another client has the client
id, and each of the two ends the other's connection. Only v5 reports that.
"""

_LOOK_EVERY = 0.5  # s


@dataclass(frozen=True)
class Surroundings:
    """The state that the sessions of an ingest share."""

    broker: Broker
    rules: Callable[[], RuleSet]  # returns the current rules
    inbox: Inbox[Received]  # takes received messages
    # The counts, and the function that receives events.
    progress: IngestProgress
    tell: Tell
    # Takes the name of a session and the number of messages that the broker has dropped.
    note_dropped: Callable[[str, int], None]


class BrokerSession:
    """Keeps one session connected until it is stopped."""

    def __init__(
        self,
        shared: Surroundings,  # the state that all sessions of the ingest share
        row: SessionRow,  # the session's row, which this process took
        client_id: str,  # the session's client id
        filters: frozenset[str],  # the filters that the broker may have for it
        dropped: int | None,  # how many messages the broker had dropped by its last report; None: no report
        *,
        watches: bool,  # whether this session watches the broker's count of dropped messages
    ) -> None:
        self._shared = shared
        self._row = row
        self._client_id = client_id
        self._filters = filters
        self._dropped = dropped
        self._watches = watches
        self._stopped = threading.Event()
        self._is_stopping = False
        self._connection: Connection | None = None
        self._number = 0
        self._attempts = 0  # to connect since the connection was lost, or since the start
        self._is_away = False
        self._has_connected = False
        self._short = 0
        self._pause = _FIRST_PAUSE
        self._subscribed: tuple[FormatRule, ...] = ()

    def stop_receiving(self) -> None:
        """Leave later messages to the broker, and do not connect again."""
        self._is_stopping = True
        self._stopped.set()

    def close(self) -> None:
        """Send the acks under way, and disconnect."""
        if self._connection is not None:
            self._connection.close()

    def run(self) -> None:
        """Keep connected until stopped.

        Raises `RefusedByBrokerError` if the broker refuses the client or a subscription, or another client has the
        client id. Raises `SessionTakenError` if another process has taken the session.
        """
        while not self._is_stopping:
            connection = self._connect()
            if connection is None:
                self._rest()
                continue
            began = moments.monotonic()
            try:
                self._subscribe(connection)
                self._attend(connection)
            except UnavailableError as error:
                self._tell_away(str(error))
            if self._is_stopping:
                return
            connection.close()
            self._ended(connection, moments.monotonic() - began)

    def _connect(self) -> Connection | None:
        self._number += 1
        self._attempts += 1
        shared = self._shared
        connection = Connection(
            shared.broker, self._client_id, self._row.name, self._number, self._deliver, self._tell_dropped
        )
        try:
            connection.open()
        except UnavailableError as error:
            self._tell_away(str(error))
            return None
        self._connection = connection
        shared.progress.connected += 1
        known = "which kept the session" if connection.session_present else "with a new session"
        after = f" after {self._attempts:,} attempts" if self._attempts > 1 else ""
        text = f"connected to {shared.broker.place} {known}{after}"
        self._tell("connected", text, session_present=connection.session_present, attempts=self._attempts)
        self._attempts, self._is_away = 0, False
        had_session, self._has_connected = self._has_connected, True
        if had_session and not connection.session_present:
            self._tell(
                "session_lost",
                f"broker {shared.broker.place} no longer had the session; messages queued for it are lost",
                is_warning=True,
            )
        return connection

    def _subscribe(self, connection: Connection) -> None:
        """Subscribe to all filters again, since a broker may have lost some, and drop removed ones."""
        rules = self._shared.rules().rules
        wanted = frozenset(rule.filter for rule in rules)
        if not wanted <= self._filters:
            # Written first, so that a filter is eventually dropped even if this process ends in between.
            self._row.write_filters(self._filters | wanted)
            self._filters |= wanted
        connection.subscribe(rules)
        gone = sorted(self._filters - wanted)
        connection.unsubscribe(gone)
        if gone:
            self._row.write_filters(wanted)
            self._filters = wanted
        if self._watches:
            connection.watch_dropped()
        self._subscribed = rules
        self._tell("subscribed", f"subscribed to {', '.join(sorted(wanted))}", filters=sorted(wanted), dropped=gone)

    def _attend(self, connection: Connection) -> None:
        """Watch a connection until it ends, or must be ended."""
        while not connection.wait(_LOOK_EVERY) and not self._is_stopping:
            if connection.is_overfull and not len(self._shared.inbox):
                return
            if self._shared.rules().rules != self._subscribed:
                self._subscribe(connection)

    def _ended(self, connection: Connection, lasted: float) -> None:
        shared = self._shared
        shared.progress.connected -= 1
        if connection.is_overfull:
            self._tell("disconnected", "connecting again, so that the broker sends the messages that did not fit")
            return
        self._tell_away(f"connection to {shared.broker.place} ended: {connection.end}")
        if connection.is_taken_over:
            raise self._taken_over()
        if connection.is_ended_for_good:
            raise RefusedByBrokerError(f"broker {shared.broker.place} ended the connection: {connection.end}")
        self._short = self._short + 1 if lasted < _SHORT else 0
        if self._short >= _MOST_SHORT:
            raise self._taken_over()
        with suppress(UnavailableError):  # an append checks again before it writes
            self._row.check_owner()
        if lasted >= _SHORT:
            self._pause = _FIRST_PAUSE
        self._rest()

    def _taken_over(self) -> RefusedByBrokerError:
        return RefusedByBrokerError(
            f"cannot stay connected to broker {self._shared.broker.place}: another client connects as"
            f" {quoted(self._client_id)}. Give each client its own client_id"
        )

    def _rest(self) -> None:
        moments.wait(self._stopped, self._pause)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    def _deliver(self, received: Received) -> bool:
        progress = self._shared.progress
        if self._is_stopping:
            return False
        if self._shared.inbox.put(received):
            progress.received += 1
            progress.unprotected += not received.qos
            return True
        if not received.qos:
            progress.lost += 1
            return False
        self._tell(
            "no_room",
            f"{len(self._shared.inbox):,} messages wait for the database; the broker keeps later messages",
            is_warning=True,
        )
        return False

    def _tell_dropped(self, dropped: int) -> None:
        before, self._dropped = self._dropped, dropped
        self._shared.note_dropped(self._row.name, dropped)
        # A smaller count means that the broker was restarted.
        lost = 0 if before is None else dropped - before if dropped >= before else dropped
        if lost:
            self._shared.progress.broker_dropped += lost
            self._tell(
                "broker_dropped",
                f"broker {self._shared.broker.place} dropped {lost:,} messages for its clients since its last report."
                " Raise its queue limit (max_queued_messages), or disconnect for shorter times",
                is_warning=True,
                messages=lost,
            )

    def _tell_away(self, text: str) -> None:
        """Report once for each outage that there is no connection, not for each attempt to connect."""
        if not self._is_away:
            self._is_away = True
            self._tell("disconnected", text, is_warning=True)

    def _tell(self, name: str, text: str, *, is_warning: bool = False, **facts: object) -> None:
        self._shared.tell(Event(name, text, {"session": self._row.name, **facts}, is_warning))


def client_ids(broker: Broker, default: str) -> Sequence[str]:
    """Return the client id of each connection."""
    name = broker.client_id or default
    if broker.connections == 1:
        return [name]
    return [f"{name}-{number}" for number in range(1, broker.connections + 1)]
