"""Small worlds: two to four actors each, and what may be done to them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from tests.simulation.world import LEASE, POLL, SHORT, Scenario, World

from waterclock import moments

_SECOND = 1_000_000_000
_SEQUENCED: dict[str, Any] = {
    "groups": "sequenced",
    "payload": "text",
    "jitter": 0.0,
    "ack_wait": LEASE,
    "max_backoff": LEASE,
    "poll_interval": "1s",
}
_ACK = "UPDATE orders SET time_acked = :now, time_next = NULL WHERE id = :id AND time_acked IS NULL"
_EXCLUSIVE = _SEQUENCED | {"groups": "exclusive"}


def _two_receive(world: World) -> None:
    world.starts_with("a", "a", "b")
    world.add("x", world.receives("x", "x"))
    world.add("y", world.receives("y", "y"))
    world.add("putter", world.puts("putter", [["a", "b"], ["a"]]))


def _one_leaves(world: World) -> None:
    """A consumer rests a moment before it leaves, while messages come for its group."""
    world.starts_with("a", "b")
    world.add("x", world.subscribes("x", "x", takes=1, rest=4 * SHORT))
    world.add("y", world.receives("y", "y"))
    world.add("putter", world.puts("putter", [["a"], ["a"], ["b"], ["a"]], every=SHORT))


def _one_dies(world: World) -> None:
    """A consumer dies, and two others find its groups when its lease has ended, while messages come for them."""
    world.starts_with("a", "b")
    world.add("x", world.receives("x", "x", limit=1, rounds=1))
    world.add("y", world.receives("y", "y", limit=1, every=POLL))
    world.add("z", world.receives("z", "z", limit=1, every=POLL))
    world.add("putter", world.puts("putter", [["a", "b"], ["a"], ["b"], ["a", "b"]], every=LEASE / _SECOND / 3))


def _one_returns(world: World) -> None:
    """A consumer dies, and is started again under its name while the dead one's lease lasts."""
    world.starts_with("a", "a", "a")
    world.add("x", world.receives("x", "x", limit=1, rounds=1))

    def again() -> None:
        moments.sleep(1)
        world.scheduler.crash("x")
        world.subscribes("again", "x")()

    world.add("again", again)


def _a_hot_group(world: World) -> None:
    world.starts_with("a")
    world.add("x", world.receives("x", "x", limit=1))
    world.add("y", world.receives("y", "y", limit=1))
    world.add("putter", world.puts("putter", [["a", "a", "a", "a", "a"], ["a", "a"]]))


def _plain_sql_acks(world: World) -> None:
    """A consumer handles the first message for long, while plain SQL acks the last one that it has."""
    _, last = world.starts_with("a", "a")
    world.add("x", world.subscribes("x", "x", limit=2, handling=4 * LEASE / _SECOND))
    world.add("y", world.receives("y", "y", every=POLL))

    def acks() -> None:
        moments.sleep(1)
        if _plain(world, "sql", _ACK, last):
            world.note_done(last, "sql")

    world.add("sql", acks)


def _plain(world: World, process: str, text: str, message: Any) -> int:
    values = {"now": world.now, "id": message} if ":now" in text else {"id": message}
    with world.table(process).context.backend.engine.begin() as connection:
        return connection.execute(sa.text(text), values).rowcount


def _attempts_are_given_back(world: World) -> None:
    """A group is blocked by a message without attempts; then the operator lets it have as many as it likes."""
    world.altered = True
    world.starts_with("a", "a")

    def fails() -> None:
        for delivery in world.table("x").receive(1, consumer="x"):
            delivery.nack()
        moments.sleep(2 * LEASE / _SECOND)
        world.table("x").receive(1, consumer="x")
        world.table("operator").alter(max_attempts=None)

    world.add("x", fails)
    world.add("y", world.receives("y", "y", every=POLL))


def _the_head_is_deleted(world: World) -> None:
    """A group is blocked by a message without attempts; then plain SQL deletes that message."""
    head, _ = world.starts_with("a", "a")

    def fails() -> None:
        for delivery in world.table("x").receive(1, consumer="x"):
            delivery.nack()
        moments.sleep(2 * LEASE / _SECOND)
        world.table("x").receive(1, consumer="x")
        world.buried.add(head)
        _plain(world, "x", "DELETE FROM orders WHERE id = :id", head)

    world.add("x", fails)


def _a_late_head_is_deleted(world: World) -> None:
    """The first message of a group is due in an hour; then plain SQL deletes it."""
    head, _ = world.starts_with("a", "a")

    def deletes() -> None:
        table = world.table("x")
        for delivery in table.receive(1, consumer="x"):
            delivery.nack(delay="1h")
        moments.sleep(1)
        world.buried.add(head)
        _plain(world, "x", "DELETE FROM orders WHERE id = :id", head)

    world.add("x", deletes)


def _an_operator_commands(world: World) -> None:
    world.starts_with("a", "a", "b")
    world.add("x", world.receives("x", "x"))
    world.add("putter", world.puts("putter", [["a"], ["b"]]))

    def commands() -> None:
        groups = world.table("operator").groups
        groups.pause("a")
        groups.release("b")
        groups.resume("a")

    world.add("operator", commands)


SCENARIOS = {
    one.name: one
    for one in (
        Scenario(
            "two_receive", _two_receive, _SEQUENCED, ("crash", "lose", "stall"), ("x", "y"), sometimes=("blocked",)
        ),
        Scenario(
            "two_own", _two_receive, _EXCLUSIVE, ("crash", "lose", "stall"), ("x", "y"), sometimes=("sent again",)
        ),
        Scenario("one_leaves", _one_leaves, _EXCLUSIVE, sometimes=("blocked",)),
        Scenario("one_dies", _one_dies, _EXCLUSIVE, sometimes=("blocked",)),
        Scenario("one_returns", _one_returns, _EXCLUSIVE, ending="living"),
        Scenario("a_hot_group", _a_hot_group, _SEQUENCED, sometimes=("blocked",)),
        Scenario("plain_sql_acks", _plain_sql_acks, _SEQUENCED),
        Scenario("attempts_are_given_back", _attempts_are_given_back, _SEQUENCED | {"max_attempts": 1}),
        Scenario("the_head_is_deleted", _the_head_is_deleted, _SEQUENCED | {"max_attempts": 1}),
        Scenario("a_late_head_is_deleted", _a_late_head_is_deleted, _SEQUENCED),
        Scenario("an_operator_commands", _an_operator_commands, _EXCLUSIVE, sometimes=("blocked",)),
    )
}
