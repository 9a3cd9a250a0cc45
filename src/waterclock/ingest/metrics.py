"""The Prometheus metrics of an ingest."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.registry import Collector

from waterclock.ingest.progress import IngestProgress
from waterclock.ingest.stream_lags import StreamLags, StreamName
from waterclock.monitoring.families import LABELS, OTHER, Family, counter, gauge, label

_PREFIX = "waterclock_ingest_"

_COUNTERS = {
    "received": ("received_messages", "Published messages that arrived."),
    "unprotected": ("unprotected_messages", "Published messages at QoS 0 that arrived, which no broker sends again."),
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
    "stopped": ("stopped_partitions", "Kafka partitions that are stopped because their next records are gone."),
    "is_database_away": ("database_away", "Whether the last append failed because the database was unavailable."),
}


_LAGS = {
    "largest_lag": ("Receive time minus event time, the largest of the last ten seconds.", max),
    "smallest_lag": (
        "Receive time minus event time, the smallest of the last ten seconds; below 0 if event times are ahead.",
        min,
    ),
}


class IngestMetrics(Collector):
    """The counts of an ingest since its start, and the lags of its streams.

    Parameters
    ----------
    progress, lags
        Of the ingest.
    labels
        How many streams have labels of their own: the first ones.
    """

    def __init__(self, progress: IngestProgress, lags: StreamLags, labels: int = LABELS) -> None:
        self._progress = progress
        self._lags = lags
        self._most = labels
        self._known: dict[StreamName, tuple[str, str]] = {}

    def collect(self) -> Iterator[Family]:
        """Yield all metric families."""
        facts = {name: float(value) for name, value in self._progress.facts().items() if isinstance(value, int)}
        for field, (name, means) in _COUNTERS.items():
            yield counter(_PREFIX + name, means, [], [((), facts[field])])
        for field, (name, means) in _GAUGES.items():
            yield gauge(_PREFIX + name, means, [], [((), facts[field])])
        latest = self._lags.latest
        for name, (means, join) in _LAGS.items():
            samples = [
                (self._labels(stream), (lag.largest if name == "largest_lag" else lag.smallest) / 1e9)
                for stream, lag in latest.items()
            ]
            yield gauge(f"{_PREFIX}stream_{name}_seconds", means, ["source", "stream"], samples, join)

    def _labels(self, stream: StreamName) -> tuple[str, str]:
        if stream not in self._known:
            if len(self._known) >= self._most:
                return OTHER, OTHER
            self._known[stream] = label(stream[0]), label(stream[1])
        return self._known[stream]
