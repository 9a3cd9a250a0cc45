from __future__ import annotations

import sqlite3
from typing import Any

import pytest
import sqlalchemy as sa
from tests.tables.connections.callers import Open, ways
from tests.tables.received import payloads

from waterclock.connection import Database
from waterclock.errors import InvalidArgumentError
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.inspecting.stats import TableStats


@ways
def test_a_put_in_the_callers_transaction_is_delivered_after_the_commit(
    orders: MessageTable, database: Database, open_transaction: Open
) -> None:
    caller = open_transaction(database)
    first = orders.put("a", connection=caller)
    second = orders.put("b", connection=caller)
    assert orders.receive() == []
    caller.commit()
    caller.close()
    assert [delivery.id for delivery in orders.receive()] == [first, second]


@ways
def test_a_put_that_is_rolled_back_leaves_nothing(
    orders: MessageTable, database: Database, open_transaction: Open
) -> None:
    caller = open_transaction(database)
    orders.put_many([{"payload": "a"}, {"payload": "b"}], connection=caller)
    caller.rollback()
    caller.close()
    assert orders.stats() == TableStats(ready=0, scheduled=0, in_flight=0, delayed=0, acked=0, oldest_age=None)


@ways
def test_an_ack_in_the_callers_transaction_counts_after_the_commit(
    orders: MessageTable, database: Database, open_transaction: Open
) -> None:
    orders.put_many([{"payload": "a"}, {"payload": "b"}, {"payload": "c"}])
    first, second, third = orders.receive()
    caller = open_transaction(database)
    first.ack(connection=caller)
    assert orders.ack([second, 3], connection=caller) == 2
    caller.commit()
    caller.close()
    assert orders.stats().acked == 3
    assert third.epoch == 1


@ways
def test_an_ack_that_is_rolled_back_does_not_count(
    orders: MessageTable, database: Database, open_transaction: Open
) -> None:
    orders.put("a")
    [delivery] = orders.receive()
    caller = open_transaction(database)
    delivery.ack(connection=caller)
    caller.rollback()
    caller.close()
    assert orders.stats().in_flight == 1


@ways
def test_a_group_is_free_when_the_callers_ack_is_committed_and_not_when_it_is_rolled_back(
    sequenced: MessageTable, database: Database, open_transaction: Open
) -> None:
    sequenced.put_many([{"payload": "1", "group": "a"}, {"payload": "2", "group": "a"}])
    [delivery] = sequenced.receive(1)
    caller = open_transaction(database)
    sequenced.ack(delivery.id, connection=caller)
    caller.rollback()
    assert sequenced.receive(1) == []
    sequenced.ack(delivery.id, connection=caller)
    caller.commit()
    caller.close()
    assert payloads(sequenced, 1) == ["2"]


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
@pytest.mark.parametrize("acks", [False, True])
@pytest.mark.parametrize("end", range(4))
def test_a_rollback_of_a_put_into_a_group_strands_nothing_whenever_it_comes(
    request: pytest.FixtureRequest, database: Database, policy: str, acks: bool, end: int
) -> None:
    table: MessageTable = request.getfixturevalue(policy)
    table.put("1", group="a")
    with database.backend.engine.connect() as caller:
        table.put("2", group="a", connection=caller)

        def reach(moment: int) -> None:
            if moment == end:
                caller.rollback()

        reach(0)
        [first] = table.receive(1, consumer="x")
        if acks and end > 0:
            first.ack(connection=caller)
        reach(1)
        assert table.receive(consumer="y") == []
        if not (acks and end > 1):  # else the caller has it still
            first.ack()
        reach(2)
        assert table.receive(consumer="y") == []
        reach(3)
    first.ack()
    table.put("3", group="a")
    [last] = [*table.receive(consumer="y"), *table.receive(consumer="x")]
    last.ack()
    assert (last.payload, table.stats().acked) == ("3", 2)
    assert [one.state for one in table.groups.list()] == ["idle"] * (policy == "exclusive")


def test_the_callers_own_rows_and_the_message_are_committed_together(orders: MessageTable, database: Database) -> None:
    engine = database.backend.engine
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE sales(amount INTEGER)"))
    with engine.connect() as connection:
        connection.execute(sa.text("INSERT INTO sales(amount) VALUES (5)"))
        orders.put("sale", connection=connection)
        connection.rollback()
    with engine.begin() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM sales")).scalar_one() == 0
        connection.execute(sa.text("INSERT INTO sales(amount) VALUES (5)"))
        orders.put("sale", connection=connection)
    assert payloads(orders) == ["sale"]


@pytest.mark.one_database
@pytest.mark.parametrize(
    "connection",
    ["sqlite:///x.db", 7, sqlite3.Connection, sqlite3.connect(":memory:").cursor(), sa.create_engine("sqlite://")],
)
def test_an_invalid_connection_is_refused(orders: MessageTable, connection: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^connection must "):
        orders.put("a", connection=connection)
