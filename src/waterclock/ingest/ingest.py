"""Runs an ingest from MQTT: receives on several connections, appends in one thread, and acks after the append."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter

from waterclock._support import moments
from waterclock._support.quoting import quoted
from waterclock.connection import Database
from waterclock.errors import UnavailableError
from waterclock.ingest.appender import Appender
from waterclock.ingest.inbox import Inbox
from waterclock.ingest.mapping.filters import split_share
from waterclock.ingest.mapping.format_rule import RuleSet
from waterclock.ingest.mqtt.plan import IngestPlan
from waterclock.ingest.mqtt.session import BrokerSession, Surroundings, client_ids
from waterclock.ingest.progress import Event, IngestProgress, Tell
from waterclock.ingest.storing.append_plan import Stored
from waterclock.ingest.storing.dead_letters import check_most_payload
from waterclock.ingest.storing.received import Received
from waterclock.ingest.storing.session_rows import silent_sessions
from waterclock.ingest.storing.store import MOST_IN_FLIGHT, Store
from waterclock.time import format_time
from waterclock.topics.topic import Topic

_LONGEST_PAUSE = 5.0  # s
_LOOK_EVERY = 0.2
_LOOK_FOR_SILENT_EVERY = 60.0

_SILENT_AFTER = 600_000_000_000
"""ns without a write of its row after which another consumer of a share counts as gone: each writes at least once a
minute.
"""


class Ingest:
    """Moves messages from a broker into topics until it is stopped.

    Parameters
    ----------
    database
        The database of the topics.
    plan
        The broker, the rules and the limits.
    tell
        Called with each event, from any thread.
    """

    def __init__(self, database: Database, plan: IngestPlan, tell: Tell) -> None:
        self.progress = IngestProgress()
        self._database = database
        self._plan = plan
        self._tell = tell
        self._inbox = Inbox[Received]()
        self.progress.waiting = self._inbox.__len__
        self._rules = RuleSet(plan.rules)
        self._sessions: list[BrokerSession] = []
        self._failure: Exception | None = None
        self._changed = threading.Condition()
        self._wishes_stop = False
        self._new_plan: Callable[[], IngestPlan] | None = None
        self._known_silent: set[str] = set()
        topics = plan.open_topics(database)
        self._store = self._made_store(topics)
        self._appender = Appender(database.backend, self._inbox, self._append, self.progress, tell)
        self.lags = self._appender.lags

    def stop(self) -> None:
        """Stop soon: append and ack received messages, and leave the rest to the broker. Safe in a signal handler."""
        self._wishes_stop = True
        self._appender.stop()

    def reload(self, read: Callable[[], IngestPlan]) -> None:
        """Switch to the rules of another plan, without a new session. Safe in a signal handler."""
        self._new_plan = read

    def run(self) -> None:
        """Receive until it is stopped.

        Raises `RefusedByBrokerError` if the broker refuses the client or a subscription, or another client has the
        client id. Raises `SessionTakenError` if another process has taken the session. Raises `WaterclockError` if the
        database refuses an append permanently.
        """
        self._sessions = self._opened_sessions()
        threads = [self._started(session.run, "session") for session in self._sessions]
        appending = self._started(self._appender.run, "append")
        try:
            self._watch()
        finally:
            for session in self._sessions:
                session.stop_receiving()
            self._appender.stop()
            self._inbox.close()
            moments.join(appending)
            for session in self._sessions:
                session.close()
            for thread in threads:
                moments.join(thread, _LONGEST_PAUSE)
        if self._failure is not None:
            raise self._failure
        self._tell(Event("stopped", "stopped", self.progress.facts()))

    def _made_store(self, topics: Mapping[str, Topic]) -> Store:
        database, plan = self._database, self._plan
        check_most_payload(plan.most_payload, database.backend.largest_value)
        dead_letters = database.create_topic(plan.dead_letters, exist_ok=True)
        return Store(database.backend, self._rules, topics, dead_letters, plan.most_payload)

    def _opened_sessions(self) -> list[BrokerSession]:
        broker = self._plan.broker
        shared = Surroundings(
            broker, lambda: self._rules, self._inbox, self.progress, self._tell, self._store.note_dropped
        )
        in_flight = broker.receive_maximum if broker.version == "5" else MOST_IN_FLIGHT
        origin = self._database.topic(self._plan.rules[0].topic).storage.origin
        sessions: list[BrokerSession] = []
        for client_id in client_ids(broker, f"waterclock-{origin}"):
            row, state = self._store.open_session(f"{client_id}@{broker.place}", in_flight)
            watches = not sessions
            sessions.append(BrokerSession(shared, row, client_id, state.filters, state.dropped, watches=watches))
        return sessions

    def _started(self, run: Callable[[], None], name: str) -> threading.Thread:
        def run_noting_failure() -> None:
            try:
                run()
            except Exception as error:  # noqa: BLE001  # a thread has no caller to raise to: the main thread does
                self._failure = self._failure or error

        thread = threading.Thread(target=run_noting_failure, name=f"waterclock-ingest-{name}", daemon=True)
        moments.start(thread)
        return thread

    def _watch(self) -> None:
        """Wait for the end; meanwhile reload the file on request and look for silent sessions."""
        look_at = moments.monotonic() + _LOOK_EVERY
        while not self._wishes_stop and self._failure is None:
            with self._changed:
                moments.wait(self._changed, _LOOK_EVERY)
            if self._new_plan is not None:
                self._reload()
            self._appender.report_lags()
            if moments.monotonic() >= look_at:
                look_at = moments.monotonic() + _LOOK_FOR_SILENT_EVERY
                self._look_for_silent()

    def _reload(self) -> None:
        read, self._new_plan = self._new_plan, None
        assert read is not None  # noqa: S101  # the caller looked
        try:
            plan = read()
            topics = plan.open_topics(self._database)
        except Exception as error:  # noqa: BLE001  # a mistake in the file must not end the running ingest
            self._tell(
                Event(
                    "not_reloaded",
                    f"cannot reload the file, so the ingest keeps its current rules: {error}",
                    is_warning=True,
                )
            )
            return
        before, self._plan = self._plan, plan
        self._rules = RuleSet(plan.rules)
        self._store.use(self._rules, topics)
        text = "reloaded"
        if (plan.broker, plan.dead_letters, plan.most_payload) != (
            before.broker,
            before.dead_letters,
            before.most_payload,
        ):
            text += "; broker, dead_letters and max_payload change at the next start"
        self._tell(Event("reloaded", text))

    def _look_for_silent(self) -> None:
        """Report consumers of a share that have been silent for long: the broker's messages for them wait."""
        shared = {each.filter for each in self._rules.rules if split_share(each.filter)[0] is not None}
        try:
            now = self._database.backend.now()
            self._store.touch_sessions(now)
            if not shared:
                return
            silent = silent_sessions(self._database.backend, now - _SILENT_AFTER)
        except UnavailableError:
            return
        for session in silent:
            if session.filters & shared and session.name not in self._known_silent:
                self._known_silent.add(session.name)
                text = (
                    f"session {quoted(session.name)} of a shared filter has been silent since"
                    f" {format_time(session.seen_at)}, and the broker still queues messages for it. Start the"
                    " session's process again, or end the session at the broker"
                )
                self._tell(Event("silent_session", text, {"session": session.name}, is_warning=True))

    def _append(self, batch: Sequence[Received]) -> Stored:
        stored = self._store.append(batch)
        for origin, group in groupby((each for each in batch if each.qos), key=attrgetter("origin")):
            origin.ack([each.packet_id for each in group])
        return stored
