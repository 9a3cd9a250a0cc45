from __future__ import annotations

import pytest

from waterclock.errors import NotFoundError
from waterclock.tables.message_table import MessageTable

from .conftest import MovableClock


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
    with pytest.raises(NotFoundError, match="message 7"):
        orders.explain(7)
