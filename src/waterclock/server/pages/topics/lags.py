"""How far the event times of streams lie behind their receive times, and clocks that disagree with the server's."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from waterclock.ingest.stream_lags import AHEAD, LATE
from waterclock.server.api.formats import shapes
from waterclock.topics.topic import Topic

MOST_READ = 20_000
"""The newest messages that are looked at: their four columns take about 20 ms to read."""

MOST_SHOWN = 50
"""Streams in the answer, those with the worst clocks first: more do not fit on a page."""

_COLUMNS = ("source", "stream", "event_time", "publish_time", "receive_time")


def lags_data(topic: Topic) -> dict[str, Any]:
    """Return the lag of each stream in the newest messages: receive time minus event time, in seconds."""
    head = topic.head
    start = topic.at(max(topic.index(head) - MOST_READ, 0))
    found = list(topic.read_arrow(start, head, columns=_COLUMNS, on_damage="skip"))
    if not found:
        return {"messages": 0, "streams": [], "more_streams": 0}
    read = pa.Table.from_batches(found)
    lag = pc.call_function("subtract", [read["receive_time"], read["event_time"]])
    ahead = pc.call_function("subtract", [read["publish_time"], read["receive_time"]])
    measured = read.append_column("lag", lag).append_column("ahead", ahead)
    grouped = measured.group_by(["source", "stream"]).aggregate(
        [("lag", "min"), ("lag", "max"), ("ahead", "max"), ("receive_time", "max"), ("lag", "count")]
    )
    streams = [_stream(row) for row in grouped.to_pylist()]
    streams.sort(key=lambda one: (not one["clocks"], -one["largest_lag_seconds"], one["source"], one["stream"]))
    return {
        "messages": read.num_rows,
        "streams": streams[:MOST_SHOWN],
        "more_streams": max(len(streams) - MOST_SHOWN, 0),
    }


def _stream(row: dict[str, Any]) -> dict[str, Any]:
    clocks: list[str] = []
    if row["lag_min"] < -AHEAD:
        clocks.append("event time ahead")
    if row["ahead_max"] > AHEAD:
        clocks.append("publish time ahead")
    if row["lag_min"] > LATE:
        clocks.append("always late")
    return {
        "source": row["source"],
        "stream": row["stream"],
        "messages": row["lag_count"],
        "newest": shapes.time(row["receive_time_max"]),
        "smallest_lag_seconds": row["lag_min"] / 1e9,
        "largest_lag_seconds": row["lag_max"] / 1e9,
        "clocks": clocks,
    }
