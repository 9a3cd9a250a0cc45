from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.tables.consumers.consuming import start

from waterclock.connection import Database


@pytest.mark.parametrize("groups", [None, "sequenced"])
@pytest.mark.both_servers
def test_messages_of_a_killed_consumer_are_delivered_to_another_after_its_lease(
    connect: Callable[..., Database], database_url: str, groups: str | None
) -> None:
    table = connect().create_table("orders", payload="text", ack_wait="1s", jitter=0, groups=groups)
    table.put_many([{"payload": str(number), "group": "a"} for number in range(20)])

    holder = start(database_url, "hold")
    assert holder.stdout.readline() == "took 1 1\n"
    holder.kill()
    holder.wait()

    worker = start(database_url, "ack")
    epochs: dict[int, int] = {}
    acked: list[int] = []
    while len(acked) < 20:
        verb, message_id, *epoch = worker.stdout.readline().split()
        if verb == "took":
            epochs[int(message_id)] = int(epoch[0])
        else:
            acked.append(int(message_id))
    worker.kill()
    worker.wait()

    # The holder was killed with five messages: one being handled and four that it had claimed beside it.
    assert epochs == {message_id: 2 if message_id <= 5 else 1 for message_id in range(1, 21)}
    assert sorted(acked) == list(range(1, 21))
    if groups:
        assert acked == sorted(acked)
    assert table.stats().acked == 20
