"""Consumers of one process that wait for the same messages: one of them watches the database for all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from unittest.mock import Mock

import pytest
from tests.tables.conftest import MovableClock

from waterclock._support import moments
from waterclock.connection import Database
from waterclock.tables.catalogue import table_row
from waterclock.tables.consumers import consumer_purge, subscription
from waterclock.tables.consumers.idling import LEADS_FOR, LOOK_EVERY, IdleConsumers, OwnDue
from waterclock.tables.consumers.receiving import Request, seconds_until_own_due
from waterclock.tables.consumers.subscription import TableSubscription
from waterclock.tables.message_table import MessageTable


class Consumer:
    def __init__(self) -> None:
        self.nudge = Mock()


def test_only_the_first_consumer_that_waits_watches_the_database() -> None:
    idle, first, second = IdleConsumers(), Consumer(), Consumer()
    assert idle.leads(first)
    assert not idle.leads(second)
    assert idle.leads(first)


def test_a_leader_that_found_something_wakes_the_next_consumer_and_no_other() -> None:
    idle, first, second, third = IdleConsumers(), Consumer(), Consumer(), Consumer()
    assert [idle.leads(one) for one in (first, second, third)] == [True, False, False]
    idle.pass_on(first)
    second.nudge.assert_called_once()
    third.nudge.assert_not_called()
    assert not idle.leads(first)
    idle.pass_on(second)  # which has found something, too
    third.nudge.assert_called_once()


def test_a_consumer_that_is_closed_or_forgotten_is_not_woken() -> None:
    idle, first, second, third = IdleConsumers(), Consumer(), Consumer(), Consumer()
    assert [idle.leads(one) for one in (first, second, third)] == [True, False, False]
    idle.pass_on(second)
    idle.pass_on(first)
    second.nudge.assert_not_called()
    third.nudge.assert_called_once()


def test_another_consumer_leads_once_the_leader_has_been_silent_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    idle, first, second = IdleConsumers(), Consumer(), Consumer()
    assert idle.leads(first)
    later = moments.monotonic() + LEADS_FOR + 1
    monkeypatch.setattr(moments, "monotonic", lambda: later)
    assert idle.leads(second)
    assert not idle.leads(first)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Stand in for the monotonic clock, in seconds."""
    clock = Mock(return_value=1000.0)
    monkeypatch.setattr(moments, "monotonic", clock)
    return clock


def test_a_sleeper_wakes_only_if_it_has_to_claim_earlier_than_it_knows(now: Mock) -> None:
    idle, leader, a, b = IdleConsumers(), Consumer(), Consumer(), Consumer()
    assert [idle.leads(one) for one in (leader, a, b)] == [True, False, False]
    idle.expect(a, "a", 10)
    idle.expect(b, "b", 10)
    assert idle.to_look_for(changed=True) == {"a", "b"}
    idle.note_due({"a": OwnDue(12, has_room=False), "b": OwnDue(9.99, has_room=False)})
    a.nudge.assert_not_called()
    b.nudge.assert_not_called()
    assert (idle.due_in(a), idle.due_in(b)) == pytest.approx((12, 9.99))
    idle.note_due({"a": OwnDue(3, has_room=False), "b": OwnDue(9.99, has_room=False)})
    a.nudge.assert_called_once()
    b.nudge.assert_not_called()
    assert idle.to_look_for(changed=True) == {"b"}
    now.return_value += 20
    assert idle.due_in(b) == 0


def test_without_a_change_the_leader_looks_for_the_others_once_a_second(now: Mock) -> None:
    idle, leader, other = IdleConsumers(), Consumer(), Consumer()
    assert [idle.leads(one) for one in (leader, other)] == [True, False]
    idle.expect(other, "other", 10)
    assert idle.to_look_for(changed=False)
    assert not idle.to_look_for(changed=False)
    assert idle.to_look_for(changed=True)
    now.return_value += LOOK_EVERY
    assert idle.to_look_for(changed=False)


def test_the_look_finds_what_is_due_in_each_consumers_own_groups(
    make_table: Callable[..., MessageTable], clock: MovableClock
) -> None:
    table = make_table(groups="exclusive")
    with table.subscribe("later") as later, table.subscribe("mixed") as mixed, table.subscribe("none") as none:
        for deliveries, group in ((later, "g"), (mixed, "h"), (mixed, "i")):
            table.put("first", group=group)
            for one in deliveries.take(1):
                one.ack()
        assert none.take(1) == []
        table.put("second", group="g", delay="4s")
        table.put("second", group="h", delay="3s")
        table.put("second", group="i", delay="2s", priority=1)
        assert later.take(1) == []
        names = ["later", "mixed", "none", "gone"]
        found = seconds_until_own_due(table.context, names, Request(None))
        limited = seconds_until_own_due(table.context, names, Request(None, max_groups=1))
    assert 3 < found["later"].seconds <= 4
    assert 1 < found["mixed"].seconds <= 2
    assert found["none"].seconds > 4
    assert found["gone"].seconds == 0
    assert all(one.has_room for one in found.values())
    assert {name: one.seconds for name, one in limited.items()} == pytest.approx(
        {name: one.seconds for name, one in found.items()}, abs=1
    )
    del clock


