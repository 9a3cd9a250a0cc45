"""Figures are exact, however many processes and threads write at once, and however the table is purged."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.forked import Forked
from tests.tables import load
from tests.tables.conftest import MovableClock

from waterclock.connection import Database
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.message_table import MessageTable


def test_figures_are_exact_after_processes_and_threads_wrote_at_once(
    connect: Callable[..., Database], database_url: str
) -> None:
    table = connect().create_table(
        "orders", payload="text", id_type="text", purge_after="0s", ack_wait="1h", max_backoff="1h"
    )
    processes = [Forked("tests.tables.load", database_url, f"p{number}") for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        threads = [pool.submit(load.work, table, f"t{number}") for number in range(2)]
        purged = 0
        while any(process.poll() is None for process in processes) or not all(one.done() for one in threads):
            before, purged = purged, table.stats().purged
            assert purged >= before
        done = sum((Counter(one.result()) for one in threads), Counter[str]())
    for process in processes:
        assert process.wait() == 0
        done += Counter(json.loads(process.stdout.read()))
    table.purge()
    stats = table.stats()
    assert done["put"] == 4 * load.ROUNDS * 9
    assert stats.sent == done["taken"]
    assert stats.purged == done["acked"]
    assert (stats.acked, stats.in_flight) == (0, 0)
    assert stats.ready == done["put"] - done["acked"]


@pytest.mark.parametrize(
    ("database_url", "purge_by"),
    [("sqlite", "rows"), *((server, how) for server in ("postgresql", "mariadb") for how in ("rows", "partition"))],
    indirect=["database_url"],
)
def test_figures_are_exact_however_the_table_is_purged_and_by_how_many_at_once(
    make_table: Callable[..., MessageTable], clock: MovableClock, purge_by: str
) -> None:
    table = make_table(purge_by=purge_by, purge_after="1d")

    def work(_: int) -> None:
        table.put_many([{"payload": "x"} for _ in range(10)])
        deliveries: list[Delivery] = []
        while len(deliveries) < 10:
            deliveries += table.receive(10 - len(deliveries))
        deliveries[0].nack("0s")
        assert table.ack(deliveries[1:]) == 9

    def purge(_: int) -> int:
        all_threads.wait()
        return table.purge()

    all_threads = threading.Barrier(3)
    with ThreadPoolExecutor(3) as pool:
        for _ in range(2):
            list(pool.map(work, range(3)))
            clock.move("1d")
        stats = table.stats()
        assert (stats.acked, stats.sent, stats.purged) == (54, 60, 0)
        clock.move("2d")
        purged = sum(pool.map(purge, range(3)))
        while table.stats().acked:  # a day that could not be locked in time is left for later
            purged += table.purge()
    assert purged == 54
    stats = table.stats()
    assert (stats.acked, stats.sent, stats.purged, stats.ready) == (0, 60, 54, 6)
