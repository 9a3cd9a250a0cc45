from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DatabaseError, IntegrityError
from tests.tables.conftest import MovableClock
from tests.tables.options.plain_sql import catch_up, run
from tests.tables.received import payloads

from waterclock.connection import Database
from waterclock.errors import RefusedError
from waterclock.tables.message_table import MessageTable
from waterclock.tables.model.schema import FURTHEST

pytestmark = pytest.mark.both_servers


def test_an_insert_of_id_and_message_is_delivered(
    orders: MessageTable, database: Database, clock: MovableClock
) -> None:
    run(database, "INSERT INTO orders(id, message) VALUES (7, 'hello world')")
    catch_up(clock)
    [delivery] = orders.receive()
    assert (delivery.id, delivery.payload, delivery.epoch) == (7, "hello world", 1)
    assert abs(delivery.time_created - clock.now) < 2 * 3600e9
    assert delivery.time_scheduled == delivery.time_created


def test_an_insert_without_an_id_gets_a_new_one(orders: MessageTable, database: Database, clock: MovableClock) -> None:
    orders.put("a", id=9)
    run(database, "INSERT INTO orders(message) VALUES ('b'), ('c')")
    catch_up(clock)
    ids = {delivery.id for delivery in orders.receive()}
    assert len(ids) == 3
    assert orders.put("d") not in ids


def test_an_insert_with_time_scheduled_is_delivered_then(
    orders: MessageTable, database: Database, clock: MovableClock
) -> None:
    run(
        database,
        "INSERT INTO orders(id, message, time_scheduled) VALUES (1, 'later', :at)",
        at=clock.now + 5_000_000_000,
    )
    assert orders.receive() == []
    clock.move("5s")
    assert payloads(orders) == ["later"]


def test_a_time_next_of_null_loses_no_message(orders: MessageTable, database: Database, clock: MovableClock) -> None:
    run(database, "INSERT INTO orders(id, message, time_next, time_scheduled) VALUES (1, 'a', NULL, NULL)")
    orders.put("b")
    orders.put("c")
    orders.ack(3)
    run(database, "UPDATE orders SET time_next = NULL WHERE id = 2")
    run(database, "UPDATE orders SET time_acked = NULL WHERE id = 3")
    catch_up(clock)
    assert sorted(payloads(orders)) == ["a", "b", "c"]


def test_an_undone_ack_of_a_message_without_a_group_is_delivered(
    sequenced: MessageTable, database: Database, clock: MovableClock
) -> None:
    sequenced.put("a")
    sequenced.ack(1)  # before a claim has found its group
    assert sequenced.receive() == []
    run(database, "UPDATE orders SET time_acked = NULL, time_next = :now", now=clock.now)
    assert payloads(sequenced) == ["a"]


def test_the_documents_update_acks(orders: MessageTable, database: Database, clock: MovableClock) -> None:
    orders.put_many([{"payload": "a"}, {"payload": "b"}])
    statement = "UPDATE orders SET time_acked = :now, time_next = NULL WHERE id IN (1, 2) AND time_acked IS NULL"
    assert run(database, statement, now=clock.now) == 2
    assert run(database, statement, now=clock.now) == 0
    assert orders.receive() == []
    assert orders.stats().acked == 2


def test_the_documents_update_reschedules(orders: MessageTable, database: Database, clock: MovableClock) -> None:
    orders.put("a")
    orders.receive()
    statement = "UPDATE orders SET time_next = :at, epoch = :epoch WHERE id IN (1) AND time_acked IS NULL"
    run(database, statement, at=clock.now, epoch=4)
    [delivery] = orders.receive()
    assert delivery.epoch == 5


def test_a_select_shows_the_messages(orders: MessageTable, database: Database) -> None:
    orders.put("a", group="g", headers={"k": "v"}, priority=2)
    with database.backend.engine.connect() as connection:
        row = connection.execute(
            sa.text("SELECT id, message, priority, group_id, headers, epoch, time_acked FROM orders")
        ).one()
    assert tuple(row) == (1, "a", 2, "g", '{"k": "v"}', 0, None)


def test_a_table_of_bytes_takes_texts_from_plain_sql(database: Database, clock: MovableClock) -> None:
    table = database.create_table("orders")
    run(database, "INSERT INTO orders(id, message) VALUES (1, 'hello')")
    catch_up(clock)
    assert payloads(table) == [b"hello"]


