"""A subscription that is closed while one of its threads claims."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.killed import Interrupted, interrupted_at_each_point
from tests.tables.grouped import lease_until, put
from tests.tables.kinds import KINDS

from waterclock.connection import Database
from waterclock.database.schema.table_catalogue import heartbeats
from waterclock.tables.catalogue import table_row
from waterclock.tables.consumers import subscription
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.consumers.idling import IdleConsumers
from waterclock.tables.consumers.subscription import TableSubscription
from waterclock.tables.databases.postgresql.listening_connection import ListeningConnection
from waterclock.tables.databases.sqlite.waking import SqliteChanges
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.rows.process_heartbeat import Lately, ProcessHeartbeat

Consume = Callable[[TableSubscription], Sequence[Delivery]]
WAYS: dict[str, Consume] = {"iterating": list, "taking": lambda deliveries: deliveries.take(10)}


@pytest.fixture(params=WAYS)
def consume(request: pytest.FixtureRequest) -> Consume:
    return WAYS[request.param]


class Claims:
    """Calls a function after each claim, before the subscription gets the claimed messages."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.then: Callable[[], object] = lambda: None
        claim = subscription.receive

        def receive(*given: Any) -> list[Delivery]:
            found = claim(*given)
            self.then()
            return found

        monkeypatch.setattr(subscription, "receive", receive)


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> Claims:
    return Claims(monkeypatch)


def assert_nothing_stays(table: MessageTable, database: Database) -> None:
    assert lease_until(database, "x") is None
    again = table.receive(10, consumer="y")
    assert [(one.payload, one.epoch) for one in again] == [("a1", 1), ("a2", 1)]


def close_during_claim(
    deliveries: TableSubscription, claims: Claims, consume: Consume, until: Callable[[], bool]
) -> None:
    """Close the subscription while another thread claims; the claim ends once the condition is true."""
    claimed, goes_on = threading.Event(), threading.Event()

    def stay() -> None:
        claimed.set()
        assert goes_on.wait(60)

    claims.then = stay
    received: list[Delivery] = []
    consumer = threading.Thread(target=lambda: received.extend(consume(deliveries)))
    closer = threading.Thread(target=deliveries.close)
    consumer.start()
    assert claimed.wait(60)
    closer.start()
    while not until():
        closer.join(0.01)
    goes_on.set()
    for thread in (consumer, closer):
        thread.join(60)
        assert not thread.is_alive()
    claims.then = lambda: None
    assert received == []


def test_closing_during_a_claim_of_another_thread_returns_what_it_takes(
    make_table: Callable[..., MessageTable], database: Database, kind: dict[str, Any], claims: Claims, consume: Consume
) -> None:
    table = make_table(**kind)
    put(table, "a1", "a2")
    deliveries = table.subscribe(consumer="x", limit=10)
    close_during_claim(deliveries, claims, consume, lambda: deliveries._closed)
    assert_nothing_stays(table, database)


def test_a_claim_that_outlasts_closing_is_returned_when_it_ends(
    exclusive: MessageTable,
    database: Database,
    claims: Claims,
    consume: Consume,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscription, "PATIENCE", 0.01)
    monkeypatch.setattr(subscription, "_CLAIM_ENDS_WITHIN", 0.01)
    put(exclusive, "a1", "a2")
    deliveries = exclusive.subscribe(consumer="x", limit=10)
    close_during_claim(deliveries, claims, consume, lambda: deliveries._leaves_late)
    assert_nothing_stays(exclusive, database)


def test_a_signal_handler_may_close_during_a_claim_of_its_thread(
    make_table: Callable[..., MessageTable], database: Database, kind: dict[str, Any], claims: Claims, consume: Consume
) -> None:
    table = make_table(**kind)
    put(table, "a1", "a2")
    deliveries = table.subscribe(consumer="x", limit=10)

    def close_twice() -> None:
        deliveries.close()
        deliveries.close()

    claims.then = close_twice
    assert list(consume(deliveries)) == []
    claims.then = lambda: None
    assert_nothing_stays(table, database)


def test_closing_ends_a_claim_that_an_exception_interrupted(
    exclusive: MessageTable, database: Database, claims: Claims, consume: Consume
) -> None:
    put(exclusive, "a1", "a2")

    def interrupt() -> None:
        deliveries.close()
        raise KeyboardInterrupt

    claims.then = interrupt
    with closing(exclusive.subscribe(consumer="x", limit=10)) as deliveries, pytest.raises(KeyboardInterrupt):
        consume(deliveries)
    claims.then = lambda: None
    assert lease_until(database, "x") is None
    assert [one.payload for one in exclusive.receive(10, consumer="y")] == ["a1", "a2"]


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_a_handler_may_close_its_subscription(
    make_table: Callable[..., MessageTable], database: Database, options: dict[str, Any]
) -> None:
    table = make_table(**options)
    put(table, "a1", "a2", "a3")
    received: list[str] = []
    deliveries = table.subscribe(consumer="x", limit=10)
    for delivery in deliveries:
        received.append(delivery.payload)
        delivery.ack()
        deliveries.close()
    assert received == ["a1"]
    assert lease_until(database, "x") is None
    assert [one.payload for one in table.receive(10, consumer="y")] == ["a2", "a3"]


