"""Shows how far the event times of streams lag behind their receive times, and which clocks differ from ours."""

from __future__ import annotations

from typing import Any

from waterclock.ingest.stream_lags import AHEAD, LATE
from waterclock.ingest.topic_lags import TopicLag, topic_lags
from waterclock.server.api.formats import shapes
from waterclock.topics.topic import Topic

MOST_SHOWN = 50
"""Maximum streams in the answer, those with the worst clocks first: more do not fit on a page."""


def lags_data(topic: Topic) -> dict[str, Any]:
    """Return the lag of each stream in the newest messages: receive time minus event time, in seconds."""
    lags = topic_lags(topic)
    streams = [_stream(lag) for lag in lags]
    streams.sort(key=lambda one: (not one["clocks"], -one["largest_lag_seconds"], one["source"], one["stream"]))
    return {
        "messages": sum(lag.messages for lag in lags),
        "streams": streams[:MOST_SHOWN],
        "more_streams": max(len(streams) - MOST_SHOWN, 0),
    }


def _stream(lag: TopicLag) -> dict[str, Any]:
    clocks: list[str] = []
    if lag.smallest < -AHEAD:
        clocks.append("event time ahead")
    if lag.publish_ahead > AHEAD:
        clocks.append("publish time ahead")
    if lag.smallest > LATE:
        clocks.append("always late")
    return {
        "source": lag.source,
        "stream": lag.stream,
        "messages": lag.messages,
        "newest": shapes.time(lag.newest),
        "smallest_lag_seconds": lag.smallest / 1e9,
        "largest_lag_seconds": lag.largest / 1e9,
        "clocks": clocks,
    }
