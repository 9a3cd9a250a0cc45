from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import sqlalchemy as sa
from tests.support.moments import until
from tests.support.services import Service
from tests.tables.conftest import MovableClock

import waterclock as wc
from waterclock.tables.consumers import subscription
from waterclock.tables.messages.putting import drawing_ids
from waterclock.tables.model.keyspace import keyspace_id
from waterclock.tables.sharding import sharded_putting, sharded_subscription
from waterclock.tables.sharding.sharded_database import ShardedDatabase
from waterclock.tables.sharding.sharded_subscription import ShardedSubscription
from waterclock.tables.sharding.sharded_table import ShardedTable

from .conftest import many


@dataclass
class Servers:
    """PostgreSQL, which a test may stop, and MariaDB, in real time."""

    keyspace: ShardedDatabase
    urls: dict[str, str]
    stopped: Callable[[], AbstractContextManager[None]]


@pytest.fixture
def servers(postgresql_server: Service, mariadb_server: Service) -> Generator[Servers]:
    with postgresql_server.new_database() as low, mariadb_server.new_database() as high:
        urls = {"-80": low, "80-": high}
        with wc.connect(shards=urls) as keyspace:
            yield Servers(keyspace, urls, postgresql_server.stopped)


def rows_of(keyspace: ShardedDatabase, shard: str) -> list[int]:
    with keyspace.shard(shard).backend.engine.connect() as connection:
        return list(connection.scalars(sa.text("SELECT id FROM orders")))


def test_each_message_is_on_the_shard_of_its_id(orders: ShardedTable, keyspace: ShardedDatabase) -> None:
    many(orders)
    low, high = rows_of(keyspace, "-80"), rows_of(keyspace, "80-")
    assert sorted(low + high) == list(range(40))
    assert low
    assert high
    assert all(keyspace_id(one) < 1 << 63 for one in low)
    assert all(keyspace_id(one) >= 1 << 63 for one in high)
    assert {orders.shard_of(one) for one in low} == {"-80"}


def test_an_existing_table_with_other_options_is_returned_with_a_warning(keyspace: ShardedDatabase) -> None:
    keyspace.create_table("jobs", ack_wait="1m")
    with pytest.warns(UserWarning, match="message table 'jobs' .* ack_wait is '1m', not '2m'"):
        keyspace.create_table("jobs", ack_wait="2m", exist_ok=True)


def test_a_put_with_a_known_id_changes_nothing(orders: ShardedTable) -> None:
    many(orders)
    again = orders.put_many([{"payload": "other", "id": number} for number in range(38, 42)])
    assert sorted(again.existing) == [38, 39]
    assert orders.stats().ready == 42


def test_messages_expire_on_every_shard(orders: ShardedTable, clock: MovableClock) -> None:
    ends = clock.now + 10_000_000_000
    orders.put_many([{"payload": "stale", "id": number, "expires_at": ends} for number in range(40)])
    orders.put("stale", id=40, expires_at=ends)
    orders.put("tea", id=41)
    clock.move("10s")
    assert [one.payload for one in orders.peek(100)] == ["tea"]
    assert orders.stats().expired == 41
    assert [one.payload for one in orders.receive(100)] == ["tea"]
    orders.purge()
    stats = orders.stats()
    assert (stats.expired, stats.ready, stats.in_flight, stats.acked) == (41, 0, 1, 0)
    assert orders.explain(7).state == "expired"


def test_messages_without_an_id_get_one_and_are_spread(orders: ShardedTable, keyspace: ShardedDatabase) -> None:
    ids = orders.put_many([{"payload": "a"} for _ in range(50)])
    assert len(set(ids)) == 50
    assert ids.existing == []
    assert len(rows_of(keyspace, "-80")) > 5
    assert len(rows_of(keyspace, "80-")) > 5
    assert orders.put("b") not in ids


