"""The statements of *Vitess Messaging* ("Enqueuing messages", "Advanced usage"), through programs that people use."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from tests.tables.conftest import MovableClock
from tests.tables.connections.database_programs import ProgramError, run_program
from tests.tables.options.plain_sql import catch_up
from tests.tables.received import payloads

from waterclock.connection import Database
from waterclock.tables.message_table import MessageTable

pytestmark = pytest.mark.both_servers

Shell = Callable[[str], str]


@pytest.fixture
def shell(database_url: str) -> Shell:
    return lambda statements: run_program(database_url, statements)


def test_inserted_rows_are_delivered(orders: MessageTable, shell: Shell, clock: MovableClock) -> None:
    shell("insert into orders(id, message) values(1, 'hello world');")
    catch_up(clock)
    [delivery] = orders.receive()
    assert (delivery.id, delivery.payload, delivery.epoch) == (1, "hello world", 1)


def test_rows_inserted_for_a_future_time_are_delivered_then(
    orders: MessageTable, shell: Shell, clock: MovableClock
) -> None:
    future_time = clock.now + 5_000_000_000
    shell(f"insert into orders(id, message, time_scheduled) values(1, 'hello world', {future_time});")
    assert orders.receive() == []
    clock.move("5s")
    [delivery] = orders.receive()
    assert delivery.time_scheduled == future_time


def test_many_rows_and_a_select_can_be_inserted_at_once(
    orders: MessageTable, shell: Shell, clock: MovableClock
) -> None:
    shell("insert into orders(id, message) values (1, 'a'), (2, 'b'), (3, 'c');")
    shell("create table sales(id bigint, item varchar(20)); insert into sales values (4, 'd'), (5, 'e');")
    shell("insert into orders(id, message) select id, item from sales;")
    catch_up(clock)
    assert sorted(payloads(orders)) == ["a", "b", "c", "d", "e"]


def test_commit_delivers_and_rollback_leaves_nothing(orders: MessageTable, shell: Shell, clock: MovableClock) -> None:
    shell("begin; insert into orders(id, message) values (1, 'kept'); commit;")
    shell("begin; insert into orders(id, message) values (2, 'undone'); rollback;")
    shell("begin; insert into orders(id, message) values (3, 'forgotten');")  # the program ends without a commit
    catch_up(clock)
    assert payloads(orders) == ["kept"]


def test_the_documents_update_acks(orders: MessageTable, shell: Shell) -> None:
    orders.put_many([{"payload": "a"}, {"payload": "b"}, {"payload": "c"}])
    shell("update orders set time_acked = 17, time_next = null where id in (1, 2) and time_acked is null;")
    assert payloads(orders) == ["c"]
    assert orders.stats().acked == 2


def test_an_ack_that_is_rolled_back_does_not_count(orders: MessageTable, shell: Shell, clock: MovableClock) -> None:
    orders.put("a")
    shell("begin; update orders set time_acked = 1, time_next = null where id in (1) and time_acked is null; rollback;")
    assert payloads(orders) == ["a"]


def test_the_documents_update_reschedules(orders: MessageTable, shell: Shell, clock: MovableClock) -> None:
    orders.put_many([{"payload": "a"}, {"payload": "b"}])
    for delivery in orders.receive():
        delivery.nack("30d")
    shell("update orders set time_next = 17, epoch = 0 where id in (1) and time_acked is null;")
    [delivery] = orders.receive()
    assert (delivery.id, delivery.epoch) == (1, 1)
    shell("update orders set time_next = null where id in (2) and time_acked is null;")
    catch_up(clock)
    assert "b" in payloads(orders)


def test_an_insert_of_null_times_is_delivered(orders: MessageTable, shell: Shell, clock: MovableClock) -> None:
    shell("insert into orders(id, message, time_scheduled, time_next) values (1, 'a', null, null);")
    catch_up(clock)
    assert payloads(orders) == ["a"]


def test_a_select_shows_the_messages(orders: MessageTable, shell: Shell) -> None:
    orders.put("a", priority=2)
    orders.put("b")
    orders.receive(1)
    orders.ack(2)
    assert shell("select id, message, epoch, time_acked is null, time_next is null from orders order by id;") in (
        "1|a|1|1|0\n2|b|0|0|1\n",
        "1|a|1|t|f\n2|b|0|f|t\n",
    )


def test_an_id_that_is_there_is_refused(orders: MessageTable, shell: Shell) -> None:
    shell("insert into orders(id, message) values (1, 'a');")
    with pytest.raises(ProgramError, match=r"(?i)unique|duplicate"):
        shell("insert into orders(id, message) values (1, 'b');")


def test_text_ids_are_what_they_are_typed_as(database: Database, shell: Shell, clock: MovableClock) -> None:
    table = database.create_table("orders", id_type="text", payload="text")
    shell("insert into orders(id, message) values ('Invoice 7', 'a');")
    catch_up(clock)
    [delivery] = table.receive()
    assert delivery.id == "Invoice 7"
    shell("update orders set time_acked = 1, time_next = null where id in ('Invoice 7') and time_acked is null;")
    assert table.stats().acked == 1


def test_uuid_ids_are_given_or_drawn(database: Database, shell: Shell, clock: MovableClock) -> None:
    table = database.create_table("orders", id_type="uuid", payload="json")
    given = uuid.UUID("018f4d1e-7c2a-7b3c-8d4e-5f6071829304")
    shell("""insert into orders(id, message) values ('018f4d1e-7c2a-7b3c-8d4e-5f6071829304', '{"a": 1}');""")
    shell("insert into orders(message) values ('2');")
    catch_up(clock)
    found = {delivery.payload if delivery.payload == 2 else "given": delivery.id for delivery in table.receive()}
    assert found["given"] == given
    assert found[2].version in (1, 4)  # MariaDB's are of the clock


def test_messages_of_groups_come_in_the_order_they_were_inserted(
    sequenced: MessageTable, shell: Shell, clock: MovableClock
) -> None:
    shell("insert into orders(id, message, group_id) values (3, 'first', 'g'), (1, 'second', 'g');")
    catch_up(clock)
    assert payloads(sequenced, 1) == ["first"]
    shell("update orders set time_acked = 1, time_next = null where id in (3) and time_acked is null;")
    assert payloads(sequenced, 1) == ["second"]
