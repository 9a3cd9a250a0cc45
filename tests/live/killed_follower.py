"""A topic that is batched by followers each of which is killed, through a backlog and a clock that goes back."""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path

from tests.live.conftest import traffic
from tests.live.dying_follower import RULE, SECOND
from tests.support.clocks import MovableClock
from tests.support.forked import Forked

import waterclock as wc
from waterclock.live.follower import Follower
from waterclock.topics.finding.positions import beginning

_BACKLOG = 600 * SECOND
_HOUR = 3600 * SECOND
_MOST_MOMENTS = 24  # in a life: the first write has so many, others fewer


def batch_through_kills(database: wc.Database, url: str, ledgers: Path, clock: MovableClock, kills: int) -> wc.Topic:
    """Append traffic of over ten minutes, killing a follower again and again, and batch the rest when it has ended.

    A third of the kills come before and a third during a backlog of ten minutes. Then the receive clock goes back by
    an hour, and is set right for the last kills. A device that follows this clock sends old event times meanwhile.
    """
    topic = database.create_topic("telemetry", roll_after=None)
    table = database.create_table("batches", id_type="text")
    chance = random.Random(kills)  # noqa: S311  # a schedule
    phases = kills // 3
    messages = traffic((14 * phases * SECOND + _BACKLOG) * 10 // (7 * SECOND))
    first_received = [message.receive_time or 0 for message in messages]
    lives = count()

    def live(limit: int) -> None:
        arguments = (url, ledgers, clock.now, limit, chance.randint(1, _MOST_MOMENTS))
        with Forked("tests.live.dying_follower", *arguments) as killed:
            assert killed.wait() == -9
        next(lives)

    def append(until: int, behind: int = 0) -> None:
        """Append what is received before a time, with the receive clock behind by so much."""
        due = [message for message in messages if (message.receive_time or 0) < until]
        del messages[: len(due)]
        while due:
            entry, due = due[:9], due[9:]
            topic.append([_received_by(behind, message) for message in entry])
        clock.now = until - behind

    now = first_received[0]
    for _ in range(phases):
        append(now := now + 4 * SECOND)
        live(20)
    append(now := now + _BACKLOG)
    for _ in range(phases):
        live(2_400 // phases)
    topic.roll()
    topic.seal()
    for number in range(kills - 2 * phases):
        append(now := now + 10 * SECOND, behind=_HOUR if number * 2 < phases else 0)
        live(20)
    append(now + _HOUR)
    clock.now = now + 2 * _HOUR
    follower = Follower(database, topic, table, RULE, max_skew=10 * SECOND, start=beginning(topic.storage))
    while follower.step():
        pass
    assert next(lives) == kills
    assert not messages
    return topic


def _received_by(behind: int, message: wc.Message) -> wc.Message:
    """Move a message's receive time, and the event time of a device that has the same clock."""
    received = (message.receive_time or 0) - behind
    event_time = message.event_time - (behind if message.source == "s2" else 0)
    return message.replace(receive_time=received, event_time=event_time)
