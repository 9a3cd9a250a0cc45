"""Answers that got lost: the statement went through, and the connection broke before we heard so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import sqlalchemy as sa
from sqlalchemy import event, exc
from tests.tables.conftest import MovableClock
from tests.tables.connections.callers import wait_until_waiting

from waterclock._support import moments
from waterclock.connection import Database
from waterclock.database.driver_fast_path import DirectConnection, PipelinedConnection
from waterclock.errors import LeaseLostError, UnavailableError
from waterclock.tables.consumers import receiving
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.claiming import claiming
from waterclock.tables.messages.claiming.claim_groups_pipelined import claim_pipelined

pytestmark = pytest.mark.both_servers


@contextmanager
def losing_the_answer_to(
    database: Database, verb: str, meanwhile: Callable[[], object] = lambda: None
) -> Generator[list[str]]:
    """Commit what the next statement with this verb did, and then behave as if the server were gone."""
    lost: list[str] = []
    engine = database.backend.engine

    def break_off(connection: sa.Connection, cursor: Any, statement: str, *_: Any) -> None:
        if verb in statement and not lost:
            lost.append(statement)
            connection.connection.driver_connection.commit()
            meanwhile()
            raise exc.OperationalError(statement, None, _gone(database), connection_invalidated=True)

    translated = DirectConnection._translated

    def execute_and_break_off(self: DirectConnection, execute: Any, *given: Any) -> Any:
        text = next(one for one in given if isinstance(one, str))
        result = translated(self, execute, *given)
        if verb in text and not lost:
            lost.append(text)
            if (
                database.backend.dialect.name == "sqlite"
            ):  # in whose transactions it is a statement that met another one
                result.fetchall()
            meanwhile()
            raise exc.OperationalError(text, None, _gone(database), connection_invalidated=True)
        return result

    event.listen(engine, "after_cursor_execute", break_off)
    DirectConnection._translated = execute_and_break_off
    try:
        yield lost
    finally:
        DirectConnection._translated = translated
        event.remove(engine, "after_cursor_execute", break_off)


def _gone(database: Database) -> Exception:
    error = database.backend.engine.dialect.loaded_dbapi.OperationalError(2013, "lost connection")
    if database.backend.dialect.name == "sqlite":
        error.sqlite_errorcode = 5  # a busy commit is the nearest that an embedded database has
    return error


def test_an_ack_with_a_lost_answer_keeps_the_lease(orders: MessageTable, database: Database) -> None:
    orders.put("tea")
    [delivery] = orders.receive()
    with losing_the_answer_to(database, "UPDATE") as lost:
        delivery.ack()
    assert lost
    assert orders.stats().acked == 1


def test_an_ack_of_many_claims_whose_answer_was_lost_is_not_a_lost_lease(
    orders: MessageTable, database: Database
) -> None:
    orders.put_many([{"payload": str(number)} for number in range(4)])
    deliveries = orders.receive(2) + orders.receive(2)
    with losing_the_answer_to(database, "UPDATE") as lost:
        assert orders.ack(deliveries) == 4
    assert lost
    assert orders.stats().acked == 4


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_in_a_table_with_partitions_too_an_ack_is_distinguished_from_another_consumers(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(purge_by="partition", id_type="text")
    table.put_many([{"payload": name, "id": name} for name in "abcd"])
    first, *others = table.receive(2) + table.receive(2)
    table.ack("a")
    with losing_the_answer_to(database, "UPDATE") as lost, pytest.raises(LeaseLostError, match="'a'"):
        table.ack([first, *others])
    assert lost
    assert [one.lost for one in (first, *others)] == [True, False, False, False]
    assert table.stats().acked == 4


# An embedded database answers, or its process is gone and with it the consumer.
@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_claim_whose_answer_was_lost_is_a_lease_that_runs_out(
    orders: MessageTable, database: Database, clock: MovableClock
) -> None:
    orders.put("tea")
    with losing_the_answer_to(database, "epoch=") as lost:
        assert orders.receive() == []
    assert lost
    clock.move("30s")
    assert [(delivery.payload, delivery.epoch) for delivery in orders.receive()] == [("tea", 2)]


def test_a_put_whose_answer_was_lost_puts_one_message(orders: MessageTable, database: Database) -> None:
    for _ in range(3):  # also where ids were drawn ahead
        with losing_the_answer_to(database, "INSERT INTO") as lost:
            orders.put("tea")
        assert lost
    assert [delivery.id for delivery in orders.receive()] == [1, 2, 3]


def test_many_puts_whose_answer_was_lost_put_each_message_once(orders: MessageTable, database: Database) -> None:
    with losing_the_answer_to(database, "INSERT INTO") as lost:
        orders.put_many([{"payload": str(number)} for number in range(5)])
    assert lost
    assert [delivery.payload for delivery in orders.receive()] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("is_acked", [False, True])
@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_put_into_partitions_whose_answer_was_lost_puts_each_message_once_even_if_it_was_acked_since(
    make_table: Callable[..., MessageTable], database: Database, count: int, is_acked: bool
) -> None:
    table = make_table(purge_by="partition")
    rows = [{"payload": str(number)} for number in range(count)]
    with losing_the_answer_to(database, "INSERT INTO", lambda: table.ack(1) if is_acked else None) as lost:
        assert table.put_many(rows) == list(range(1, count + 1))
    assert lost
    assert (table.stats().ready, table.stats().acked) == (count - is_acked, int(is_acked))


@pytest.mark.parametrize("groups", [None, "sequenced", "exclusive"])
@pytest.mark.parametrize("by_another_consumer", ["ack", "reschedule"])
def test_a_message_that_another_consumer_acked_or_rescheduled_is_a_lost_lease(
    make_table: Callable[..., MessageTable], clock: MovableClock, by_another_consumer: str, groups: str | None
) -> None:
    orders = make_table(groups=groups)
    orders.put("tea")
    [delivery] = orders.receive(consumer="x")
    if by_another_consumer == "ack":
        orders.ack(delivery.id)
    else:
        orders.reschedule(delivery.id, clock.now)
    with pytest.raises(LeaseLostError):
        delivery.ack()


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_messages_of_a_lost_exclusive_claim_come_before_later_ones(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="exclusive")
    table.put_many([{"payload": name, "group": "a"} for name in ("a0", "a1", "a2")])
    table.receive(1, consumer="x")[0].ack()
    with losing_the_answer_to_a_commit_after(database, "epoch=") as lost:
        first = table.receive(1, consumer="x")
    assert lost
    rest = table.receive(2, consumer="x")
    assert [(one.payload, one.epoch) for one in (*first, *rest)] == [("a1", 1), ("a2", 1)]
    assert table.ack([*first, *rest]) == 2


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_claim_that_is_tried_again_does_not_wait_for_a_message_that_it_took_and_plain_sql_has_locked(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="exclusive")
    table.put_many([{"payload": name, "group": "a"} for name in ("a0", "a1", "a2")])
    table.receive(1, consumer="x")[0].ack()
    rows = sa.table(table.name, sa.column("id"))
    with database.backend.engine.connect() as other:

        def lock() -> None:
            other.execute(sa.select(rows.c.id).where(rows.c.id == 2).with_for_update())

        with losing_the_answer_to_a_commit_after(database, "epoch=", lock) as lost:
            first = table.receive(1, consumer="x")
        assert lost
        other.rollback()
    assert [(one.payload, one.epoch) for one in first] == [("a1", 1)]
    first[0].ack()


@pytest.mark.parametrize("options", [{}, {"rate_limit": 1000}], ids=["at any rate", "at a rate"])
@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_messages_of_a_failed_claim_come_with_the_next_claim(
    make_table: Callable[..., MessageTable], database: Database, options: dict[str, Any]
) -> None:
    table = make_table(groups="exclusive", **options)
    table.put_many([{"payload": name, "group": "a"} for name in ("a0", "a1", "a2")])
    table.receive(1, consumer="x")[0].ack()
    with (
        database.backend.patience(0),
        losing_the_answer_to_a_commit_after(database, "epoch=") as lost,
        pytest.raises(UnavailableError),
    ):
        table.receive(1, consumer="x")
    assert lost
    taken = [one for _ in range(2) for one in table.receive(1, consumer="x")]
    assert [(one.payload, one.epoch) for one in taken] == [("a1", 1), ("a2", 1)]
    assert table.ack(taken) == 2


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_messages_of_a_claim_whose_lease_has_ended_are_due_again(
    make_table: Callable[..., MessageTable], database: Database, clock: MovableClock
) -> None:
    table = make_table(groups="exclusive", ack_wait="30s")
    table.put_many([{"payload": name, "group": "a"} for name in ("a0", "a1", "a2")])
    table.receive(1, consumer="x")[0].ack()
    with (
        database.backend.patience(0),
        losing_the_answer_to_a_commit_after(database, "epoch="),
        pytest.raises(UnavailableError),
    ):
        table.receive(1, consumer="x")
    clock.move("31s")
    assert [(one.payload, one.epoch) for one in table.receive(consumer="x")] == [("a1", 2), ("a2", 1)]


def test_messages_of_an_interrupted_claim_come_with_the_next_claim(
    make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(groups="exclusive")
    table.put_many([{"payload": name, "group": "a"} for name in ("a0", "a1", "a2")])
    table.receive(1, consumer="x")[0].ack()
    with monkeypatch.context() as patch:
        patch.setattr(receiving, "hand_over", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            table.receive(1, consumer="x")
    taken = [one for _ in range(2) for one in table.receive(1, consumer="x")]
    assert [(one.payload, one.epoch) for one in taken] == [("a1", 1), ("a2", 1)]
    assert table.ack(taken) == 2


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_messages_of_a_claim_whose_second_transaction_failed_come_with_the_next_claim_and_beat_immediately(
    make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(groups="exclusive", ack_wait="10000d")  # longer than any machine runs, whose clock begins at 0
    table.put_many([{"payload": name, "group": "a"} for name in ("signs in", "a0", "a1", "a2")])
    table.receive(1, consumer="x")[0].ack()
    in_steps = claiming._claim_in_steps

    def take_one(context: Any, wanted: Any) -> Any:
        claimed, _ = claim_pipelined(context, replace(wanted, limit=1))
        return claimed, True

    def fail_after(*given: Any) -> Any:
        in_steps(*given)
        raise UnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(claiming, "claim_pipelined", take_one)
        patch.setattr(claiming, "_claim_in_steps", fail_after)
        first = table.receive(2, consumer="x")
    rest = [table.receive(1, consumer="x"), table.receive(1, consumer="x")]
    assert [one.payload for one in (*first, *rest[0], *rest[1])] == ["a0", "a1", "a2"]
    assert rest[0][0].beat_at <= moments.monotonic_ns() < rest[1][0].beat_at
    assert table.ack([*first, *rest[0], *rest[1]]) == 3


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("is_under_way", [True, False], ids=["under way", "not begun"])
def test_messages_of_an_abandoned_claim_come_before_later_ones(
    make_table: Callable[..., MessageTable], database: Database, is_under_way: bool
) -> None:
    table = make_table(groups="exclusive")
    table.put_many([{"payload": f"a{number}", "group": "a"} for number in range(5)])
    table.receive(1, consumer="x")[0].ack()
    with giving_up_a_claim(database, is_under_way=is_under_way) as server:
        if is_under_way:
            thread = threading.Thread(target=lambda: (wait_until_waiting(database, 1), server.go_on()))
            thread.start()
        taken = table.receive(1, consumer="x")
        if is_under_way:
            thread.join()
        else:
            server.go_on()
    taken += [one for _ in range(3) for one in table.receive(1, consumer="x")]
    assert [(one.payload, one.epoch) for one in taken] == [("a1", 1), ("a2", 1), ("a3", 1), ("a4", 1)]
    assert table.ack(taken) == 4


class _Server:
    """Goes on with a transaction that its client has given up."""

    def __init__(self, database: Database) -> None:
        self._connection = database.backend.driver_connection("use")
        self._connection.autocommit = True
        self.go_on: Callable[[], object] = lambda: None

    def take_over(self, given_up: PipelinedConnection, sent: Any, *, is_under_way: bool) -> None:
        statements = [*given_up._ahead, *sent]
        given_up._ahead.clear()
        mine = PipelinedConnection(self._connection, given_up.dialect, given_up._frame)
        mine._ahead.clear()
        first = statements[:-1] if is_under_way else []
        if first:
            mine._exchange(first)
        self.go_on = lambda: (mine._exchange(statements[len(first) :]), self._connection.close())


@contextmanager
def giving_up_a_claim(database: Database, *, is_under_way: bool) -> Generator[_Server]:
    """Let the consumer of the next claim hear that the server is gone, which goes on with it later."""
    server = _Server(database)
    exchange = PipelinedConnection._exchange
    has_given_up: list[PipelinedConnection] = []

    def give_up_or_exchange(self: PipelinedConnection, sent: Any) -> Any:
        if has_given_up or not any("epoch=" in text for text, _ in sent):
            return exchange(self, sent)
        has_given_up.append(self)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PipelinedConnection, "_exchange", exchange)
            server.take_over(self, sent, is_under_way=is_under_way)
        raise exc.OperationalError("COMMIT", None, _gone(database), connection_invalidated=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PipelinedConnection, "_exchange", give_up_or_exchange)
        yield server
    assert has_given_up


@contextmanager
def losing_the_answer_to_a_commit_after(
    database: Database, change: str, meanwhile: Callable[[], object] = lambda: None
) -> Generator[list[str]]:
    """Let the transaction of the next statement with ``change`` commit, and then behave as if the server were gone."""
    seen: list[str] = []
    lost: list[str] = []
    dialect, translated, exchange = (
        database.backend.engine.dialect,
        DirectConnection._translated,
        PipelinedConnection._exchange,
    )
    commit, execute = dialect.do_commit, dialect.do_execute

    def break_off() -> None:
        if seen and not lost:
            lost.append("COMMIT")
            meanwhile()
            raise exc.OperationalError("COMMIT", None, _gone(database), connection_invalidated=True)

    def execute_and_note(cursor: Any, statement: str, *rest: Any) -> None:
        execute(cursor, statement, *rest)
        seen.extend([statement] if change in statement else [])

    def commit_and_break_off(connection: Any) -> None:
        commit(connection)
        break_off()

    def translate_and_break_off(self: DirectConnection, execute: Any, *given: Any) -> Any:
        text = next(one for one in given if isinstance(one, str))
        result = translated(self, execute, *given)
        seen.extend([text] if change in text else [])
        if text == "COMMIT" and not isinstance(self, PipelinedConnection):
            break_off()
        return result

    def exchange_and_break_off(self: PipelinedConnection, sent: Any) -> Any:
        answers = exchange(self, sent)
        if sent[-1][0] == "COMMIT":
            break_off()
        return answers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dialect, "do_commit", commit_and_break_off)
        patch.setattr(dialect, "do_execute", execute_and_note)
        patch.setattr(DirectConnection, "_translated", translate_and_break_off)
        patch.setattr(PipelinedConnection, "_exchange", exchange_and_break_off)
        yield lost
