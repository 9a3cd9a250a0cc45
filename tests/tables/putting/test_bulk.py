from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from tests.support.statements import statements_of
from tests.tables.conftest import MovableClock
from tests.tables.received import payloads

from waterclock.connection import Database
from waterclock.errors import InvalidArgumentError
from waterclock.tables.catalogue import table_row
from waterclock.tables.consumers import many_deliveries
from waterclock.tables.message_table import MessageTable

MakeTable = Callable[..., MessageTable]


@pytest.fixture
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_deliveries, "_CHUNK", 3)


pytestmark = pytest.mark.usefixtures("_small_pieces")


def test_many_deliveries_are_given_back_together(orders: MessageTable, clock: MovableClock) -> None:
    orders.put_many([{"payload": str(number)} for number in range(8)])
    deliveries = orders.receive(8)
    deliveries[0].ack()
    orders.ack(2)
    assert orders.nack(deliveries, "5s") == 6
    assert deliveries[1].lost
    assert all(delivery.over or delivery.lost for delivery in deliveries)
    assert orders.stats().delayed == 6
    clock.move("5s")
    assert payloads(orders) == [str(number) for number in range(2, 8)]


@pytest.mark.parametrize("policy", [None, "sequenced", "exclusive"])
def test_many_deliveries_of_several_claims_are_held_together_and_what_is_lost_is_noted(
    make_table: MakeTable, clock: MovableClock, policy: str | None
) -> None:
    table = make_table("calls", payload="text", groups=policy, ack_wait="30s", jitter=0)
    table.put_many([{"payload": "x", "group": f"g{number}"} for number in range(6)])
    held = [*table.receive(2, consumer="a"), *table.receive(4, consumer="a")]
    until = [one.lease_until for one in held]
    table.ack(held[1].id)
    held[2].ack()
    assert table.extend(reversed([*held, held[0]]), "10m") == 4
    assert [one.lost for one in held] == [False, True, False, False, False, False]
    assert all(one.lease_until == clock.now + 600_000_000_000 for one in held[:1] + held[3:])
    assert table.extend(held, "1s") == 4  # never shorter
    assert [one.lease_until > before for one, before in zip(held, until, strict=True)] == [
        True, False, False, True, True, True,
    ]  # fmt: skip
    clock.move("9m")
    assert table.receive(consumer="b") == []
    assert table.extend([], "1h") == 0
    with pytest.raises(InvalidArgumentError, match="deliveries must come from receive or a subscription"):
        table.extend([held[0].id], "1h")  # pyright: ignore[reportArgumentType]  # the error is the point


@pytest.mark.parametrize("groups", ["sequenced", "exclusive"])
def test_in_a_returned_group_the_first_message_backs_off_and_later_ones_count_as_unsent(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch, clock: MovableClock, groups: str
) -> None:
    monkeypatch.setattr(many_deliveries, "_CHUNK", 500)
    table = make_table(groups=groups)
    table.put_many([{"payload": f"{group}{number}", "group": group} for number in range(3) for group in "ab"])
    deliveries = table.receive(6)
    table.ack([one for one in deliveries if one.payload == "a0"])
    assert table.nack(reversed(deliveries), "5s") == 5
    assert not any(one.lost for one in deliveries)  # those behind the first of their group go back with it
    assert table.receive(6) == []
    clock.move("5s")
    again = {(one.payload, one.epoch) for one in table.receive(6)}
    assert again == {("a1", 2), ("a2", 1), ("b0", 2), ("b1", 1), ("b2", 1)}


