"""Times and durations up to the end of what nanoseconds can say, 2262: nothing overflows, no fraction is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from waterclock.connection import Database
from waterclock.tables.model.timing.lease_length import LONGEST_GIVEN
from waterclock.time import MAX_NS, MIN_NS


def fractions(database: Database) -> list[tuple[str, str, Any]]:
    """Find numbers that are not whole among what a table and the catalogue of its groups hold."""
    found: list[tuple[str, str, Any]] = []
    with database.backend.engine.connect() as connection:
        for name in ("orders", "waterclock_groups", "waterclock_consumers", "waterclock_message_tables"):
            for row in connection.execute(sa.select(sa.text("*")).select_from(sa.table(name))).mappings():
                found += [(name, key, value) for key, value in row.items() if isinstance(value, float)]
    return found


@pytest.mark.parametrize("groups", [None, "sequenced", "exclusive"])
def test_a_table_whose_times_are_all_as_long_as_can_be_works(connect: Callable[..., Database], groups: Any) -> None:
    database = connect()
    table = database.create_table(
        "orders",
        payload="text",
        groups=groups,
        ack_wait=LONGEST_GIVEN,
        min_backoff=LONGEST_GIVEN,
        max_backoff=MAX_NS,
        jitter=0.99,
        purge_after=MAX_NS,
        poll_interval=MAX_NS,
        group_idle=MAX_NS if groups == "exclusive" else None,
    )
    group = {"group": "g"} if groups else {}
    for payload in ("a", "b", "c"):
        table.put(payload, expires_at=MAX_NS, **group)
    last = table.put("last", at=MAX_NS, **group)
    table.put("delayed", delay=MAX_NS, **group)
    table.put("long ago", at=MIN_NS, **group)
    [first] = table.receive(1)
    first.extend(MAX_NS)
    first.ack()
    assert len(table.receive(1)) == 1  # its back-off, once it is sent again, is as long as can be
    given_back = table.receive(1)
    table.nack(given_back, delay=MAX_NS)
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text("UPDATE orders SET time_next = 1, epoch = 40 WHERE epoch = 1 AND claim_id IS NULL"))
    for delivery in table.receive(1):
        delivery.nack()
    for at in (MAX_NS, MIN_NS, MAX_NS):
        table.reschedule([last], at=at)
        table.pause(until=at)
        table.receive(1)
        table.resume()
        if groups:
            table.groups.pause("g", until=at)
            table.groups.info("g")
            table.groups.resume("g")
    table.peek()
    table.explain(last)
    table.purge()
    assert table.stats().acked == 1
    assert fractions(database) == []
