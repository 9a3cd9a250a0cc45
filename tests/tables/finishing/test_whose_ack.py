"""Whose ack it was: a delivery that acks again succeeds where its own claim acked, and has lost its lease elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from tests.tables.conftest import MovableClock
from tests.tables.options.plain_sql import catch_up, run

from waterclock.connection import Database
from waterclock.errors import LeaseLostError
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.finishing import acking

MakeTable = Callable[..., MessageTable]

KINDS = {
    "ungrouped": {},
    **{
        f"{groups} {ack_order}": {"groups": groups, "ack_order": ack_order}
        for groups in ("sequenced", "exclusive")
        for ack_order in ("strict", "hold", "lenient")
    },
}


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, make_table: MakeTable) -> MessageTable:
    """Give a table of each kind, with messages "a" and "b", of one group where there are groups."""
    made = make_table(**KINDS[request.param])
    group = None if request.param == "ungrouped" else "g"
    made.put_many([{"payload": name, "group": group} for name in "ab"])
    return made


def ack_again(delivery: Delivery) -> Any:
    """Send an ack as a delivery does that has not heard the answer to its first one."""
    context = delivery.context
    return acking.run(context, lambda own: acking.ack_leased(context, own, [delivery.leased]))


def marks(database: Database) -> dict[str, tuple[int | None, int | None]]:
    statement = sa.text("SELECT message, claim_id, acked_by FROM orders")
    with database.backend.engine.connect() as connection:
        return {one.message: (one.claim_id, one.acked_by) for one in connection.execute(statement)}


def test_an_ack_is_noted_for_its_claim_and_may_be_repeated(table: MessageTable, database: Database) -> None:
    first, second = table.receive(9, consumer="x")
    claim = first.leased.claim_id
    assert marks(database) == {"a": (claim, None), "b": (claim, None)}
    first.ack()
    second.ack()
    assert marks(database) == {"a": (None, claim), "b": (None, claim)}
    for delivery in (first, second):
        assert (ack_again(delivery).lost, ack_again(delivery).again) == (frozenset(), 1)


@pytest.mark.parametrize("kind", ["ungrouped", "sequenced hold", "sequenced lenient"])
def test_an_ack_before_its_turn_is_noted_at_once(make_table: MakeTable, database: Database, kind: str) -> None:
    table = make_table(**KINDS[kind])
    for name in "ab":
        table.put(name, group=None if kind == "ungrouped" else "g")
    first, second = table.receive(9)
    claim = first.leased.claim_id
    second.ack()
    assert marks(database)["b"] == (None, claim)
    assert ack_again(second).again == 1
    first.ack()
    assert marks(database) == {"a": (None, claim), "b": (None, claim)}
    assert table.stats().acked == 2


def by_id(table: MessageTable, database: Database, clock: MovableClock) -> None:
    del database, clock
    table.ack([1, 2])


def by_plain_sql(table: MessageTable, database: Database, clock: MovableClock) -> None:
    del table
    run(database, "UPDATE orders SET time_acked = :now, time_next = NULL", now=clock.now)


def by_another_claim(table: MessageTable, database: Database, clock: MovableClock) -> None:
    del database
    clock.move("1h")
    for delivery in table.receive(9, consumer="y"):
        delivery.ack()


@pytest.mark.parametrize("ack", [by_id, by_plain_sql, by_another_claim])
def test_an_ack_of_any_other_kind_makes_it_a_lost_lease(
    table: MessageTable, database: Database, clock: MovableClock, ack: Callable[..., None]
) -> None:
    deliveries = table.receive(9, consumer="x")
    assert len(deliveries) == 2
    ack(table, database, clock)
    for delivery in deliveries:
        with pytest.raises(LeaseLostError):
            delivery.ack()
    assert table.stats().acked == 2


@pytest.mark.parametrize("groups", ["sequenced", "exclusive"])
def test_a_message_that_went_back_uncounted_is_not_taken_for_one_that_the_first_claim_acked(
    make_table: MakeTable, groups: str
) -> None:
    table = make_table(groups=groups, ack_order="hold")
    for name in "ab":
        table.put(name, group="g")
    first, second = table.receive(9, consumer="x")
    first.nack(0)  # the second goes back with it, which counts for nothing
    _, again = table.receive(9, consumer="x")
    assert (second.payload, again.payload, second.epoch, again.epoch) == ("b", "b", 1, 1)
    again.ack()
    with pytest.raises(LeaseLostError):
        second.ack()
    assert table.stats().held == 1


def test_the_head_that_is_skipped_was_acked_by_no_claim(make_table: MakeTable, database: Database) -> None:
    table = make_table(groups="sequenced")
    table.put("a", group="g")
    [delivery] = table.receive()
    table.groups.skip_head("g", force=True)
    assert marks(database) == {"a": (None, None)}
    with pytest.raises(LeaseLostError):
        delivery.ack()


def test_an_ack_that_plain_sql_undid_no_longer_belongs_to_its_claim(
    table: MessageTable, database: Database, clock: MovableClock
) -> None:
    for delivery in table.receive(9, consumer="x"):
        delivery.ack()
    run(database, "UPDATE orders SET time_acked = NULL")
    catch_up(clock)
    deliveries = table.receive(9, consumer="y")
    assert sorted(one.payload for one in deliveries) == ["a", "b"]
    table.ack([one.id for one in deliveries])
    assert marks(database) == {"a": (None, None), "b": (None, None)}
