from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from tests.tables.conftest import MovableClock

from waterclock.connection import Database
from waterclock.errors import AlreadyExistsError, InvalidArgumentError, LeaseLostError, SchemaError
from waterclock.tables.catalogue import table_row
from waterclock.tables.message_table import MessageTable

MakeTable = Callable[..., MessageTable]


@pytest.fixture
def fragile(make_table: MakeTable) -> MessageTable:
    return make_table(max_attempts=2, columns={"region": "text"})


def exhaust(table: MessageTable, clock: MovableClock, error: str = "no oven") -> None:
    """Let every message fail until it is dead."""
    for _ in range(2):
        table.nack(table.receive(100), "0s")
    assert table.receive() == []


def test_a_message_that_failed_in_its_last_attempt_is_moved_to_the_dead_letter_table(
    fragile: MessageTable, database: Database, clock: MovableClock
) -> None:
    fragile.put("tea", group="g", headers={"a": "b"}, priority=3, region="eu", at=clock.now - 5)
    [first] = fragile.receive()
    first.nack("0s")
    [second] = fragile.receive()
    clock.move("1s")
    second.nack(error="no kettle")
    assert fragile.receive() == []
    [dead] = database.table("orders_dead").receive()
    assert (dead.id, dead.payload, dead.group, dead.headers) == (1, "tea", "g", {"a": "b"})
    assert (dead.priority, dead.time_scheduled, dead.epoch) == (3, clock.now - 10**9 - 5, 3)
    assert dead.columns["region"] == "eu"
    assert dead.columns["dead_source"] == "orders"
    assert dead.columns["dead_reason"] == "sent 2 times without an ack"
    assert dead.columns["time_died"] == clock.now
    with database.backend.snapshot() as connection:
        assert connection.execute(sa.text("SELECT last_error FROM orders_dead")).scalar() == "no kettle"


@pytest.mark.both_servers
def test_a_message_whose_last_consumer_died_is_moved_at_the_next_claim_and_the_others_continue(
    fragile: MessageTable, database: Database, clock: MovableClock
) -> None:
    fragile.put("poison")
    for _ in range(2):
        assert len(fragile.receive()) == 1
        clock.move("1h")
    fragile.put("tea")
    assert [one.payload for one in fragile.receive(1)] == ["tea"]
    [dead] = database.table("orders_dead").receive()
    assert (dead.payload, dead.epoch) == ("poison", 3)
    assert fragile.explain(1).state == "dead"
    assert "sent 2 times without an ack; it is in 'orders_dead'" in str(fragile.explain(1))


def test_a_consumer_can_dead_letter_a_message_immediately(fragile: MessageTable, clock: MovableClock) -> None:
    fragile.put("tea")
    [delivery] = fragile.receive()
    delivery.dead_letter("the pot is broken")
    delivery.dead_letter("said again")
    with pytest.raises(LeaseLostError, match=r"^cannot ack message 1 .* it was moved to the dead letters"):
        delivery.ack()
    clock.move("1d")
    assert fragile.receive() == []
    assert "the pot is broken" in fragile.explain(1).reason


def test_a_stale_delivery_cannot_dead_letter_a_message_of_another_consumer(
    fragile: MessageTable, clock: MovableClock
) -> None:
    fragile.put("tea")
    [stale] = fragile.receive()
    clock.move("1h")
    [fresh] = fragile.receive()
    with pytest.raises(LeaseLostError, match=r"^cannot dead_letter message 1"):
        stale.dead_letter("mine")
    fresh.ack()
    assert fragile.stats().dead == 0


@pytest.mark.one_database
def test_without_a_dead_letter_table_the_option_is_named(orders: MessageTable) -> None:
    orders.put("tea")
    [delivery] = orders.receive()
    with pytest.raises(InvalidArgumentError, match=r"^message table 'orders' has no dead-letter table"):
        delivery.dead_letter("why not")
    with pytest.raises(InvalidArgumentError, match="has no dead-letter table"):
        orders.redrive()
    delivery.ack()


def test_without_max_attempts_only_the_consumer_buries(make_table: MakeTable, clock: MovableClock) -> None:
    table = make_table(dead_letter="morgue")
    table.put("tea")
    for _ in range(5):
        [delivery] = table.receive()
        delivery.nack("0s")
    [delivery] = table.receive()
    delivery.dead_letter("enough")
    assert table.stats().dead == 1


def test_dead_letters_come_back_in_their_order_and_count_as_never_sent(
    fragile: MessageTable, database: Database, clock: MovableClock
) -> None:
    fragile.put_many([{"payload": str(number), "priority": 0} for number in range(1200)])
    held = fragile.receive(1200)
    for delivery in (*held[600:], *held[:600]):  # they die in another order than they came
        delivery.leased = delivery.leased._replace(epoch=2)
    fragile.nack(held[600:])
    fragile.nack(held[:600])
    assert fragile.stats().dead == 1200
    assert fragile.redrive(limit=700) == 700
    assert fragile.redrive() == 500
    assert fragile.redrive() == 0
    again = fragile.receive(1200)
    assert [one.payload for one in again] == [str(number) for number in range(1200)]
    assert {one.epoch for one in again} == {1}
    assert fragile.stats().dead == database.table("orders_dead").stats().sent == 0


