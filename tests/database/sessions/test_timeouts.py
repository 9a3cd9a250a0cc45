"""No call waits forever for a server that keeps its connections open and is silent."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.support.services import Service
from tests.work.faults.stalling import StallingWire, stalling

import waterclock as wc
from waterclock.database import backend as backend_module
from waterclock.database import deadlines
from waterclock.database.sql_connection import SqlConnection


@pytest.fixture(params=["postgresql", "mariadb"])
def wire(request: pytest.FixtureRequest) -> Generator[StallingWire]:
    server: Service = request.getfixturevalue(f"{request.param}_server")
    with server.new_database() as url, stalling(url) as found:
        yield found


class Opened:
    """A topic with a message, and a table with a delivery that is out."""

    def __init__(self, database: wc.Database) -> None:
        self.table = database.create_table("orders", payload="text")
        self.topic = database.create_topic("telemetry")
        self.topic.append([wc.Message("pump", "level", 1, b"")])
        self.table.put("first")
        [self.delivery] = self.table.receive()


CALLS: dict[str, Callable[[Opened], object]] = {
    "put": lambda on: on.table.put("second"),
    "extend": lambda on: on.delivery.extend("1m"),
    "ack": lambda on: on.table.ack(on.delivery),
    "receive": lambda on: on.table.receive(wait="100ms"),
    "stats": lambda on: on.table.stats(),
    "append": lambda on: on.topic.append([wc.Message("pump", "level", 2, b"")]),
    "read": lambda on: list(on.topic.read()),
}


def test_calls_fail_by_their_timeout_when_the_server_is_silent(
    wire: StallingWire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_module, "SLACK", 0.0)
    with wc.connect(wire.url, tmp_path, timeout="500ms") as database:
        opened = Opened(database)
        for call in CALLS.values():
            wire.fall_silent()
            with pytest.raises(wc.UnavailableError):
                call(opened)
            wire.speak()
            opened.table.stats()  # opens connections for the next call
            opened.topic.ledgers()


def test_a_caller_may_hold_a_transaction_of_theirs_beyond_the_timeout(
    wire: StallingWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[object] = []
    monkeypatch.setattr(deadlines._DeadlineWatch, "add", lambda _self, connection, _seconds: watched.append(connection))
    with wc.connect(wire.url, create=True) as database, database.backend.engine.begin() as theirs:
        watched.clear()
        theirs.execute(sa.text("SELECT 1"))
        assert watched == []
        database.tables()
        assert watched


@pytest.mark.parametrize("timeout", ["0s", "50ms", "soon"])
def test_a_timeout_that_no_call_could_keep_is_refused(timeout: str) -> None:
    with pytest.raises(wc.InvalidArgumentError, match="timeout"):
        wc.connect("sqlite://", timeout=timeout)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_statement_that_exceeds_the_limit_of_its_thread_is_not_repeated(
    connect: Callable[..., wc.Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "_LOOK_EVERY", 0.01)
    asked: list[None] = []

    def ask(connection: SqlConnection) -> None:
        asked.append(None)
        connection.execute(sa.text("SELECT pg_sleep(60)"))

    with deadlines.answers_within(0.1), pytest.raises(wc.UnavailableError):
        connect(create=True).backend.look(ask)
    assert len(asked) == 1
