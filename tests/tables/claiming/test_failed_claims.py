"""Claims that fail in the middle of an exchange: the consumer claims again as soon as it can."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from waterclock.connection import Database
from waterclock.connection import connect as connect_again_to
from waterclock.database.driver_fast_path import DirectConnection, PipelinedConnection
from waterclock.errors import RefusedError, UnavailableError, WaterclockError
from waterclock.tables.consumers.heartbeats import consumer_heartbeat
from waterclock.tables.consumers.heartbeats.consumer_heartbeat import ConsumerHeartbeat
from waterclock.tables.groups import consumers
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.rows.process_heartbeat import process_heartbeat

pytestmark = pytest.mark.both_servers

CLAIMS = 8  # more than a driver sends before it prepares a statement
WITH_SERVER = pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
ON_POSTGRESQL = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
GROUPED = pytest.mark.parametrize("groups", ["sequenced", "exclusive"])


def fill(table: MessageTable, count: int) -> None:
    table.put_many([{"payload": "x", "group": f"g{number}"} for number in range(count)])


def claim_one(table: MessageTable) -> int:
    (delivery,) = table.receive(limit=1, consumer="press")
    delivery.ack()
    return 1


def refuse_updates(database: Database, name: str) -> Callable[[], None]:
    """Install a trigger of the user's that refuses every update; return what drops it."""
    drop = ["DROP TRIGGER refuse"]
    if database.backend.dialect.name == "mysql":
        create = [f"CREATE TRIGGER refuse BEFORE UPDATE ON {name} FOR EACH ROW SIGNAL SQLSTATE '45000'"]
    elif database.backend.dialect.name == "sqlite":
        create = [f"CREATE TRIGGER refuse BEFORE UPDATE ON {name} BEGIN SELECT RAISE(ABORT, 'not now'); END"]
    else:
        create = [
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$",
            f"CREATE TRIGGER refuse BEFORE UPDATE ON {name} FOR EACH ROW EXECUTE FUNCTION refuse()",
        ]
        drop = [f"DROP TRIGGER refuse ON {name}"]
    run(database, *create)
    return lambda: run(database, *drop)


def url_of(database: Database) -> str:
    return database.backend.url.render_as_string(hide_password=False)


def run(database: Database, *statements: str) -> None:
    with database.backend.engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


@WITH_SERVER
@GROUPED
@pytest.mark.parametrize("claims_before", [pytest.param(0, marks=pytest.mark.slow), 4, CLAIMS])
def test_a_consumer_claims_again_after_claims_that_a_trigger_refused(
    database: Database, make_table: Callable[..., MessageTable], groups: str, claims_before: int
) -> None:
    orders = make_table(groups=groups)
    fill(orders, 3 * CLAIMS)
    before = sum(claim_one(orders) for _ in range(claims_before))
    drop = refuse_updates(database, "orders")
    for _ in range(CLAIMS):
        with pytest.raises(RefusedError):
            orders.receive(limit=1, consumer="press")
    drop()
    handled = before
    while found := orders.receive(consumer="press"):
        for delivery in found:
            delivery.ack()
        handled += len(found)
    assert handled == 3 * CLAIMS


@ON_POSTGRESQL
@GROUPED
@pytest.mark.parametrize("claims_before", [2, CLAIMS])
def test_a_consumer_claims_again_after_any_statement_of_an_exchange_failed(
    database: Database,
    make_table: Callable[..., MessageTable],
    monkeypatch: pytest.MonkeyPatch,
    groups: str,
    claims_before: int,
) -> None:
    orders = make_table(groups=groups)
    fill(orders, 60)
    for _ in range(claims_before):
        claim_one(orders)
    texts: list[str] = []
    failing = -1
    exchange = PipelinedConnection._exchange

    def fail_at(self: PipelinedConnection, sent: Any) -> list[Any]:
        every = [*self._ahead, *sent]
        texts[:] = [text for text, _ in every]
        if 0 <= failing < len(every):
            self._ahead.clear()
            broken = [*every[:failing], ("SELECT 1 / 0", ()), *every[failing:]]
            return exchange(self, broken)
        return exchange(self, sent)

    monkeypatch.setattr(PipelinedConnection, "_exchange", fail_at)
    claim_one(orders)
    for place in range(len(texts)):
        failing = place
        for _ in range(2):
            with pytest.raises(WaterclockError):
                orders.receive(limit=1, consumer="press")
        failing = -1
        claim_one(orders)
    left = 60 - claims_before - 1 - len(texts)
    while found := orders.receive(consumer="press"):
        left -= len(found)
        for delivery in found:
            delivery.ack()
    assert left == 0


