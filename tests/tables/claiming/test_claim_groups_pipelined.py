"""Claims of groups that are one round trip where the database can give what claims step by step would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
import sqlalchemy as sa

from waterclock.connection import Database
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.claiming import claim_groups_pipelined, claiming

POLICIES = pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
NAMES = ["NULL", "null", "a,b", "{x}", '"q"', "\\", "\\n", " ", "ü", "it's", "%s", ":of", "a b", "{}", '""', "'"]


@contextmanager
def steps_counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Count the claims that go step by step."""
    counted: list[int] = []
    in_steps = claiming._claim_in_steps

    def count(context: object, wanted: object) -> object:
        counted.append(1)
        return in_steps(context, wanted)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(claiming, "_claim_in_steps", count)
        yield counted


def put(table: MessageTable, groups: str, **more: int) -> None:
    table.put_many([{"payload": f"{group}{number}", "group": group, **more} for number, group in enumerate(groups)])


def handled(table: MessageTable, limit: int) -> list[str]:
    """Receive and ack until nothing is left."""
    found: list[str] = []
    while deliveries := table.receive(limit, consumer="x"):
        found += [one.payload for one in deliveries]
        table.ack(deliveries)
    return found


@POLICIES
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_names_of_groups_reach_the_next_statement_as_they_are(
    make_table: Callable[..., MessageTable], policy: str
) -> None:
    table = make_table(groups=policy)
    table.put_many([{"payload": name, "group": name} for name in NAMES for _ in range(2)])
    assert [one.group for one in table.receive(100, consumer="x")] == [name for name in NAMES for _ in range(2)]


@POLICIES
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_each_message_comes_once_and_each_group_in_order_for_any_priorities(
    make_table: Callable[..., MessageTable], policy: str, limit: int
) -> None:
    table = make_table(groups=policy)
    for priority in (0, 5, -3, 0):
        put(table, "abcabca" if priority else "defgd", priority=priority)
    found = handled(table, limit)
    assert len(found) == 24
    assert found[:3] == ["a0", "a3", "a6"]  # the highest first
    by_group = {name: [text for text in found if text[0] == name] for name in "abcdefg"}
    assert by_group["a"] == ["a0", "a3", "a6", "a0", "a3", "a6"]
    assert by_group["d"] == ["d0", "d4", "d0", "d4"]


@POLICIES
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_ordinary_messages_are_never_claimed_step_by_step(
    make_table: Callable[..., MessageTable], policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(groups=policy)
    put(table, "a")
    table.ack(table.receive(1, consumer="x"))  # the consumer has joined
    with steps_counted(monkeypatch) as counted:
        for number in range(20):
            put(table, "abcdefghij"[: 1 + number % 10], priority=number % 3)
            deliveries = table.receive(7, consumer="x")
            if number % 4 == 0:
                deliveries[-1].nack(0)
                table.ack(deliveries[:-1])
            else:
                table.ack(deliveries)
        assert handled(table, 7)
    assert not counted


@POLICIES
def test_a_group_that_gives_nothing_is_looked_at_by_the_claim_that_goes_step_by_step(
    make_table: Callable[..., MessageTable], database: Database, policy: str
) -> None:
    table = make_table(groups=policy, max_attempts=1, on_exhausted="dead_letter", dead_letter="dead")
    put(table, "abcab")
    first = table.receive(100, consumer="x")
    assert len(first) == 5
    table.nack([one for one in first if one.group == "b"], 0)
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM orders WHERE group_id = 'c'"))
    table.ack([one for one in first if one.group == "a"])
    put(table, "cab")
    assert sorted(handled(table, 100)) == ["a1", "b2", "c0"]
    assert table.stats().dead == 2


@POLICIES
def test_more_new_messages_than_are_routed_at_once_all_come_in_order(
    make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr("waterclock.tables.groups.routing._AT_ONCE", 3)
    table = make_table(groups=policy)
    for times in (1, 2, 3, 4, 7):
        put(table, "ab" * times)
        found = handled(table, 2)
        assert sorted(found, key=lambda text: int(text[1:])) == [f"{'ab'[n % 2]}{n}" for n in range(2 * times)]
        assert [text for text in found if text[0] == "a"] == [f"a{n}" for n in range(0, 2 * times, 2)]


@POLICIES
@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_new_messages_locked_during_a_claim_come_before_later_ones(
    make_table: Callable[..., MessageTable], database: Database, policy: str
) -> None:
    table = make_table(groups=policy)
    table.put("a0", group="a")
    [first] = table.receive(1, consumer="x")
    with database.backend.engine.connect() as caller:
        first.ack(connection=caller)
        table.put("a1", group="a")
        table.put("b0", group="b", priority=5)
        table.put("c0", group="c")
        assert [one.payload for one in table.receive(2, consumer="x")] == ["b0", "c0"]
        caller.commit()
    table.put("a2", group="a")
    assert [one.payload for one in table.receive(2, consumer="x")] == ["a1", "a2"]


@POLICIES
@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_message_committed_late_comes_before_messages_put_afterwards(
    make_table: Callable[..., MessageTable], database: Database, policy: str
) -> None:
    table = make_table(groups=policy)
    with database.backend.engine.connect() as late:
        table.put("first", group="a", connection=late)
        put(table, "bcdefgh")
        found = [table.receive(1, consumer="x")[0] for _ in range(4)]  # and looks for new messages behind them all
        late.commit()
    table.put("second", group="a")
    table.ack(found)
    assert [text for text in handled(table, 1) if text in ("first", "second")] == ["first", "second"]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_messages_that_are_put_while_a_claim_looks_for_more_keep_their_order(
    make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(groups="sequenced")
    put(table, "aaaaabcdef")
    found = table.receive(5, consumer="x")  # so that the next claim expects as many of one group
    ask, trips = claim_groups_pipelined._ask, count(1)

    def ask_and_put(*given: Any) -> Any:
        seen = ask(*given)
        if next(trips) == 1:
            table.put_many([{"payload": name, "group": "z"} for name in ("z0", "z1")])
        return seen

    monkeypatch.setattr(claim_groups_pipelined, "_ask", ask_and_put)
    found += table.receive(5, consumer="x")
    assert [one.payload[0] for one in found] == [*"aaaaabcdef"]
    assert next(trips) > 2
    table.put("z2", group="z")
    table.ack(found)
    assert handled(table, 1) == ["z0", "z1", "z2"]