def test_only_the_dead_letters_that_are_named_come_back_and_those_put_again_stay(
    fragile: MessageTable, clock: MovableClock
) -> None:
    fragile.put_many([{"payload": name, "id": number} for number, name in enumerate("abcd", 1)])
    exhaust(fragile, clock)
    fragile.put("new", id=2)
    assert fragile.redrive([2, 4, 99]) == 1
    assert fragile.redrive(3) == 1
    assert sorted(one.payload for one in fragile.receive()) == ["c", "d", "new"]
    assert fragile.stats().dead == 2


def test_a_message_that_dies_again_replaces_the_dead_letter_of_its_id(
    fragile: MessageTable, database: Database, clock: MovableClock
) -> None:
    fragile.put("old", id=7)
    exhaust(fragile, clock)
    fragile.put("new", id=7)
    exhaust(fragile, clock)
    [dead] = database.table("orders_dead").receive()
    assert (dead.id, dead.payload) == (7, "new")
    assert (fragile.stats().sent, database.table("orders_dead").stats().sent) == (4, 1)


def test_a_dead_letter_that_was_acked_stays(fragile: MessageTable, database: Database, clock: MovableClock) -> None:
    fragile.put("tea")
    exhaust(fragile, clock)
    database.table("orders_dead").ack(1)
    assert (fragile.redrive(), fragile.redrive([1])) == (0, 0)
    assert fragile.stats().dead == 0


@pytest.mark.parametrize(
    ("options", "column"),
    [
        ({"payload": "json"}, "message"),
        ({"id_type": "text"}, "id"),
        ({"columns": {"region": "bigint"}}, "region"),
        ({}, "region"),
    ],
)
def test_a_dead_letter_table_that_does_not_fit_is_refused_naming_the_column(
    make_table: MakeTable, database: Database, options: dict[str, object], column: str
) -> None:
    make_table("morgue", **options)
    with pytest.raises(SchemaError, match=rf"^dead_letter: .*'{column}'"):
        make_table(max_attempts=3, dead_letter="morgue", columns={"region": "text"})
    assert database.tables() == ["morgue"]


def test_a_dead_letter_table_that_fits_is_used_again(
    fragile: MessageTable, database: Database, make_table: MakeTable, clock: MovableClock
) -> None:
    fragile.put("tea")
    exhaust(fragile, clock)
    fragile.drop()
    again = make_table(max_attempts=2, columns={"region": "text"})
    assert again.redrive() == 1


def test_two_tables_do_not_share_dead_letters(fragile: MessageTable, make_table: MakeTable) -> None:
    with pytest.raises(InvalidArgumentError, match="'orders_dead', which holds the dead letters of 'orders'"):
        make_table("payments", max_attempts=2, dead_letter="orders_dead", columns={"region": "text"})


