"""Progress that a handler saves is available to the next attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from tests.tables.conftest import MovableClock

from waterclock.connection import Database
from waterclock.errors import InvalidArgumentError, LeaseLostError
from waterclock.tables.message_table import MessageTable
from waterclock.tables.model.progress import MOST_PROGRESS

MakeTable = Callable[..., MessageTable]


@pytest.mark.parametrize("groups", [None, "sequenced", "exclusive"])
def test_the_next_attempt_finds_what_was_saved(make_table: MakeTable, clock: MovableClock, groups: str | None) -> None:
    table = make_table(groups=groups, ack_wait="30s")
    table.put("tea", group="g" if groups else None)
    [first] = table.receive()
    assert first.progress is None
    clock.move("20s")
    first.save({"done": [1, 2.5, "ä"], "next": None})
    assert first.lease_until == clock.now + 30 * 10**9
    first.save({"done": 3})
    assert first.progress == {"done": 3}
    clock.move("29s")
    assert table.receive() == []
    clock.move("2m")
    [second] = table.receive()
    assert (second.epoch, second.progress) == (2, {"done": 3})
    second.ack()


@pytest.mark.parametrize("groups", [None, "sequenced"])
def test_a_lost_lease_saves_nothing(make_table: MakeTable, clock: MovableClock, groups: str | None) -> None:
    table = make_table(groups=groups)
    table.put("tea", group="g" if groups else None)
    [lost] = table.receive()
    clock.move("1h")
    [owner] = table.receive()
    owner.save("mine")
    with pytest.raises(LeaseLostError, match=r"^cannot save the progress of message 1 of table 'orders': its lease"):
        lost.save("stale")
    owner.nack("0s")
    [again] = table.receive()
    assert again.progress == "mine"


def test_progress_does_not_shorten_a_longer_lease(orders: MessageTable) -> None:
    orders.put("tea")
    [delivery] = orders.receive()
    delivery.extend("1h")
    until = delivery.lease_until
    delivery.save(1)
    assert delivery.lease_until == until
    orders.nack([delivery], "0s")
    assert orders.receive()[0].progress == 1


def test_a_delivery_that_is_over_saves_nothing(orders: MessageTable) -> None:
    orders.put("tea")
    [delivery] = orders.receive()
    delivery.ack()
    with pytest.raises(
        LeaseLostError, match=r"^cannot save the progress of message 1 of table 'orders': it was acked$"
    ):
        delivery.save(1)
    with pytest.raises(LeaseLostError, match=r"^cannot extend message 1 of table 'orders': it was acked$"):
        delivery.extend("1m")
    assert not delivery.lost


@pytest.mark.one_database
@pytest.mark.parametrize("progress", [{1, 2}, float("nan"), {1: 2}, b"bytes", "\x00", object()])
def test_progress_must_be_json(orders: MessageTable, progress: Any) -> None:
    orders.put("tea")
    [delivery] = orders.receive()
    with pytest.raises(InvalidArgumentError, match=r"^progress"):
        delivery.save(progress)
    assert delivery.progress is None


def test_progress_is_bounded(orders: MessageTable) -> None:
    orders.put("tea")
    [delivery] = orders.receive()
    delivery.save("x" * (MOST_PROGRESS - 2))
    with pytest.raises(InvalidArgumentError, match=r"^progress must be JSON of at most 65536 bytes, got 65537$"):
        delivery.save("y" * (MOST_PROGRESS - 1))
    assert len(delivery.progress) == MOST_PROGRESS - 2
    delivery.save("時" * (MOST_PROGRESS // 3 - 1))
    orders.nack([delivery], "0s")
    [delivery] = orders.receive()
    assert delivery.progress == "時" * (MOST_PROGRESS // 3 - 1)


def test_progress_moves_to_the_dead_letters_and_back(make_table: MakeTable, database: Database) -> None:
    table = make_table(max_attempts=1)
    table.put("tea")
    [delivery] = table.receive()
    delivery.save({"page": 7})
    delivery.nack(error="no")
    [dead] = database.table("orders_dead").receive()
    assert dead.progress == {"page": 7}
    dead.nack("0s")
    table.redrive()
    assert table.receive()[0].progress == {"page": 7}


def test_progress_that_plain_sql_broke_reads_as_none(orders: MessageTable, database: Database) -> None:
    orders.put("tea")
    with database.begin() as connection:
        connection.execute(sa.text("UPDATE orders SET saved_progress = 'no JSON'"))
    [delivery] = orders.receive()
    assert delivery.progress is None
    delivery.save(2)
    assert delivery.progress == 2
