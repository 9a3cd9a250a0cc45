"""Keys of which one message waits at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from pymysql.cursors import Cursor
from tests.support.statements import statements_of
from tests.tables.conftest import MovableClock
from tests.tables.connections.callers import Open, ways
from tests.tables.kinds import group_of
from tests.tables.received import payloads

from waterclock.connection import Database
from waterclock.database.schema.table_catalogue import unique_keys
from waterclock.errors import InvalidArgumentError, LeaseLostError
from waterclock.tables.message_table import MessageTable

MakeTable = Callable[..., MessageTable]


def test_one_message_waits_for_a_key_and_a_put_while_it_runs_or_backs_off_starts_another(
    make_table: MakeTable, clock: MovableClock, kind: dict[str, Any]
) -> None:
    table = make_table(ack_wait="30s", **kind)
    group = group_of(kind)
    first = table.put("a", unique="k", **group)
    assert table.put("b", unique="k", **group) == first
    [running] = table.receive()
    second = table.put("c", unique="k", **group)
    assert second != first
    assert table.put("d", unique="k", **group) == second
    running.nack("10s")  # backs off beside the other one, and nothing is raised
    assert table.put("e", unique="k", **group) == second
    table.retry(first)
    clock.move("10s")
    assert sorted(one.payload for one in table.receive(9)) == ["a", "c"]


def test_a_key_until_done_lasts_until_the_message_is_acked_dead_cancelled_or_expired(
    make_table: MakeTable, clock: MovableClock, kind: dict[str, Any]
) -> None:
    table = make_table(ack_wait="30s", max_attempts=5, on_exhausted="dead_letter", **kind)
    how: dict[str, Any] = {"unique": "k", "unique_until": "done", **group_of(kind)}
    seen = [table.put("a", **how)]

    def again() -> bool:
        """Say whether the message that had the key last has it no more."""
        seen.append(table.put("a", **how))
        return seen[-1] != seen[-2]

    [delivery] = table.receive()
    assert not again()
    delivery.nack("0s")
    assert not again()
    [delivery] = table.receive()
    delivery.ack()
    assert again()
    [delivery] = table.receive()
    delivery.dead_letter("broken")
    assert again()
    table.redrive()  # beside the one that was put meanwhile
    table.cancel(seen[-1])
    how["expires_at"] = clock.now + 1_000_000_000
    assert again()
    clock.move("1h")
    del how["expires_at"]
    assert again()


def test_a_put_that_replaces_changes_the_payload_and_the_time_of_the_one_that_waits(
    make_table: MakeTable, clock: MovableClock, kind: dict[str, Any]
) -> None:
    table = make_table(columns={"region": "text"}, **kind)
    group = group_of(kind)
    first = table.put("a", unique="k", delay="5s", region="eu", headers={"n": "1"}, **group)
    clock.move("4s")
    again = table.put("b", unique="k", delay="5s", on_conflict="replace", headers={"n": "2"}, priority=3, **group)
    assert again == first
    clock.move("4s")
    assert table.receive() == []
    clock.move("1s")
    [delivery] = table.receive()
    assert (delivery.id, delivery.payload, delivery.headers, delivery.priority) == (first, "b", {"n": "2"}, 3)
    assert delivery.columns == {"region": None}
    assert delivery.time_scheduled == clock.now
    third = table.put("c", unique="k", on_conflict="replace", unique_until="done", **group)
    assert third != first
    delivery.ack()
    [delivery] = table.receive()
    assert table.put("d", unique="k", on_conflict="replace", unique_until="done", **group) == third
    delivery.nack("0s")
    [delivery] = table.receive()
    assert delivery.payload == "c"  # what a consumer has stays as it is


def test_many_are_put_with_their_keys_at_once(orders: MessageTable) -> None:
    waits = orders.put("waits", unique="old")
    put = orders.put_many(
        [
            {"payload": "1", "unique": "new"},
            {"payload": "2"},
            {"payload": "3", "unique": "old"},
            {"payload": "4", "unique": "new", "on_conflict": "replace"},
            {"payload": "5", "id": 1000, "unique": "named"},
        ]
    )
    assert put[2] == waits
    assert put[3] == put[0]
    assert put.existing == [waits, put[0]]
    assert [one.payload for one in orders.peek()] == ["waits", "4", "2", "5"]
    assert orders.put("6", unique="named") == 1000


@pytest.mark.parametrize("at_once", [False, True])
def test_a_replacement_that_omits_a_column_with_a_default_keeps_its_value(
    make_table: MakeTable, database: Database, *, at_once: bool
) -> None:
    table = make_table(columns={"note": "text"})
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text("ALTER TABLE orders ADD COLUMN region VARCHAR(9) NOT NULL DEFAULT 'eu'"))
    table = database.table("orders")
    key = {"unique": "k", "on_conflict": "replace"}
    rows = [{"payload": "a", "region": "us", "note": "n", **key}, {"payload": "b", **key}]
    for some in [rows] if at_once else [[row] for row in rows]:
        table.put_many(some)
    assert [(one.payload, one.columns) for one in table.receive()] == [("b", {"region": "us", "note": None})]


@pytest.mark.parametrize("id_type", ["text", "uuid"])
def test_a_key_finds_ids_of_every_type(make_table: MakeTable, id_type: str) -> None:
    table = make_table(id_type=id_type)
    given: dict[str, Any] = {"id": "a b"} if id_type == "text" else {}
    first = table.put("x", unique="k", **given)
    given = {"id": "c"} if id_type == "text" else {}
    assert table.put("y", unique="k", **given) == first


@ways
def test_a_put_in_a_transaction_of_the_callers_counts_when_that_commits(
    database: Database, orders: MessageTable, open_transaction: Open
) -> None:
    connection = open_transaction(database)
    orders.put("undone", unique="k", connection=connection)
    connection.rollback()
    first = orders.put("a", unique="k", connection=connection)
    assert orders.put("b", unique="k", on_conflict="replace", connection=connection) == first
    assert orders.put("b", unique="k", on_conflict="replace", connection=connection) == first
    connection.commit()
    assert orders.put("c", unique="k", connection=connection) == first
    if database.backend.dialect.name != "sqlite":
        assert orders.receive() == []  # it stands for the caller's, too, whose data are not there yet
    connection.commit()
    connection.close()
    assert [one.payload for one in orders.receive()] == ["b"]


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_of_twenty_transactions_that_put_one_key_half_rolled_back_one_message_remains(
    database: Database, orders: MessageTable, level: str
) -> None:
    if level == "REPEATABLE READ" and database.backend.dialect.name == "postgresql":
        level = "READ COMMITTED"  # there it refuses any change of what was changed since the snapshot
    engine = database.backend.engine.execution_options(isolation_level=level)
    started = threading.Barrier(10)

    def puts(number: int) -> object:
        with engine.connect() as connection:
            connection.execute(sa.text("SELECT COUNT(*) FROM orders"))
            if number < 10:
                started.wait()
            put = orders.put("x", unique="k", connection=connection)
            connection.execute(sa.text("SELECT COUNT(*) FROM orders"))  # it is not broken
            if number % 2:
                connection.rollback()
                return None
            connection.commit()
            return put

    with ThreadPoolExecutor(10) as pool:
        ids = set(pool.map(puts, range(20))) - {None}
    assert len(ids) == 1
    assert orders.stats().ready == 1


def test_a_consumer_may_put_the_key_of_the_message_that_it_acks(database: Database, orders: MessageTable) -> None:
    first = orders.put("a", unique="k")
    [delivery] = orders.receive()
    with database.backend.engine.begin() as connection:
        delivery.ack(connection=connection)
        second = orders.put("b", unique="k", connection=connection)
    assert second != first
    assert [one.payload for one in orders.receive()] == ["b"]


@pytest.mark.parametrize("groups", [None, "sequenced", "exclusive"])
def test_a_late_ack_does_not_ack_the_replacement(
    make_table: MakeTable, clock: MovableClock, groups: str | None
) -> None:
    table = make_table(ack_wait="1s", min_backoff="1s", groups=groups)
    how: dict[str, Any] = {"unique": "k", "unique_until": "done", "group": "g" if groups else None}
    first = table.put("old", **how)
    [late] = table.receive(consumer="one")
    clock.move("2s")
    assert table.put("new", on_conflict="replace", **how) == first
    with pytest.raises(LeaseLostError):
        late.ack()
    assert payloads(table) == ["new"]


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_a_job_that_acks_and_puts_its_successor_with_the_same_key_continues(
    database: Database, orders: MessageTable, level: str
) -> None:
    engine = database.backend.engine
    if database.backend.dialect.name != "sqlite":
        engine = engine.execution_options(isolation_level=level)
    how: dict[str, Any] = {"unique": "crawl", "unique_until": "done"}
    first = orders.put("page 1", **how)
    [delivery] = orders.receive()
    with engine.begin() as connection:
        delivery.ack(connection=connection)
        second = orders.put("page 2", connection=connection, **how)
    assert second != first
    assert payloads(orders) == ["page 2"]


def test_keys_that_no_message_has_are_deleted_an_hour_later(
    database: Database, orders: MessageTable, clock: MovableClock
) -> None:
    orders.put("waits", unique="waits")
    orders.put("done", unique="done", priority=1)
    [delivery] = orders.receive(1)
    delivery.ack()
    clock.move("2h")
    orders.purge()
    orders.purge()
    with database.backend.engine.connect() as connection:
        assert connection.scalars(sa.select(unique_keys.c.unique_key)).all() == ["waits"]
    orders.drop()
    with database.backend.engine.connect() as connection:
        assert connection.scalars(sa.select(unique_keys.c.unique_key)).all() == []


def test_a_put_without_a_key_needs_no_key_statement(database: Database, orders: MessageTable) -> None:
    with statements_of(database.backend, "waterclock_unique_keys") as statements:
        orders.put("a")
        orders.put_many([{"payload": "b"}])
        [delivery, _] = orders.receive(2)
        delivery.ack()
    assert statements == []


@pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)  # PostgreSQL sends them without waiting
def test_many_keys_are_noted_in_one_round_trip(make_table: MakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table()
    sent: list[object] = []
    query = Cursor._query

    def counted(cursor: Cursor, text: object) -> object:
        sent.append(text)
        return query(cursor, text)

    monkeypatch.setattr(Cursor, "_query", counted)
    table.put_many([{"payload": str(number), "unique": f"k{number}"} for number in range(50)])
    assert len(sent) < 20
    assert len({table.put("again", unique=f"k{number}") for number in range(50)}) == 50
    assert table.stats().ready == 50


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"unique": 7}, "unique"),
        ({"unique": ""}, "unique"),
        ({"unique": "k" * 256}, "unique"),
        ({"unique": "k", "unique_until": "acked"}, "unique_until"),
        ({"on_conflict": "raise"}, "on_conflict"),
    ],
)
def test_an_invalid_key_is_refused(orders: MessageTable, given: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        orders.put("a", **given)


@pytest.mark.parametrize("id_type", ["bigint", "text", "uuid"])
def test_a_put_whose_id_is_there_takes_no_key(make_table: MakeTable, id_type: str) -> None:
    table = make_table(id_type=id_type)
    ours = {"bigint": 5, "text": "five", "uuid": "0199aaaa-0000-7000-8000-000000000005"}[id_type]
    others = {"bigint": (8, 9), "text": ("eight", "nine"), "uuid": (None, None)}[id_type]
    first = table.put("1", id=ours, unique="a")
    assert table.put("2", id=ours, unique="b") == first
    another, same = table.put_many(
        [
            {"payload": "3", "id": ours, "unique": "c"},
            {"payload": "4", "id": others[0], "unique": "c"},
            {"payload": "5", "id": others[1], "unique": "b"},
        ]
    )[1:]
    assert len({first, another, same}) == 3
    assert table.put("6", id=ours, unique="a") == first
    assert payloads(table) == ["1", "4", "5"]


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_transaction_puts_a_key_again_that_it_has_locked_for_longer_than_keys_go_unused(
    make_table: MakeTable, database: Database, clock: MovableClock
) -> None:
    table = make_table()
    with database.backend.engine.begin() as connection:
        first = table.put("a", unique="k", connection=connection)
        clock.move("40min")
        assert table.put("b", unique="k", connection=connection) == first
