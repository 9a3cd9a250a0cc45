"""Consumers of one process that wait for the same messages: one of them watches the database for all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from waterclock._support import moments
from waterclock.connection import Database
from waterclock.tables.catalogue import table_row
from waterclock.tables.consumers import subscription
from waterclock.tables.consumers.idling import LEADS_FOR, LOOK_EVERY, IdleConsumers
from waterclock.tables.consumers.receiving import seconds_until_own_due
from waterclock.tables.message_table import MessageTable

from .conftest import MovableClock


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


def test_where_only_each_consumer_knows_what_is_for_it_all_wake() -> None:
    idle, first, second, third = IdleConsumers(), Consumer(), Consumer(), Consumer()
    assert [idle.leads(one) for one in (first, second, third)] == [True, False, False]
    idle.pass_on(first, to_all=True)
    second.nudge.assert_called_once()
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


def test_one_look_in_a_second_tells_all_that_sleep_when_their_own_groups_are_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = moments.monotonic()
    monkeypatch.setattr(moments, "monotonic", lambda: now)
    idle, look = IdleConsumers(), Mock(side_effect=lambda names: dict.fromkeys(names, 10.0))
    assert [idle.due_in(name, look) for name in ("a", "b", "a", "b")] == [10.0] * 4
    assert [call.args[0] for call in look.call_args_list] == [["a"], ["b"]]
    now += LOOK_EVERY
    assert [idle.due_in(name, look) for name in ("a", "b")] == [10.0, 10.0]
    assert look.call_args.args[0] == ["a", "b"]
    assert look.call_count == 3
    now += LEADS_FOR + 1
    idle.due_in("a", look)
    assert look.call_args.args[0] == ["a"]


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
        table.put("second", group="h", delay="4s")
        table.put("second", group="i", delay="4s", priority=1)
        assert later.take(1) == []
        found = seconds_until_own_due(table.context, ["later", "mixed", "none", "gone"])
    assert 0 < (found["later"] or 0) <= 4
    assert found["mixed"] is None
    assert (found["none"] or 0) > 4
    assert found["gone"] == 0
    del clock


def test_a_leader_for_which_nothing_changed_wakes_no_other_consumer(
    make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(groups="exclusive")
    passed_on = Mock()
    with table.subscribe("own") as deliveries:
        monkeypatch.setattr(IdleConsumers, "pass_on", passed_on)
        for changed in (False, True):
            monkeypatch.setattr(subscription, "pause", lambda *_, changed=changed: (0, changed))
            deliveries.wait()
            passed_on.reset_mock()
            deliveries.take(1)
            assert passed_on.called == changed


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
        waiting = threading.Thread(target=lambda: [deliveries.wait() for _ in range(3)], daemon=True)
        waiting.start()
        waiting.join(60)
        assert not waiting.is_alive()
        clock.move("1s")
        (found,) = deliveries.take(1)
        assert found.payload == "second"


def test_of_idle_consumers_one_purges_for_all(
    make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table()
    purge = Mock(return_value=0)
    monkeypatch.setattr(subscription, "purge_some", purge)
    with table.subscribe() as first, table.subscribe() as second:
        for each in (first, second):
            each.take(1)
        purge.reset_mock()
        later = moments.monotonic() + 10
        monkeypatch.setattr(moments, "monotonic", lambda: later)
        for each in (first, second):
            each.take(1)
        purge.assert_called_once()


def test_all_who_have_a_table_open_share_one_look_a_second_at_it(
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
