from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import event
from tests.support.moments import ReadFrom
from tests.tables.conftest import MovableClock

from waterclock._support import moments
from waterclock.connection import Database
from waterclock.errors import InvalidArgumentError
from waterclock.tables.catalogue import table_row
from waterclock.tables.consumers.receiving import Request
from waterclock.tables.consumers.subscription import TableSubscription
from waterclock.tables.databases.changes import Stop
from waterclock.tables.message_table import MessageTable
from waterclock.tables.model.timing.rate import Rate

MakeTable = Callable[..., MessageTable]


def test_all_consumers_together_get_no_more_than_the_rate(
    make_table: MakeTable, database: Database, clock: MovableClock
) -> None:
    make_table(rate_limit=50, groups=None).put_many([{"payload": "x"} for _ in range(100)])
    consumers = [database.table("orders") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        at_once = list(pool.map(lambda table: len(table.receive(10)), consumers))
    assert sum(at_once) == 5  # a tenth of a second's
    clock.move("1m")
    assert sum(len(table.receive(10)) for table in consumers) == 5
    clock.move("40ms")
    assert sum(len(table.receive(10)) for table in consumers) == 2


def test_messages_that_a_claim_missed_are_not_lost(make_table: MakeTable, clock: MovableClock) -> None:
    table = make_table(rate_limit=50)
    table.put("tea")
    assert len(table.receive(10)) == 1
    table.put_many([{"payload": "x"} for _ in range(100)])
    assert len(table.receive(10)) == 4


def test_a_clock_that_was_set_back_does_not_stop_a_table_with_a_rate(
    make_table: MakeTable, clock: MovableClock
) -> None:
    table = make_table(rate_limit=50)
    table.put_many([{"payload": "x", "at": clock.now - 7_200_000_000_000} for _ in range(10)])
    assert len(table.receive(10)) == 5
    clock.now -= 3_600_000_000_000
    assert table.receive(10) == []
    clock.move("40ms")
    assert len(table.receive(10)) == 2


def test_groups_are_limited_too(make_table: MakeTable) -> None:
    table = make_table(rate_limit=20, groups="sequenced")
    table.put_many([{"payload": str(number), "group": "g"} for number in range(5)])
    assert [one.payload for one in table.receive(10)] == ["0", "1"]


def test_a_message_that_the_rate_holds_back_says_so(make_table: MakeTable, clock: MovableClock) -> None:
    table = make_table(rate_limit=10)
    table.put_many([{"payload": "a"}, {"payload": "b"}])
    table.receive(1)
    explanation = table.explain(2)
    assert explanation.state == "rate"
    assert explanation.due_at == clock.now + 100_000_000
    clock.move("100ms")
    assert table.explain(2).state == "ready"


def test_a_message_of_a_paused_table_says_so(orders: MessageTable, clock: MovableClock) -> None:
    orders.put("tea")
    orders.pause()
    assert "paused until it is resumed" in orders.explain(1).reason
    orders.pause(until=clock.now + 5)
    assert orders.explain(1).due_at == clock.now + 5


def test_a_rate_that_is_changed_counts_at_once(
    make_table: MakeTable, database: Database, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_row, "LOOK_EVERY", 0)
    table = make_table(rate_limit=0.001)
    table.put_many([{"payload": "x"} for _ in range(10)])
    assert len(table.receive()) == 1
    assert table.receive() == []
    database.table("orders").alter(rate_limit=20)
    assert len(table.receive()) == 2
    database.table("orders").alter(rate_limit=None)
    assert len(table.receive()) == 7


def test_a_consumer_sleeps_until_the_rate_lets_it(
    make_table: MakeTable, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(rate_limit=10)
    table.put_many([{"payload": "x"} for _ in range(3)])
    slept: list[float] = []

    def sleep(_stop: Stop, seconds: float, *_descriptors: int) -> bool:
        slept.append(seconds)
        clock.move(int(seconds * 1_000_000_000) + 1)
        return False

    with table.subscribe() as deliveries:
        monkeypatch.setattr(Stop, "wait", sleep)
        for _ in range(3):
            next(deliveries).ack()
        monkeypatch.undo()
    assert slept == [pytest.approx(0.1), pytest.approx(0.1)]


def test_a_subscriber_can_limit_itself(orders: MessageTable) -> None:
    orders.put_many([{"payload": "x"} for _ in range(10)])
    now = [0]
    slept: list[float] = []

    class Sleep(Stop):
        def wait(self, seconds: float, *_descriptors: int) -> bool:
            slept.append(seconds)
            now[0] += int(seconds * 1_000_000_000) + 1
            return False

    context = orders._context
    changes = context.sql.changes(context.backend, "orders")
    request = Request("me")
    with moments.replaced(ReadFrom(lambda: now[0])):
        deliveries = TableSubscription(orders._row, orders._callers, changes, request, 10, rate=Rate.of(20))
    deliveries._stop = Sleep()
    with moments.replaced(ReadFrom(lambda: now[0])), deliveries:
        for _ in range(4):
            next(deliveries).ack()
    assert slept == [pytest.approx(0.05), pytest.approx(0.05)]
    assert orders.stats().acked == 4


@pytest.mark.one_database
@pytest.mark.parametrize("rate", [0, -1, True, "5", float("nan"), float("inf"), 1e-7])
def test_an_invalid_rate_is_refused(make_table: MakeTable, rate: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^rate_limit must be a number of messages per second"):
        make_table(rate_limit=rate)
    table = make_table()
    with pytest.raises(InvalidArgumentError, match=r"^rate_limit must be a number of messages per second"):
        table.subscribe(rate_limit=rate)  # type: ignore[arg-type]


def test_tables_without_a_rate_do_not_pay_for_it(orders: MessageTable) -> None:
    orders.put("tea")
    statements: list[str] = []

    @event.listens_for(orders._context.backend.engine, "before_cursor_execute")
    def _note(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        statements.append(statement)

    assert len(orders.receive()) == 1
    assert not [statement for statement in statements if "waterclock_table_totals" in statement]
