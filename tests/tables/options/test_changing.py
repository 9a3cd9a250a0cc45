from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from tests.tables.conftest import MovableClock
from tests.tables.received import payloads

from waterclock.connection import Database
from waterclock.errors import InvalidArgumentError, NotFoundError, SchemaError
from waterclock.tables.catalogue import table_row
from waterclock.tables.consumers import subscription
from waterclock.tables.message_table import MessageTable

SECOND = 1_000_000_000


@pytest.fixture
def _looks_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is noticed after a second is noticed at once, so that no test has to wait for it."""
    monkeypatch.setattr(table_row, "LOOK_EVERY", 0)


pytestmark = pytest.mark.usefixtures("_looks_always")


def test_changed_options_are_used_by_those_who_have_the_table_open(orders: MessageTable, database: Database) -> None:
    elsewhere = database.table("orders")
    orders.put("tea")
    elsewhere.alter(ack_wait="5s", batch_size=3, purge_after=None)
    [delivery] = orders.receive()
    assert delivery.lease_until - delivery.time_created == 5 * SECOND
    assert (orders.options.batch_size, orders.options.purge_after, orders.options.jitter) == (3, None, 0)


@pytest.mark.one_database
def test_an_option_cannot_be_changed_to_an_invalid_value(orders: MessageTable) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^max_backoff must be at least .*, got '1s'"):
        orders.alter(max_backoff="1s")
    assert orders.options.max_backoff is None


@pytest.mark.one_database
def test_an_option_that_cannot_change_is_named_with_those_that_can(database: Database) -> None:
    orders = database.create_table("orders")
    with pytest.raises(InvalidArgumentError, match=r"named 'payload'; the changeable options are ack_wait, purge"):
        orders.alter(payload="text")  # pyright: ignore[reportCallIssue]  # that is the point


def test_a_subscription_carries_on_under_changed_options(orders: MessageTable, database: Database) -> None:
    with orders.subscribe() as deliveries:
        orders.put("a")
        next(deliveries).ack()
        database.table("orders").alter(ack_wait="5s")
        orders.put("b")
        delivery = next(deliveries)
        assert delivery.lease_until - delivery.time_created == 5 * SECOND


def test_a_paused_table_sends_nothing_until_it_is_resumed(orders: MessageTable, database: Database) -> None:
    orders.put_many([{"payload": "a"}, {"payload": "b"}])
    [out] = orders.receive(1)
    database.table("orders").pause()
    assert orders.receive() == []
    out.ack()
    database.table("orders").resume()
    assert payloads(orders) == ["b"]


def test_a_pause_can_end_by_itself(orders: MessageTable, clock: MovableClock) -> None:
    orders.put("a")
    orders.pause(until=clock.now + 5 * SECOND)
    clock.move("4.9s")
    assert orders.receive() == []
    clock.move("0.1s")
    assert payloads(orders) == ["a"]


def test_a_dropped_table_ends_its_subscribers_with_an_error(orders: MessageTable, database: Database) -> None:
    database.table("orders").drop()
    with pytest.raises(NotFoundError, match="'orders'"):
        orders.receive()
    with pytest.raises(NotFoundError):
        database.table("orders")
    assert not sa.inspect(database.backend.engine).has_table("orders")


def test_a_waiting_subscriber_notices_that_its_table_was_dropped(connect: Callable[..., Database]) -> None:
    table = connect().create_table("orders", groups="sequenced", poll_interval="1h")
    with table.subscribe() as deliveries:
        dropper = threading.Timer(0.1, connect().table("orders").drop)
        dropper.start()
        with pytest.raises(NotFoundError):
            next(deliveries)
        dropper.join()


def test_a_subscriber_continues_with_a_table_that_was_dropped_and_recreated(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="sequenced")
    table.put("a", group="g")
    assert payloads(table) == ["a"]
    database.table("orders").drop()
    make_table(groups="sequenced").put("b", group="g")
    assert payloads(table) == ["b"]


def test_a_table_recreated_with_other_options_uses_them(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(payload="json")
    database.table("orders").drop()
    make_table(payload="text", id_type="text").put("b", id="one")
    [delivery] = table.receive()
    assert (delivery.id, delivery.payload, table.options.payload) == ("one", "b", "text")


def test_an_sql_table_dropped_by_plain_sql_is_named(orders: MessageTable, database: Database) -> None:
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE orders"))
    with pytest.raises(SchemaError, match=r"'orders'.*SQL table is missing"):
        orders.receive()


def test_a_column_dropped_by_plain_sql_disturbs_no_process(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(columns={"region": "text"})
    table.put("a", region="eu")
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE orders DROP COLUMN region"))
    [delivery] = table.receive()
    assert delivery.columns == {}


def break_it(database: Database, how: str) -> None:
    statement = {
        "option": "UPDATE waterclock_message_tables SET options = '{}', revision = revision + 1",
        "column": "ALTER TABLE orders DROP COLUMN last_error",
    }[how]
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text(statement))


OPERATIONS: list[Callable[[MessageTable], object]] = [
    lambda table: table.put("b"),
    lambda table: table.receive(),
    lambda table: table.receive(wait="1s"),
    lambda table: table.ack(1),
    lambda table: table.reschedule(1, 0),
    lambda table: table.purge(),
    lambda table: table.stats(),
    lambda table: table.explain(1),
    lambda table: table.alter(batch_size=3),
    lambda table: table.pause(),
    lambda table: table.resume(),
    lambda table: next(table.subscribe()),
]


@pytest.mark.one_database
@pytest.mark.parametrize(("how", "named"), [("option", "option 'ack_wait'"), ("column", "column 'last_error'")])
@pytest.mark.parametrize("operate", OPERATIONS)
def test_a_table_that_fails_to_load_refuses_every_operation_and_says_why(
    orders: MessageTable, database: Database, how: str, named: str, operate: Callable[[MessageTable], object]
) -> None:
    orders.put("a")
    break_it(database, how)
    with pytest.raises(SchemaError, match=f"'orders': .* has no {named}"):
        operate(orders)
    with pytest.raises(SchemaError, match=named):
        database.table("orders")


def test_a_table_that_is_fixed_works_again(orders: MessageTable, database: Database) -> None:
    orders.put("a")
    break_it(database, "column")
    with pytest.raises(SchemaError):
        orders.put("b")
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE orders ADD COLUMN last_error text"))
    orders.put("b")
    assert payloads(orders) == ["a", "b"]


def test_a_failed_statement_names_the_column_that_the_table_lacks(
    orders: MessageTable, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_row, "LOOK_EVERY", 3600)
    orders.put("a")
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE orders DROP COLUMN headers"))
    with pytest.raises(SchemaError, match="column 'headers'"):
        orders.put("b", headers={"k": "v"})


@pytest.mark.parametrize("operate", OPERATIONS)
def test_a_call_right_after_a_drop_says_that_the_table_is_gone(
    orders: MessageTable,
    connect: Callable[..., Database],
    monkeypatch: pytest.MonkeyPatch,
    operate: Callable[[MessageTable], object],
) -> None:
    monkeypatch.setattr(table_row, "LOOK_EVERY", 3600)
    orders.put("a")
    connect().table("orders").drop()
    with pytest.raises(NotFoundError, match="'orders'"):
        operate(orders)


@pytest.mark.parametrize("groups", [None, "exclusive"])
@pytest.mark.parametrize("taken", [0, 1, 2])
def test_a_subscriber_learns_that_the_table_is_gone_wherever_it_is(
    make_table: Callable[..., MessageTable],
    connect: Callable[..., Database],
    monkeypatch: pytest.MonkeyPatch,
    taken: int,
    groups: str | None,
) -> None:
    monkeypatch.setattr(table_row, "LOOK_EVERY", 3600)
    monkeypatch.setattr(subscription, "PURGE_EVERY", 3600)
    orders = make_table(groups=groups)
    orders.put_many([{"payload": "a"}, {"payload": "b"}])
    with orders.subscribe(limit=2) as deliveries:
        for _ in range(taken):
            next(deliveries)
        connect().table("orders").drop()
        deliveries.note_changes()
        with pytest.raises(NotFoundError, match="'orders'"):
            next(deliveries)


@pytest.mark.parametrize(
    "operate",
    [
        lambda groups: groups.list(),
        lambda groups: groups.list(3),
        lambda groups: groups.info("a"),
        lambda groups: groups.purge("a"),
        lambda groups: groups.release("a", force=True),
    ],
)
def test_commands_of_groups_say_that_the_table_is_gone(
    make_table: Callable[..., MessageTable], connect: Callable[..., Database], operate: Callable[[Any], object]
) -> None:
    table = make_table(groups="sequenced")
    table.put("a", group="a")
    groups = table.groups
    connect().table("orders").drop()
    with pytest.raises(NotFoundError, match="'orders'"):
        operate(groups)


@pytest.mark.parametrize("verb", ["ack", "nack", "dead_letter", "extend"])
def test_calls_on_a_delivery_of_a_dropped_table_say_so(
    make_table: Callable[..., MessageTable], connect: Callable[..., Database], verb: str
) -> None:
    table = make_table(dead_letter="orders_dead")
    table.put("a")
    [delivery] = table.receive()
    connect().table("orders").drop()
    with pytest.raises(NotFoundError, match="'orders'"):
        getattr(delivery, verb)(*{"dead_letter": ["why"], "extend": ["1m"]}.get(verb, []))


def test_a_column_that_is_added_under_a_subscriber_is_seen_at_the_next_look(
    connect: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_row, "LOOK_EVERY", 0)
    database = connect()
    table = database.create_table("orders", payload="text")
    loads: list[str] = []
    load = table_row.load
    monkeypatch.setattr(table_row, "load", lambda backend, name: loads.append(name) or load(backend, name))
    with table.subscribe(limit=1) as deliveries:
        table.put("before")
        assert next(deliveries).columns == {}
        assert loads == []
        with database.backend.engine.begin() as connection:
            connection.execute(sa.text("ALTER TABLE orders ADD COLUMN region text"))
        table.put("after", region="eu")
        assert next(deliveries).columns == {"region": "eu"}
        assert len(loads) == 1
        with database.backend.engine.begin() as connection:
            connection.execute(sa.text("ALTER TABLE orders DROP COLUMN region"))
        table.put("in the end")
        assert next(deliveries).columns == {}
        assert len(loads) == 2


@pytest.mark.parametrize(("change", "next_id"), [({"max_attempts": 2}, 1), ({"on_exhausted": "dead_letter"}, 2)])
def test_a_group_continues_if_new_options_let_its_first_message_be_sent_or_die(
    make_table: Callable[..., MessageTable], change: dict[str, Any], next_id: int
) -> None:
    table = make_table(groups="sequenced", max_attempts=1, on_exhausted="block")
    table.put_many([{"payload": "x", "group": "a"} for _ in range(2)])
    table.receive(1)[0].nack("0s")
    assert table.receive(1) == []
    table.alter(**change)
    assert [one.id for one in table.receive(1)] == [next_id]
