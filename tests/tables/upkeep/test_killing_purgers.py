from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest
from tests.support.forked import Forked
from tests.tables.conftest import MovableClock
from tests.tables.received import payloads

from waterclock.connection import Database
from waterclock.tables.message_table import MessageTable

# The days to come are made, then each old day is dropped and what it had is counted.
POINTS = [
    ("after", r"REORGANIZE|ATTACH PARTITION"),
    ("before", r"DROP (TABLE|PARTITION)"),
    ("after", r"DROP (TABLE|PARTITION)"),
    ("after", r"UPDATE waterclock_table_totals"),
]


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_purge_by_partition_that_is_killed_anywhere_loses_nothing_and_is_completed_by_the_next(
    make_table: Callable[..., MessageTable], database: Database, database_url: str, clock: MovableClock
) -> None:
    table = make_table(purge_by="partition", purge_after="1d")
    for _ in range(4):
        table.put_many([{"payload": "old"} for _ in range(5)])
        assert table.ack(table.receive(5)) == 5
        clock.move("1d")
    table.put_many([{"payload": "new"} for _ in range(5)])
    [first, *_] = table.receive(1)
    clock.move("10d")

    for moment, pattern in POINTS:
        purger = Forked("tests.tables.upkeep.purger", database_url, clock.now, moment, pattern)
        assert purger.wait() == -signal.SIGKILL, (moment, pattern)
        stats = table.stats()
        assert stats.ready == 5
        assert stats.acked + stats.purged <= 20
        if database.backend.dialect.name == "postgresql":
            assert stats.acked + stats.purged == 20  # a day goes in the transaction that counts it

    give_up_at = time.monotonic() + 60
    while table.stats().acked:  # the server may take a moment to notice that the last one is dead
        table.purge()
        assert time.monotonic() < give_up_at
    stats = table.stats()
    assert (stats.ready, stats.acked) == (5, 0)
    if database.backend.dialect.name == "postgresql":
        assert (stats.purged, stats.sent) == (20, 21)
    assert payloads(table, 10) == ["new"] * 5
    assert table.ack(range(first.id, first.id + 5)) == 5  # also on the days that were added
