"""The command ``waterclock work``: handlers by name, and signals that stop it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.support.forked import Forked
from tests.work.conftest import Waiting, running, until
from tests.work.shop import broken_mark

from waterclock.cli.terminal.common import Common
from waterclock.cli.terminal.exporting import serving_metrics
from waterclock.cli.work import work
from waterclock.connection import connect
from waterclock.errors import InvalidArgumentError
from waterclock.tables.consumers.delivery import Delivery
from waterclock.work.metrics import WorkerMetrics
from waterclock.work.upkeep import Upkeep
from waterclock.work.worker import Worker


def start(url: str, *words: str) -> Forked:
    return Forked("tests.work.shop", "work", *words, "--url", url)


def test_a_worker_handles_until_sigterm_and_ends_well(database_url: str) -> None:
    with connect(database_url, "unused") as database:
        orders = database.create_table("orders", payload="text")
        mails = database.create_table("mails", payload="text")
        mails.put("m")
        orders.put_many([{"payload": str(number)} for number in range(5)])
        words = ["tests.work.shop:handle@mails", "tests.work.shop:handle", "--table", "orders", "--upkeep"]
        with start(database_url, *words) as one:
            assert {one.stdout.readline() for _ in range(6)} == {
                "handled m\n",
                *(f"handled {number}\n" for number in range(5)),
            }
            until(lambda: any(task.ran_at is not None for task in Upkeep(database).status()))
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
        metrics = WorkerMetrics(lambda: worker.counts, worker.facts, lambda: worker.unfinished)
        worker.observe(metrics)
        assert worker.reasons_not_ready() == ["the worker has not started"]
        with running(worker), serving_metrics(":0", "metrics", 9, lambda: database, [metrics]) as place:
            handler.wait_for(1)
            with urllib.request.urlopen(f"http://{place}/metrics") as answer:  # our own
                lines = answer.read().decode().splitlines()
            assert worker.reasons_not_ready() == []
            handler.go_on.set()
        assert "waterclock_worker_running 1.0" in lines
        assert 'waterclock_table_estimated_messages{state="in_flight",table="orders"} 1.0' in lines
        assert worker.reasons_not_ready() == ["the worker stops"]


@pytest.mark.one_database
def test_outcomes_and_durations_are_measured_by_table_and_kind(database_url: str) -> None:
    with connect(database_url, "unused") as database:
        orders = database.create_table("orders", payload="text", min_backoff="1h")
        for kind in ("good", "bad", "third"):
            orders.put("a", headers={"kind": kind})

        def fail(_: Delivery) -> None:
            raise ValueError

        worker = Worker(orders, {"good": lambda _: None, "bad": fail, "third": fail})
        metrics = WorkerMetrics(lambda: worker.counts, worker.facts, lambda: worker.unfinished, limit=2)
        worker.observe(metrics)
        with running(worker):
            until(lambda: worker.counts.done + worker.counts.failed == 3)
        samples = {
            (sample.name, *sample.labels.values()): sample.value
            for family in metrics.collect()
            for sample in family.samples
        }
        assert samples["waterclock_worker_sent_messages_total", "orders"] == 3
        assert samples["waterclock_worker_messages_total", "orders", "good", "done"] == 1
        assert samples["waterclock_worker_messages_total", "orders", "bad", "failed"] == 1
        assert samples["waterclock_worker_messages_total", "orders", "other", "failed"] == 1
        assert samples["waterclock_worker_handler_seconds_count", "orders", "bad"] == 1
        assert samples["waterclock_worker_claim_seconds_count", "orders"] >= 1


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


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("handler", "slots"),
    [
        ("hold", "--concurrency"),
        ("hold_in_the_loop", "--concurrency"),
        ("hold_the_loop", "--concurrency"),
        ("hold_another_thread", "--concurrency"),
        ("keep_the_interpreter", "--processes"),
    ],
)
def test_a_process_whose_handlers_ignore_everything_ends_after_its_grace(
    database_url: str, handler: str, slots: str
) -> None:
    with connect(database_url, "unused") as database:
        orders = database.create_table("orders", payload="text", max_attempts=1, ack_wait="1h")
        orders.put("a")
        words = [f"tests.work.shop:{handler}", "--table", "orders", slots, "1", "--grace", "100ms"]
        with start(database_url, *words) as one:
            assert one.stdout.readline() == "began a\n"
            os.kill(one.pid, signal.SIGTERM)
            until(lambda: one.poll() is not None)
            assert one.returncode == 0
        assert [(each.payload, each.epoch) for each in orders.receive()] == [("a", 1)]


@pytest.mark.one_database
@pytest.mark.parametrize("factory", ["starting_for_ever", "starting_in_the_loop"])
def test_a_process_that_is_stopped_while_its_factory_begins_ends_after_its_grace(
    database_url: str, factory: str
) -> None:
    with connect(database_url, "unused") as database:
        orders = database.create_table("orders", payload="text")
        with start(database_url, f"tests.work.shop:{factory}", "--table", "orders", "--grace", "100ms") as one:
            assert one.stdout.readline().startswith("starts")
            os.kill(one.pid, signal.SIGTERM)
            until(lambda: one.poll() is not None)
            assert one.returncode == 0
        assert orders.stats().subscribers == 0


@pytest.mark.one_database
def test_a_worker_whose_process_cannot_be_replaced_ends_with_an_exit_code_that_says_so(database_url: str) -> None:
    with connect(database_url, "unused") as database:
        orders = database.create_table("orders", payload="text", min_backoff="1h")
        orders.put("a")
        with start(database_url, "tests.work.shop:breaking_later", "--table", "orders", "--processes", "1") as one:
            try:
                until(lambda: one.poll() is not None)
            finally:
                broken_mark(one.pid).unlink(missing_ok=True)
            assert one.returncode == 1
        assert orders.stats().delayed == 1


WAIT_FOR_A_LOCK = sa.text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_claim_that_waits_for_a_lock_when_its_process_ends_takes_nothing(database_url: str) -> None:
    with connect(database_url, "unused") as database:
        orders = database.create_table("orders", payload="text")
        orders.put("a")
        engine = database.backend.engine
        looks = engine.execution_options(isolation_level="AUTOCOMMIT")

        def wait_for_longer() -> None:
            with engine.begin() as connection:  # gives up before a claim does
                connection.execute(sa.text("SET LOCAL lock_timeout = '25s'"))
                connection.execute(sa.text("UPDATE orders SET priority = 0 WHERE false"))

        with looks.connect() as looking, engine.begin() as locking:
            locking.execute(sa.text("LOCK TABLE orders IN SHARE MODE"))  # as who makes an index does
            with start(database_url, "tests.work.shop:handle", "--table", "orders") as one:
                until(lambda: looking.execute(WAIT_FOR_A_LOCK).scalar() == 1)
                longer = threading.Thread(target=wait_for_longer)
                longer.start()
                until(lambda: looking.execute(WAIT_FOR_A_LOCK).scalar() == 2)
                os.kill(one.pid, signal.SIGTERM)
                assert one.wait() == 0
            until(lambda: looking.execute(WAIT_FOR_A_LOCK).scalar() == 1)
            assert longer.is_alive()
        longer.join()
        assert [(each.payload, each.epoch) for each in orders.receive()] == [("a", 1)]


@pytest.mark.slow  # stopped within a heartbeat it keeps its transaction, and the test waits for long
def test_a_worker_that_was_stopped_beyond_its_lease_sees_that_and_its_ack_is_refused(database_url: str) -> None:
    with connect(database_url, "unused") as database:
        orders = database.create_table("orders", payload="text", ack_wait="2s", min_backoff="1ms", jitter=0)
        orders.put("a")
        with start(database_url, "tests.work.shop:ack_late", "--table", "orders") as one:
            assert one.stdout.readline() == "began a\n"
            os.kill(one.pid, signal.SIGSTOP)
            found: list[Delivery] = []
            try:
                until(lambda: found.extend(orders.receive()) or found)
            finally:
                os.kill(one.pid, signal.SIGCONT)
            assert one.stdout.readline() == "is refused\n"
            found[0].ack()
            os.kill(one.pid, signal.SIGTERM)
            assert one.wait() == 0
        assert (found[0].epoch, orders.stats().acked, orders.stats().sent) == (2, 1, 2)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("import nosuchmodule", ": ModuleNotFoundError: No module named 'nosuchmodule'"),
        ("def h(:", ": SyntaxError"),
        ("def h(): pass", "h must take the delivery or the payload"),
        ("def h(delivery): yield", "h must not both yield and take arguments"),
        (
            "import contextlib\n@contextlib.contextmanager\ndef h():\n raise ValueError('a\\nb')\n yield",
            "handler factory failed: ",
        ),
    ],
)
def test_a_bad_module_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, said: str
) -> None:
    (tmp_path / "no_good.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "no_good", raising=False)
    url = f"sqlite:///{tmp_path / 'f.db'}"
    with connect(url) as database:
        database.create_table("orders")
    with pytest.raises(InvalidArgumentError) as refused:
        work(["no_good:h"], table="orders", common=Common(url=url))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
