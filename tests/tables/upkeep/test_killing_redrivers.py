from __future__ import annotations

import random
import signal
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from tests.support.forked import Forked

from waterclock.connection import Database

chance = random.Random()  # noqa: S311  # no secret


@pytest.mark.both_servers
def test_when_redrivers_are_killed_a_message_is_in_one_of_the_two_tables(
    connect: Callable[..., Database], database_url: str
) -> None:
    database = connect()
    table = database.create_table("orders", payload="text", ack_wait="100ms", max_backoff="100ms", max_attempts=2)
    table.put_many([{"payload": str(number)} for number in range(30)])
    both = sa.text("SELECT id FROM orders UNION ALL SELECT id FROM orders_dead")
    for _ in range(3):
        workers = [Forked("tests.tables.upkeep.redriver", database_url, "orders") for _ in range(2)]
        try:
            for worker in workers:
                assert worker.stdout.readline() == "brought back\n"
            # Some have died and live again; killed somewhere in the middle of its work from here on, wherever that is.
            for _ in range(chance.randrange(1, 30)):
                with database.backend.snapshot() as connection:
                    assert sorted(connection.scalars(both)) == list(range(1, 31))
        finally:
            for worker in workers:
                worker.kill()
                assert worker.wait() == -signal.SIGKILL, "it ended by itself"
    with database.backend.snapshot() as connection:
        assert sorted(connection.scalars(both)) == list(range(1, 31))
    stats = table.stats()
    assert stats.ready + stats.in_flight + stats.delayed + stats.dead == 30
