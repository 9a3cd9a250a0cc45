"""The metrics of an ingest: its streams' lags, with a bounded number of labels."""

from __future__ import annotations

from waterclock.ingest.metrics import IngestMetrics
from waterclock.ingest.progress import IngestProgress
from waterclock.ingest.stream_lags import LagRange, StreamLags

SECOND = 10**9


def test_the_lag_of_each_stream_is_a_gauge_and_surplus_streams_share_one() -> None:
    lags = StreamLags()
    lags.note({("press", name): LagRange(lag * SECOND, -lag * SECOND) for name, lag in (("a", 1), ("b", 3), ("c", 2))})
    lags.look()
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in IngestMetrics(IngestProgress(), lags, labels=1).collect()
        for sample in family.samples
        if "stream" in sample.name
    }
    assert samples == {
        ("waterclock_ingest_stream_largest_lag_seconds", "press", "a"): 1,
        ("waterclock_ingest_stream_largest_lag_seconds", "other", "other"): 3,
        ("waterclock_ingest_stream_smallest_lag_seconds", "press", "a"): -1,
        ("waterclock_ingest_stream_smallest_lag_seconds", "other", "other"): -3,
    }
