"""Selecting by time yields the same as a check of every message, also at the first and last time."""

from __future__ import annotations

from itertools import product

import pytest
from tests.topics.flows import pseudo_random

from waterclock.arrow import from_arrow
from waterclock.message import Message
from waterclock.time import MAX_NS, MIN_NS
from waterclock.topics.model.literals import By
from waterclock.topics.reading.selecting import select_by_time
from waterclock.topics.topic import Topic

ENDS = (MIN_NS, -1, 0, 7, 30, MAX_NS, MAX_NS + 1)


@pytest.mark.parametrize("by", ["event_time", "publish_time", "receive_time", "effective_time"])
def test_selection_is_that_of_a_look_at_every_message(sqlite_topic: Topic, by: By) -> None:
    draw = pseudo_random(34)
    times = (MIN_NS, 0, 7, *range(5, 40), MAX_NS)
    for number in range(12):
        messages = [
            Message("a", "b", draw.choice(times), publish_time=draw.choice(times), receive_time=draw.choice(times))
            for _ in range(9)
        ]
        sqlite_topic.append(messages)
        if number % 3 == 0:
            sqlite_topic.roll()
        if number == 7:
            sqlite_topic.seal()

    def time(message: Message) -> int:
        publish, receive = message.publish_time or 0, message.receive_time or 0
        own = {"event_time": message.event_time, "publish_time": publish, "receive_time": receive}
        return min(publish, receive) if by == "effective_time" else int(own[by])

    every = list(sqlite_topic.read())
    for since, until in product(ENDS[:-1], ENDS):
        selected = [
            message.position
            for batch in select_by_time(sqlite_topic.storage, since, until, by)
            for message in from_arrow(batch)
        ]
        assert selected == [each.position for each in every if since <= time(each) < until]
