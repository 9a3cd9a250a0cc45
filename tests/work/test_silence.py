"""A network that swallows all that is sent, and closes nothing: workers go on after it, and stop during it."""

from __future__ import annotations

from collections.abc import Generator

import pytest
import sqlalchemy as sa
from tests.services import Service
from tests.work.conftest import PATIENCE, Waiting, running, until
from tests.work.stalling import StallingWire, stalling

import waterclock as wc


@pytest.fixture(params=["postgresql", "mariadb"])
def wire(request: pytest.FixtureRequest) -> Generator[StallingWire]:
    server: Service = request.getfixturevalue(f"{request.param}_server")
    with server.new_database() as url, stalling(url) as found:
        yield found


def put_a_tick(url: str) -> None:
    """Have a schedule's tick fall due that no process has put."""
    with wc.connect(url) as database:
        orders = database.table("orders")
        orders.schedule("often", cron="* * * * *", payload="tick", catch_up="one")
        missed = orders.context.backend.now() - 120_000_000_000
        with database.backend.engine.begin() as connection:
            connection.execute(
                sa.text("UPDATE waterclock_schedules SET seen_until = :missed, next_tick = :missed"), {"missed": missed}
            )


def test_claims_heartbeats_and_schedules_go_on_after_a_silence_and_a_worker_stops_in_one(
    wire: StallingWire,
) -> None:
    with wc.connect(wire.url) as database:
        orders = database.create_table("orders", payload="json", ack_wait="9s", max_attempts=2)
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
            put_a_tick(wire.target)
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