def test_messages_returned_together_die_only_in_their_last_attempt(
    make_table: MakeTable, database: Database, clock: MovableClock
) -> None:
    table = make_table(max_attempts=2)
    table.put_many([{"payload": name} for name in "abcd"])
    assert table.nack(table.receive(4), "0s") == 4
    table.put_many([{"payload": name} for name in "efg"])
    deliveries = table.receive(7)
    table.ack(2)
    assert table.nack([*deliveries, *deliveries], "5s") == 6
    assert [one.payload for one in deliveries if one.lost] == ["b"]
    assert [one["payload"] for one in table.dead_letters()] == ["d", "c", "a"]
    assert (table.stats().delayed, table.stats().dead, table.stats().acked) == (3, 3, 1)
    clock.move("5s")
    assert [(one.payload, one.epoch) for one in table.receive()] == [("e", 2), ("f", 2), ("g", 2)]
    assert table.redrive() == 3
    assert payloads(table) == ["a", "c", "d"]


def test_a_back_off_is_drawn_for_each_of_those_that_are_given_back_together(
    make_table: MakeTable, database: Database
) -> None:
    table = make_table(jitter=0.5)
    table.put_many([{"payload": str(number)} for number in range(20)])
    table.nack(table.receive(20), "0s")
    assert table.nack(table.receive(20)) == 20
    with database.backend.snapshot() as connection:
        due = set(connection.scalars(sa.text("SELECT time_next FROM orders")))
    assert len(due) == 20


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_hundred_are_given_back_in_as_many_statements_as_ten(
    make_table: MakeTable, database: Database, monkeypatch: pytest.MonkeyPatch, attempts: int
) -> None:
    monkeypatch.setattr(many_deliveries, "_CHUNK", 500)
    monkeypatch.setattr(table_row, "LOOK_EVERY", math.inf)  # looking at the options is a statement, too
    table = make_table(max_attempts=attempts)
    counts: list[int] = []
    for count in (10, 100):
        table.put_many([{"payload": str(number)} for number in range(count)])
        deliveries = table.receive(count)
        with statements_of(database.backend) as seen:
            assert table.nack(deliveries, "1h") == count
        counts.append(len(seen))
    assert counts[0] == counts[1]


def test_returned_messages_without_a_delay_back_off(orders: MessageTable, clock: MovableClock) -> None:
    orders.put("tea")
    assert orders.nack(orders.receive()) == 1
    clock.move("29s")
    assert orders.receive() == []
    clock.move("1s")
    assert payloads(orders) == ["tea"]


def test_all_that_backs_off_is_sent_now_as_if_for_the_first_time(orders: MessageTable, clock: MovableClock) -> None:
    orders.put_many([{"payload": str(number)} for number in range(7)])
    orders.put("later", at=clock.now + 10**12)
    orders.nack(orders.receive(7), "1h")
    out = orders.receive()
    assert out == []
    orders.put("out")
    [out] = orders.receive()
    assert orders.retry() == 7
    again = orders.receive(10)
    assert [(one.payload, one.epoch) for one in again] == [(str(number), 1) for number in range(7)]
    out.ack()
    assert orders.retry() == 0


def test_messages_that_are_named_are_sent_now_for_any_reason_of_their_delay(
    orders: MessageTable, clock: MovableClock
) -> None:
    orders.put_many([{"payload": name, "at": clock.now + 10**12} for name in "abcd"])
    orders.ack(4)
    assert orders.retry([1, 3, 4, 99]) == 2
    assert orders.retry(2) == 1
    assert sorted(payloads(orders)) == ["a", "b", "c"]


def test_total_deliveries_include_those_of_deleted_messages(
    make_table: MakeTable, database: Database, clock: MovableClock
) -> None:
    table = make_table(purge_after="1h", max_attempts=3)
    table.put_many([{"payload": str(number)} for number in range(6)])
    table.nack(table.receive(6), "0s")
    assert table.stats().sent == 6
    table.nack(table.receive(2), "1h")
    assert table.retry() == 2
    assert table.stats().sent == 8
    first, second, *rest = table.receive(6)
    second.dead_letter("why")
    table.ack([first, *rest])
    assert (table.stats().sent, table.stats().dead) == (14, 1)
    assert table.stats().ack_rate == pytest.approx(5 / 60)
    assert table.stats().put_rate == pytest.approx(5 / 60)
    clock.move("3601s")
    assert table.purge() == 5
    assert table.redrive() == 1
    stats = table.stats()
    assert (stats.sent, stats.purged, stats.dead, stats.acked, stats.ready) == (14, 5, 0, 0, 1)
    assert (stats.ack_rate, stats.put_rate) == (0, 0)


