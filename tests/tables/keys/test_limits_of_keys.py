from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.statements import noted
from tests.tables.conftest import MovableClock
from tests.tables.options.plain_sql import catch_up, run
from tests.tables.received import payloads

from waterclock.connection import Database
from waterclock.errors import InvalidArgumentError
from waterclock.tables.catalogue import table_row
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.claiming import claim_keyed

MakeTable = Callable[..., MessageTable]


@pytest.fixture
def limited(make_table: MakeTable) -> MessageTable:
    return make_table(columns={"customer": "text"}, limit={"customer": 2}, batch_size=100)


def _put(table: MessageTable, *names: str, **more: Any) -> None:
    table.put_many([{"payload": name, "customer": name[0], **more} for name in names])


def _rows(database: Database) -> int:
    with database.backend.engine.connect() as connection:
        # PostgreSQL keeps those of keys that have ended for some minutes.
        return connection.execute(
            sa.text("SELECT count(*) FROM waterclock_message_keys WHERE is_due <> 3")
        ).scalar_one()


def test_all_consumers_together_have_no_more_messages_of_a_key_than_its_limit(
    limited: MessageTable, database: Database
) -> None:
    _put(limited, "a0", "a1", "a2", "b0", "a3")
    assert [one.payload for one in limited.receive(3)] == ["a0", "b0", "a1"]
    assert database.table("orders").receive() == []


