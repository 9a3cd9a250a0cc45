"""Messages pass while another connection holds a snapshot: a round reads hardly more pages at the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from benchmarks.tables.pressure import A_ROUND, SHAPES, Flow, pages_read, snapshot_held

from waterclock.connection import Database

SOME = 20 * A_ROUND


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # the one that counts the pages of a database
@pytest.mark.parametrize("name", SHAPES)
def test_a_long_run_reads_hardly_more_pages_under_a_snapshot(connect: Callable[[], Database], name: str) -> None:
    database = connect()
    flow = Flow(database.create_table("orders", payload="text", **SHAPES[name].options), SHAPES[name])

    def pages() -> int:
        before = pages_read(database)
        flow.rounds(SOME)
        return pages_read(database) - before

    flow.rounds(SOME)
    with snapshot_held(database):
        first = pages()
        flow.rounds(20 * SOME)
        assert pages() < 2 * first