def test_uuid_tables_give_plain_sql_an_id(database: Database, clock: MovableClock) -> None:
    table = database.create_table("orders", id_type="uuid", payload="text")
    run(database, "INSERT INTO orders(message) VALUES ('a')")
    catch_up(clock)
    [delivery] = table.receive()
    assert isinstance(delivery.id, uuid.UUID)
    assert table.ack(delivery.id) == 1


def test_inserts_join_their_groups_in_their_order(
    sequenced: MessageTable, database: Database, clock: MovableClock
) -> None:
    for key in (5, 3, 4):
        run(database, "INSERT INTO orders(id, message, group_id) VALUES (:key, :text, 'a')", key=key, text=str(key))
    run(database, "INSERT INTO orders(id, message) VALUES (9, '9')")
    catch_up(clock)
    assert payloads(sequenced, 2) == ["5", "3"]
    assert payloads(sequenced, 2) == ["9"]


def test_an_ack_by_plain_sql_frees_the_group(sequenced: MessageTable, database: Database, clock: MovableClock) -> None:
    sequenced.put_many([{"payload": str(number), "group": "a"} for number in range(3)])
    assert payloads(sequenced, 1) == ["0"]
    run(database, "UPDATE orders SET time_acked = 1, time_next = NULL WHERE id = 1 AND time_acked IS NULL")
    assert payloads(sequenced, 1) == ["1"]


def test_rescheduling_by_plain_sql_moves_the_group(
    sequenced: MessageTable, database: Database, clock: MovableClock
) -> None:
    sequenced.put("a", group="g", at=clock.now + 10**15)
    assert sequenced.receive() == []
    run(database, "UPDATE orders SET time_next = :at, epoch = 0 WHERE id = 1 AND time_acked IS NULL", at=clock.now)
    assert payloads(sequenced) == ["a"]


def test_a_head_that_plain_sql_deleted_does_not_block_its_group(sequenced: MessageTable, database: Database) -> None:
    sequenced.put_many([{"payload": str(number), "group": "a"} for number in range(3)])
    sequenced.put("only", group="b")
    [first] = sequenced.receive(1)
    first.nack("0s")
    run(database, "DELETE FROM orders WHERE id IN (1, 4)")
    assert payloads(sequenced) == ["1", "2"]
    assert sequenced.receive() == []


@pytest.mark.parametrize(
    ("database_url", "copying"),
    [
        ("postgresql", "CREATE TABLE copied (LIKE orders INCLUDING ALL)"),
        ("mariadb", "CREATE TABLE copied LIKE orders"),
    ],
    indirect=["database_url"],
)
@pytest.mark.parametrize("options", [{}, {"groups": "sequenced"}, {"purge_by": "partition"}, {"fair_by": "customer"}])
def test_a_copy_that_lacks_the_triggers_refuses_messages_instead_of_losing_them(
    make_table: Callable[..., MessageTable], database: Database, copying: str, options: dict[str, str]
) -> None:
    make_table(**options)
    run(database, "INSERT INTO orders(id, message) VALUES (7, 'a')")
    run(database, copying)
    with pytest.raises(DatabaseError, match="orders_has_triggers"):
        run(database, "INSERT INTO copied(id, message) VALUES (8, 'b')")


@pytest.mark.parametrize(
    ("database_url", "options"),
    [("postgresql", {"purge_by": "partition"}), *((one, {}) for one in ("sqlite", "postgresql", "mariadb"))],
    indirect=["database_url"],
)
def test_a_table_that_refuses_messages_without_a_group_refuses_them_from_plain_sql(
    make_table: Callable[..., MessageTable], database: Database, options: dict[str, str]
) -> None:
    make_table(groups="sequenced", ungrouped="reject", **options)
    with pytest.raises(DatabaseError, match="orders_group"):
        run(database, "INSERT INTO orders(id, message) VALUES (7, 'a')")


def test_places_with_which_claims_cannot_compute_are_refused(
    sequenced: MessageTable, database: Database, clock: MovableClock
) -> None:
    sequenced.put_many([{"id": number, "payload": f"{number}", "group": "g"} for number in (1, 2, 3)])
    sequenced.ack(sequenced.receive(1))
    for place in (-(2**63), 2**63 - 1, -FURTHEST - 1, FURTHEST + 1):
        with pytest.raises(DatabaseError):
            run(database, "UPDATE orders SET position = :place WHERE id = 2", place=place)
    run(database, "UPDATE orders SET position = :place WHERE id = 2", place=-FURTHEST)
    run(database, "UPDATE orders SET position = :place WHERE id = 3", place=FURTHEST)
    sequenced.put("other", group="h")
    catch_up(clock)
    # One claim need not take all that is due.
    assert "other" in [one.payload for _ in range(3) for one in sequenced.receive(10)]


