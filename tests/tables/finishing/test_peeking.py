from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tables.conftest import MovableClock

from waterclock.errors import InvalidArgumentError
from waterclock.tables.message_table import MessageTable

_SECOND = 1_000_000_000


def payloads(found: list[Any]) -> list[Any]:
    return [one.payload for one in found]


def test_a_look_takes_nothing_and_writes_nothing(orders: MessageTable) -> None:
    orders.put("one", headers={"of": "a"}, priority=3)
    [seen] = orders.peek()
    assert (seen.id, seen.payload, seen.headers, seen.priority) == (1, "one", {"of": "a"}, 3)
    assert (seen.epoch, seen.group, seen.problem, seen.due_at) == (0, None, None, seen.time_scheduled)
    assert orders.peek() == [seen]
    [delivery] = orders.receive()
    assert delivery.epoch == 1


def test_due_messages_come_by_priority_and_then_later_ones(orders: MessageTable, clock: MovableClock) -> None:
    orders.put("in a minute", at=clock.now + 60 * _SECOND, priority=9)
    orders.put("in a second", at=clock.now + _SECOND)
    orders.put("second")
    orders.put("first", priority=1)
    assert payloads(orders.peek()) == ["first", "second", "in a second", "in a minute"]
    assert payloads(orders.peek(3)) == ["first", "second", "in a second"]


def test_leased_messages_are_left_out_until_their_lease_ends(orders: MessageTable, clock: MovableClock) -> None:
    orders.put_many([{"payload": "one"}, {"payload": "two"}])
    orders.receive(1)
    assert payloads(orders.peek()) == ["two"]
    clock.move("31s")
    assert payloads(orders.peek()) == ["two", "one"]
    orders.ack([1, 2])
    assert orders.peek() == []


def test_exhausted_messages_are_left_out(make_table: Callable[..., MessageTable], clock: MovableClock) -> None:
    table = make_table(max_attempts=1)
    table.put("one")
    table.receive()
    clock.move("31s")
    assert table.peek() == []


@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
def test_a_group_is_shown_in_its_order_before_and_after_consumers_know_it(
    make_table: Callable[..., MessageTable], policy: str
) -> None:
    table = make_table(groups=policy)
    table.put_many([{"payload": f"{group}{n}", "group": group} for n in range(2) for group in "ab"])
    assert payloads(table.peek()) == ["a0", "a1", "b0", "b1"]
    assert payloads(table.peek(group="b")) == ["b0", "b1"]
    [delivery] = table.receive(1)
    table.put("a2", group="a")
    assert payloads(table.peek(group="a")) == ["a1", "a2"]
    delivery.nack("0s")
    assert payloads(table.peek(group="a")) == ["a0", "a1", "a2"]
    assert table.peek(group="c") == []


def test_messages_without_a_group_are_one_group_or_stand_alone(make_table: Callable[..., MessageTable]) -> None:
    one, free = make_table("one", groups="sequenced"), make_table("free", groups="sequenced", ungrouped="free")
    for table in (one, free):
        table.put_many([{"payload": "x"}, {"payload": "a", "group": "a"}, {"payload": "y", "priority": 1}])
    assert payloads(one.peek()) == ["x", "y", "a"]
    assert payloads(free.peek()) == ["y", "x", "a"]
    for table in (one, free):
        assert sorted(payloads(table.peek(group=""))) == ["x", "y"]
        [first] = table.receive(1)
        assert first.payload not in payloads(table.peek())
        assert len(table.peek()) == 2


def test_a_group_that_waits_comes_behind_those_that_do_not(sequenced: MessageTable, clock: MovableClock) -> None:
    sequenced.put("later", group="a", at=clock.now + _SECOND, priority=9)
    sequenced.put("behind it", group="a")
    sequenced.put("now", group="b")
    assert payloads(sequenced.peek()) == ["now", "later", "behind it"]
    sequenced.receive()
    assert payloads(sequenced.peek()) == ["later", "behind it"]


