"""The command ``waterclock work``: handlers by name, and signals that stop it."""

from __future__ import annotations

import os
import signal
import urllib.request

import pytest
from tests.forked import Forked
from tests.work.conftest import Waiting, running

from waterclock.connection import connect
from waterclock.errors import InvalidArgumentError, UnavailableError
from waterclock.work.counts import Counts
from waterclock.work.metrics import answering
from waterclock.work.worker import Worker


def start(url: str, *words: str) -> Forked:
    return Forked("tests.work.shop", "work", *words, "--url", url)


def test_a_worker_handles_until_sigterm_and_ends_well(database_url: str) -> None:
    with connect(database_url, "unused") as database:
        orders = database.create_table("orders", payload="text")
        mails = database.create_table("mails", payload="text")
        mails.put("m")
        orders.put_many([{"payload": str(number)} for number in range(5)])
        with start(database_url, "tests.work.shop:handle@mails", "tests.work.shop:handle", "--table", "orders") as one:
            assert {one.stdout.readline() for _ in range(6)} == {
                "handled m\n",
                *(f"handled {number}\n" for number in range(5)),
            }
            os.kill(one.pid, signal.SIGTERM)
            assert one.wait() == 0
        assert (orders.stats().acked, mails.stats().acked) == (5, 1)
        assert orders.stats().subscribers == 0


@pytest.mark.one_database
def test_prometheus_is_answered_while_all_slots_are_taken(database_url: str) -> None:
    with connect(database_url, "unused") as database:
        orders = database.create_table("orders", payload="text")
        orders.put("a")
        handler = Waiting()
        worker = Worker(orders, handler)
        with running(worker), answering(":0", lambda: worker.counts, worker.facts, lambda: worker.unfinished) as place:
            handler.wait_for(1)
            with urllib.request.urlopen(f"http://{place}/metrics") as answer:  # our own
                lines = answer.read().decode().splitlines()
            handler.go_on.set()
        assert "waterclock_worker_running 1.0" in lines
        assert 'waterclock_worker_messages_total{outcome="done"} 0.0' in lines
    for address, error in (("here", InvalidArgumentError), ("127.0.0.1:99999", UnavailableError)):
        with pytest.raises(error, match="metrics"), answering(address, Counts, dict, int):
            pass


def test_a_second_signal_ends_handlers_that_ignore_everything_and_gives_their_messages_back(database_url: str) -> None:
    with connect(database_url, "unused") as database:
        orders = database.create_table("orders", payload="text", max_attempts=1)
        orders.put_many([{"payload": "a"}, {"payload": "b"}, {"payload": "c"}])
        words = ["tests.work.shop:hold", "--table", "orders", "--concurrency", "2", "--grace", "1h"]
        with start(database_url, *words) as one:
            assert {one.stdout.readline(), one.stdout.readline()} == {"began a\n", "began b\n"}
            os.kill(one.pid, signal.SIGTERM)
            os.kill(one.pid, signal.SIGINT)
            assert one.wait() == 0
        assert [(each.payload, each.epoch) for each in orders.receive()] == [("a", 1), ("b", 1), ("c", 1)]
