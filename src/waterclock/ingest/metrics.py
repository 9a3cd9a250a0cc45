"""Prometheus metrics of an ingest."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.registry import Collector

from waterclock.ingest.progress import IngestProgress
from waterclock.monitoring.families import Family, counter, gauge

_PREFIX = "waterclock_ingest_"

_COUNTERS = {
    "received": ("received_messages", "Published messages that arrived."),
    "unprotected": ("unprotected_messages", "Those of them at QoS 0, which no broker sends again."),
    "appended": ("appended_messages", "Messages appended; a published one may hold several."),
    "appends": ("appends", "Transactions that appended something."),
    "dead": ("dead_messages", "Published messages that could not be mapped."),
    "repeats": ("repeated_messages", "Published messages that had been appended before."),
    "skipped": ("skipped_messages", "Retained messages that were not taken."),
    "lost": ("lost_messages", "Messages at QoS 0 for which there was no room."),
    "broker_dropped": ("broker_dropped_messages", "Messages that the broker says it dropped, of all its clients."),
}
_GAUGES = {
    "waiting": ("waiting_messages", "Messages that wait for their append."),
    "connected": ("connections", "Open connections to brokers."),
    "stopped": ("stopped_partitions", "Partitions of Kafka that are stopped, since their next records are gone."),
    "is_database_away": ("database_away", "Whether the last append failed because the database was unavailable."),
}


class IngestMetrics(Collector):
    """The counts of an ingest since its start."""

    def __init__(self, progress: IngestProgress) -> None:
        self._progress = progress

    def collect(self) -> Iterator[Family]:
        """Yield all metric families."""
        facts = {name: float(value) for name, value in self._progress.facts().items() if isinstance(value, int)}
        for field, (name, means) in _COUNTERS.items():
            yield counter(_PREFIX + name, means, [], [((), facts[field])])
        for field, (name, means) in _GAUGES.items():
            yield gauge(_PREFIX + name, means, [], [((), facts[field])])
