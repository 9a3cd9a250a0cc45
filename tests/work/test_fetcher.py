"""A fetcher claims messages again after its database was away for a moment."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import Mock

import pytest
import sqlalchemy as sa

from waterclock.connection import Database
from waterclock.errors import UnavailableError
from waterclock.tables.consumers.discarding import discard
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


@pytest.mark.parametrize("groups", ["sequenced", "exclusive"])
def test_messages_behind_a_lost_one_are_not_handled_before_it(
    make_table: Callable[..., MessageTable], database: Database, groups: str
) -> None:
    table = make_table(groups=groups, ack_wait="1h")
    table.put_many([{"payload": f"a{number}", "group": "a"} for number in range(3)])
    rows = table.context.rows
    queue, counter, handled = DispatchQueue(1), WorkCounts(), list[str]()
    writer = OutcomeWriter(queue, counter)
    caller = Caller(queue, counter, None, None, lambda: None)
    handlers = Handlers(lambda delivery: handled.append(delivery.payload))

    def handle_all() -> None:
        while one := queue.next_now():
            caller.call(one)
            writer._record(one.fetcher, ended := writer._next())
            queue.recorded([each[0] for each in ended])

    with table.subscribe(consumer="x") as subscription:
        fetcher = Fetcher(table, handlers, subscription, queue, writer.put, counter, Mock())
        assert fetcher._take(3)
        with database.begin() as connection:
            connection.execute(sa.update(rows).where(rows.c.id == 1).values(claim_id=None))
        lane = next(iter(queue._groups.values()))
        discard([lane.waiting[0].delivery], extended=True)
        handle_all()
        assert (handled, counter.now().lost) == ([], 1)
        table.retry([1])
        assert fetcher._take(3)
        handle_all()
    assert handled == ["a0", "a1", "a2"]
