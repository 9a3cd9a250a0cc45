"""A PgBouncer that pools transactions between a worker and its PostgreSQL."""

from __future__ import annotations

import sqlalchemy as sa
from tests.services import Service
from tests.work.conftest import running, until
from tests.work.pooling import pooling

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