@pytest.mark.parametrize("policy", [None, "sequenced", "exclusive"])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_peek_shows_the_messages_that_a_consumer_then_gets(
    make_table: Callable[..., MessageTable], clock: MovableClock, policy: str | None, data: st.DataObject
) -> None:
    table = make_table("looked_at", groups=policy, exist_ok=True)
    for chunk in range(2):
        for number in range(data.draw(st.integers(0, 6))):
            group = data.draw(st.sampled_from("abc"))
            table.put(f"{chunk}.{number}", group=group, priority=data.draw(st.integers(0, 2)))
            clock.move("1us")
        shown = payloads(table.peek(20))
        got: list[str] = []
        while next_one := table.peek(1):
            deliveries = table.receive(1)
            if policy != "exclusive":  # there the consumer's own groups come first
                assert payloads(deliveries) == payloads(next_one)
            got += payloads(deliveries)
            table.ack(deliveries)
        assert not table.receive()
        assert sorted(got) == sorted(shown)
        if policy is None:
            assert got == shown


def test_a_payload_that_cannot_be_read_is_shown_as_a_problem(make_table: Callable[..., MessageTable]) -> None:
    table = make_table(payload="bytes")
    table.put_many([{"payload": b"one"}, {"payload": b"two"}])
    with table.context.backend.engine.begin() as connection:
        connection.execute(sa.text("UPDATE orders SET headers = 'no object' WHERE id = 1"))
    broken, whole = table.peek()
    assert (broken.payload, broken.headers, "headers" in str(broken.problem)) == (b"one", {}, True)
    assert (whole.payload, whole.problem) == (b"two", None)


@pytest.mark.one_database
@pytest.mark.parametrize("wrong", [{"limit": 0}, {"limit": None}, {"limit": "3"}, {"group": "a"}, {"group": 7}])
def test_an_invalid_look_is_refused(orders: MessageTable, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
        orders.peek(**wrong)


def test_names_of_groups_differ_by_their_bytes(sequenced: MessageTable) -> None:
    groups = ("A", "a", "a ", "ä", "'; --", "%")
    sequenced.put_many([{"payload": group, "group": group} for group in groups])
    for _ in range(2):
        assert [payloads(sequenced.peek(group=group)) for group in groups] == [[group] for group in groups]
        sequenced.receive(1)[0].nack("0s")  # now consumers know them


def test_an_ack_that_is_held_back_waits_for_no_consumer(make_table: Callable[..., MessageTable]) -> None:
    table = make_table(groups="exclusive", ack_order="hold")
    table.put_many([{"payload": str(number), "group": "a"} for number in range(4)])
    first, second = table.receive(2)
    second.ack()
    assert payloads(table.peek()) == ["2", "3"]
    first.nack("0s")
    assert payloads(table.peek()) == ["0", "2", "3"]


def test_a_look_waits_for_no_lock_and_a_pause_changes_nothing(sequenced: MessageTable) -> None:
    sequenced.put_many([{"payload": str(number), "group": "a"} for number in range(3)])
    sequenced.receive(1)[0].nack("0s")
    sequenced.groups.pause("a")
    sequenced.pause()
    with sequenced.context.backend.engine.begin() as other:
        other.execute(sa.text("UPDATE orders SET last_error = 'x'"))
        other.execute(sa.text("UPDATE waterclock_groups SET tail = tail"))
        assert payloads(sequenced.peek()) == ["0", "1", "2"]


def test_messages_that_plain_sql_puts_moves_and_deletes_are_shown_as_they_are(
    sequenced: MessageTable, clock: MovableClock
) -> None:
    engine = sequenced.context.backend.engine
    with engine.begin() as plain:
        plain.execute(sa.text("INSERT INTO orders (message, group_id) VALUES ('x', 'a'), ('y', ''), ('z', NULL)"))
    clock.move("1m")  # plain SQL reads the real one
    assert payloads(sequenced.peek()) == ["x", "y", "z"]
    assert payloads(sequenced.receive(1)) == ["x"]
    with engine.begin() as plain:
        plain.execute(sa.text("UPDATE orders SET group_id = 'q' WHERE message = 'z'"))
    assert payloads(sequenced.peek(group="q")) == ["z"]
    with engine.begin() as plain:
        plain.execute(sa.text("DELETE FROM orders WHERE message = 'z'"))
    assert payloads(sequenced.peek()) == ["y"]


@pytest.mark.parametrize("groups", [None, "sequenced"])
@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_table_with_partitions_shows_what_waits(make_table: Callable[..., MessageTable], groups: str | None) -> None:
    table = make_table(purge_by="partition", groups=groups)
    table.put_many([{"payload": str(number), "group": "a"} for number in range(4)])
    table.ack(table.receive(1))
    assert payloads(table.peek()) == ["1", "2", "3"]