@pytest.mark.parametrize("groups", [None, "exclusive"])
@pytest.mark.parametrize("seq", [2**63 - 1, -(2**63)])
@pytest.mark.parametrize("names", ["b", "abc"])
def test_a_message_of_any_seq_is_handled_and_does_not_block_others(
    make_table: Callable[..., MessageTable],
    database: Database,
    clock: MovableClock,
    groups: str | None,
    seq: int,
    names: str,
) -> None:
    table = make_table(groups=groups)
    table.put_many([{"payload": name, "group": "g" if groups else None} for name in names])
    is_refused = database.backend.dialect.name == "sqlite"
    with pytest.raises(IntegrityError, match="orders_seq_range") if is_refused else nullcontext():
        run(database, "UPDATE orders SET seq = :seq WHERE message = 'b'", seq=seq)
    catch_up(clock)
    assert sorted(payloads(table)) == [*names]
    assert table.stats().in_flight == len(names)


@pytest.mark.parametrize("database_url", ["sqlite", "mariadb"], indirect=True)  # PostgreSQL draws no later one
def test_a_put_behind_the_last_seq_names_the_column(orders: MessageTable, database: Database) -> None:
    orders.put("a")
    last = 2**63 - (2 if database.backend.dialect.name == "sqlite" else 1)
    run(database, "UPDATE orders SET seq = :last", last=last)
    with pytest.raises(RefusedError, match="seq"):
        orders.put("b")
    assert payloads(orders) == ["a"]


def test_a_message_that_plain_sql_moves_to_another_group_goes_to_its_end(
    sequenced: MessageTable, database: Database
) -> None:
    sequenced.put_many([{"payload": name, "group": name[0]} for name in ("a1", "a2", "b1", "b2")])
    [first] = sequenced.receive(1)
    first.nack("0s")
    run(database, "UPDATE orders SET group_id = 'b' WHERE id = 1")
    assert payloads(sequenced) == ["a2", "b1", "b2", "a1"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("groups", [None, "sequenced"])
@pytest.mark.parametrize(
    ("column", "values"),
    [
        *(
            (name, ("'soon'", "x'00'", "1.5e30", "1.5"))
            for name in ("epoch", "time_next", "expires_at", "time_created")
        ),
        ("position", ("'first'",)),
        ("claim_id", ("x'00'",)),
        ("id", ("'abc'", "1e300")),
        ("priority", ("'hi'", "1e300", "2147483648", "-2147483649", "9223372036854775807")),
        ("routed", ("32768",)),
        ("group_id", ("x'ff'",)),
        ("consumer", ("x'ff'",)),
    ],
)
def test_sqlite_refuses_what_a_column_cannot_hold_elsewhere(
    make_table: Callable[..., MessageTable],
    database: Database,
    groups: str | None,
    column: str,
    values: tuple[str, ...],
) -> None:
    table = make_table(groups=groups)
    table.put_many([{"payload": str(number), "group": f"g{number}"} for number in range(3)])
    for value in values:
        with pytest.raises(IntegrityError, match=f"CHECK constraint failed: (orders_{column}_type|{column} BETWEEN)"):
            run(database, f"UPDATE orders SET {column} = {value} WHERE message = '1'")  # noqa: S608  # our own texts
        with pytest.raises(IntegrityError, match=f"CHECK constraint failed: (orders_{column}_type|{column} BETWEEN)"):
            run(database, f"INSERT INTO orders(message, {column}) VALUES ('x', {value})")  # noqa: S608  # our own texts
    assert sorted(payloads(table)) == ["0", "1", "2"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_sqlite_takes_a_number_in_a_text_for_a_number(orders: MessageTable, database: Database) -> None:
    run(database, "INSERT INTO orders(id, message, priority) VALUES ('7', 'a', 2.0), (8, 'b', '-2147483648')")
    run(database, "UPDATE orders SET time_next = '5'")
    found = [(one.id, one.priority) for one in orders.receive(2)]
    assert found == [(7, 2), (8, -(2**31))]
