"""Exchanges with the server that fail at each of their statements, and what comes after them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
import sqlalchemy as sa

from waterclock.connection import Database
from waterclock.database.driver_fast_path import PipelinedConnection
from waterclock.database.engines.postgresql import PostgresqlDialect
from waterclock.errors import WaterclockError
from waterclock.tables.message_table import MessageTable

on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)

Sent = tuple[str, Any]

_RAISE_DISK_FULL = "DO $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$"
FAILURES: dict[str, list[Sent]] = {
    "refused": [("SELECT 1 / 0", ())],
    "disk full": [(_RAISE_DISK_FULL, ())],
    "timed out": [("SET LOCAL statement_timeout = 1", ()), ("SELECT pg_sleep(60)", ())],
    "not sent": [("SELECT %(value)s", {"value": object()})],
    "terminated": [("SELECT pg_terminate_backend(pg_backend_pid())", ())],
}
PREPARED = {"by the exchange": 0, "before": 1}
"""When its statements are prepared: how many cycles come before the one that fails."""
SHORT = [("refused", 0, 1), ("not sent", 0, 1), ("timed out", 1, 3), ("terminated", 1, 3)]
"""One failure of each kind: the server refuses a statement, the driver cannot send it, the server cancels it or ends
the session. The last two cost the server a fifth of a second per place, so they happen at each third place. `make soak`
meets all failures, both ways, at each place.
"""


class Fault:
    """Makes an exchange fail once, before the statement that is due when so many were sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failing: list[Sent]) -> None:
        self._exchange = PipelinedConnection._exchange
        self._failing = failing
        self.left: int | None = None
        monkeypatch.setattr(PipelinedConnection, "_exchange", lambda *given: self._exchange_or_fail(*given))  # noqa: PLW0108

    def _exchange_or_fail(self, together: PipelinedConnection, sent: Sequence[Sent]) -> list[Any]:
        if self.left is not None:
            every = [*together._ahead, *sent]
            if self.left < len(every):
                place, self.left = max(self.left, 1 - together._has_begun), None  # behind BEGIN
                together._ahead[:] = []
                return self._exchange(together, [*every[:place], *self._failing, *every[place:]])
            self.left -= len(every)
        return self._exchange(together, sent)


def handle(table: MessageTable, database: Database) -> list[str]:
    """Claim and ack what is due, each once more where it failed."""
    found: list[str] = []
    deliveries: list[Any] = []
    for _ in range(2):
        with suppress(WaterclockError), database.backend.patience(1):
            deliveries = table.receive(10, consumer="x")
            break
    for _ in range(2):
        with suppress(WaterclockError), database.backend.patience(1):
            found += [one.payload for one in deliveries]
            table.ack(deliveries)
            break
    return found


@on_postgresql
@pytest.mark.parametrize(
    ("failure", "cycles", "every"),
    [
        *SHORT,
        *(
            pytest.param(failure, cycles, 1, id=f"{failure}-{prepared}", marks=pytest.mark.slow)
            for failure in FAILURES
            for prepared, cycles in PREPARED.items()
            if (failure, cycles, 1) not in SHORT
        ),
    ],
)
def test_a_statement_that_fails_leaves_nothing_behind_that_the_next_claim_or_ack_meets(
    make_table: Callable[..., MessageTable],
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failure: str,
    cycles: int,
    every: int,
) -> None:
    set_up = PostgresqlDialect.set_up_direct

    def set_up_and_prepare_at_once(dialect: PostgresqlDialect, connection: Any) -> None:
        connection.prepare_threshold = 0
        set_up(dialect, connection)

    monkeypatch.setattr(PostgresqlDialect, "set_up_direct", set_up_and_prepare_at_once)
    table = make_table(groups="exclusive")
    fault = Fault(monkeypatch, FAILURES[failure])
    for place in count(step=every):
        for _ in range(cycles):
            table.put("x", group="a")
            assert handle(table, database) == ["x"]
        table.put_many([{"payload": f"a{place}", "group": "a"}, {"payload": f"b{place}", "group": "b"}])
        fault.left = place
        found = handle(table, database)
        if fault.left is not None:  # it was not reached: the cycle has fewer statements
            break
        assert sorted({*found, *handle(table, database)}) == [f"a{place}", f"b{place}"]
    with database.backend.engine.connect() as connection:
        assert connection.scalars(sa.text("SELECT message FROM orders WHERE time_acked IS NULL")).all() == []
    assert place > 6  # each statement of a claim, and of an ack, was reached
    assert not [one for one in caplog.records if one.name.startswith("psycopg") and one.levelno >= logging.WARNING]
