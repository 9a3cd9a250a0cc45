"""A sharded table does what a table in one database does."""

from __future__ import annotations

import inspect

import pytest
from tests.tables.conftest import MovableClock

import waterclock as wc
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.putting import scheduling
from waterclock.tables.sharding.sharded_database import ShardedDatabase
from waterclock.tables.sharding.sharded_subscription import ShardedSubscription
from waterclock.tables.sharding.sharded_table import ShardedTable

from .conftest import many

# What only makes sense in one database: making it, which the keyspace does, and what waterclock.aio asks.
OF_ONE_DATABASE = {"create", "delivery", "watched", "give_back"}
# Parameters that are passed on as they are, or that only a table in one database can have.
PASSED_ON = {"where", "order", "parameters", "max_groups", "rate_limit", "heartbeat", "group", "kinds"}
PASSED_ON |= {"unique", "unique_until", "on_conflict", "closes_group", "timezone", "catch_up", "within", "overlap"}


def names(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def parameters(kind: type, name: str) -> set[str]:
    return set(inspect.signature(getattr(kind, name)).parameters) - {"self"}


def test_it_has_everything_that_a_table_in_one_database_has() -> None:
    assert names(MessageTable) - names(ShardedTable) == OF_ONE_DATABASE
    for name in sorted(names(MessageTable) & names(ShardedTable) - {"open"}):
        if callable(getattr(MessageTable, name)):
            missing = parameters(MessageTable, name) - parameters(ShardedTable, name)
            assert missing <= PASSED_ON, name


def test_its_keys_get_no_limit_later(keyspace: ShardedDatabase) -> None:
    table = keyspace.create_table("fair", fair_by="kind")
    with pytest.raises(wc.InvalidArgumentError, match="limit must be omitted in a sharded table, which spreads"):
        table.alter(limit={"kind": 1})
    with pytest.raises(wc.InvalidArgumentError, match="rate must be omitted in a sharded table, which spreads"):
        table.alter(rate={"kind": 1})


@pytest.fixture
def mortal(keyspace: ShardedDatabase) -> ShardedTable:
    return keyspace.create_table("orders", payload="text", jitter=0, max_attempts=1)


def die(table: ShardedTable, clock: MovableClock, *ids: int) -> None:
    for number in ids:
        table.put(str(number), id=number)
        [delivery] = table.receive(1)
        delivery.dead_letter(f"no {number}")
        clock.move(1)


def test_dead_letters_of_all_shards_are_listed_those_that_died_last_first(
    mortal: ShardedTable, clock: MovableClock
) -> None:
    die(mortal, clock, *range(1, 9))
    assert len({mortal.shard_of(number) for number in range(1, 9)}) == 2
    assert [one["id"] for one in mortal.dead_letters()] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert [one["dead_reason"] for one in mortal.dead_letters(2)] == ["no 8", "no 7"]


def test_failures_of_all_shards_are_grouped_together(mortal: ShardedTable) -> None:
    for number in range(1, 9):
        mortal.put(str(number), id=number)
    for delivery in mortal.receive(8):
        delivery.nack("0s", error=f"ValueError: no {delivery.id}")
    [group] = mortal.failures()
    assert (group.error, group.count) == ("ValueError: no <number>", 8)


def test_dead_letters_come_back_to_their_shards(mortal: ShardedTable, clock: MovableClock) -> None:
    die(mortal, clock, *range(1, 9))
    assert mortal.redrive([1, 2, 99]) == 2
    assert mortal.redrive(3) == 1
    assert mortal.redrive(limit=4) == 4
    assert mortal.redrive([4, 5, 6, 7, 8], limit=3) == 1
    assert mortal.redrive() == 0
    with pytest.raises(wc.InvalidArgumentError, match=r"^limit must .*, got 0"):
        mortal.redrive(limit=0)
    assert sorted(one.id for one in mortal.receive(20)) == list(range(1, 9))


def test_messages_of_all_shards_are_dead_lettered_by_id(mortal: ShardedTable) -> None:
    for number in range(1, 9):
        mortal.put(str(number), id=number)
    assert mortal.dead_letter([*range(1, 8), 99], "sold out") == 7
    assert [one.id for one in mortal.receive(20)] == [8]


def test_deliveries_of_all_shards_are_given_back_together(orders: ShardedTable, clock: MovableClock) -> None:
    many(orders, 8)
    deliveries = orders.receive(8)
    deliveries[0].ack()
    orders.ack(deliveries[1].id)
    assert orders.extend(deliveries, "1h") == 6
    assert orders.nack(deliveries, "5s") == 6
    assert deliveries[1].lost
    assert orders.receive(8) == []
    clock.move("5s")
    assert len(orders.receive(8)) == 6


def test_it_has_no_groups_and_says_why(orders: ShardedTable) -> None:
    with pytest.raises(wc.InvalidArgumentError, match=r"^message table 'orders' has no groups, because it is sharded"):
        print(orders.groups)


def test_a_subscription_counts_on_each_shard_that_it_reads(orders: ShardedTable) -> None:
    many(orders, 8)
    with orders.subscribe() as deliveries:
        for _ in range(8):
            next(deliveries).ack()
        assert orders.stats().subscribers == 2
        assert {name: one.subscribers for name, one in orders.stats().by_shard.items()} == {"-80": 1, "80-": 1}
    assert orders.stats().subscribers == 0


def test_a_message_acked_while_offered_is_not_handed_out(orders: ShardedTable) -> None:
    many(orders, 8)
    with orders.subscribe() as deliveries:
        assert isinstance(deliveries, ShardedSubscription)
        first = next(deliveries)
        first.ack()
        assert orders.ack([number for number in range(8) if number != first.id]) == 7
        orders.put("last", id=8)
        assert next(deliveries).payload == "last"


def test_unique_keys_are_refused(orders: ShardedTable) -> None:
    with pytest.raises(wc.InvalidArgumentError, match="unique must be omitted"):
        orders.put("a", unique="k")
    with pytest.raises(wc.InvalidArgumentError, match="unique must be omitted"):
        orders.put_many([{"payload": "a", "unique": "k"}])


@pytest.mark.parametrize("id_type", ["bigint", "text", "uuid"])
def test_each_schedule_is_on_a_shard_and_so_are_its_messages(
    keyspace: ShardedDatabase, clock: MovableClock, id_type: str
) -> None:
    table = keyspace.create_table("jobs", payload="text", jitter=0, id_type=id_type)
    for name in "abcdef":
        table.schedule(name, cron="* * * * *", payload=name, catch_up="one")
    clock.move("90s")
    assert (table.tick(), table.tick()) == (6, 0)
    homes = {str(one.payload): table.shard_of(one.id) for one in table.receive(10)}
    assert sorted(homes) == list("abcdef")
    assert set(homes.values()) == set(table.shards)
    first, *others = table.schedules()
    assert first.last_id is not None
    assert table.shard_of(first.last_id) == homes["a"]
    assert (table.ack([first.last_id]), table.stats().acked) == (1, 1)
    assert table.shard_of(table.schedules.run("b")) == homes["b"]
    table.schedules.pause("a")
    clock.move("2m")
    assert table.tick() == 5
    table.schedules.resume("a")
    assert table.schedules.keep(["a", "f"]) == [one.name for one in others[:-1]]
    assert (table.unschedule("f"), table.unschedule("f")) == (True, False)
    assert [one.name for one in table.schedules()] == ["a"]


def test_a_scheduled_messages_number_that_another_writer_has_drawn_is_drawn_again(
    keyspace: ShardedDatabase, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = keyspace.create_table("jobs", payload="text", jitter=0)
    table.schedule("a", cron="* * * * *", payload="ours")
    theirs = table.schedules.run("a")
    drawn = iter([theirs, theirs])
    draw = scheduling.draw_id
    monkeypatch.setattr(scheduling, "draw_id", lambda where, known: next(drawn, None) or draw(where, known))
    assert table.schedules.run("a") != theirs
    assert table.stats().ready == 2
