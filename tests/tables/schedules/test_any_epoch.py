"""Plain SQL may set an epoch to any number that its column keeps: claims go on, and nothing overflows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from tests.tables.conftest import MovableClock

from waterclock.connection import Database
from waterclock.tables.message_table import MessageTable
from waterclock.tables.model.claims.epochs import MOST_COUNTED

pytestmark = pytest.mark.both_servers

LARGEST, SMALLEST = 2**63 - 1, -(2**63)


def set_epochs(database: Database, epoch: int, name: str = "orders", where: str = "1 = 1") -> None:
    rows = sa.table(name, sa.column("epoch", sa.BigInteger))
    with database.backend.engine.begin() as connection:
        connection.execute(sa.update(rows).where(sa.text(where)).values(epoch=epoch))


@pytest.mark.parametrize("groups", [None, "sequenced", "exclusive"])
@pytest.mark.parametrize("epoch", [LARGEST, LARGEST - 1, SMALLEST])
def test_messages_of_any_epoch_are_claimed_and_do_not_block_others(
    database: Database, make_table: Callable[..., MessageTable], clock: MovableClock, groups: Any, epoch: int
) -> None:
    table = make_table(groups=groups, purge_after="1h")
    group: Any = {"group": "g"} if groups else {}
    table.put_many([{"payload": str(number), **group} for number in range(3)])
    set_epochs(database, epoch)
    table.put("behind", **group)
    first = table.receive(2, consumer="press")
    assert [one.payload for one in first] == ["0", "1"]
    first[0].extend("1m")
    table.nack(first[:1])
    table.stats()
    clock.move("400d")
    with table.subscribe(consumer="press") as deliveries:
        next(deliveries).ack()
    found = table.receive(10, consumer="press")
    assert len(found) == 3
    table.ack(found)
    set_epochs(database, epoch)
    table.stats()
    clock.move("2h")
    assert table.purge() == 4
    assert 0 <= table.stats().sent <= 4 * MOST_COUNTED


@pytest.mark.parametrize("epoch", [LARGEST, SMALLEST])
def test_dead_letters_of_any_epoch_are_buried_and_redriven(
    database: Database, make_table: Callable[..., MessageTable], epoch: int
) -> None:
    table = make_table(max_attempts=1, dead_letter="orders_dead")
    ids = table.put_many([{"payload": "a"}, {"payload": "b"}])
    for delivery in table.receive(2):
        set_epochs(database, epoch)
        delivery.dead_letter("broken")
    set_epochs(database, epoch, "orders_dead")
    table.stats()
    assert table.redrive() == 2
    set_epochs(database, epoch)
    assert table.reschedule(ids, at=0, epoch=0) == 2
    assert len(table.receive(2)) == 2
    assert table.stats().sent < 2**63


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_dropped_partitions_of_any_epoch_are_counted(
    database: Database, make_table: Callable[..., MessageTable], clock: MovableClock
) -> None:
    table = make_table(purge_after="1h", purge_by="partition")
    table.put_many([{"payload": "a"}, {"payload": "b"}])
    table.ack(table.receive(2))
    set_epochs(database, LARGEST, where="time_acked IS NOT NULL")
    clock.move("3d")
    assert table.purge() == 2
    assert table.stats().sent == 2 * MOST_COUNTED
