"""The metrics of a database, as Prometheus reads them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import pytest
import sqlalchemy as sa
from prometheus_client.registry import Collector
from tests.monitoring.conftest import Scraped
from tests.support.statements import statements_of

import waterclock as wc
from waterclock.connection import Database
from waterclock.database.schema.table_catalogue import heartbeats
from waterclock.database.schema.topic_catalogue import subscriptions, topics
from waterclock.errors import UnavailableError, WaterclockError
from waterclock.monitoring import topic_facts
from waterclock.monitoring.database_metrics import DatabaseMetrics
from waterclock.monitoring.shared_collection import SharedCollection
from waterclock.work.upkeep import Upkeep

Connect = Callable[..., Database]
Scrape = Callable[[Collector], Scraped]
HOSTILE = 'a"b\\c\nd\x1b]0;owned\x07{},=é\u202e'
START = 1_800_000_000_000_000_000


def message(number: int) -> wc.Message:
    return wc.Message("press", "load", START + number, publish_time=START, receive_time=START)


def test_tables_topics_subscriptions_and_upkeep_are_exported(connect: Connect, scrape: Scrape) -> None:
    database = connect()
    orders = database.create_table("orders", payload="text", dead_letter="orders_dead")
    orders.put_many([{"payload": "a"}, {"payload": "b"}, {"payload": "c"}])
    [first] = orders.receive(1)
    first.dead_letter("no")
    orders.pause()
    telemetry = database.create_topic("telemetry")
    telemetry.append([message(number) for number in range(5)])
    with closing(telemetry.subscribe("billing")) as billing:
        billing.read(2)
        billing.commit()
    telemetry.roll()
    list(Upkeep(database).run())
    found = scrape(DatabaseMetrics(lambda: database))
    assert found["waterclock_up",] == 1
    assert found["waterclock_table_estimated_depth", "orders"] == 2
    assert found["waterclock_table_estimated_messages", "ready", "orders"] == 2
    assert found["waterclock_table_estimated_dead_messages", "orders"] == 1
    assert found["waterclock_table_counted_exactly", "orders"] == 1
    assert found["waterclock_table_paused", "orders"] == 1
    assert found["waterclock_table_paused", "orders_dead"] == 0
    assert found["waterclock_table_unread", "orders"] == 0
    assert found["waterclock_topic_appended_messages_total", "telemetry"] == 5
    assert found["waterclock_topic_ledgers", "sealed", "telemetry"] == 1
    assert found["waterclock_topic_ledgers", "closed", "telemetry"] == 0
    assert found["waterclock_topic_lost_messages", "telemetry"] == 0
    assert found["waterclock_subscription_backlog_messages", "billing", "telemetry"] == 3
    assert found["waterclock_upkeep_failed", "topic", "telemetry", "seal"] == 0
    assert found["waterclock_upkeep_last_run_timestamp_seconds", "table", "orders", "purge"] > START / 1e9 - 1e9
    is_server = database.backend.dialect.name != "sqlite"
    assert (("waterclock_database_oldest_transaction_seconds",) in found) == is_server


@pytest.mark.one_database
def test_names_above_the_limit_share_a_label_and_hostile_ones_are_escaped(connect: Connect, scrape: Scrape) -> None:
    database = connect()
    for name in ("one", "two", "three", "other"):
        database.create_table(name).put(b"")
    for number, name in enumerate((f"t{HOSTILE}", "second", "third")):
        topic = database.create_topic("t")
        topic.append([message(one) for one in range(number + 1)])
        topic.subscribe("s").close()
        with database.backend.engine.begin() as connection:  # a name that another program wrote may be anything
            connection.execute(sa.update(topics).where(topics.c.name == "t").values(name=name))
            renamed = sa.update(subscriptions).where(subscriptions.c.name == "s")
            connection.execute(renamed.values(name=f"{number}{HOSTILE}"))
    found = scrape(DatabaseMetrics(lambda: database, limit=2))
    assert {key[1]: value for key, value in found.items() if key[0] == "waterclock_table_estimated_depth"} == {
        "one": 1, "two": 1, "other": 2
    }  # fmt: skip
    appended = {key[1]: value for key, value in found.items() if key[0] == "waterclock_topic_appended_messages_total"}
    assert list(appended.values()) == [1, 2, 3]
    assert "other" in appended
    assert all(label.isprintable() for label in appended)
    assert sum(1 for key in found if key[0] == "waterclock_subscription_backlog_messages") == 3


def test_a_table_that_cannot_be_read_does_not_stop_others(connect: Connect, scrape: Scrape) -> None:
    database = connect()
    for name in ("broken", "orders"):
        database.create_table(name).put(b"")
    metrics = DatabaseMetrics(lambda: database)
    scrape(metrics)
    with database.backend.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE broken")
    for _ in range(2):
        found = scrape(metrics)
        assert found["waterclock_table_unread", "broken"] == 1
        assert found["waterclock_table_estimated_depth", "orders"] == 1
        assert ("waterclock_table_estimated_depth", "broken") not in found


@pytest.mark.one_database
def test_a_database_that_is_unavailable_is_down_until_it_answers(connect: Connect, scrape: Scrape) -> None:
    database = connect()
    answers = [UnavailableError("it is away"), UnavailableError("it is away"), database, database]

    def open_database() -> Database:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    metrics = DatabaseMetrics(open_database)
    assert scrape(metrics) == {("waterclock_up",): 0}
    assert metrics.reasons_not_ready() == ["it is away"]
    assert scrape(metrics)["waterclock_up",] == 1
    assert metrics.reasons_not_ready() == []


def test_a_database_whose_claims_fail_is_not_ready(connect: Connect) -> None:
    database = connect()
    orders = database.create_table("orders")
    now = database.backend.now()
    row = {"table_id": orders.context.table_id, "session": 1, "subscribers": 1, "sent": 0, "beat_at": now}
    with database.backend.engine.begin() as connection:
        connection.execute(sa.insert(heartbeats).values(**row, failing=1, failure="no such column"))
    metrics = DatabaseMetrics(lambda: database)
    assert metrics.reasons_not_ready() == ["claims from table 'orders' fail: no such column"]
    assert metrics.is_away() is None


def test_concurrent_callers_share_a_collection_and_no_one_waits_forever() -> None:
    began, go_on = threading.Event(), threading.Event()
    runs: list[int] = []

    def collect() -> int:
        runs.append(len(runs))
        began.set()
        go_on.wait(30)
        return runs[-1]

    shared = SharedCollection("it", collect, 20)
    hurried = SharedCollection("it", collect, 0.001)
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(shared.get())) for _ in range(8)]
    for thread in threads:
        thread.start()
    began.wait(30)
    for _ in range(5):
        with pytest.raises(UnavailableError, match="did not answer within"):
            hurried.get()
    assert sum(thread.name == "waterclock-collect" for thread in threading.enumerate()) == 2
    go_on.set()
    for thread in threads:
        thread.join()
    assert len(runs) <= 10
    assert len(results) == 8


def test_a_fault_while_collecting_is_an_error_of_ours() -> None:
    with pytest.raises(WaterclockError, match="cannot read it: ZeroDivisionError"):
        SharedCollection("it", lambda: 1 // 0, 20).get()


def test_a_collection_for_which_no_thread_can_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    shared = SharedCollection("numbers", lambda: 7, patience=60)
    with monkeypatch.context() as exhausted:
        exhausted.setattr("waterclock.monitoring.shared_collection.moments.start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            shared.get()
    assert shared.get() == 7


@pytest.mark.one_database
def test_damaged_ledgers_are_found_without_reading_the_others(database: Database) -> None:
    database.create_topic("telemetry")
    with statements_of(database.backend) as seen, database.backend.snapshot() as connection:
        topic_facts.topic_records(connection)
    [(text, values)] = [each for each in seen if "sum(waterclock_ledgers.lost_in_file) AS" in each[0]]
    with database.backend.engine.connect() as connection:
        plan = [row.detail for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values)]
    assert "SEARCH waterclock_ledgers USING COVERING INDEX waterclock_ledgers_lost_in_file_idx (lost_in_file>?)" in plan
