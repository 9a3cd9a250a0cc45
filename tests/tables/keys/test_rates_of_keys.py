from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from tests.tables.conftest import MovableClock
from tests.tables.options.plain_sql import catch_up, run
from tests.tables.received import payloads

from waterclock.connection import Database
from waterclock.errors import InvalidArgumentError
from waterclock.tables.catalogue import table_row
from waterclock.tables.keys.turn_search import next_turns
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.claiming import claim_keyed
from waterclock.tables.messages.claiming.claiming import next_due

MakeTable = Callable[..., MessageTable]
_HOUR = 3_600_000_000_000


@pytest.fixture
def paced(make_table: MakeTable) -> MessageTable:
    return make_table(columns={"customer": "text"}, rate={"customer": "1/s"}, batch_size=100)


def _put(table: MessageTable, *names: str, **more: Any) -> None:
    table.put_many([{"payload": name, "customer": name[0], **more} for name in names])


def _rows(database: Database) -> int:
    with database.backend.engine.connect() as connection:
        # PostgreSQL keeps those of keys that have ended for some minutes.
        return connection.execute(
            sa.text("SELECT count(*) FROM waterclock_message_keys WHERE is_due <> 3")
        ).scalar_one()


def test_each_key_has_its_rate_over_all_consumers(paced: MessageTable, database: Database, clock: MovableClock) -> None:
    _put(paced, "a0", "a1", "a2", "b0")
    assert payloads(paced) == ["a0", "b0"]
    assert payloads(database.table("orders")) == []
    clock.move("999ms")
    assert payloads(paced) == []
    clock.move("1ms")
    assert payloads(database.table("orders")) == ["a1"]


def test_a_burst_is_a_tenth_of_a_second(make_table: MakeTable, clock: MovableClock) -> None:
    table = make_table(columns={"customer": "text"}, rate={"customer": 50}, batch_size=100)
    _put(table, *(f"a{number}" for number in range(20)))
    assert len(payloads(table)) == 5
    clock.move("20ms")
    assert len(payloads(table)) == 1


def test_a_key_whose_messages_are_gone_still_has_its_rate(
    paced: MessageTable, database: Database, clock: MovableClock
) -> None:
    _put(paced, "a0")
    paced.receive()[0].ack()
    assert payloads(paced) == []
    _put(paced, "a1")
    assert payloads(paced) == []
    clock.move("1s")
    [delivery] = paced.receive()
    delivery.ack()
    clock.move("1min")  # until the end of the lease that the key had
    assert payloads(paced) == []
    assert _rows(database) == 0  # nothing of an idle key stays


def test_priorities_of_a_key_share_its_rate(paced: MessageTable, clock: MovableClock) -> None:
    _put(paced, "a0")
    assert payloads(paced) == ["a0"]
    _put(paced, "a1", priority=5)
    _put(paced, "a2", priority=9)
    assert payloads(paced) == []
    clock.move("1s")
    assert payloads(paced) == ["a2"]
    clock.move("1s")
    assert payloads(paced) == ["a1"]


def test_messages_that_are_sent_again_count(paced: MessageTable, clock: MovableClock) -> None:
    _put(paced, "a0", "a1")
    paced.receive()[0].nack(delay="0s")
    assert payloads(paced) == []
    clock.move("1s")
    assert len(payloads(paced)) == 1


def test_messages_that_expired_do_not_count(paced: MessageTable, clock: MovableClock) -> None:
    _put(paced, "a0", expires_at=clock.now + 1)
    _put(paced, "a1")
    clock.move("1ms")
    assert payloads(paced) == ["a1"]


def test_messages_without_a_key_have_no_rate(paced: MessageTable) -> None:
    paced.put_many([{"payload": str(number)} for number in range(5)])
    assert len(paced.receive()) == 5


