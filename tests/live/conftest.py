"""A topic of traffic, the batches that belong to it, and a follower on a clock that a test moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.clocks import MovableClock

import waterclock as wc
from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.live.follower import Follower
from waterclock.live.rules import ByEventTime, LiveRule
from waterclock.topics.finding.positions import beginning

SECOND = 10**9
START = 1_782_907_200 * SECOND
RULE = ByEventTime(EventTimeRule.checked("2s", "1500ms"))


def traffic(count: int = 60, sources: int = 3) -> list[wc.Message]:
    """Measurements of some sources each 0.7 s, a few of them late, one in eleven too late."""
    messages: list[wc.Message] = []
    for number in range(count):
        event = START + number * 7 * SECOND // 10
        for source in range(sources):
            stream = f"m{(number + source) % 4}"
            late = 4 * SECOND if (number + source) % 11 == 5 else (number * source % 3) * SECOND // 2
            messages.append(
                wc.Message(f"s{source}", stream, event, b"%d" % number, publish_time=event, receive_time=event + late)
            )
    return sorted(messages, key=lambda message: message.receive_time or 0)


def expected(topic: wc.Topic, rule: ByEventTime = RULE) -> dict[str, bytes]:
    """Batch the whole topic message by message, and let the clock run to its end."""
    batcher = wc.BySource(lambda: wc.EventTimeBatcher(**rule.rule._asdict()))
    batches = [batch for message in topic.read() for batch in batcher.add(message)]
    batches += batcher.advance(START + 3600 * SECOND)
    return {batch.id: batch.to_bytes() for batch in batches}


def landed(table: wc.MessageTable) -> dict[str, bytes]:
    """Take every batch out of a table; each is there once."""
    found: dict[str, bytes] = {}
    while deliveries := table.receive(limit=100):
        for delivery in deliveries:
            assert delivery.id not in found
            found[str(delivery.id)] = delivery.payload
    return found


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock(START)


@pytest.fixture
def database(connect: Callable[..., wc.Database], clock: MovableClock) -> wc.Database:
    return connect(clock=clock)


@pytest.fixture
def topic(database: wc.Database) -> wc.Topic:
    return database.create_topic("telemetry", roll_after=None)


@pytest.fixture
def table(database: wc.Database) -> wc.MessageTable:
    return database.create_table("batches", id_type="text")


MakeFollower = Callable[..., Follower]


@pytest.fixture
def follow(database: wc.Database, topic: wc.Topic, table: wc.MessageTable) -> MakeFollower:
    def make(rule: LiveRule = RULE, **options: Any) -> Follower:
        chosen: dict[str, Any] = {"max_skew": 10 * SECOND, "start": beginning(topic.storage)} | options
        return Follower(database, topic, table, rule, **chosen)

    return make
