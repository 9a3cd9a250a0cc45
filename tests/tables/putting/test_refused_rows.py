"""One row that the database refuses keeps no other, and ends no subscription."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from tests.tables.conftest import MovableClock

from waterclock.connection import Database
from waterclock.errors import ConstraintError, RefusedError
from waterclock.tables.consumers import consumer_purge
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.finishing import expiring
from waterclock.tables.messages.upkeep import purging
from waterclock.tables.model.values.texts import KEPT_AT_EACH_END, storable

SERVERS = pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def refuse_in_sqlite(database: Database, when: str, payload: str) -> None:
    with database.backend.engine.begin() as connection:
        connection.exec_driver_sql(
            f"CREATE TRIGGER refuses BEFORE {when} ON orders WHEN OLD.message = '{payload}'"
            " BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )


@SERVERS
def test_a_foreign_key_to_the_table_stops_no_subscription_and_no_other_purge(
    database: Database, make_table: Callable[..., MessageTable], clock: MovableClock
) -> None:
    table = make_table(purge_after="1h")
    table.put_many([{"payload": str(number)} for number in range(20)])
    with database.backend.engine.begin() as connection:
        [referred] = connection.execute(sa.text("SELECT seq FROM orders WHERE message = '3'")).scalars()
        connection.exec_driver_sql("CREATE TABLE notes (of_seq BIGINT, FOREIGN KEY (of_seq) REFERENCES orders (seq))")
        connection.execute(sa.text("INSERT INTO notes VALUES (:seq)"), {"seq": referred})
    table.ack(table.receive(20))
    clock.move("2h")
    table.put("new")
    with table.subscribe() as deliveries:
        next(deliveries).ack()
    assert table.stats().purged == 19


@SQLITE
def test_a_purge_continues_behind_rows_that_are_refused(
    database: Database, make_table: Callable[..., MessageTable], clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purging, "_CHUNK", 2)
    monkeypatch.setattr(purging, "_PIECES", 1)
    table = make_table(purge_after="1h")
    for payload in ("kept", "a", "kept", "kept", "b"):
        table.put(payload)
        table.ack(table.receive(1))
        clock.move("1s")
    refuse_in_sqlite(database, "DELETE", "kept")
    clock.move("2h")
    assert purging.purge_some(table.context) == 1
    with pytest.raises(ConstraintError, match="refused"):
        purging.purge_some(table.context)
    assert purging.purge_some(table.context) == 1
    assert table.stats().acked == 3


@SQLITE
def test_a_row_that_cannot_expire_does_not_block_others(
    database: Database, make_table: Callable[..., MessageTable], clock: MovableClock
) -> None:
    table = make_table()
    for payload in ("a", "kept", "b"):
        table.put(payload, expires_at=clock.now + 1)
    refuse_in_sqlite(database, "UPDATE", "kept")
    clock.move("1s")
    assert expiring.expire_some(table.context) == 2
    assert expiring.expire_some(table.context) == 0


@SQLITE
def test_a_purge_reports_a_row_that_cannot_expire_and_deletes_the_others(
    database: Database,
    make_table: Callable[..., MessageTable],
    clock: MovableClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = make_table(purge_after="1h")
    table.put("acked")
    table.ack(table.receive(1))
    table.put("kept", expires_at=clock.now + 1)
    refuse_in_sqlite(database, "UPDATE", "kept")
    clock.move("2h")
    assert [table.purge(), table.purge()] == [1, 0]
    [reported] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert reported.startswith("cannot remove some expired messages of table 'orders': ")


@SQLITE
@pytest.mark.parametrize("name", ["expire_some", "purge_some"])
def test_upkeep_that_fails_in_any_way_ends_no_subscription(
    orders: MessageTable, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fail(_context: object) -> int:
        raise OverflowError("too large")

    monkeypatch.setattr(consumer_purge, name, fail)
    orders.put("tea")
    with orders.subscribe() as deliveries:
        assert next(deliveries).payload == "tea"


@SQLITE
def test_a_refused_claim_is_tried_again_with_fewer_messages(
    database: Database, orders: MessageTable, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for payload in ("a", "b", "refused"):
        orders.put(payload)
        clock.move("1s")
    refuse_in_sqlite(database, "UPDATE", "refused")
    with orders.subscribe(limit=10) as deliveries:
        monkeypatch.setattr(deliveries._stop, "wait", lambda *_: None)
        assert sorted(next(deliveries).payload for _ in range(2)) == ["a", "b"]
    with pytest.raises(RefusedError):
        orders.receive(1)


def test_a_long_reason_keeps_its_first_and_last_characters() -> None:
    kept = storable("a" * 5_000_000 + "z" * 5_000_000)
    assert kept.startswith("a" * KEPT_AT_EACH_END + "… (")
    assert kept.endswith("z" * KEPT_AT_EACH_END)
    assert len(kept) < 2 * KEPT_AT_EACH_END + 100


def test_an_error_of_20_megabytes_is_stored_bounded(orders: MessageTable) -> None:
    orders.put("tea")
    [delivery] = orders.receive()
    delivery.nack(error="x" * 20_000_000)
    stored = orders.context.rows.c.last_error
    with orders.context.backend.snapshot() as connection:
        assert len(connection.execute(sa.select(stored)).scalar_one()) < 2 * KEPT_AT_EACH_END + 100
