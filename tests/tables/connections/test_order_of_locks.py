"""Messages are locked in one order, for any order of the callers': none of two that meet is ended by the server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from tests.tables.connections.callers import wait_until_waiting

from waterclock.connection import Database
from waterclock.tables.databases import table_dialect
from waterclock.tables.message_table import MessageTable

pytestmark = pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)

Verb = Callable[[MessageTable, Database, list[int], dict[int, Any]], object]


def _in_own_transaction(act: Callable[[sa.Connection], object], database: Database) -> object:
    """Do something in a transaction of the caller's, on a server that goes down the index of ids for few messages."""
    with database.backend.engine.begin() as caller:
        if caller.dialect.name == "postgresql":
            caller.execute(sa.text("SET LOCAL enable_seqscan = off"))
            caller.execute(sa.text("SET LOCAL enable_bitmapscan = off"))
        return act(caller)


def ack_ids(table: MessageTable, database: Database, ids: list[int], _: dict[int, Any]) -> object:
    return _in_own_transaction(lambda caller: table.ack(ids, connection=caller), database)


def ack_deliveries(table: MessageTable, database: Database, ids: list[int], found: dict[int, Any]) -> object:
    return _in_own_transaction(lambda caller: table.ack([found[one] for one in ids], connection=caller), database)


def ack_both(table: MessageTable, database: Database, ids: list[int], found: dict[int, Any]) -> object:
    given = [found[one] if place % 2 else one for place, one in enumerate(ids)]
    return _in_own_transaction(lambda caller: table.ack(given, connection=caller), database)


def cancel(table: MessageTable, database: Database, ids: list[int], _: dict[int, Any]) -> object:
    return _in_own_transaction(lambda caller: table.cancel(ids, connection=caller), database)


def reschedule(table: MessageTable, _database: Database, ids: list[int], _: dict[int, Any]) -> object:
    return table.reschedule(ids, 0)


@pytest.mark.parametrize("groups", [None, "sequenced"])
@pytest.mark.parametrize(
    ("one", "another"),
    [
        (ack_ids, ack_ids),
        (ack_ids, ack_deliveries),
        (ack_ids, reschedule),
        (ack_both, ack_both),
        (ack_both, reschedule),
        (cancel, ack_deliveries),
        (cancel, cancel),
    ],
)
def test_two_that_do_something_with_the_same_messages_in_opposite_orders_both_get_through(
    database: Database,
    make_table: Callable[..., MessageTable],
    monkeypatch: pytest.MonkeyPatch,
    groups: str | None,
    one: Verb,
    another: Verb,
) -> None:
    monkeypatch.setattr(table_dialect, "NAMED_AT_ONCE", 2)
    table = make_table(groups=groups)
    ids = [5, 4, 3, 2, 1]
    table.put_many([{"payload": "tea", "id": each, "group": str(each) if groups else None} for each in ids])
    found = {each.id: each for each in table.receive()}
    failed: list[Exception] = []

    def run(verb: Verb, given: list[int]) -> None:
        try:
            verb(table, database, given, found)
        except Exception as error:  # noqa: BLE001  # any is a failure
            if "the leases ended" not in str(error):
                failed.append(error)

    threads = [threading.Thread(target=run, args=given) for given in ((one, ids), (another, ids[::-1]))]
    with database.backend.engine.begin() as plain:
        plain.execute(sa.text("UPDATE orders SET last_error = 'kept' WHERE id = 3"))
        for number, thread in enumerate(threads, 1):
            thread.start()
            wait_until_waiting(database, number)
    for thread in threads:
        thread.join(60)
    assert failed == []