@pytest.mark.one_database
@pytest.mark.parametrize("name", ["orders", "no-hyphens", "o" * 49])
def test_a_name_that_a_dead_letter_table_cannot_have_is_refused(make_table: MakeTable, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^dead_letter"):
        make_table(dead_letter=name)


def test_an_sql_table_in_the_way_is_named(make_table: MakeTable, database: Database) -> None:
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE orders_dead (x INTEGER)"))
    with pytest.raises((SchemaError, AlreadyExistsError), match="'orders_dead'"):
        make_table(max_attempts=3)


def test_the_options_change_while_the_table_is_used(
    orders: MessageTable, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_row, "LOOK_EVERY", 0)
    orders.put("tea")
    with orders.subscribe() as deliveries:
        next(deliveries).nack("0s")
        orders.alter(max_attempts=1)
        orders.put("coffee")
        assert next(deliveries).payload == "coffee"
    assert orders.options.dead_letter == "orders_dead"
    assert orders.explain(1).state == "dead"
    orders.alter(max_attempts=None)
    assert orders.redrive() == 1


def test_a_dropped_dead_letter_table_is_named_and_can_be_recreated(
    fragile: MessageTable, database: Database, clock: MovableClock
) -> None:
    fragile.put("tea")
    [delivery] = fragile.receive()
    database.table("orders_dead").drop()
    again = database.table("orders")
    clock.move("1h")
    [delivery] = again.receive()
    with pytest.raises(SchemaError, match="'orders_dead' is missing"):
        delivery.nack()
    again.alter(dead_letter="orders_dead")
    database.table("orders").redrive()
    clock.move("1h")
    assert again.receive() == []
    assert again.stats().dead == 1


@pytest.mark.parametrize("groups", [None, "sequenced", "exclusive"])
@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("by_sql", [False, True])
def test_a_claim_skips_messages_for_a_dropped_dead_letter_table(
    make_table: MakeTable,
    database: Database,
    clock: MovableClock,
    caplog: pytest.LogCaptureFixture,
    groups: str | None,
    seen: bool,
    by_sql: bool,
) -> None:
    dies = {"max_attempts": 1, "on_expired": "dead_letter", "dead_letter": "orders_dead"}
    table = make_table(groups=groups, **dies | ({"on_exhausted": "dead_letter"} if groups else {}))
    table.put("tea", group="a")
    [late] = table.receive()
    clock.move("1h")
    table.put("short", group="b", expires_at=clock.now + 10**9)
    table.put_many([{"payload": "coffee", "group": "c"}, {"payload": "milk", "group": "d"}])
    clock.move("2s")
    if by_sql:
        with database.backend.engine.begin() as sql:
            sql.execute(sa.text("DROP TABLE orders_dead"))
    else:
        database.table("orders_dead").drop()
    if seen:
        table = database.table("orders")
    assert [one.payload for one in table.receive()] == ["coffee", "milk"]
    assert "'orders_dead' is missing" in caplog.text or not seen
    assert table.receive() == []
    table.alter(dead_letter="orders_dead")
    clock.move("1h")
    database.table("orders").receive()
    dead = database.table("orders_dead").receive()
    assert {one.id for one in dead} >= {late.id, 2}


@pytest.mark.parametrize("groups", [None, "sequenced"])
def test_a_message_that_waits_for_a_missing_dead_letter_table_says_so_and_purges_continue(
    make_table: MakeTable, database: Database, clock: MovableClock, groups: str | None
) -> None:
    dies = {"max_attempts": 1, "on_expired": "dead_letter", "dead_letter": "orders_dead", "purge_after": "0s"}
    table = make_table(groups=groups, **dies | ({"on_exhausted": "dead_letter"} if groups else {}))
    table.put_many([{"id": number, "payload": "tea", "group": str(number)} for number in (1, 2)])
    table.ack(table.receive(2)[1:])
    clock.move("1h")
    table.put("short", id=3, group="3", expires_at=clock.now + 10**9)
    clock.move("2s")
    assert "dead letters" not in table.explain(3).reason
    database.table("orders_dead").drop()
    table = database.table("orders")
    for number in (1, 3):
        assert "it cannot be moved to the dead letters" in table.explain(number).reason
        assert "Create the dead-letter table with alter(dead_letter='orders_dead')" in table.explain(number).reason
    assert table.purge() == 1
    with table.subscribe() as deliveries:
        table.put("coffee", group="4")
        assert next(deliveries).payload == "coffee"


def test_a_message_in_the_middle_of_a_group_dies_and_its_group_continues(
    make_table: MakeTable, clock: MovableClock
) -> None:
    table = make_table(groups="sequenced", dead_letter="morgue")
    table.put_many([{"payload": str(number), "group": "g"} for number in range(4)])
    first, second = table.receive(2)
    second.dead_letter("why")
    first.dead_letter("why")
    assert [one.payload for one in table.receive()] == ["2", "3"]
    assert table.redrive() == 2
    table.ack([3, 4])
    assert [one.payload for one in table.receive()] == ["0", "1"]


@pytest.mark.parametrize("groups", [None, "sequenced", "exclusive"])
def test_dead_lettering_by_id_spares_leased_messages_and_frees_the_group(
    make_table: MakeTable, clock: MovableClock, groups: str | None
) -> None:
    table = make_table(max_attempts=9, groups=groups)
    ids = table.put_many([{"payload": str(number), "group": "g"} for number in range(4)])
    [out] = table.receive(1)
    assert table.dead_letter([*ids[:3], 99], "sold out") == 2
    out.nack("1h")
    assert table.dead_letter(ids[0], "sold out") == 1
    assert [one["dead_reason"] for one in table.dead_letters()] == ["sold out"] * 3
    assert [one.payload for one in table.receive(9)] == ["3"]
    assert table.redrive() == 3


def test_dead_lettering_by_id_without_a_dead_letter_table_is_refused(make_table: MakeTable) -> None:
    table = make_table()
    table.put("tea")
    with pytest.raises(InvalidArgumentError, match="has no dead-letter table"):
        table.dead_letter(1, "sold out")


def test_a_cancelled_message_that_came_back_is_not_counted_as_dead_lettered(make_table: MakeTable) -> None:
    table = make_table(max_attempts=9)
    table.put("tea")
    [out] = table.receive()
    table.cancel(1)
    out.nack()
    assert (table.dead_letter(1, "sold out"), table.dead_letters()) == (0, [])