def test_an_id_that_another_writer_has_drawn_is_drawn_again(
    orders: ShardedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = orders.put("theirs")
    drawn = iter([taken])

    def draw(where: object, known: set[int]) -> int:
        return next(drawn, None) or drawing_ids.draw_id(where, known)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(sharded_putting, "draw_id", draw)
    ours = orders.put_many([{"payload": "ours"}])
    assert ours[0] != taken
    assert ours.existing == []
    assert sorted(delivery.payload for delivery in orders.receive()) == ["ours", "theirs"]


@pytest.mark.parametrize("id_type", ["text", "uuid"])
def test_text_and_uuid_ids_are_placed_and_found_again(keyspace: ShardedDatabase, id_type: str) -> None:
    table = keyspace.create_table("named", id_type=id_type, payload="text")
    ids = [uuid.uuid4() if id_type == "uuid" else f"é{number}" for number in range(20)]
    table.put_many([{"payload": "a", "id": one} for one in ids])
    assert table.ack([str(one) for one in ids]) == 20
    with keyspace.shard("80-").backend.engine.connect() as connection:
        on_high = list(connection.scalars(sa.text("SELECT id FROM named")))
    assert {str(one) for one in on_high} == {str(one) for one in ids if keyspace_id(one) >= 1 << 63}


def test_every_message_is_received_and_acked(orders: ShardedTable) -> None:
    many(orders)
    deliveries = orders.receive(100)
    assert sorted(delivery.id for delivery in deliveries) == list(range(40))
    assert orders.ack(deliveries[:10]) == 10
    deliveries[20].ack()
    assert orders.ack([delivery.id for delivery in deliveries]) == 29
    assert orders.stats().acked == 40


def test_a_subscription_reads_the_shards_in_turn(orders: ShardedTable, keyspace: ShardedDatabase) -> None:
    many(orders)
    pairs = min(len(rows_of(keyspace, shard)) for shard in orders.shards)
    order: list[str] = []
    with orders.subscribe() as deliveries:
        assert isinstance(deliveries, ShardedSubscription)
        for _ in range(2 * pairs):
            with deliveries._changed:  # until both shards have one to offer, unless one has come to its end
                deliveries._changed.wait_for(
                    lambda: all(
                        reader.offered or order.count(reader._shard.name) >= pairs for reader in deliveries._readers
                    )
                )
            with next(deliveries) as delivery:
                order.append(orders.shard_of(delivery.id))
    assert order in (["-80", "80-"] * pairs, ["80-", "-80"] * pairs)
    assert orders.stats().acked == 2 * pairs


def test_a_receive_takes_from_both_shards_and_begins_with_another_one_each_time(orders: ShardedTable) -> None:
    many(orders)
    first = [orders.shard_of(orders.receive(1)[0].id) for _ in range(4)]
    assert first in (["-80", "80-"] * 2, ["80-", "-80"] * 2)


def test_closing_returns_unhanded_messages_without_counting_an_attempt(orders: ShardedTable) -> None:
    many(orders)
    with orders.subscribe() as deliveries:
        handed_out = next(deliveries).id
    again = orders.receive(100)
    assert {delivery.id for delivery in again} == set(range(40)) - {handed_out}
    assert {delivery.epoch for delivery in again} == {1}


def test_a_subscription_to_a_shard_or_a_range_reads_that_alone(orders: ShardedTable, keyspace: ShardedDatabase) -> None:
    many(orders)
    for name, part in (("80-", {"shard": "80-"}), ("-80", {"key_range": "-80"})):
        expected = rows_of(keyspace, name)
        with orders.subscribe(**part) as deliveries:  # pyright: ignore[reportArgumentType]
            assert sorted(next(deliveries).id for _ in expected) == sorted(expected)
    with orders.subscribe(key_range="-") as deliveries:
        assert isinstance(deliveries, ShardedSubscription)


@pytest.mark.parametrize("part", [{"shard": "-40"}, {"shard": "0"}, {"key_range": "-40"}, {"key_range": "all"}])
def test_a_range_of_no_shard_is_refused(orders: ShardedTable, part: dict[str, str]) -> None:
    with pytest.raises(wc.InvalidArgumentError, match=f"^{next(iter(part))} must be .*, got "):
        orders.subscribe(**part)


def test_a_waiting_receive_gets_messages_of_any_shard(urls: dict[str, str]) -> None:
    with wc.connect(shards=urls) as keyspace:
        table = keyspace.create_table("orders", payload="text", poll_interval="1h")
        assert table.receive(wait="10ms") == []
        for message_id in (1, 2, 3, 4):
            table.put("tea", id=message_id)
            [delivery] = table.receive(wait="1h")
            assert delivery.id == message_id
            delivery.ack()


def test_conditions_and_retries_hold_on_every_shard(orders: ShardedTable) -> None:
    many(orders)
    urgent = orders.put_many([{"payload": "urgent", "priority": 5} for _ in range(6)])
    chosen = orders.receive(100, where="priority > 3")
    assert {one.id for one in chosen} == set(urgent)
    for one in chosen:
        one.nack("1h")
    assert orders.retry() == 6
    with orders.subscribe(where="priority > 3") as deliveries:
        assert {next(deliveries).id for _ in range(6)} == set(urgent)
    assert orders.retry(urgent[0]) == 1


def test_a_waiting_subscription_ends_when_it_is_stopped(orders: ShardedTable) -> None:
    with orders.subscribe() as deliveries:
        deliveries.stop()
        assert list(deliveries) == []


def test_options_change_and_pauses_hold_on_every_shard(orders: ShardedTable) -> None:
    many(orders)
    orders.alter(batch_size=3)
    assert orders.options.batch_size == 3
    orders.pause()
    assert orders.paused_until is not None
    assert orders.receive(100) == []
    orders.resume()
    assert orders.paused_until is None
    assert len(orders.receive(100)) == 40


def test_messages_are_rescheduled_explained_and_purged_where_they_are(
    orders: ShardedTable, clock: MovableClock
) -> None:
    many(orders, 6)
    assert orders.reschedule(range(6), clock.now + 10**12) == 6
    assert {orders.explain(number).state for number in range(6)} == {"scheduled"}
    orders.ack(range(6))
    clock.move("2d")
    assert orders.purge() == 6
    with pytest.raises(wc.NotFoundError):
        orders.explain(3)


def test_figures_of_the_shards_add_up(orders: ShardedTable, clock: MovableClock) -> None:
    many(orders)
    orders.ack(range(5))
    clock.move("3s")
    stats = orders.stats()
    assert (stats.ready, stats.acked, stats.oldest_age) == (35, 5, 3_000_000_000)
    assert sum(one.ready for one in stats.by_shard.values()) == 35
    assert set(stats.by_shard) == {"-80", "80-"}
    assert stats.away == {}


def test_a_dropped_table_ends_its_subscribers_with_an_error(orders: ShardedTable, keyspace: ShardedDatabase) -> None:
    with orders.subscribe() as deliveries:
        keyspace.table("orders").drop()
        with pytest.raises((wc.NotFoundError, wc.SchemaError)):
            next(deliveries)
    assert keyspace.tables() == []


def test_a_missing_table_is_created_on_a_shard(keyspace: ShardedDatabase) -> None:
    keyspace.create_table("orders", payload="text")
    with pytest.raises(wc.AlreadyExistsError):
        keyspace.create_table("orders")
    keyspace.shard("80-").database.table("orders").drop()
    with pytest.raises(wc.NotFoundError):
        keyspace.table("orders")
    table = keyspace.create_table("orders", payload="text")
    many(table)
    assert table.stats().ready == 40


def test_shards_whose_urls_are_swapped_are_refused(
    orders: ShardedTable, urls: dict[str, str], clock: MovableClock
) -> None:
    swapped = {"-80": urls["80-"], "80-": urls["-80"]}
    with wc.connect(shards=swapped, clock=clock) as keyspace, pytest.raises(wc.SchemaError, match="swapped"):
        keyspace.table("orders")


def test_a_put_in_the_callers_transaction_has_to_be_on_the_messages_shard(
    orders: ShardedTable, keyspace: ShardedDatabase
) -> None:
    low = next(number for number in range(100) if orders.shard_of(number) == "-80")
    with keyspace.shard("80-").backend.engine.begin() as connection:
        with pytest.raises(
            wc.InvalidArgumentError, match=rf"^connection must be to shard -80, the shard of message {low} .* 80-"
        ):
            orders.put("a", id=low, connection=connection)
        with pytest.raises(
            wc.InvalidArgumentError, match=r"^connection must be to shard .* got a connection to shard 80-"
        ):
            orders.ack(low, connection=connection)
        drawn = orders.put("b", connection=connection)
    assert orders.shard_of(drawn) == "80-"
    with keyspace.shard("-80").backend.engine.connect() as connection:
        orders.put("a", id=low, connection=connection)
        connection.rollback()
    assert [delivery.payload for delivery in orders.receive()] == ["b"]
    with keyspace.shard("80-").backend.engine.begin() as connection:
        assert orders.ack(drawn, connection=connection) == 1
    assert orders.stats().acked == 1


def test_a_connection_to_another_database_is_refused(orders: ShardedTable, tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    with engine.connect() as connection, pytest.raises(wc.InvalidArgumentError, match="to a shard of this table"):
        orders.put("a", connection=connection)
    with pytest.raises(wc.InvalidArgumentError, match=r"^connection must be "):
        orders.put("a", connection=7)


def test_operations_that_need_one_database_are_refused_with_the_reason(keyspace: ShardedDatabase) -> None:
    with pytest.raises(wc.InvalidArgumentError, match=r"^groups must be omitted in a sharded table"):
        keyspace.create_table("orders", groups="sequenced")
    for make in (keyspace.create_topic, keyspace.topic):
        with pytest.raises(wc.InvalidArgumentError, match=r"^cannot open topic 'telemetry' in a sharded database"):
            make("telemetry")
    assert keyspace.topics() == []


def test_nothing_is_put_if_one_message_is_invalid(orders: ShardedTable) -> None:
    with pytest.raises(wc.InvalidArgumentError, match=r"^priority"):
        orders.put_many([*({"payload": "a"} for _ in range(20)), {"payload": "b", "priority": "high"}])
    assert orders.stats().ready == 0


@pytest.mark.parametrize("part", [{"shard": ""}, {"shard": "0"}, {"key_range": "-"}, {"shard": "-"}])
def test_the_whole_of_an_unsharded_table_can_be_named(sqlite_url: str, part: dict[str, str]) -> None:
    with wc.connect(sqlite_url) as database:
        table = database.create_table("orders")
        table.put(b"a")
        with table.subscribe(**part) as deliveries:
            assert next(deliveries).payload == b"a"


@pytest.mark.parametrize("part", [{"shard": "-80"}, {"shard": "1"}, {"key_range": "-80"}, {"key_range": ""}])
def test_an_unsharded_table_has_no_parts(sqlite_url: str, part: dict[str, str]) -> None:
    with wc.connect(sqlite_url) as database:
        table = database.create_table("orders")
        with pytest.raises(wc.InvalidArgumentError, match=rf"^{next(iter(part))} must be .*is not sharded"):
            table.subscribe(**part)


def test_shards_are_checked_before_anything_is_opened(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with pytest.raises(wc.InvalidArgumentError, match="no shard has the key range 80-"):
        wc.connect(shards={"-80": url})
    with pytest.raises(wc.InvalidArgumentError, match="different URLs"):
        wc.connect(shards={"-80": url, "80-": url})
    assert not (tmp_path / "a.db").exists()


def test_a_shard_that_is_away_does_not_stop_others_and_is_read_again_when_it_is_back(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    table = servers.keyspace.create_table("orders", payload="text", ack_wait="5m")
    low = [number for number in range(200) if table.shard_of(number) == "-80"][:10]
    high = [number for number in range(200) if table.shard_of(number) == "80-"][:10]
    with table.subscribe(limit=1) as deliveries:
        table.put_many([{"payload": "a", "id": number} for number in (*low[:5], *high[:5])])
        received = {next(deliveries).id for _ in range(10)}
        assert received == {*low[:5], *high[:5]}
        with servers.stopped():
            table.put_many([{"payload": "b", "id": number} for number in high[5:9]])
            assert {next(deliveries).id for _ in range(4)} == set(high[5:9])
            stats = table.stats()
            assert list(stats.away) == ["-80"]
            assert (stats.in_flight, list(stats.by_shard)) == (9, ["80-"])
            assert [delivery.id for delivery in table.receive(5)] == []
            monkeyed = table.put("c", id=high[9])
            assert next(deliveries).id == monkeyed
            # A new consumer finds what is there.
            with wc.connect(shards=servers.urls) as late:
                assert late.table("orders").shards == ["-80", "80-"]
                with pytest.raises(wc.UnavailableError):
                    late.table("orders").alter(batch_size=3)
        table.put_many([{"payload": "d", "id": number} for number in low[5:]])
        assert {next(deliveries).id for _ in range(5)} == set(low[5:])
    assert "shard -80 is unavailable" in caplog.text
    assert "shard -80 is available again" in caplog.text
    assert table.stats().away == {}


@pytest.mark.parametrize("urls", ["files"], indirect=True)
def test_a_shard_that_another_thread_found_away_is_back_when_it_delivers(
    keyspace: ShardedDatabase, orders: ShardedTable, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = [number for number in range(200) if orders.shard_of(number) == "-80"][:2]
    shard = keyspace.shard("-80")
    with orders.subscribe() as deliveries:
        orders.put("a", id=first)
        assert next(deliveries).id == first
        shard.note_away(wc.UnavailableError("no route to host"))
        orders.put("b", id=second)
        assert next(deliveries).id == second
    assert (shard.reason, shard.rest) == (None, 0)
    assert "shard -80 is available again" in caplog.text


def test_a_put_with_an_unavailable_shard_reports_which_messages_were_written(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shard in servers.keyspace.shards:
        monkeypatch.setattr(servers.keyspace.shard(shard).backend, "_timeout", 0.2)
    table = servers.keyspace.create_table("orders", payload="text")
    messages = [{"payload": str(number)} for number in range(20)]
    with servers.stopped():
        with pytest.raises(wc.PartlyPutError, match=r"were not put .*-80: ") as raised:
            table.put_many(messages)
        assert table.stats().ready == 20 - len(raised.value.missing)
        assert {table.shard_of(one) for one in raised.value.missing} == {"-80"}
    again = [{**message, "id": one} for message, one in zip(messages, raised.value.ids, strict=True)]
    put = table.put_many(again)
    assert sorted(put.existing) == sorted(set(raised.value.ids) - set(raised.value.missing))
    assert table.stats().ready == 20


def test_a_look_shows_the_messages_of_all_shards_in_one_order(orders: ShardedTable, clock: MovableClock) -> None:
    for number in range(8):
        orders.put(str(number), priority=number % 2)
        clock.move("1ms")
    orders.put("later", priority=9, delay=1)
    shown = [one.payload for one in orders.peek()]
    assert shown == ["1", "3", "5", "7", "0", "2", "4", "6", "later"]
    assert [one.payload for one in orders.peek(3)] == shown[:3]
    assert len(orders.receive(9)) == 8


def test_closing_does_not_wait_for_a_shard_whose_claim_takes_long(
    orders: ShardedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.put("a1")
    claimed, goes_on = threading.Event(), threading.Event()
    claim = subscription.receive

    def claim_slowly(*given: Any) -> Any:
        if found := claim(*given):
            claimed.set()
            assert goes_on.wait(60)
        return found

    monkeypatch.setattr(subscription, "receive", claim_slowly)
    monkeypatch.setattr(sharded_subscription, "_ENDS_WITHIN", 0.01)
    deliveries = orders.subscribe()
    assert claimed.wait(60)
    closing = threading.Thread(target=deliveries.close)
    closing.start()
    closing.join(20)
    assert not closing.is_alive()
    goes_on.set()
    until(lambda: orders.stats().in_flight == 0)


@pytest.mark.parametrize("urls", ["files"], indirect=True)
def test_a_message_whose_shard_is_away_when_it_is_taken_comes_again_uncounted(
    orders: ShardedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.put("tea", id=1)
    is_held = Mock(side_effect=[wc.UnavailableError("away"), True])
    monkeypatch.setattr(sharded_subscription._ShardReader, "is_held", is_held)
    with orders.subscribe() as deliveries:
        delivery = deliveries.next_within(10_000_000_000)
        assert delivery is not None
        assert (delivery.id, delivery.epoch) == (1, 1)
        delivery.ack()