def test_of_consumers_with_as_many_groups_as_they_may_have_none_has_room(
    make_table: Callable[..., MessageTable],
) -> None:
    table = make_table(groups="exclusive")
    with table.subscribe("full", max_groups=1) as full, table.subscribe("free", max_groups=1) as free:
        table.put("first", group="g")
        assert len(full.take(1)) == 1
        assert free.take(1) == []
        found = seconds_until_own_due(table.context, ["full", "free"], Request(None, max_groups=1))
    assert not found["full"].has_room
    assert found["free"].has_room


def begin_to_sleep(deliveries: TableSubscription) -> threading.Thread:
    sleeping = threading.Thread(target=deliveries.wait, daemon=True)
    sleeping.start()
    until = moments.monotonic() + 10
    while not deliveries._idle.due_in(deliveries):
        assert moments.monotonic() < until
        moments.sleep(0.001)
    return sleeping


def test_a_leader_that_may_get_no_more_groups_hands_the_lead_to_one_that_may(
    make_table: Callable[..., MessageTable],
) -> None:
    table = make_table(groups="exclusive")
    with table.subscribe("full", max_groups=1) as full, table.subscribe("free", max_groups=1) as free:
        table.put("first", group="g")
        for one in full.take(1):
            one.ack()
        assert free.take(1) == []
        assert full._idle.leads(full)
        sleeping = begin_to_sleep(free)
        assert not full._look_for_others()
        sleeping.join(60)
        assert full._idle._leader is free


def test_the_leader_wakes_a_sleeper_for_whose_group_another_process_put_something(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="exclusive")
    with table.subscribe("leader") as leader, table.subscribe("owner") as owner:
        table.put("first", group="g")
        for one in owner.take(1):
            one.ack()
        assert [one.take(1) for one in (leader, owner)] == [[], []]
        assert leader._idle.leads(leader)
        sleeping = begin_to_sleep(owner)
        database.table(table.name).put("second", group="g")
        assert leader.take(1) == []  # which routes it
        assert leader._look_for_others()
        sleeping.join(60)
        assert not sleeping.is_alive()
        assert [one.payload for one in owner.take(1)] == ["second"]


def test_while_nothing_changes_an_idle_subscription_looks_and_does_not_claim(
    make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(poll_interval="4s")
    now, claims = 1000.0, Mock(return_value=[])
    monkeypatch.setattr(moments, "monotonic", lambda: now)
    monkeypatch.setattr(subscription, "receive", claims)
    monkeypatch.setattr(subscription, "pause", lambda *_: (0, False))
    with table.subscribe() as deliveries:
        for _ in range(9):
            deliveries._next()
            now += 1
        assert claims.call_count == 3
        monkeypatch.setattr(subscription, "pause", lambda *_: (0, True))
        for _ in range(2):
            deliveries._next()
        assert claims.call_count == 4


@pytest.mark.parametrize("groups", [None, "sequenced", "exclusive"])
def test_each_of_many_messages_wakes_one_of_many_idle_consumers(
    make_table: Callable[..., MessageTable], groups: str | None
) -> None:
    table = make_table(groups=groups, ack_wait="1h")
    all_taken = threading.Barrier(5)

    def consume() -> None:
        with table.subscribe(limit=1, max_groups=1 if groups == "exclusive" else None) as deliveries:
            for delivery in deliveries:
                all_taken.wait(60)  # so that each message needs a consumer of its own
                delivery.ack()
                deliveries.stop()

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for each in threads:
        each.start()
    table.put_many([{"payload": str(number), "group": f"g{number}"} for number in range(4)])
    all_taken.wait(60)
    for each in threads:
        each.join(60)
    assert not any(each.is_alive() for each in threads)


def test_a_consumer_that_sleeps_gets_a_delayed_message_of_its_own_group_when_it_is_due(
    make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch, clock: MovableClock
) -> None:
    table = make_table(groups="exclusive")
    monkeypatch.setattr(subscription, "LEADS_FOR", 3600.0)  # as if the leader, who has other groups, went on waiting
    monkeypatch.setattr(IdleConsumers, "leads", lambda *_: False)
    with table.subscribe("own") as deliveries:
        table.put("first", group="g")
        next(deliveries).ack()
        table.put("second", group="g", delay="300ms")
        assert deliveries.take(1) == []
        waiting = threading.Thread(target=deliveries.wait, daemon=True)
        waiting.start()
        clock.move("1s")
        waiting.join(60)
        assert not waiting.is_alive()
        (found,) = deliveries.take(1)
        assert found.payload == "second"


def test_of_idle_consumers_one_purges_for_all(
    make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table()
    purge = Mock(return_value=0)
    monkeypatch.setattr(consumer_purge, "purge_some", purge)
    with table.subscribe() as first, table.subscribe() as second:
        for each in (first, second):
            each.take(1)
        purge.reset_mock()
        later = moments.monotonic() + 100
        monkeypatch.setattr(moments, "monotonic", lambda: later)
        for each in (first, second):
            each.take(1)
        purge.assert_called_once()


def test_all_that_have_a_table_open_share_one_look_a_second_at_it(
    database: Database, make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = make_table().name
    handles = [database.table(name) for _ in range(5)]
    backend, looks = handles[0].context.backend, Mock(wraps=handles[0].context.backend.look)
    monkeypatch.setattr(backend, "look", looks)
    later = moments.monotonic() + 2 * table_row.LOOK_EVERY
    monkeypatch.setattr(moments, "monotonic", lambda: later)
    for each in handles:
        assert each.options.batch_size == 10
    looks.assert_called_once()
    handles[0].alter(batch_size=20)
    later += 2 * table_row.LOOK_EVERY
    assert [each.options.batch_size for each in handles] == [20] * 5
