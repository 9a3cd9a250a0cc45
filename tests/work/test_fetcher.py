"""A fetcher claims messages again after its database was away for a moment."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import Mock

import pytest
import sqlalchemy as sa

from waterclock.connection import Database
from waterclock.errors import UnavailableError
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.consumers.discarding import discard
from waterclock.tables.consumers.subscription import TableSubscription
from waterclock.tables.message_table import MessageTable
from waterclock.work.flow.dispatch_queue import DispatchQueue
from waterclock.work.flow.fetcher import Fetcher
from waterclock.work.flow.outcome_writer import OutcomeWriter
from waterclock.work.ground.counts import WorkCounts
from waterclock.work.ground.handlers import Handlers
from waterclock.work.running.calling import Caller


def test_messages_of_an_exclusive_group_that_could_not_be_given_back_come_before_those_behind_them(
    make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(groups="exclusive", ack_wait="1h")
    table.put_many([{"payload": f"a{number}", "group": "a"} for number in range(5)])
    queue, counter = DispatchQueue(1), WorkCounts()
    with table.subscribe(consumer="x") as subscription:
        fetcher = Fetcher(table, Handlers(print), subscription, queue, Mock(), counter, Mock())
        assert fetcher._take(3)
        first = queue.next_now()
        assert first is not None
        dropped = queue.end(first, goes_on=False)
        with monkeypatch.context() as patch:
            patch.setattr(subscription, "give_back", Mock(side_effect=UnavailableError("away")))
            fetcher.give_back(dropped)
        assert counter.now().given_back == 0
        first.delivery.ack()
        queue.recorded([first])
        assert fetcher._take(4)
        order = []
        while one := queue.next_now():
            order.append((one.delivery.payload, one.delivery.epoch))
            queue.end(one, goes_on=True)
    assert order == [("a1", 1), ("a2", 1), ("a3", 1), ("a4", 1)]


class OneSlot:
    """A fetcher with one slot, whose messages are handled when the test says so."""

    def __init__(self, table: MessageTable, subscription: TableSubscription, *kinds: str) -> None:
        self.handled: list[str] = []
        self.first_of_groups: list[str] = []
        self.queue, self.counter = DispatchQueue(1), WorkCounts()
        self._writer = OutcomeWriter(self.queue, self.counter)
        self._caller = Caller(self.queue, self.counter, None, None, lambda: None)
        handlers = Handlers(self._handle) if not kinds else Handlers(dict.fromkeys(kinds, self._handle))
        self.fetcher = Fetcher(table, handlers, subscription, self.queue, self._writer.put, self.counter, Mock())

    def _handle(self, delivery: Delivery) -> None:
        self.handled.append(delivery.payload)
        if delivery.first_for_consumer:
            self.first_of_groups.append(delivery.payload)

    def look_at_first(self) -> None:
        """Check whether the first message is still ours, as after a long wait."""
        lane = next(iter(self.queue._groups.values()))
        discard([lane.waiting[0].delivery], extended=True)

    def handle_all(self) -> None:
        while one := self.queue.next_now():
            self._caller.call(one)
            self._writer._record(one.fetcher, ended := self._writer._next())
            self.queue.recorded([each[0] for each in ended])


@pytest.mark.parametrize("groups", ["sequenced", "exclusive"])
def test_messages_behind_a_lost_one_are_not_handled_before_it(
    make_table: Callable[..., MessageTable], database: Database, groups: str
) -> None:
    table = make_table(groups=groups, ack_wait="1h")
    table.put_many([{"payload": f"a{number}", "group": "a"} for number in range(3)])
    rows = table.context.rows
    with table.subscribe(consumer="x") as subscription:
        worker = OneSlot(table, subscription)
        assert worker.fetcher._take(3)
        with database.begin() as connection:
            connection.execute(sa.update(rows).where(rows.c.id == 1).values(claim_id=None))
        worker.look_at_first()
        worker.handle_all()
        assert (worker.handled, worker.counter.now().lost) == ([], 1)
        table.retry([1])
        assert worker.fetcher._take(3)
        worker.handle_all()
    assert worker.handled == ["a0", "a1", "a2"]


@pytest.mark.parametrize("groups", ["sequenced", "exclusive"])
def test_a_lost_message_that_is_still_leased_goes_back_with_those_behind_it(
    make_table: Callable[..., MessageTable], database: Database, groups: str
) -> None:
    table = make_table(groups=groups, ack_wait="1h", ack_order="lenient")
    table.put_many([{"payload": f"a{number}", "group": "a"} for number in range(3)])
    rows = table.context.rows
    with table.subscribe(consumer="x") as subscription:
        worker = OneSlot(table, subscription)
        assert worker.fetcher._take(3)
        with database.begin() as connection:  # its lease ends earlier than the worker knows
            shorter = rows.c.time_next - 1_000_000_000
            connection.execute(sa.update(rows).where(rows.c.id == 1).values(time_next=shorter))
        worker.look_at_first()
        worker.handle_all()
        assert (worker.handled, worker.counter.now().lost) == ([], 1)
        assert worker.fetcher._take(3)
        worker.handle_all()
    assert worker.handled == ["a0", "a1", "a2"]


@pytest.mark.parametrize("groups", [None, "sequenced", "exclusive"])
def test_messages_that_cannot_be_postponed_go_back(
    make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch, groups: str | None
) -> None:
    table = make_table(groups=groups, ack_wait="1h")
    table.put_many([{"payload": f"a{number}", "group": "a", "headers": {"kind": "new"}} for number in range(3)])
    with table.subscribe(consumer="x") as subscription:
        worker = OneSlot(table, subscription, "known")
        monkeypatch.setattr(Delivery, "snooze", Mock(side_effect=UnavailableError("away")))
        worker.fetcher._take(3)
        assert worker.counter.now().given_back == 3
        again = [(one.payload, one.epoch) for one in subscription.take(3)]
    assert (worker.handled, again) == ([], [("a0", 1), ("a1", 1), ("a2", 1)])


@pytest.mark.parametrize("groups", ["sequenced", "exclusive"])
def test_messages_behind_one_that_is_acked_before_it_is_postponed_come_next(
    make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch, groups: str
) -> None:
    table = make_table(groups=groups, ack_wait="1h")
    table.put("a0", group="a", headers={"kind": "new"})
    table.put_many([{"payload": f"a{number}", "group": "a", "headers": {"kind": "known"}} for number in range(1, 5)])
    snooze = Delivery.snooze

    def acked_first(delivery: Delivery, delay: int) -> None:
        table.ack([1])
        snooze(delivery, delay)

    monkeypatch.setattr(Delivery, "snooze", acked_first)
    with table.subscribe(consumer="x") as subscription:
        worker = OneSlot(table, subscription, "known")
        for _ in range(3):
            worker.fetcher._take(3)
            worker.handle_all()
    assert worker.handled == ["a1", "a2", "a3", "a4"]
    assert worker.first_of_groups == (["a1"] if groups == "exclusive" else [])