def test_puts_of_the_last_minute_are_counted_from_the_newest_on(
    orders: MessageTable, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waterclock.tables.messages.inspecting.stats._FIRST_LOOK", 2)
    orders.put_many([{"payload": "old"} for _ in range(20)])
    clock.move("61s")
    assert orders.stats().put_rate == 0
    orders.put_many([{"payload": "new"} for _ in range(12)])
    assert orders.stats().put_rate == pytest.approx(12 / 60)


def test_a_message_whose_handling_has_not_begun_does_not_count_as_sent(orders: MessageTable) -> None:
    orders.put_many([{"payload": str(number)} for number in range(5)])
    with orders.subscribe(limit=5) as deliveries:
        next(deliveries).ack()
    assert orders.stats().sent == 1


@pytest.mark.parametrize("groups", [None, "sequenced"])
def test_stopping_finishes_running_messages_and_returns_the_rest(make_table: MakeTable, groups: str | None) -> None:
    table = make_table(groups=groups)
    table.put_many([{"payload": str(number), "group": "g"} for number in range(5)])
    handled = []
    with table.subscribe(limit=5) as deliveries:
        for delivery in deliveries:
            with delivery:
                handled.append(delivery.payload)
                if delivery.payload == "1":
                    deliveries.stop()
    assert handled == ["0", "1"]
    assert table.stats().acked == 2
    assert [(one.payload, one.epoch) for one in table.receive()] == [("2", 1), ("3", 1), ("4", 1)]


@pytest.mark.parametrize("column", ["headers", "message", "region"])
def test_a_message_that_cannot_be_read_backs_off_and_the_others_continue(
    make_table: MakeTable, database: Database, clock: MovableClock, column: str
) -> None:
    table = make_table(payload="json", columns={"region": "json"}, max_attempts=2)
    table.put_many([{"payload": number, "headers": {"a": "b"}, "region": 1} for number in range(3)])
    # Only SQLite keeps texts that are no JSON in columns for it.
    if column != "headers" and database.backend.dialect.name != "sqlite":
        return
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE orders SET {column} = '[17' WHERE id = 2"))  # noqa: S608  # ours
    table.ack(table.receive())
    assert table.stats().delayed == 1
    with database.backend.snapshot() as connection:
        said = connection.execute(sa.text("SELECT last_error FROM orders WHERE id = 2")).scalar()
    assert f"the column {column} cannot be read: '[17'" in str(said)
    clock.move("1h")
    assert table.receive() == []
    assert table.explain(2).state == "dead"


def test_invalid_text_backs_off(orders: MessageTable, database: Database) -> None:
    if database.backend.dialect.name == "sqlite":  # the others do not take it
        orders.put_many([{"payload": "a"}, {"payload": "b"}])
        with database.backend.engine.begin() as connection:
            connection.execute(sa.text("UPDATE orders SET message = CAST(x'ff' AS TEXT) WHERE id = 1"))
        assert payloads(orders) == ["b"]
        assert orders.stats().delayed == 1


def test_an_unreadable_message_takes_later_messages_of_its_group_along(
    make_table: MakeTable, database: Database, clock: MovableClock
) -> None:
    table = make_table(groups="sequenced")
    table.put_many([{"payload": str(number), "group": "g", "headers": {"a": "b"}} for number in range(3)])
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text("UPDATE orders SET headers = 'no JSON' WHERE id = 2"))
    [first] = table.receive()
    first.ack()
    assert table.receive() == []
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text("UPDATE orders SET headers = NULL WHERE id = 2"))
    clock.move("1h")
    assert [(one.payload, one.epoch) for one in table.receive()] == [("1", 2), ("2", 1)]