def test_a_selection_has_the_same_rate_and_finds_keys_behind_paused_ones(
    paced: MessageTable, clock: MovableClock
) -> None:
    _put(paced, "a0", "a1", "b0")
    with paced.subscribe(where="customer = 'a'", limit=10) as subscription:
        assert next(subscription).payload == "a0"
        assert payloads(paced) == ["b0"]
        clock.move("1s")
        assert next(subscription).payload == "a1"


def test_a_clock_that_was_set_back_sends_no_more_and_stops_nothing(paced: MessageTable, clock: MovableClock) -> None:
    _put(paced, "a0", "a1", "a2", at=clock.now - 2 * _HOUR)
    assert payloads(paced) == ["a0"]
    assert payloads(paced) == []
    clock.now -= _HOUR
    assert payloads(paced) == []
    clock.move("1s")
    assert payloads(paced) == ["a1"]
    assert payloads(paced) == []
    clock.now += _HOUR
    assert payloads(paced) == ["a2"]


def test_a_paused_key_wakes_its_consumers_when_it_may_send_again(paced: MessageTable, clock: MovableClock) -> None:
    _put(paced, *(f"a{number}" for number in range(101)))
    assert payloads(paced) == ["a0"]
    while payloads(paced):
        pass
    context = paced.context
    with context.backend.snapshot() as connection:
        assert next_due(context, connection) == (clock.now + 1_000_000_000, clock.now)


def test_a_rate_and_a_limit_hold_together(make_table: MakeTable, clock: MovableClock) -> None:
    table = make_table(columns={"customer": "text"}, rate={"customer": "1/s"}, limit={"customer": 2}, batch_size=10)
    _put(table, "a0", "a1", "a2", "a3")
    first = table.receive()
    clock.move("1s")
    assert len(first) == len(table.receive()) == 1
    clock.move("1s")
    assert payloads(table) == []
    first[0].ack()
    assert payloads(table) == ["a2"]
    assert table.explain(4).state == "key_rate"
    clock.move("1s")
    assert table.explain(4).state == "limit"
    clock.move("1min")  # the leases have ended: each message again, at the rate
    assert payloads(table) == ["a1"]
    assert payloads(table) == []


def test_a_message_explains_which_rate_it_waits_for(paced: MessageTable, clock: MovableClock) -> None:
    _put(paced, "a0", "a1")
    paced.receive()
    explanation = paced.explain(2)
    assert explanation.state == "key_rate"
    assert explanation.due_at == clock.now + 1_000_000_000
    assert explanation.reason.startswith("is due, but it waits for the rate of customer='a' until ")


@pytest.mark.parametrize(("before", "after"), [("1/h", "1/s"), ("1/h", None)])
def test_a_rate_that_is_raised_or_removed_lets_waiting_messages_go(
    make_table: MakeTable, clock: MovableClock, monkeypatch: pytest.MonkeyPatch, before: str, after: str | None
) -> None:
    monkeypatch.setattr(table_row, "LOOK_EVERY", 0)
    table = make_table(columns={"customer": "text"}, fair_by="customer", rate={"customer": before})
    _put(table, "a0", "a1", "a2")
    assert payloads(table) == ["a0"]
    assert payloads(table) == []
    table.alter(rate=None if after is None else {"customer": after})
    if after is not None:
        assert payloads(table) == []
        clock.move("1s")
    assert payloads(table) == (["a1", "a2"] if after is None else ["a1"])


def test_a_rate_holds_for_keys_that_plain_sql_writes(
    make_table: MakeTable, database: Database, clock: MovableClock
) -> None:
    table = make_table(rate={"kind": "5/m"})
    for kind in ("ü'\"\\", "%s", "{x}", "\U0001f600" * 300, "{x}", "%s"):
        table.put(kind, headers={"kind": kind})
    run(database, "INSERT INTO orders(message, headers) VALUES ('z', '{\"kind\": \"{x}\"}')")
    catch_up(clock)
    assert len(table.receive(10)) == 4
    clock.move("12.001s")
    assert len(table.receive(10)) == 2