def ends(call: Callable[[], object]) -> bool:
    """Call a function in another thread; return whether it returns."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(20)
    return not thread.is_alive()


def before(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, handler: Callable[[], object]) -> None:
    """Run a signal handler once, before a method."""
    method, handlers = getattr(owner, name), [handler]

    def interrupted(*given: Any, **named: Any) -> Any:
        while handlers:
            handlers.pop()()
        return method(*given, **named)

    monkeypatch.setattr(owner, name, interrupted)


@pytest.mark.parametrize("by", ["subscribe", "close"])
def test_a_signal_handler_may_close_a_subscription_while_its_thread_opens_or_closes_another_one(
    make_table: Callable[..., MessageTable], database: Database, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    table = make_table()
    deliveries = table.subscribe(consumer="x")
    other = table.subscribe(consumer="y")
    before(monkeypatch, ProcessHeartbeat, "_write", deliveries.close)
    assert ends(other.close if by == "close" else lambda: table.subscribe(consumer="z").close())
    other.close()
    assert table.stats().subscribers == 0
    with database.backend.snapshot() as connection:
        assert connection.execute(sa.select(heartbeats.c.subscribers)).all() == []


@pytest.mark.parametrize(
    ("database_url", "owner", "name"),
    [
        ("sqlite", Lately, "note"),
        ("sqlite", IdleConsumers, "_forget"),
        ("sqlite", SqliteChanges, "_changed"),
        ("postgresql", ListeningConnection, "_try_to_arm"),
        ("postgresql", ListeningConnection, "_run"),
    ],
    indirect=["database_url"],
)
def test_a_signal_handler_may_close_a_subscription_that_waits_or_counts(
    make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    table = make_table()
    table.put("a1")
    deliveries = table.subscribe(consumer="x")
    received: list[str] = []

    def consume() -> None:
        before(monkeypatch, owner, name, deliveries.close)
        for delivery in deliveries:
            received.append(delivery.payload)
            delivery.ack()

    assert ends(consume)
    assert received + [one.payload for one in table.receive(10, consumer="y")] == ["a1"]


def test_a_signal_handler_may_put_while_its_thread_reads_the_table_again(
    make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table()
    monkeypatch.setattr(table_row, "LOOK_EVERY", 0)
    before(monkeypatch, type(table.context.sql), "columns_and_row", lambda: table.put("a2"))
    assert ends(lambda: table.put("a1"))
    assert [one.payload for one in table.receive(10)] == ["a2", "a1"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_subscription_works_after_a_signal_handler_raised_an_exception_at_any_point(
    make_table: Callable[..., MessageTable],
) -> None:
    table = make_table()
    names = {"_in_use", "holding", "acquire", "__enter__", "__exit__"}
    files = ("subscription.py", "moments.py", "contextlib.py")
    deliveries = table.subscribe(consumer="x")

    def poll_until_not_interrupted() -> None:
        points = list(interrupted_at_each_point(deliveries.poll, files, names))
        assert len(points) > 10

    assert ends(poll_until_not_interrupted)
    assert ends(deliveries.close)


ENDING = """
import sys
import waterclock

table = waterclock.connect(sys.argv[1]).table("orders")

def payloads():
    with table.subscribe() as deliveries:
        for delivery in deliveries:
            yield delivery.payload

iterator = payloads()
print(next(iterator))
"""
"""A program whose interpreter closes the subscription when it ends."""


def test_a_program_ends_whose_subscription_the_ending_interpreter_closes(
    make_table: Callable[..., MessageTable], database_url: str
) -> None:
    table = make_table()
    put(table, "a1", "a2")
    done = subprocess.run(
        [sys.executable, "-c", ENDING, database_url], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "a1\n"
    assert table.stats().subscribers == 0


def test_closing_again_after_an_interrupt_returns_the_messages(
    make_table: Callable[..., MessageTable],
    database: Database,
    kind: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = make_table(**kind)
    put(table, "a1", "a2")
    deliveries = table.subscribe(consumer="x", limit=10)
    deliveries.put_back(next(deliveries))

    def interrupt() -> None:
        deliveries.close()
        raise Interrupted

    before(monkeypatch, ProcessHeartbeat, "_write", interrupt)
    with pytest.raises(Interrupted):
        deliveries.close()
    deliveries.close()
    assert_nothing_stays(table, database)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_closing_again_returns_the_messages_after_an_interrupt_at_any_point(
    make_table: Callable[..., MessageTable], database: Database, kind: dict[str, Any]
) -> None:
    table = make_table(**kind)
    files = ("subscription.py", "leaving.py", "backend.py")
    names = ("_leave", "_give_back", "_write_back", "leaving", "leave_behind", "transact", "_run", "_run_once")
    put(table, "a1", "a2")

    def claimed() -> TableSubscription:
        deliveries = table.subscribe(consumer="x")
        found = deliveries.take(10)
        assert [one.payload for one in found] == ["a1", "a2"]
        for one in reversed(found):
            deliveries.put_back(one)
        return deliveries

    def close() -> None:
        deliveries.close()

    deliveries = claimed()
    points = 0
    for _ in interrupted_at_each_point(close, files, names):
        points += 1
        deliveries.close()
        assert lease_until(database, "x") is None
        deliveries = claimed()
    assert points > 10
