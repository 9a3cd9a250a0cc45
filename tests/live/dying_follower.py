"""A follower in a process of its own that kills itself in the middle of writing batches."""

from __future__ import annotations

import os
import signal
from itertools import count
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from waterclock import connect
from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.live.follower import Follower
from waterclock.live.rules import ByEventTime
from waterclock.topics.finding.positions import beginning

SECOND = 10**9
RULE = ByEventTime(EventTimeRule.checked("2s", "1500ms", "5s"))
"""The lead accepts some of the messages that are received while the clock is behind."""


def main(database: str, ledgers: str, now: str, limit: str, life: str) -> None:
    """Batch until the process has passed that many moments in writes, or everything is read.

    Parameters
    ----------
    now
        The database's clock, ns.
    limit
        How many messages a step reads.
    life
        The number of the last moment; one lies before and one after each statement and each commit of a write.
    """
    moments, commit, write = count(1), sa.Connection._commit_impl, Follower._write
    writes = False

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def pass_moment(*_: object) -> None:
        if writes and next(moments) == int(life):
            die()

    def commit_in_danger(connection: Any) -> None:
        pass_moment()
        commit(connection)
        pass_moment()

    def write_in_danger(*arguments: Any) -> None:
        nonlocal writes
        writes = True
        write(*arguments)
        writes = False

    event.listen(sa.Engine, "before_cursor_execute", pass_moment)
    event.listen(sa.Engine, "after_cursor_execute", pass_moment)
    sa.Connection._commit_impl = commit_in_danger  # type: ignore[method-assign]
    Follower._write = write_in_danger  # type: ignore[method-assign]
    with connect(database, ledgers, clock=lambda: int(now)) as opened:
        topic = opened.topic("telemetry")
        table = opened.table("batches")
        follower = Follower(opened, topic, table, RULE, max_skew=10 * SECOND, start=beginning(topic.storage))
        while follower.step(int(limit)):
            pass
        die()