@WITH_SERVER
@GROUPED
@pytest.mark.parametrize("claims_before", [0, CLAIMS])
def test_a_consumer_claims_again_after_its_sessions_were_terminated(
    database: Database, make_table: Callable[..., MessageTable], groups: str, claims_before: int
) -> None:
    orders = make_table(groups=groups)
    fill(orders, 2 * CLAIMS)
    for _ in range(claims_before):
        claim_one(orders)
    for _ in range(3):
        terminate_others(database)
        # A look on a connection that has just gone is not repeated by itself; a subscription repeats the claim.
        with suppress(UnavailableError):
            claim_one(orders)
        claim_one(orders)


def terminate_others(database: Database) -> None:
    with database.backend.engine.connect() as connection:
        if database.backend.dialect.name == "postgresql":
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            return
        mine = connection.scalar(sa.select(sa.func.connection_id()))
        ids = connection.execute(
            sa.text("SELECT id FROM information_schema.processlist WHERE db = database() AND id <> :mine"),
            {"mine": mine},
        ).scalars()
        for number in list(ids):
            connection.exec_driver_sql(f"KILL {number}")


@ON_POSTGRESQL
@GROUPED
def test_a_consumer_claims_again_when_its_session_is_terminated_within_an_exchange(
    database: Database, make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch, groups: str
) -> None:
    orders = make_table(groups=groups)
    fill(orders, 40)
    claim_one(orders)
    exchange = PipelinedConnection._exchange
    terminated: list[int] = []

    def end_session(self: PipelinedConnection, sent: Any) -> list[Any]:
        place = len(terminated) % (len(sent) + 1)
        ends = ("SELECT pg_terminate_backend(pg_backend_pid())", ())
        if not skipping:
            terminated.append(place)
            skipping.append(True)
            return exchange(self, [*sent[:place], ends, *sent[place:]])
        return exchange(self, sent)

    monkeypatch.setattr(PipelinedConnection, "_exchange", end_session)
    for _ in range(8):
        skipping: list[bool] = []
        claim_one(orders)
    assert len(terminated) == 8


