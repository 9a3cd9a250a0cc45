"""A network that swallows all that is sent, and closes nothing: workers go on after it, and stop during it."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from tests.services import Service
from tests.work.conftest import PATIENCE, Waiting, running, until
from tests.work.stalling import StallingWire, stalling

import waterclock as wc


@pytest.fixture(params=["postgresql", "mariadb"])
def wire(request: pytest.FixtureRequest) -> Generator[StallingWire]:
    server: Service = request.getfixturevalue(f"{request.param}_server")
    with server.new_database() as url, stalling(url) as found:
        yield found


def test_claims_and_heartbeats_go_on_after_a_silence_and_a_worker_stops_within_one(wire: StallingWire) -> None:
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
            wire.speak()
            until(lambda: handler.deliveries[0].lease_until > lease)
            orders.put("next")
            until(lambda: done == ["next"])
            handler.go_on.set()
            until(lambda: worker.counts.done == 2)
            wire.fall_silent()
            worker.stop()
            thread.join(PATIENCE)
            assert not thread.is_alive()
        wire.speak()
        assert handler.began == ["long"]
