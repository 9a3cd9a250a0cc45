"""A network that swallows all that is sent, and closes nothing: workers go on after it, and stop during it."""

from __future__ import annotations

from collections.abc import Generator

import pytest
import sqlalchemy as sa
from tests.support.services import Service
from tests.work.conftest import PATIENCE, Waiting, running, until
from tests.work.faults.stalling import StallingWire, stalling

import waterclock as wc


@pytest.fixture(params=["postgresql", "mariadb"])
def wire(request: pytest.FixtureRequest) -> Generator[StallingWire]:
    server: Service = request.getfixturevalue(f"{request.param}_server")
    with server.new_database() as url, stalling(url) as found:
        yield found


def make_a_tick_due(database: wc.Database) -> None:
    """Have a schedule's tick be due that no process has put."""
    missed = database.table("orders").context.backend.now() - 120_000_000_000
    with database.backend.engine.begin() as connection:
        connection.execute(
            sa.text("UPDATE waterclock_schedules SET seen_until = :missed, next_tick = :missed"), {"missed": missed}
        )


def test_claims_heartbeats_and_schedules_continue_after_a_silence_and_a_worker_stops_in_one(
    wire: StallingWire,
) -> None:
    # The other way to the server is open before, since the silence is to be short next to the lease.
    with wc.connect(wire.url) as database, wc.connect(wire.target) as straight:
        orders = database.create_table("orders", payload="json", ack_wait="18s", max_attempts=2)
        orders.schedule("often", cron="* * * * *", payload="tick", catch_up="one")
        orders.put("long")
        handler, done = Waiting(), []

        def handle(delivery: wc.Delivery) -> None:
            handler(delivery) if delivery.payload == "long" else done.append(delivery.payload)

        worker = wc.Worker(orders, handle, concurrency=2)
        with running(worker) as thread:
            handler.wait_for(1)
            lease = handler.deliveries[0].lease_until
            wire.fall_silent()
            # One look at each thing that may wait for an answer: claims every second, the lease after two thirds.
            thread.join(2.5)
            make_a_tick_due(straight)
            wire.speak()
            until(lambda: handler.deliveries[0].lease_until > lease)
            orders.put("next")
            until(lambda: {"next", "tick"} <= set(done))
            handler.go_on.set()
            until(lambda: worker.counts.done == 1 + len(done))
            wire.fall_silent()
            worker.stop()
            thread.join(PATIENCE)
            assert not thread.is_alive()
        wire.speak()
        assert handler.began == ["long"]