def test_a_claim_during_which_the_clock_is_set_forward_takes_no_message_twice(
    limited: MessageTable, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = claim_keyed._KeyedClaim._claim

    def claim_and_set_clock(*args: Any) -> None:
        claim(*args)
        clock.move("1h")

    monkeypatch.setattr(claim_keyed._KeyedClaim, "_claim", claim_and_set_clock)
    _put(limited, "a0", "a1", "b0", "a2")
    claimed = limited.receive()
    assert [(one.payload, one.epoch) for one in claimed] == [("a0", 1), ("b0", 1), ("a1", 1)]
    assert limited.ack(claimed) == 3
    assert payloads(limited) == ["a2"]


def test_an_ack_makes_room_for_the_next_message_of_a_key(limited: MessageTable) -> None:
    _put(limited, "a0", "a1", "a2", "a3")
    first, _ = limited.receive()
    first.ack()
    assert payloads(limited) == ["a2"]


def test_a_nack_makes_room_for_the_next_message_of_a_key(limited: MessageTable, clock: MovableClock) -> None:
    _put(limited, "a0", "a1", "a2", "a3")
    first, second = limited.receive()
    first.nack(delay="1min")
    [third] = limited.receive()
    assert third.payload == "a2"
    clock.move("1min")
    second.ack()
    third.ack()
    assert sorted(payloads(limited)) == ["a0", "a3"]


def test_a_message_whose_lease_has_ended_is_sent_again_in_its_own_place(
    limited: MessageTable, clock: MovableClock
) -> None:
    _put(limited, "a0", "a1", "a2")
    limited.receive()
    clock.move("31s")
    assert payloads(limited) == ["a0", "a1"]
    assert limited.receive() == []


def test_a_lease_that_is_extended_after_its_end_is_within_the_limit(limited: MessageTable, clock: MovableClock) -> None:
    _put(limited, "a0", "a1", "a2", "a3")
    first, second = limited.receive()
    clock.move("31s")
    first.extend("1h")
    second.extend("1h")
    assert limited.receive() == []


def test_a_message_of_a_higher_priority_waits_for_a_place_of_its_key(
    limited: MessageTable, clock: MovableClock
) -> None:
    _put(limited, "a0", "a1")
    limited.receive()
    _put(limited, "a2", priority=5)
    clock.move("31s")
    assert payloads(limited) == ["a0", "a1"]


def test_messages_without_a_key_are_not_limited(limited: MessageTable) -> None:
    limited.put_many([{"payload": str(number)} for number in range(5)])
    assert len(limited.receive()) == 5


def test_a_clock_that_was_set_back_changes_no_limit(limited: MessageTable, clock: MovableClock) -> None:
    _put(limited, "a0", "a1", "a2")
    assert len(limited.receive()) == 2
    clock.now -= 3_600_000_000_000
    assert limited.receive() == []


@pytest.mark.parametrize("by", ["group", "kind", "number"])
def test_a_limit_is_by_group_header_or_column(make_table: MakeTable, by: str) -> None:
    table = make_table(limit={by: 1}, columns={"number": "bigint"}, batch_size=10)
    for value in ("1", "1", "2"):
        table.put(value, group=value, headers={"kind": value}, number=int(value))
    assert payloads(table) == ["1", "2"]


def test_headers_that_are_not_json_have_no_key_or_are_refused(
    make_table: MakeTable, database: Database, clock: MovableClock
) -> None:
    table = make_table(limit={"kind": 1})
    insert = "INSERT INTO orders(message, headers) VALUES ('x', 'not JSON')"
    if database.backend.dialect.name == "postgresql":
        with pytest.raises(sa.exc.DatabaseError):
            run(database, insert)
    else:
        run(database, insert)
        catch_up(clock)
        assert table.receive() == []  # the consumer gives back a message that it cannot read
        assert run(database, "UPDATE orders SET epoch = 0 WHERE epoch = 1") == 1


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # the servers refuse such text
@pytest.mark.parametrize("by", ["customer", "kind"])
def test_keys_that_are_not_valid_text_are_refused_or_hold_up_no_other(
    make_table: MakeTable, database: Database, clock: MovableClock, by: str
) -> None:
    table = make_table(columns={"customer": "text"}, limit={by: 1})
    insert = "INSERT INTO orders(message, customer, headers) VALUES (:name, CAST(:key AS TEXT), CAST(:headers AS TEXT))"
    for key in (b"\xff", b"a\xc3", b"\xed\xa0\x80"):
        with pytest.raises(sa.exc.IntegrityError, match="CHECK"):
            run(database, insert, name="x", key=key, headers=b'{"kind": "%s"}' % key)
    for key in ("a", "\ufffd", "ü"):
        run(database, insert, name=key, key=key, headers=f'{{"kind": "{key}"}}')
    run(database, insert, name="x", key=b"\x80", headers=b'{"kind": "\x80"}')
    catch_up(clock)
    assert sorted(payloads(table)) == ["a", "ü", "\ufffd"]
    run(database, "UPDATE orders SET customer = 'b', headers = '{\"kind\": \"b\"}' WHERE message = 'x'")
    assert payloads(table) == ["x"]


def test_messages_by_plain_sql_are_limited_too(limited: MessageTable, database: Database, clock: MovableClock) -> None:
    run(database, "INSERT INTO orders(message, customer) VALUES ('x', 'a'), ('y', 'a'), ('z', 'a')")
    catch_up(clock)
    assert len(limited.receive()) == 2


def test_a_message_that_plain_sql_gives_another_key_is_found(limited: MessageTable, database: Database) -> None:
    _put(limited, "a0", "a1", "a2")
    limited.receive()
    run(database, "UPDATE orders SET customer = 'b', priority = 3 WHERE message = 'a2'")
    assert payloads(limited) == ["a2"]


def test_a_key_that_plain_sql_changes_in_case_or_blanks_only_is_another_key(
    make_table: MakeTable, database: Database
) -> None:
    table = make_table(columns={"customer": sa.String(20)}, limit={"customer": 1})
    _put(table, "a0", "a1", "a2")
    assert payloads(table) == ["a0"]
    run(database, "UPDATE orders SET customer = 'A' WHERE message = 'a1'")
    run(database, "UPDATE orders SET customer = 'a ' WHERE message = 'a2'")
    assert payloads(table) == ["a1", "a2"]


def test_a_message_that_plain_sql_makes_due_earlier_is_found(
    limited: MessageTable, database: Database, clock: MovableClock
) -> None:
    _put(limited, "a0", at=clock.now + 3_600_000_000_000)
    assert limited.receive() == []
    run(database, "UPDATE orders SET time_next = :now", now=clock.now)
    assert payloads(limited) == ["a0"]


def test_an_ack_that_plain_sql_undoes_is_sent_again(
    limited: MessageTable, database: Database, clock: MovableClock
) -> None:
    _put(limited, "a0")
    limited.receive()[0].ack()
    clock.move("1min")
    assert limited.receive() == []
    assert _rows(database) == 0
    run(database, "UPDATE orders SET time_acked = NULL")
    catch_up(clock)
    assert payloads(limited) == ["a0"]


def test_keys_without_messages_leave_no_rows(limited: MessageTable, database: Database, clock: MovableClock) -> None:
    _put(limited, "a0", "b0", "c0")
    for delivery in limited.receive():
        delivery.ack()
    clock.move("1h")
    assert limited.receive() == []
    assert _rows(database) == 0


def test_a_selection_is_limited_too(limited: MessageTable) -> None:
    _put(limited, "a0", "a1", "b0", "a2", "a3")
    with limited.subscribe(where="customer = 'a'", limit=10) as subscription:
        assert {next(subscription).payload, next(subscription).payload} == {"a0", "a1"}
        assert payloads(limited) == ["b0"]


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)  # SQLite's writer keeps everything
def test_a_message_that_a_caller_keeps_holds_up_no_other_of_its_key(limited: MessageTable, database: Database) -> None:
    _put(limited, "a0", "a1", "a2")
    with database.backend.engine.begin() as connection:
        limited.ack([1], connection=connection)
        assert payloads(limited) == ["a1", "a2"]


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_claim_ends_although_a_caller_keeps_the_messages_of_many_keys(
    limited: MessageTable, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_keyed, "_ROUNDS", 2)
    _put(limited, "a0", "b0", "c0", "d0", "e0", "f0")
    assert payloads(limited, 1) == ["a0"]
    with ThreadPoolExecutor(1) as pool, database.backend.engine.begin() as connection:
        limited.ack([2, 3, 4, 5, 6], connection=connection)
        assert pool.submit(limited.receive, 1).result(timeout=20) == []


