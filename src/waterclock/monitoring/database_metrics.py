"""The metrics of a database: its message tables, topics, subscriptions and upkeep."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from prometheus_client.registry import Collector

from waterclock._support.log_events import event
from waterclock._support.quoting import in_a_line
from waterclock.connection import Database
from waterclock.database.deadlines import answers_within
from waterclock.errors import WaterclockError
from waterclock.monitoring.database_facts import LONGEST, Facts, FactsReader
from waterclock.monitoring.families import LABELS, OTHER, Family, counter, gauge, label, labels_of
from waterclock.monitoring.shared_collection import SharedCollection
from waterclock.monitoring.table_facts import failing_claims

_PATIENCE = 5.0
"""Seconds for which a scrape waits for the database. Prometheus itself waits for ten unless configured otherwise."""

_NS = 1_000_000_000
_log = logging.getLogger(__name__)


class DatabaseMetrics(Collector):
    """Collects the metrics of a database when Prometheus asks. Works even while the database is unavailable.

    ``open_database`` returns the database, and is called until it succeeds. ``limit`` is how many tables, and topics,
    and subscriptions, have a label of their own.
    """

    def __init__(self, open_database: Callable[[], Database], limit: int = LABELS) -> None:
        self._open = open_database
        self._limit = limit
        self._database: Database | None = None
        self._reader: FactsReader | None = None
        self._shared = SharedCollection("the metrics of the database", self._read, _PATIENCE)
        self._readiness = SharedCollection("the state of the database", self._look, _PATIENCE)
        self._was_up = True

    def collect(self) -> Iterator[Family]:
        """Yield all metric families; only ``waterclock_up``, which is 0, if the database cannot be read."""
        try:
            facts = self._shared.get()
        except WaterclockError as error:
            if self._was_up:
                _log.warning(
                    "cannot read metrics from the database: %s",
                    in_a_line(str(error)),
                    extra=event("metrics_unavailable"),
                )
            self._was_up = False
            yield gauge("waterclock_up", _UP, [], [((), 0)])
            return
        if not self._was_up:
            _log.info("reading metrics from the database works again", extra=event("metrics_available"))
        self._was_up = True
        yield from _families(facts, self._limit)

    def reasons_not_ready(self) -> list[str]:
        """Return why the database is not ready: it does not answer, or claims of some process fail."""
        try:
            return self._readiness.get()
        except WaterclockError as error:
            return [in_a_line(str(error))]

    def is_away(self) -> str | None:
        """Return why the database cannot be read; None if it can."""
        try:
            self._readiness.get()
        except WaterclockError as error:
            return in_a_line(str(error))
        return None

    def _opened(self) -> Database:
        if self._database is None:
            self._database = self._open()
        return self._database

    def _read(self) -> Facts:
        if self._reader is None:
            self._reader = FactsReader(self._opened().backend)
        return self._reader.read()

    def _look(self) -> list[str]:
        backend = self._opened().backend
        with answers_within(LONGEST), backend.patience(LONGEST):
            return list(failing_claims(backend))


_UP = "Whether the database answers."


def _families(facts: Facts, limit: int) -> Iterator[Family]:
    yield gauge("waterclock_up", _UP, [], [((), 1)])
    yield gauge("waterclock_collection_seconds", "How long it took to read the database.", [], [((), facts.seconds)])
    if facts.oldest_transaction is not None:
        yield gauge(
            "waterclock_database_oldest_transaction_seconds",
            "Age of the oldest open transaction. The server keeps all row versions that were replaced since it began.",
            [],
            [((), facts.oldest_transaction)],
        )
    labels = labels_of((one.name for one in facts.tables), limit)
    yield from _of_records(facts, labels)
    yield from _of_counts(facts, labels)
    topics = labels_of((one.name for one in facts.topics), limit)
    yield from _of_topics(facts, topics, limit)
    yield from _of_upkeep(facts, labels, topics)


def _of_records(facts: Facts, labels: dict[str, str]) -> Iterator[Family]:
    of = [([labels[one.name]], one) for one in facts.tables]
    yield gauge(
        "waterclock_table_subscribers", "Open subscriptions.", ["table"], ((name, one.subscribers) for name, one in of)
    )
    yield gauge(
        "waterclock_table_failing_subscriptions",
        "Subscriptions whose claims fail.",
        ["table"],
        ((name, one.failing) for name, one in of),
    )
    yield gauge(
        "waterclock_table_paused",
        "Whether the table is paused.",
        ["table"],
        ((name, one.is_paused) for name, one in of),
        max,
    )
    yield gauge(
        "waterclock_table_sent_per_second",
        "Deliveries a second in the last minute, of all processes.",
        ["table"],
        ((name, one.sent_rate) for name, one in of),
    )
    yield counter(
        "waterclock_table_purged_messages",
        "Messages purged since the table was created.",
        ["table"],
        ((name, one.purged) for name, one in of),
    )
    yield gauge(
        "waterclock_table_unread",
        "Whether the table's messages could not be counted, or not in time.",
        ["table"],
        (([labels[one.name]], one.name in facts.unread) for one in facts.tables),
        max,
    )


def _of_counts(facts: Facts, labels: dict[str, str]) -> Iterator[Family]:
    of = [([labels[name]], one) for name, one in facts.counts.items()]
    yield gauge(
        "waterclock_table_estimated_depth",
        "Unacked messages; estimated if there are more than a thousand.",
        ["table"],
        ((name, one.messages.depth) for name, one in of),
    )
    yield gauge(
        "waterclock_table_estimated_messages",
        "Unacked messages by state; estimated if there are more than a thousand.",
        ["table", "state"],
        (([*name, state], count) for name, one in of for state, count in one.messages.messages.items()),
    )
    yield gauge(
        "waterclock_table_counted_exactly",
        "Whether the messages were counted, and not estimated.",
        ["table"],
        ((name, one.messages.exact) for name, one in of),
        min,
    )
    yield gauge(
        "waterclock_table_estimated_oldest_age_seconds",
        "How long the oldest due message has been due; estimated if there are more than a thousand messages.",
        ["table"],
        ((name, (one.messages.oldest_age or 0) / _NS) for name, one in of),
        max,
    )
    yield gauge(
        "waterclock_table_blocked_groups",
        "Groups with messages that are not sent unless someone acts; counted up to a thousand.",
        ["table"],
        ((name, one.groups.blocked) for name, one in of),
    )
    yield gauge(
        "waterclock_table_exhausted_groups",
        "Groups whose first message has used up its attempts; counted up to a thousand.",
        ["table"],
        ((name, one.groups.exhausted) for name, one in of),
    )
    yield gauge(
        "waterclock_table_acked_per_second",
        "Acks a second in the last minute; in the time of the last thousand acks, if that is shorter.",
        ["table"],
        ((name, one.ack_rate) for name, one in of),
    )
    dead = {
        name: facts.counts[one.dead_letter] for name, one in facts.counts.items() if one.dead_letter in facts.counts
    }
    yield gauge(
        "waterclock_table_estimated_dead_messages",
        "Messages in the table's dead-letter table; estimated if there are more than a thousand.",
        ["table"],
        (([labels[name]], one.messages.depth) for name, one in dead.items()),
    )


def _of_topics(facts: Facts, labels: dict[str, str], limit: int) -> Iterator[Family]:
    of = [([labels[one.name]], one) for one in facts.topics]
    yield counter(
        "waterclock_topic_appended_messages",
        "Messages appended since the topic was created.",
        ["topic"],
        ((name, one.appended) for name, one in of),
    )
    yield gauge("waterclock_topic_messages", "Messages kept.", ["topic"], ((name, one.messages) for name, one in of))
    yield gauge("waterclock_topic_bytes", "Bytes kept.", ["topic"], ((name, one.size) for name, one in of))
    yield gauge(
        "waterclock_topic_ledgers",
        "Ledgers by state.",
        ["topic", "state"],
        (([*name, state], count) for name, one in of for state, count in one.ledgers.items()),
    )
    yield gauge(
        "waterclock_topic_lost_messages",
        "Messages that a repair has recorded as lost, because they were damaged or missing.",
        ["topic"],
        ((name, one.lost) for name, one in of),
    )
    own = facts.subscriptions[:limit]
    yield gauge(
        "waterclock_subscription_backlog_messages",
        "Messages that the subscription has not committed.",
        ["topic", "subscription"],
        [
            *(([labels.get(one.topic, OTHER), label(one.name)], one.backlog) for one in own),
            *(([labels.get(one.topic, OTHER), OTHER], one.backlog) for one in facts.subscriptions[limit:]),
        ],
    )


def _of_upkeep(facts: Facts, tables: dict[str, str], topics: dict[str, str]) -> Iterator[Family]:
    labels = {"table": tables, "topic": topics}
    of = [
        ([one.kind, labels[one.kind][one.name], one.task], one)
        for one in facts.upkeep
        if one.name in labels.get(one.kind, {})
    ]
    names = ["kind", "name", "task"]
    yield gauge(
        "waterclock_upkeep_last_run_timestamp_seconds",
        "When the task of upkeep ended last.",
        names,
        ((values, one.ran_at / _NS) for values, one in of if one.ran_at is not None),
        min,
    )
    yield gauge(
        "waterclock_upkeep_failed",
        "Whether the task of upkeep failed when it ran last.",
        names,
        ((values, one.failed) for values, one in of),
        max,
    )
