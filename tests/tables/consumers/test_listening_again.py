"""A consumer that waits on PostgreSQL listens again when the server went away under it and came back."""

from __future__ import annotations

import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.services import Service
from tests.tables.consumers.consuming import running

import waterclock as wc
from waterclock.database.backend import Backend
from waterclock.tables.databases.postgresql.listening_connection import ListeningConnection
from waterclock.tables.databases.postgresql.waking import Listening
from waterclock.tables.message_table import MessageTable


@pytest.fixture
def table(postgresql_server: Service, tmp_path: Path) -> Generator[MessageTable]:
    """Give a table whose consumers would look by themselves after an hour only."""
    with postgresql_server.new_database() as url, wc.connect(url, tmp_path) as database:
        yield database.create_table("orders", payload="text", poll_interval="1h")


def test_a_subscriber_that_waits_while_the_server_is_killed_gets_what_is_put_afterwards_by_a_notification(
    table: MessageTable, postgresql_server: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else it would look once a second for changed options, and find the message without a notification.
    monkeypatch.setattr("waterclock.tables.consumers.receiving.LOOK_EVERY", 3600.0)
    listens_again = threading.Event()
    connects: list[object] = []
    connect = ListeningConnection._connect

    def connect_and_tell(self: ListeningConnection, backend: Backend) -> None:
        connect(self, backend)
        connects.append(self)

    wait = Listening.wait

    def tell_and_wait(self: Listening, seconds: float, stop: Any) -> None:
        if len(connects) > 1 and self._armed:
            listens_again.set()
        wait(self, seconds, stop)

    monkeypatch.setattr(ListeningConnection, "_connect", connect_and_tell)
    monkeypatch.setattr(Listening, "wait", tell_and_wait)
    with running(table.subscribe()) as received:
        postgresql_server.restart(immediate=True)
        assert listens_again.wait(60)
        with sa.create_engine(table.context.backend.url).begin() as writer:
            writer.execute(sa.text("INSERT INTO orders(id, message) VALUES (7, 'tea')"))
    assert received == ["tea"]
    assert len(connects) == 2