def test_a_claim_passes_many_keys_that_are_full_of_another_priority(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_keyed, "_ROUNDS", 2)
    table = make_table(columns={"customer": "text"}, limit={"customer": 1})
    keys = "abcdefghij"
    _put(table, *(f"{key}0" for key in keys), priority=5)
    assert len(table.receive(10)) == 10
    _put(table, *(f"{key}1" for key in keys), "z0")
    assert payloads(table, 1) == ["z0"]
    assert table.receive(1) == []


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_message_that_a_caller_keeps_holds_up_no_lower_priority(limited: MessageTable, database: Database) -> None:
    _put(limited, "b0", priority=9)
    _put(limited, "a0", priority=5)
    _put(limited, "a1", "c0")
    assert payloads(limited, 1) == ["b0"]
    with database.backend.engine.begin() as connection:
        limited.ack([2], connection=connection)
        assert sorted(payloads(limited, 1) + payloads(limited, 1)) == ["a1", "c0"]


def test_keys_behind_many_messages_of_one_key_are_found_at_once(limited: MessageTable) -> None:
    _put(limited, *(f"a{number}" for number in range(1_000)))
    _put(limited, "z0")
    assert [one.payload for one in limited.receive(4)] == ["a0", "z0", "a1"]


def test_a_message_explains_which_limit_holds_it(limited: MessageTable) -> None:
    _put(limited, "a0", "a1", "a2")
    limited.receive()
    explanation = limited.explain(3)
    assert explanation.state == "limit"
    assert explanation.reason == "is due, but it is held by the limit of key 'a': consumers have 2 of its messages"


def test_a_limit_can_change(limited: MessageTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_row, "LOOK_EVERY", 0)
    _put(limited, "a0", "a1", "a2", "a3")
    limited.receive()
    limited.alter(limit={"customer": 3})
    assert payloads(limited) == ["a2"]
    limited.alter(limit={"customer": 1})
    assert limited.receive() == []


def test_a_lowered_limit_holds_for_messages_whose_lease_has_ended(
    limited: MessageTable, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_row, "LOOK_EVERY", 0)
    _put(limited, "a0", "a1", "b0", "b1")
    assert len(limited.receive()) == 4
    limited.alter(limit={"customer": 1})
    clock.move("31s")
    assert sorted(payloads(limited, 3)) == ["a0", "b0"]
    assert limited.receive() == []


def test_concurrent_consumers_stay_within_the_limit(limited: MessageTable, database: Database) -> None:
    _put(limited, *(f"{key}{number}" for key in "abc" for number in range(20)))
    lock = threading.Lock()
    held: Counter[str] = Counter()
    too_many: list[str] = []
    done: list[int] = []

    def consume(_: int) -> None:
        table = database.table("orders")
        while len(done) < 60:
            for delivery in table.receive(2):
                _count(delivery, held, lock, too_many)
                with lock:
                    held[str(delivery.columns["customer"])] -= 1
                    done.append(delivery.id)
                delivery.ack()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(consume, range(4)))
    assert not too_many
    assert sorted(done) == list(range(1, 61))


def _count(delivery: Delivery, held: Counter[str], lock: threading.Lock, too_many: list[str]) -> None:
    key = str(delivery.columns["customer"])
    with lock:
        held[key] += 1
        if held[key] > 2:
            too_many.append(key)


class _BrokenOff(BaseException):
    """Ends a claim as a kill would: no further statement is sent, and the connection is closed."""