@ON_POSTGRESQL
def test_a_session_that_cannot_leave_its_pipeline_is_replaced(
    database: Database, make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = make_table(groups="exclusive")  # finds a claim whose answer was lost
    fill(orders, 2)
    claim_one(orders)
    leave = psycopg.Pipeline._exit
    busy: list[bool] = []

    def stay_busy(self: psycopg.Pipeline, error: BaseException | None) -> None:
        if not busy:
            busy.append(True)
            raise psycopg.OperationalError("cannot exit pipeline mode while busy")
        leave(self, error)

    monkeypatch.setattr(psycopg.Pipeline, "_exit", stay_busy)
    claim_one(orders)
    assert busy


@WITH_SERVER
@pytest.mark.parametrize("groups", [None, "sequenced", "exclusive"])
def test_a_column_may_change_its_type_while_its_table_is_consumed(
    database: Database, make_table: Callable[..., MessageTable], groups: str | None
) -> None:
    orders = make_table(groups=groups, columns={"customer": "text"})
    for round_of in range(2):
        fill(orders, CLAIMS)
        for _ in range(CLAIMS):
            claim_one(orders)
        kind = ("varchar(50)", "text")[round_of]
        word = "ALTER COLUMN customer TYPE" if database.backend.dialect.name == "postgresql" else "MODIFY customer"
        run(database, f"ALTER TABLE orders {word} {kind}")
    fill(orders, CLAIMS)
    assert sum(claim_one(orders) for _ in range(CLAIMS)) == CLAIMS


def test_the_direct_pool_keeps_no_connection_that_met_an_error_of_a_server(database: Database) -> None:
    def fail(connection: Any) -> None:
        assert isinstance(connection, DirectConnection)
        connection.exec_driver_sql("SELECT nothing_of_this_name")

    if database.backend.dialect.frame is None:
        return
    with pytest.raises(RefusedError):
        database.backend.transact(fail, indexed=True)
    kept = len(database.backend._direct._idle)
    assert kept == (1 if database.backend.dialect.name == "sqlite" else 0)


@GROUPED
def test_claims_that_keep_failing_are_logged_and_shown_by_stats_and_explain(
    database: Database,
    make_table: Callable[..., MessageTable],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    groups: str,
) -> None:
    orders = make_table(groups=groups)
    fill(orders, 2)
    first = next(iter(orders.peek(limit=1))).id
    drop = refuse_updates(database, "orders")
    with orders.subscribe(consumer="press") as deliveries:
        monkeypatch.setattr(deliveries._stop, "wait", lambda _: False)
        assert deliveries.take(1) == []
        assert "consumer press cannot claim from table 'orders', retrying in 0.2 s" in caplog.text
        stats = orders.stats()
        assert stats.failing == 1
        assert "refused" in (stats.failure or "")
        assert "the claims of 1 of 1 subscriptions fail: " in orders.explain(first).reason
        process_heartbeat(orders.context).beat()
        with connect_again_to(url_of(database)) as other:
            assert other.table("orders").stats().failing == 1
        drop()
        assert len(deliveries.take(1)) == 1
        assert orders.stats().failing == 0
        assert orders.stats().failure is None


def test_a_consumer_whose_claims_keep_failing_gives_up_its_groups(
    database: Database,
    make_table: Callable[..., MessageTable],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    orders = make_table(groups="exclusive")
    fill(orders, 2)
    with orders.subscribe(consumer="press") as deliveries:
        monkeypatch.setattr(deliveries._stop, "wait", lambda _: False)
        for delivery in deliveries.take(1):
            delivery.ack()
        drop = refuse_updates(database, "orders")
        deliveries.take(1)
        heartbeat = deliveries._consumer_heartbeat
        assert isinstance(heartbeat, ConsumerHeartbeat)
        renewed: list[str] = []
        monkeypatch.setattr(consumers, "renew_all", lambda *_: renewed.append("renewed"))
        heartbeat.beat()
        assert renewed == ["renewed"]
        monkeypatch.setattr(consumer_heartbeat, "GIVE_UP_AFTER", 0.0)
        heartbeat.beat()
        assert renewed == ["renewed"]
        assert "consumer press releases its groups of table 'orders'" in caplog.text
        drop()
        assert len(deliveries.take(1)) == 1
        renewed.clear()
        heartbeat.beat()
        assert renewed == ["renewed"]


def test_a_subscription_raises_what_the_database_refuses_after_its_patience(
    database: Database, make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = make_table()
    orders.put("x")
    refuse_updates(database, "orders")
    with orders.subscribe() as deliveries:
        monkeypatch.setattr(deliveries._stop, "wait", lambda _: False)
        deliveries.patience = 0
        with pytest.raises(RefusedError):
            next(deliveries)


@ON_POSTGRESQL
def test_a_value_that_the_database_cannot_compute_with_ends_no_subscription(
    database: Database, make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = make_table(groups="sequenced")
    orders.put("x", group="g")
    orders.groups.pause("g")
    orders.groups.resume("g")
    run(database, "UPDATE waterclock_groups SET tail = 9223372036854775807")
    orders.put("y", group="g")
    with orders.subscribe(consumer="press") as deliveries:
        monkeypatch.setattr(deliveries._stop, "wait", lambda _: False)
        assert deliveries.take(1) == []
        assert "out of range" in (orders.stats().failure or "")
        run(database, "UPDATE waterclock_groups SET tail = 1")
        assert len(deliveries.take(1)) == 1
        assert orders.stats().failing == 0
