"""A PgBouncer that pools transactions between a worker and its PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from tests.support.services import Service
from tests.work.conftest import running, until
from tests.work.faults.pooling import pooling

import waterclock as wc

COUNT = 300
LOCKS = sa.text(
    "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database"
    " WHERE locktype = 'advisory' AND d.datname = current_database()"
)
LISTENING = sa.text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND query LIKE 'LISTEN%'"
)


SETTINGS = sa.text(
    "SELECT name, setting FROM pg_settings WHERE source = 'session' AND name NOT IN"
    " ('client_encoding', 'DateStyle', 'TimeZone', 'application_name', 'standard_conforming_strings')"
)


def test_behind_a_pooler_no_setting_stays_in_a_session_that_others_get(
    postgresql_server: Service, tmp_path: Path
) -> None:
    with postgresql_server.new_database() as url, pooling(url, sessions=1) as pooled:
        with wc.connect(pooled, str(tmp_path)) as database:
            for groups in (None, "sequenced", "exclusive"):
                orders = database.create_table(f"orders_{groups}", payload="json", groups=groups)
                orders.put_many([{"payload": number, "group": "a"} for number in range(3)])
                assert orders.ack(orders.receive(3)) == 3
            database.create_topic("readings").append([wc.Message("a", "b", 1)])
            assert orders.stats().acked == 3
        another = sa.create_engine(
            pooled.partition("?")[0], poolclass=sa.NullPool, connect_args={"prepare_threshold": None}
        )
        with another.connect() as connection:
            assert connection.execute(SETTINGS).all() == []
        another.dispose()


def test_a_worker_behind_a_pooler_of_transactions_drains_hears_and_leaves_no_lock(postgresql_server: Service) -> None:
    with postgresql_server.new_database() as url, pooling(url, sessions=3) as pooled:
        straight = sa.create_engine(url, poolclass=sa.NullPool)

        def left_behind() -> tuple[int, int]:
            with straight.connect() as connection:
                return connection.scalars(LOCKS).one(), connection.scalars(LISTENING).one()

        with wc.connect(pooled) as database:
            orders = database.create_table("orders", payload="json", poll_interval="1h")
            orders.put_many([{"payload": number} for number in range(COUNT)])
            seen: list[int] = []
            workers = [wc.Worker(orders, lambda one: seen.append(one.payload), concurrency=4) for _ in range(2)]
            with running(workers[0]), running(workers[1]):
                until(lambda: len(seen) == COUNT)
                orders.put(COUNT)  # both wait
                until(lambda: seen[-1] == COUNT)
                assert left_behind() == (0, 0)
            assert orders.stats().acked == orders.stats().sent == COUNT + 1
        until(lambda: left_behind() == (0, 0))
        straight.dispose()
