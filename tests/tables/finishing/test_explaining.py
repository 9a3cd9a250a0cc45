from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from tests.tables.conftest import MovableClock

from waterclock.connection import Database
from waterclock.errors import NotFoundError
from waterclock.tables.message_table import MessageTable

MakeTable = Callable[..., MessageTable]


def test_explain_says_why_a_message_is_not_out(orders: MessageTable, clock: MovableClock) -> None:
    orders.put("ready")
    assert orders.explain(1).state == "ready"
    [delivery] = orders.receive(consumer="worker 1")
    explanation = orders.explain(1)
    assert (explanation.state, explanation.due_at) == ("leased", clock.now + 30_000_000_000)
    assert (explanation.consumer, "worker 1" in str(explanation)) == ("worker 1", True)
    delivery.nack("5s")
    assert (orders.explain(1).state, orders.explain(1).due_at) == ("backing_off", clock.now + 5_000_000_000)
    orders.ack(1)
    assert orders.explain(1).state == "acked"
    orders.put("later", at=clock.now + 7)
    assert (orders.explain(2).state, orders.explain(2).due_at) == ("scheduled", clock.now + 7)


def test_explain_names_the_message_that_holds_a_group(sequenced: MessageTable) -> None:
    sequenced.put_many([{"payload": str(number), "group": "a"} for number in range(3)])
    held = sequenced.explain(3)
    assert (held.state, held.blocking_id) == ("blocked", 1)
    sequenced.receive(1)
    held = sequenced.explain(3)
    assert (held.state, held.blocking_id, "group 'a'" in held.reason) == ("blocked", 1, True)


def test_explain_does_not_know_a_message_that_never_was(orders: MessageTable) -> None:
    with pytest.raises(NotFoundError, match="no message with id 7"):
        orders.explain(7)


def test_a_group_of_a_table_that_is_paused_or_has_used_up_its_rate_says_so(
    make_table: MakeTable, clock: MovableClock
) -> None:
    table = make_table(groups="sequenced")
    table.put_many([{"payload": "x", "group": name} for name in "ab"])
    table.pause()
    found = table.groups.info("a")
    assert (found.hold, found.blocked_by, found.due_at) == ("paused", "its table is paused until it is resumed", None)
    table.pause(clock.now + 5)
    assert [(one.hold, one.due_at) for one in table.groups.list()] == [("paused", clock.now + 5)] * 2
    table.resume()
    table.alter(rate_limit=1)
    [delivery] = table.receive(1)
    waits = "b" if delivery.group == "a" else "a"
    assert table.groups.info(waits).hold == table.explain(3 - delivery.id).state == "rate"
    clock.move("1s")
    assert table.groups.info(waits).hold is None


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_a_message_in_no_group_that_another_transaction_has_locked_is_said_to_be(
    orders: MessageTable, database: Database
) -> None:
    orders.put("x")
    rows = sa.table("orders", sa.column("id"))
    with database.backend.engine.begin() as other:
        other.execute(sa.select(rows).with_for_update())
        found = orders.explain(1)
        assert (found.state, found.reason) == ("locked", "is due, but an open transaction has locked it")
        assert orders.receive() == []
    assert orders.explain(1).state == "ready"
