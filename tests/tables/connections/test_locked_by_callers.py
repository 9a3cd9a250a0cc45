"""Consumers whose messages, or groups, a caller's transaction keeps: often one that the same thread ends only later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.statements import statements_of
from tests.tables.conftest import MovableClock
from tests.tables.connections.callers import wait_until_waiting

from waterclock.connection import Database
from waterclock.database.engines import mariadb, postgresql
from waterclock.database.schema import table_catalogue
from waterclock.errors import TimedOutError
from waterclock.tables.consumers.heartbeats import leaving
from waterclock.tables.databases import table_dialect
from waterclock.tables.message_table import MessageTable

# Where writers take turns, a caller who writes keeps everything.
pytestmark = [
    pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True),
    pytest.mark.parametrize("groups", ["sequenced", "exclusive"]),
]

_SECOND = 1_000_000_000


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "PATIENCE", 0.05)


def _put(table: MessageTable, *names: str) -> None:
    table.put_many([{"payload": name, "group": name[0]} for name in names])


def test_a_subscription_closes_in_the_transaction_that_acks_a_message_of_a_group(
    make_table: Callable[..., MessageTable],
    database: Database,
    groups: str,
    caplog: pytest.LogCaptureFixture,
    clock: MovableClock,
) -> None:
    table = make_table(groups=groups, ack_wait="1h")
    _put(table, "a0", "a1", "a2", "b0")
    with database.backend.engine.begin() as connection, table.subscribe(consumer="x") as subscription:
        next(subscription).ack(connection=connection)
    assert "cannot give back 2 messages of table 'orders', which return when their leases end" in caplog.text
    [other] = table.receive(1, consumer="y")
    assert other.payload == "b0"
    other.ack()
    clock.move("61min")
    assert [one.payload for one in table.receive(consumer="y")] == ["a1", "a2"]


def test_a_subscription_closes_while_plain_sql_keeps_a_message_and_gives_other_groups_back(
    make_table: Callable[..., MessageTable], database: Database, groups: str
) -> None:
    table = make_table(groups=groups, ack_wait="1h")
    _put(table, "a0", "a1", "a2", "b0", "b1")
    rows = sa.table(table.name, sa.column("id"))
    with database.backend.engine.connect() as other, table.subscribe(consumer="x") as subscription:
        assert next(subscription).payload == "a0"
        other.execute(sa.select(rows.c.id).where(rows.c.id == 2).with_for_update())
        subscription.close()
        assert [(one.payload, one.epoch) for one in table.receive(consumer="y")] == [("b0", 1), ("b1", 1)]
        other.rollback()


def test_an_expired_message_behind_an_uncommitted_ack_does_not_stop_other_groups(
    make_table: Callable[..., MessageTable], database: Database, groups: str, clock: MovableClock
) -> None:
    table = make_table(groups=groups, ack_wait="1h")
    _put(table, "a0")
    table.put("a1", group="a", expires_at=clock.now + 10 * _SECOND)
    _put(table, "a2", "b0")
    with table.subscribe(consumer="x") as subscription:
        with database.backend.engine.begin() as connection:
            first = next(subscription)
            assert first.payload == "a0"
            first.ack(connection=connection)
            clock.move("11s")
            other = next(subscription)
            assert other.payload == "b0"
        other.ack()
        last = next(subscription)
        assert last.payload == "a2"
        last.ack()
    assert (table.stats().acked, table.stats().ready) == (3, 0)


def test_giving_back_a_message_locked_by_the_threads_own_transaction_ends(
    make_table: Callable[..., MessageTable],
    connect: Callable[..., Database],
    monkeypatch: pytest.MonkeyPatch,
    groups: str,
) -> None:
    """The thread would wait for itself, and no server knows that: it sees a client that says nothing."""
    table = make_table(groups=groups)
    _put(table, "a0", "a1")
    name = table.name
    monkeypatch.setitem(postgresql._PATIENCE, "lock_timeout", "'100ms'")
    monkeypatch.setattr(mariadb, "_SILENCE", mariadb._SILENCE + ", innodb_lock_wait_timeout = 1")
    database = connect()
    table = database.table(name)
    first, second = table.receive(consumer="x")
    with database.backend.engine.begin() as connection, database.backend.patience(0.1):
        first.ack(connection=connection)
        with pytest.raises(TimedOutError, match="longer than the database allows"):
            second.nack()
    second.nack("0s")
    assert [one.payload for one in table.receive(consumer="x")] == ["a1"]


def test_a_consumer_that_closes_names_so_many_of_its_messages_at_once(
    make_table: Callable[..., MessageTable], database: Database, monkeypatch: pytest.MonkeyPatch, groups: str
) -> None:
    monkeypatch.setattr(table_dialect, "NAMED_AT_ONCE", 4)
    table = make_table(groups=groups, ack_wait="1h")
    names = [f"{letter}{number}" for letter in "abcdefghij" for number in "01"]
    _put(table, *names)
    with table.subscribe(consumer="x", limit=20) as subscription:
        next(subscription)
        with statements_of(database.backend) as seen:
            subscription.close()
    skipping = [text for text, _ in seen if "SKIP LOCKED" in text]
    assert sum("waterclock_groups" in text for text in skipping) >= 3
    assert sum("waterclock_groups" not in text for text in skipping) >= 5
    assert sorted(one.payload for one in table.receive(20, consumer="y")) == names


COMMANDS: dict[str, Callable[[MessageTable], object]] = {
    "pause": lambda table: table.groups.pause("a"),
    "pin": lambda table: table.groups.pin("a", "z"),
    "purge": lambda table: table.groups.purge("a", force=True),
    "release": lambda table: table.groups.release("a", force=True),
    "reroute": lambda table: table.groups.reroute("a", "c", force=True),
    "skip": lambda table: table.groups.skip_head("a", force=True),
}


@contextmanager
def waiting(database: Database, command: Callable[[], object]) -> Generator[None]:
    """Have a command wait for a lock of a caller's, who has to give it up before the block ends."""
    thread = threading.Thread(target=command)
    thread.start()
    try:
        wait_until_waiting(database, 1)
        yield
    finally:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("keeps", "command"),
    [("its group", name) for name in COMMANDS]
    + [("a message", name) for name in COMMANDS if name not in ("pause", "pin")],
)
def test_a_command_that_waits_for_a_callers_lock_does_not_block_new_messages(
    make_table: Callable[..., MessageTable], database: Database, groups: str, keeps: str, command: str
) -> None:
    table = make_table(groups=groups, ack_wait="1h")
    _put(table, "a0", "a1")
    [first] = table.receive(1, consumer="x")
    rows = sa.table(table.name, sa.column("id"))
    with database.backend.engine.connect() as caller:
        if keeps == "a message":
            caller.execute(sa.select(rows.c.id).where(rows.c.id == first.id).with_for_update())
        else:
            first.ack(connection=caller)
        with waiting(database, lambda: COMMANDS[command](table)):
            _put(table, "b0")
            assert [one.payload for one in table.receive(consumer="y")] == ["b0"]
            caller.rollback()


