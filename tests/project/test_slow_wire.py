"""The proxy through which benchmarks and tests see a server as if it were some way off."""

from __future__ import annotations

import psycopg
import sqlalchemy as sa
from benchmarks.tables.peers import conninfo
from benchmarks.tables.slow_wire import slow_wire
from tests.support.services import Service

AWAY = 0.005  # s


def test_only_a_statement_that_waits_for_its_answer_is_a_round_trip(postgresql_server: Service) -> None:
    with (
        slow_wire(postgresql_server.url, AWAY) as wire,
        psycopg.connect(**conninfo(wire.url), autocommit=True) as connection,
    ):

        def trips_of(count: int, *, at_once: bool) -> int:
            before = wire.trips
            if at_once:
                with connection.pipeline():
                    for _ in range(count):
                        connection.execute("SELECT 1", prepare=False)
            else:
                for _ in range(count):
                    connection.execute("SELECT 1", prepare=False)
            return wire.trips - before

        assert min(trips_of(4, at_once=False) for _ in range(3)) == 4
        assert min(trips_of(4, at_once=True) for _ in range(3)) == 1


def test_long_values_arrive_whole_in_both_directions(postgresql_server: Service) -> None:
    long = "x" * 5_000_000
    with (
        slow_wire(postgresql_server.url, 0) as wire,
        psycopg.connect(**conninfo(wire.url)) as connection,
    ):
        assert connection.execute("SELECT %s::text", (long,)).fetchone() == (long,)
        assert wire.sent > 2 * len(long)


def test_a_server_that_is_not_there_is_refused_at_the_other_end(postgresql_server: Service) -> None:
    nowhere = sa.make_url(postgresql_server.url).set(port=1).render_as_string(hide_password=False)
    with slow_wire(nowhere, 0) as wire:
        try:
            psycopg.connect(**conninfo(wire.url), connect_timeout=10)
        except psycopg.OperationalError:
            return
    raise AssertionError("connected to no server")
