"""Measures, for each stream of a topic, how far the newest event times lag behind the receive times."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from waterclock.topics.catalogue.damage_policy import Damage
from waterclock.topics.finding.positions import position_of
from waterclock.topics.topic import Topic

MOST_READ = 20_000
"""The newest messages that are looked at: their five columns take about 20 ms to read."""

_COLUMNS = ("source", "stream", "event_time", "publish_time", "receive_time")


class TopicLag(NamedTuple):
    """The lag of a stream: receive time minus event time of some messages, ns."""

    source: str
    stream: str
    messages: int  # how many messages were looked at
    newest: int  # the latest receive time
    # The range; negative if event times are ahead.
    smallest: int
    largest: int
    publish_ahead: int  # the most by which a publish time is ahead of the receive time


def topic_lags(topic: Topic) -> list[TopicLag]:
    """Return the lag of each stream in the newest messages; UnavailableError if they cannot be read."""
    head = topic.head
    skipping = Damage(topic.name, "skip", quiet=True)
    start = position_of(topic.storage, max(topic.index(head) - MOST_READ, 0), skipping)
    found = list(topic.read_arrow(start, head, columns=_COLUMNS, on_damage="skip"))
    if not found:
        return []
    read = pa.Table.from_batches(found)
    lag = pc.call_function("subtract", [read["receive_time"], read["event_time"]])
    ahead = pc.call_function("subtract", [read["publish_time"], read["receive_time"]])
    grouped = (
        read.append_column("lag", lag)
        .append_column("ahead", ahead)
        .group_by(["source", "stream"])
        .aggregate([("lag", "count"), ("receive_time", "max"), ("lag", "min"), ("lag", "max"), ("ahead", "max")])
    )
    names = ("source", "stream", "lag_count", "receive_time_max", "lag_min", "lag_max", "ahead_max")
    return [TopicLag(*(row[name] for name in names)) for row in grouped.to_pylist()]