def test_concurrent_consumers_send_exactly_the_rate(
    paced: MessageTable, database: Database, clock: MovableClock
) -> None:
    _put(paced, *(f"{key}{number}" for key in "abc" for number in range(6)))
    tables = [database.table("orders") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            found = [one for some in pool.map(lambda table: payloads(table) + payloads(table), tables) for one in some]
            found += payloads(paced)
            assert sorted(str(one)[0] for one in found) == ["a", "b", "c"]
            clock.move("1s")


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)  # SQLite's claims never overlap
def test_a_slow_claim_counts_what_others_sent_meanwhile(
    make_table: MakeTable, database: Database, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(columns={"customer": "text"}, rate={"customer": "20/s"}, batch_size=100)
    _put(table, *(f"a{number}" for number in range(9)))
    assert payloads(table, 1) == ["a0"]
    sent: list[object] = []

    def look_late(*arguments: Any, others: bool) -> Any:
        monkeypatch.setattr(claim_keyed, "next_turns", next_turns)
        clock.move("1s")
        sent.extend(payloads(database.table("orders"), 1))
        return next_turns(*arguments, others=others)

    monkeypatch.setattr(claim_keyed, "next_turns", look_late)
    sent += payloads(table, 1)
    sent += payloads(table)
    assert sent == ["a1", "a2"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"rate": {"customer": 0}},
            "rate: the rate of 'customer' must be 1e-06 to 1e+09 messages per second, as a number or",
        ),
        ({"rate": {"customer": "10"}}, "rate: the rate of 'customer' must be "),
        ({"rate": {"customer": "1/w"}}, "rate: the rate of 'customer' must be "),
        ({"rate": {"customer": "0/s"}}, "rate: the rate of 'customer' must be "),
        ({"rate": {"customer": True}}, "rate: the rate of 'customer' must be "),
        ({"rate": {"customer": float("nan")}}, "rate: the rate of 'customer' must be "),
        ({"rate": {"customer": 10**400}}, "rate: the rate of 'customer' must be "),
        ({"rate": "10/s"}, "rate must be a dict with one key and its rate, got '10/s'"),
        ({"rate": {"a b": 1}}, "rate must be 'group' or the name of a column or header"),
        ({"rate": {"a": 1}, "limit": {"b": 1}}, "rate must name the key 'b', as limit does, got 'a'"),
        ({"rate": {"a": 1}, "fair_by": "b"}, "fair_by must name the key 'a', as rate does, got 'b'"),
        ({"rate": {"a": 1}, "groups": "exclusive"}, "rate must be omitted with groups='exclusive'"),
        ({"rate": {"a": 1}, "adopt": True}, "rate must be omitted for an adopted table, got {'a': '1/s'}"),
    ],
)
def test_invalid_rates_are_refused_by_name(make_table: MakeTable, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        make_table(**options)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_rate_of_a_table_keeps_its_key(paced: MessageTable) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^rate must keep the key '"):
        paced.alter(rate={"kind": 3})


@pytest.mark.both_servers
@pytest.mark.parametrize("option", ["rate", "fair_by"])
def test_a_rate_holds_after_the_row_of_another_priority_was_deleted(
    make_table: MakeTable, clock: MovableClock, option: str
) -> None:
    table = make_table(
        columns={"customer": "text"}, rate={"customer": "2/h"}, fair_by="customer" if option == "fair_by" else None
    )
    _put(table, "a0", priority=5)
    table.ack(table.receive())
    clock.move("31min")
    assert table.receive() == []  # on PostgreSQL, the row of this priority has ended, and stays for some minutes
    _put(table, "a1")
    [second] = table.receive()
    second.ack()
    clock.move("6min")
    table.context.ended_rows._due_at = 0
    assert table.receive() == []
    _put(table, "a2", priority=5)
    assert table.receive() == []
    clock.move("25min")
    assert payloads(table) == ["a2"]