VERBS: dict[str, Callable[[MessageTable, Any], object]] = {
    "ack": lambda table, message: table.ack(message),
    "cancel": lambda table, message: table.cancel(message),
    "reschedule": lambda table, message: table.reschedule(message, 0),
}


@pytest.mark.parametrize("verb", VERBS)
def test_waiting_for_a_locked_new_message_does_not_block_others(
    make_table: Callable[..., MessageTable], database: Database, groups: str, verb: str
) -> None:
    table = make_table(groups=groups)
    message = table.put("a0", group="a")
    with database.backend.engine.connect() as caller:
        table.ack(message, connection=caller)
        with waiting(database, lambda: VERBS[verb](table, message)):
            _put(table, "b0")
            assert [one.payload for one in table.receive(consumer="y")] == ["b0"]
            caller.rollback()


def test_options_are_altered_while_a_caller_keeps_a_group_that_continues_under_them(
    make_table: Callable[..., MessageTable],
    database: Database,
    connect: Callable[..., Database],
    groups: str,
    clock: MovableClock,
) -> None:
    table = make_table(groups=groups, max_attempts=1, on_exhausted="block")
    _put(table, "a0", "a1")
    table.receive(1, consumer="x")[0].nack("0s")
    assert table.receive(consumer="x") == []
    with database.backend.engine.connect() as caller:
        table.ack(1, connection=caller)
        table.alter(max_attempts=None)
        caller.rollback()
    one_that_comes = connect(clock=clock).table(table.name)
    clock.move("1h")
    assert [one.payload for one in one_that_comes.receive(consumer="y")] == ["a0", "a1"]


def test_groups_end_while_plain_sql_has_locked_another_one(
    make_table: Callable[..., MessageTable],
    connect: Callable[..., Database],
    monkeypatch: pytest.MonkeyPatch,
    groups: str,
) -> None:
    """MariaDB scans a small table for a DELETE of most of its rows."""
    make_table(groups=groups)
    monkeypatch.setattr(mariadb, "_SILENCE", mariadb._SILENCE + ", innodb_lock_wait_timeout = 1")
    database = connect()
    table = database.table("orders")
    table.put_many({"payload": "x", "group": name, "closes_group": True} for name in "abcde")
    deliveries = [one for one in table.receive(5) if one.group != "c"]
    key = table_catalogue.groups.c.table_id == table.context.table_id, table_catalogue.groups.c.group_id == "c"
    with database.backend.engine.begin() as connection, database.backend.patience(0.1):
        connection.execute(sa.select(table_catalogue.groups.c.head).where(*key).with_for_update()).all()
        table.ack(deliveries)
    assert [info.group for info in table.groups.list()] == ["c"]
