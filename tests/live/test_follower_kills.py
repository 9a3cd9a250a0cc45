"""Followers that are killed again and again put the batches of a replay, each once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.live.conftest import expected, landed
from tests.live.dying_follower import RULE
from tests.live.killed_follower import batch_through_kills
from tests.support.clocks import MovableClock

import waterclock as wc


@pytest.mark.both_servers
@pytest.mark.parametrize("kills", [9, pytest.param(200, marks=pytest.mark.slow)])
def test_followers_killed_through_a_backlog_and_a_clock_set_back_put_the_batches_of_a_replay(
    database: wc.Database, database_url: str, tmp_path: Path, clock: MovableClock, kills: int
) -> None:
    topic = batch_through_kills(database, database_url, tmp_path / "ledgers", clock, kills)
    wanted = expected(topic, RULE)
    assert len(wanted) > 100
    assert landed(database.table("batches")) == wanted