def test_a_claim_that_is_broken_off_at_any_statement_keeps_the_limit_and_loses_nothing(
    limited: MessageTable, database: Database, clock: MovableClock
) -> None:
    _put(limited, "a0", "a1", "a2")
    limited.receive(1)
    _put(limited, "a3", "b0", "b1", "b2")
    leased = sa.text("SELECT count(*) FROM orders WHERE claim_id IS NOT NULL GROUP BY customer")
    broken_off = 0
    for statements in count():
        left = iter(range(statements))

        def break_off(*_: Any, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise _BrokenOff

        try:
            with noted(database.backend, break_off):
                limited.receive()
            break
        except _BrokenOff:
            broken_off += 1
            with database.backend.engine.connect() as connection:
                assert max(connection.scalars(leased)) <= 2
    assert broken_off > 3
    clock.move("31s")
    for names in ({"a0", "a1", "b0", "b1"}, {"a2", "a3", "b2"}, set[str]()):
        claimed = limited.receive()
        assert {one.payload for one in claimed} == names
        limited.ack(claimed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": {"customer": 0}}, "limit: the limit of 'customer' must be an integer from 1"),
        ({"limit": {}}, "limit must be a dict with one key and its limit, got {}"),
        ({"limit": 3}, "limit must be a dict with one key and its limit, got 3"),
        ({"limit": {"a b": 1}}, "limit must be 'group' or the name of a column or header"),
        ({"fair_by": ""}, "fair_by must be 'group' or the name of a column or header"),
        ({"limit": {"a": 1}, "fair_by": "b"}, "fair_by must name the key 'a', as limit does, got 'b'"),
        ({"limit": {"a": 1}, "groups": "sequenced"}, "limit must be omitted with groups='sequenced'"),
        ({"fair_by": "a", "groups": "exclusive"}, "fair_by must be omitted with groups='exclusive'"),
        ({"fair_by": "a", "purge_by": "partition"}, "fair_by must be omitted with purge_by='partition'"),
        ({"fair_by": "priority"}, "limit, rate and fair_by must not name the column 'priority'"),
        ({"fair_by": "x", "columns": {"x": "json"}}, "limit, rate and fair_by must name a column of texts, integers"),
        ({"fair_by": "x", "adopt": True}, "fair_by must be omitted for an adopted table"),
    ],
)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_invalid_limits_are_refused_by_name(make_table: MakeTable, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        make_table(**options)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_key_of_a_table_cannot_change(limited: MessageTable) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^limit must keep the key '"):
        limited.alter(limit={"kind": 3})
    with pytest.raises(InvalidArgumentError, match=r"^limit must keep the key 'customer'"):
        limited.alter(limit={"kind": 3}, rate=None)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_table_created_without_keys_gets_none(make_table: MakeTable) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^limit must be None in a table without keys, got {'kind': 3}\. "):
        make_table().alter(limit={"kind": 3})


def test_keys_still_take_turns_after_their_limit_is_lifted(limited: MessageTable) -> None:
    _put(limited, "a0", "a1", "a2", "b0")
    assert len(limited.receive(100)) == 3
    limited.alter(limit=None)
    _put(limited, "a3", "b1")
    assert [one.payload for one in limited.receive(2)] in (["a2", "b1"], ["b1", "a2"])
    limited.alter(limit={"customer": 1}, weights={"a": 2})
    assert limited.receive(100) == []
    limited.alter(limit=None)
    assert [one.payload for one in limited.receive(100)] == ["a3"]


@pytest.mark.parametrize("lifted", ["limit", "rate"])
def test_a_low_priority_is_served_after_the_limit_of_its_key_is_lifted(
    make_table: MakeTable, database: Database, clock: MovableClock, lifted: str
) -> None:
    table = make_table(columns={"customer": "text"}, **{lifted: {"customer": 1_000}}, batch_size=100)
    _put(table, "a0", "b0", priority=-1)
    _put(table, "a5", priority=5)
    _put(table, *(["c0"] * 50))
    table.ack(table.receive(2))
    assert table.receive(1, where="customer = 'a' AND priority = 5") == []  # so this row has a later turn
    table.alter(**{lifted: None})  # pyright: ignore[reportArgumentType]  # the name of an option
    _put(table, "a6", priority=5)
    other = database.table("orders")
    claimed = [delivery.payload for _ in range(6) for delivery in other.receive(1)]
    assert {"a0", "a6", "b0"} <= set(claimed)


def test_a_priority_without_due_messages_takes_no_place_of_its_key(limited: MessageTable) -> None:
    _put(limited, "a0")
    _put(limited, "a1", priority=5)
    assert [one.payload for one in limited.receive(1)] == ["a1"]
    assert payloads(limited) == ["a0"]


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_claim_leaves_a_key_while_another_claim_has_a_row_of_it(limited: MessageTable, database: Database) -> None:
    _put(limited, "a0", "b0")
    _put(limited, "a1", priority=5)
    assert [one.payload for one in limited.receive(1)] == ["a1"]
    other = "SELECT * FROM waterclock_message_keys WHERE message_key = 'a' AND level = -5 FOR UPDATE"
    with database.backend.engine.begin() as connection:
        assert len(connection.execute(sa.text(other)).all()) == 1
        assert payloads(limited, 1) == ["b0"]
    assert payloads(limited) == ["a0"]
