"""Small worlds: two to four actors each, and what may be done to them."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from tests.simulation.worlds import topic_scenarios
from tests.simulation.worlds.world import LEASE, POLL, SHORT, Scenario, World

from waterclock._support import moments
from waterclock.tables.messages.putting.scheduling import TICK

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
_ROWS = _SEQUENCED | {"groups": None}
_LIMITED: dict[str, Any] = {"limit": {"group": 1}}
_BURIES: dict[str, Any] = {"max_attempts": 1, "on_exhausted": "dead_letter", "dead_letter": "orders_dead"}
_DIES: dict[str, Any] = {"on_expired": "dead_letter", "dead_letter": "orders_dead"}
_LONGER = "UPDATE orders SET expires_at = :longer WHERE id = :id AND time_acked IS NULL"
_MISSED = "UPDATE waterclock_schedules SET seen_until = :seen, next_tick = :next"
_MOVES = (  # the group, or None, and what else changes
    (None, "time_next = time_next + 3000000000"),
    (None, "time_next = time_next - 3000000000"),
    ("b", "priority = 0"),
    (None, "priority = 1"),
    (None, "time_next = time_next + 8000000"),
    ("c", "priority = 2"),
    (None, "priority = 0, time_next = time_next + 1000000"),
    ("a", "priority = 0"),
)
_HARMS = ("crash", "lose", "late", "stall", "freeze", "jump")


def _two_receive(world: World) -> None:
    world.lets_all_end = True
    world.starts_with("a", "a", "b")
    world.add("x", world.receives("x", "x"))
    world.add("y", world.receives("y", "y"))
    world.add("putter", world.puts("putter", [["a", "b"], ["a"]]))


def _two_claim(world: World) -> None:
    """Groups are there already, ready for the first consumer that asks."""
    world.lets_all_end = True
    world.starts_with("a", "a", "b", "b")
    world.table("operator").groups.purge("no such group")  # gives all messages their places
    world.add("x", world.receives("x", "x", limit=1, rounds=3))
    world.add("y", world.receives("y", "y", limit=1))
    world.add("putter", world.puts("putter", [["a"]]))


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


def _an_operator_ends(world: World) -> None:
    """The operator lets groups go, skips, purges and moves what they have, while consumers take it."""
    world.starts_with("a", "a", "b", "b", "c")
    world.add("x", world.receives("x", "x", limit=1))
    world.add("y", world.receives("y", "y", limit=1))
    world.add("putter", world.puts("putter", [["a", "b"], ["c"]]))

    def commands() -> None:
        groups = world.table("operator").groups
        groups.close("a")
        groups.skip_head("a")
        groups.purge("b", count=1)
        groups.reroute("c", "a")
        groups.rebalance()
        groups.unpin("a")
        world.note_commands()

    world.add("operator", commands)


def _a_producer_closes(world: World) -> None:
    """A producer closes a group twice while two consumers take its messages."""
    world.add("x", world.receives("x", "x", limit=1))
    world.add("y", world.receives("y", "y", limit=2))
    world.add("putter", world.puts("putter", [["a", "a"], ["a"], ["b", "a"]], closes=True))


def _one_fails(world: World) -> None:
    """A consumer fails to handle two messages, which come again after a while, while others are put and taken."""
    world.starts_with("a", "a", "b")
    world.add("x", world.receives("x", "x", fails=2))
    world.add("y", world.receives("y", "y", every=POLL / 2))
    world.add("putter", world.puts("putter", [["a", "b"], ["a"]]))


def _one_dies_of_it(world: World) -> None:
    """A message that is handled badly is buried at once, and those behind it go on."""
    world.starts_with("a", "a", "b")
    world.add("x", world.receives("x", "x", fails=1))
    world.add("y", world.receives("y", "y"))
    world.add("putter", world.puts("putter", [["a"], ["b"]]))


def _long_handling(world: World) -> None:
    """Two subscribers handle messages for longer than a lease."""
    world.starts_with("a", "b")
    world.add("x", world.subscribes("x", "x", limit=1, handling=2.5 * LEASE / _SECOND))
    world.add("y", world.subscribes("y", "y", limit=1, handling=2.5 * LEASE / _SECOND))
    world.add("putter", world.puts("putter", [["a"]]))


def _a_purger(world: World) -> None:
    """What was acked a moment ago is purged, again and again."""
    world.starts_with("a", "a")
    world.add("x", world.receives("x", "x", limit=1))
    world.add("putter", world.puts("putter", [["a"], ["b"]]))

    def purges() -> None:
        for _ in range(4):
            moments.sleep(1.1)
            world.table("purger").purge()

    world.add("purger", purges)


def _two_purgers(world: World) -> None:
    """Two purgers delete what was acked, and each counts what it deleted."""
    world.starts_with("a", "b", "c")
    world.add("x", world.receives("x", "x", limit=1))
    world.add("putter", world.puts("putter", [["a"], ["b"]]))

    def purges(process: str) -> None:
        for _ in range(3):
            moments.sleep(1.1)
            world.table(process).purge()

    world.add("purger", lambda: purges("purger"))
    world.add("another", lambda: purges("another"))


def _two_of_one_name(world: World) -> None:
    """Two processes go by one consumer's name: one of them gets nothing."""
    world.starts_with("a", "b")
    world.add("x", world.receives("x", "x"))
    world.add("y", world.receives("y", "x"))
    world.add("putter", world.puts("putter", [["a"], ["b"]]))


def _a_caller_puts(world: World) -> None:
    """A caller puts in its own long transactions, which end after others have put and taken: one rolls back."""
    world.starts_with("a")
    world.add("x", world.receives("x", "x"))
    world.add("y", world.receives("y", "y"))
    world.add("putter", world.puts("putter", [["a"], ["b"]]))

    def puts() -> None:
        with world.transaction("caller") as own:
            world.table("caller").put("x", group="a", connection=own)
            world.step("think")
            own.rollback()
        with world.transaction("caller") as own:
            message = world.table("caller").put("x", group="a", connection=own)
            world.step("think")
        world.note_put("caller", [message], ["a"])

    if world.scheduler.has_server:  # elsewhere the others would just wait for it
        world.add("caller", puts)


def _a_caller_keeps_a_group(world: World) -> None:
    """A caller has acked in its own transaction, and does not commit: all other groups go on."""
    head, *_ = world.starts_with("a", "b", "c")
    if world.is_grouped:
        for _ in range(3):  # gives all messages their places, two at a time
            world.table("operator").groups.purge("no such group")
    _keep_and_go_on(world, head)


def _a_caller_acks_what_is_new(world: World) -> None:
    """As before, while no message has its place in its group yet."""
    head, *_ = world.starts_with("a", "b", "c")
    _keep_and_go_on(world, head)


def _a_caller_acks_what_is_newest(world: World) -> None:
    """As before, with more new messages before it than one transaction routes."""
    *_, last = world.starts_with("b", "c", "b", "a")
    _keep_and_go_on(world, last)


def _a_caller_acks_slowly(world: World) -> None:
    """A caller has acked in its own transaction what a group has, and commits while more of that and others comes."""
    head, _ = world.starts_with("a", "c")
    world.table("operator").groups.purge("no such group")  # gives all messages their places
    world.priorities = {"b": 1}
    if world.scheduler.has_server:  # elsewhere the others would just wait for it
        own = world.enter(world.stage.callers_engine("READ COMMITTED").connect())
        world.table("caller").ack([head], connection=own)

        def commits() -> None:
            for _ in range(2):
                world.step("think")
            own.commit()
            world.note_done(head, "caller")

        world.add("caller", commits)
    world.add("putter", world.puts("putter", [["a", "b"], ["a"], ["c", "a"]]))
    world.add("x", world.receives("x", "x", limit=2))


def _some_wait_for_a_caller(world: World) -> None:
    """A caller keeps a new message and its group; who waits for either holds up no other actor."""
    head, *_ = world.starts_with("a", "b", "c")
    _keep_and_go_on(world, head)
    world.starts_with("a")
    world.add("another", lambda: world.table("another").reschedule([head], world.now))

    def pauses() -> None:
        world.table("operator").groups.pause("a")
        world.table("operator").groups.resume("a")

    world.add("operator", pauses)


def _a_caller_reads_repeatably(world: World) -> None:
    """As before, in a transaction at REPEATABLE READ, which locks more than the rows that it changes on MariaDB."""
    _, head, *_ = world.starts_with("b", "a", "c")
    _keep_and_go_on(world, head, isolation="REPEATABLE READ")


def _plain_sql_keeps_a_message(world: World) -> None:
    """Plain SQL has acked a message, and does not commit."""
    head, *_ = world.starts_with("a", "a", "b", "c")
    if world.is_grouped:
        for _ in range(3):
            world.table("operator").groups.purge("no such group")
    _keep_and_go_on(world, head, statement=_ACK)


def _keep_and_go_on(
    world: World, head: Any, *, statement: str | None = None, isolation: str = "READ COMMITTED"
) -> None:
    if world.scheduler.has_server:  # elsewhere the others would just wait for it
        own = world.enter(world.stage.callers_engine(isolation).connect())
        if statement is None:
            world.table("caller").ack([head], connection=own)
        else:
            own.execute(sa.text(statement), {"now": world.now, "id": head})
        world.kept.add("a")
    world.add("x", world.receives("x", "x", limit=1))
    world.add("y", world.receives("y", "y", limit=1))
    world.add("putter", world.puts("putter", [["b"], ["a"], ["c"]]))


def _options_change(world: World) -> None:
    """The operator gives longer leases and fewer attempts while messages are out."""
    world.altered = True
    world.starts_with("a", "a", "b")
    world.add("x", world.receives("x", "x", fails=1))
    world.add("y", world.receives("y", "y"))
    world.add("putter", world.puts("putter", [["a"], ["b"]]))

    def alters() -> None:
        table = world.table("operator")
        table.alter(ack_wait=2 * LEASE, max_backoff=2 * LEASE)
        table.alter(max_attempts=3)
        table.alter(max_attempts=None)

    world.add("operator", alters)


def _an_operator_skips(world: World) -> None:
    """The operator acks the first message of a group, by hand or by its id, while consumers take it."""
    head, *_ = world.starts_with("a", "a", "b")
    world.add("x", world.receives("x", "x", limit=1))
    world.add("y", world.receives("y", "y", limit=1))
    world.add("putter", world.puts("putter", [["a"], ["b"]]))

    def skips() -> None:
        if world.table("operator").ack([head]):
            world.note_done(head, "operator")
        moments.sleep(SHORT)
        world.table("operator").groups.pin("b", "x")
        world.table("operator").groups.unpin("b")

    world.add("operator", skips)


def _some_expire(world: World) -> None:
    """The first messages of a group expire while consumers, one of them slow, and a purger look at it."""
    world.starts_with("a", "a", expiring=LEASE // 2)
    world.starts_with("a", "b")
    world.starts_with("b", expiring=LEASE)
    world.add("x", world.subscribes("x", "x", limit=1, handling=0.7 * LEASE / _SECOND))
    world.add("y", world.receives("y", "y", every=POLL))
    _purge_what_expired(world)


def _purge_what_expired(world: World) -> None:
    def purges() -> None:
        for _ in range(3):
            moments.sleep(LEASE / _SECOND / 2)
            world.table("purger").purge()

    world.add("purger", purges)


def _some_are_given_longer(world: World) -> None:
    """Plain SQL gives a message longer when its time is over already, while a purger removes such messages."""
    first, _ = world.starts_with("a", "a", expiring=_SECOND)

    def receives() -> None:
        moments.sleep(2 * LEASE / _SECOND)
        world.receives("x", "x", limit=1)()

    world.add("x", receives)

    def gives() -> None:
        moments.sleep(LEASE / _SECOND / 2)
        longer = world.now + 100 * LEASE
        with world.table("sql").context.backend.engine.begin() as connection:
            given = {"longer": longer, "id": first}
            if connection.execute(sa.text(_LONGER), given).rowcount:
                world.expires[first] = longer

    world.add("sql", gives)
    _purge_what_expired(world)


def _a_caller_acks_what_expires(world: World) -> None:
    """A caller acks a message in its own transaction, in which it expires, while others go on."""
    head = world.starts_with("a", expiring=LEASE // 2)[0]
    world.starts_with("a", "b")
    world.add("x", world.receives("x", "x", every=POLL))

    def acks() -> None:
        with world.transaction("caller") as own:
            acked = world.table("caller").ack([head], connection=own)
            moments.sleep(LEASE / _SECOND)
        if acked:
            world.note_done(head, "caller")

    if world.scheduler.has_server:  # elsewhere the others would just wait for it
        world.add("caller", acks)
    _purge_what_expired(world)


def _some_are_cancelled(world: World) -> None:
    """The operator cancels messages that wait, are out or are done, at once and in a transaction that takes long."""
    first, second, third, _ = world.starts_with("a", "a", "b", "b")
    world.add("x", world.receives("x", "x", limit=1))
    world.add("y", world.receives("y", "y", every=POLL))
    world.add("putter", world.puts("putter", [["a"], ["b"]]))

    def cancels() -> None:
        world.buried |= {first, second, third}
        table = world.table("operator")
        table.cancel([first, third])
        world.expires |= dict.fromkeys((first, third), world.now + 1)
        if world.scheduler.has_server:
            with world.transaction("operator") as own:
                table.cancel([second], connection=own)
                world.step("think")
        else:
            table.cancel([second])
        world.expires[second] = world.now + 1

    world.add("operator", cancels)


def _one_key(world: World) -> None:
    """All that is put has one key, at once or in a transaction that takes long: no two messages wait."""
    world.add("x", world.receives("x", "x", limit=1))
    world.add("y", world.receives("y", "y", limit=1, fails=1, every=POLL / 2))

    def note(process: str, message: Any) -> None:
        if message not in world.put:
            world.note_put(process, [message], ["a"])
        rows = world.table(process).context.rows
        waits = sa.select(sa.func.count()).where(rows.c.time_acked.is_(None), rows.c.claim_id.is_(None))
        with world.table(process).context.backend.engine.connect() as connection:
            count = connection.execute(waits.where(rows.c.epoch == 0)).scalar_one()
        if count > 1:
            world.faults.append(f"{count} messages with one key wait")

    def puts(process: str) -> None:
        for _ in range(3):
            note(process, world.table(process).put("x", group="a", unique="k"))
            moments.sleep(SHORT)

    def keeps() -> None:
        with world.transaction("caller") as own:
            message = world.table("caller").put("x", group="a", unique="k", on_conflict="replace", connection=own)
            world.step("think")
        note("caller", message)

    world.add("putter", lambda: puts("putter"))
    world.add("another", lambda: puts("another"))
    if world.scheduler.has_server:  # elsewhere the others would just wait for it
        world.add("caller", keeps)


def _two_tick(world: World) -> None:
    """Two processes put what a schedule has due, one of which may die or stand still: each tick gives one message."""
    world.table("operator").schedule("s", cron="* * * * *", payload="x", group="a", catch_up="all")
    with world.table("operator").context.backend.engine.begin() as connection:
        connection.execute(sa.text(_MISSED), {"seen": world.now - 300 * _SECOND, "next": world.now - 240 * _SECOND})

    def note(process: str) -> None:
        rows = world.table(process).context.rows
        with world.table(process).context.backend.engine.connect() as connection:
            found = connection.execute(sa.select(rows.c.id, rows.c.headers)).all()
        ticks = [json.loads(row.headers)[TICK] for row in found]
        if len(set(ticks)) < len(ticks):
            world.faults.append(f"a tick gave two messages: {sorted(ticks)}")
        for row in found:
            if row.id not in world.put:
                world.note_put("operator", [row.id], ["a"])

    def ticks(process: str) -> None:
        for _ in range(2):
            world.table(process).tick()
            note(process)
            moments.sleep(SHORT)

    world.add("x", lambda: ticks("x"))
    world.add("y", lambda: ticks("y"))
    world.add("z", world.receives("z", "z"))


def _two_at_a_rate(world: World) -> None:
    """Two consumers share a rate limit of one message a second."""
    world.starts_with("a", "b", "a", "b")
    world.apart = _SECOND
    world.add("x", world.receives("x", "x"))
    world.add("y", world.receives("y", "y"))
    world.add("putter", world.puts("putter", [["b"]]))


def _two_at_the_rate_of_a_key(world: World) -> None:
    """Two consumers share a rate limit of one message a second of each key."""
    world.is_apart_by_key = True
    _two_at_a_rate(world)


def _three_share_keys(world: World) -> None:
    """Three consumers take messages of two keys, some of which come back."""
    world.starts_with("a", "a", "b")
    world.add("x", world.receives("x", "x", fails=1))
    world.add("y", world.receives("y", "y"))
    world.add("z", world.receives("z", "z", limit=1, fails=1))
    world.add("putter", world.puts("putter", [["a", "b"], ["a"]]))


def _plain_sql_changes_keys(world: World) -> None:
    """Plain SQL changes the times, priorities and keys of messages while two consumers take them."""
    messages = world.starts_with("a", "a", "b", "a")
    world.add("x", world.receives("x", "x", fails=2))
    world.add("y", world.receives("y", "y", limit=1, fails=1))
    world.add("putter", world.puts("putter", [["a", "b"], ["a"], ["c", "a", "b"]]))

    def changes() -> None:
        for nth, (group, change) in enumerate(_MOVES):
            message = messages[nth * 3 % len(messages)]
            moved = change if group is None else f"group_id = '{group}', {change}"
            text = f"UPDATE orders SET {moved} WHERE id = :id AND time_acked IS NULL AND claim_id IS NULL"  # noqa: S608  # ours
            if _plain(world, "sql", text, message):
                world.put[message] = group or world.put[message][0], "sql"
                world.due_at.pop(message, None)
            moments.sleep(SHORT)

    world.add("sql", changes)


def _two_work(world: World) -> None:
    """Two workers call handlers in two threads each, which fail and take their time."""
    world.starts_with("a", "a", "b")
    world.add("x", world.works("x", "x", fails=1))
    world.add("y", world.works("y", "y", handling=0.7 * LEASE / _SECOND))
    world.add("putter", world.puts("putter", [["a", "b"], ["a"]]))


SCENARIOS = {
    one.name: one
    for one in (
        Scenario(
            "two_receive",
            _two_receive,
            _SEQUENCED,
            ("crash", "lose", "late", "stall"),
            ("x", "y"),
            sometimes=("blocked",),
        ),
        Scenario(
            "two_own",
            _two_receive,
            _EXCLUSIVE,
            ("crash", "lose", "late", "stall"),
            ("x", "y"),
            sometimes=("sent again",),
        ),
        Scenario("two_claim", _two_claim, _SEQUENCED, sometimes=("others' locks",)),
        Scenario("two_claim_to_own", _two_claim, _EXCLUSIVE, sometimes=("others' locks",)),
        Scenario("a_caller_keeps_a_row", _a_caller_keeps_a_group, _ROWS, ending="frozen"),
        Scenario("rows", _two_receive, _ROWS, _HARMS, ("x", "y"), sometimes=("sent again",)),
        Scenario("rows_frozen", _two_receive, _ROWS, ("freeze",), ("x", "y"), "frozen", ("frozen",)),
        Scenario("rows_held_long", _long_handling, _ROWS, ("stall", "lose", "late"), ("x", "y")),
        Scenario(
            "rows_fail", _one_fails, _ROWS, ("crash", "lose", "late", "stall"), ("x", "y"), sometimes=("sent again",)
        ),
        Scenario("rows_die", _one_dies_of_it, _ROWS | _BURIES, ("crash", "lose", "late", "stall"), ("x", "y")),
        Scenario("one_freezes", _two_receive, _SEQUENCED, ("freeze", "jump"), ("x", "y"), "frozen", ("frozen",)),
        Scenario("an_owner_freezes", _two_receive, _EXCLUSIVE, ("freeze", "jump"), ("x", "y"), "frozen", ("frozen",)),
        Scenario("held_long", _long_handling, _SEQUENCED, ("stall",), ("x", "y")),
        Scenario("owned_long", _long_handling, _EXCLUSIVE, ("stall",), ("x", "y")),
        Scenario("one_fails", _one_fails, _SEQUENCED, ("crash", "stall"), ("x", "y"), sometimes=("sent again",)),
        Scenario("an_owner_fails", _one_fails, _EXCLUSIVE, ("crash", "stall"), ("x", "y"), sometimes=("sent again",)),
        Scenario("one_dies_of_it", _one_dies_of_it, _SEQUENCED | _BURIES, ("crash", "stall"), ("x", "y")),
        Scenario("a_purger", _a_purger, _SEQUENCED | {"purge_after": "1s"}),
        Scenario("two_purgers", _two_purgers, _ROWS | {"purge_after": "1s"}, sometimes=("blocked",)),
        Scenario("two_of_one_name", _two_of_one_name, _EXCLUSIVE, sometimes=("blocked",)),
        Scenario("a_caller_puts", _a_caller_puts, _SEQUENCED, ending="living"),
        Scenario("a_caller_keeps_a_group", _a_caller_keeps_a_group, _SEQUENCED, ending="frozen"),
        Scenario("a_caller_keeps_an_owned_group", _a_caller_keeps_a_group, _EXCLUSIVE, ending="frozen"),
        Scenario("a_caller_acks_what_is_new", _a_caller_acks_what_is_new, _SEQUENCED, ending="frozen"),
        Scenario("a_caller_acks_what_is_newest", _a_caller_acks_what_is_newest, _SEQUENCED, ending="frozen"),
        Scenario("a_caller_acks_slowly", _a_caller_acks_slowly, _SEQUENCED, sometimes=("others' locks",)),
        Scenario("a_caller_acks_slowly_of_owners", _a_caller_acks_slowly, _EXCLUSIVE),
        Scenario("some_wait_for_a_caller", _some_wait_for_a_caller, _SEQUENCED, ending="living"),
        Scenario("some_wait_for_a_caller_of_owners", _some_wait_for_a_caller, _EXCLUSIVE, ending="living"),
        Scenario("a_caller_reads_repeatably", _a_caller_reads_repeatably, _SEQUENCED, ending="frozen"),
        Scenario("plain_sql_keeps_a_row", _plain_sql_keeps_a_message, _ROWS, ending="frozen"),
        Scenario("plain_sql_keeps_a_message", _plain_sql_keeps_a_message, _SEQUENCED, ending="frozen"),
        Scenario("plain_sql_keeps_an_owned_message", _plain_sql_keeps_a_message, _EXCLUSIVE, ending="frozen"),
        Scenario("options_change", _options_change, _SEQUENCED),
        Scenario("an_operator_skips", _an_operator_skips, _SEQUENCED, sometimes=("blocked",)),
        Scenario("an_operator_skips_owned", _an_operator_skips, _EXCLUSIVE, sometimes=("blocked",)),
        Scenario("one_leaves", _one_leaves, _EXCLUSIVE, sometimes=("blocked",)),
        Scenario("one_dies", _one_dies, _EXCLUSIVE, sometimes=("blocked",)),
        Scenario("one_returns", _one_returns, _EXCLUSIVE, ending="living"),
        Scenario("a_hot_group", _a_hot_group, _SEQUENCED, sometimes=("blocked",)),
        Scenario("plain_sql_acks", _plain_sql_acks, _SEQUENCED),
        Scenario("attempts_are_given_back", _attempts_are_given_back, _SEQUENCED | {"max_attempts": 1}),
        Scenario(
            "the_head_is_deleted", _the_head_is_deleted, _SEQUENCED | {"max_attempts": 1, "on_exhausted": "block"}
        ),
        Scenario("a_late_head_is_deleted", _a_late_head_is_deleted, _SEQUENCED),
        Scenario("some_expire", _some_expire, _SEQUENCED, ("crash", "lose", "late", "stall"), ("x",)),
        Scenario("some_owned_expire", _some_expire, _EXCLUSIVE, ("crash", "lose", "late", "stall"), ("x",)),
        Scenario("rows_expire", _some_expire, _ROWS, ("crash", "lose", "late", "stall"), ("x",)),
        Scenario("some_die_of_time", _some_expire, _SEQUENCED | _DIES, ("crash", "stall"), ("x",)),
        Scenario("one_freezes_as_some_expire", _some_expire, _SEQUENCED, ("freeze",), ("x",), "frozen"),
        Scenario("some_are_given_longer", _some_are_given_longer, _SEQUENCED),
        Scenario("a_caller_acks_what_expires", _a_caller_acks_what_expires, _SEQUENCED),
        Scenario("some_are_cancelled", _some_are_cancelled, _SEQUENCED, ("crash", "lose", "late", "stall"), ("x",)),
        Scenario(
            "some_owned_are_cancelled", _some_are_cancelled, _EXCLUSIVE, ("crash", "lose", "late", "stall"), ("x",)
        ),
        Scenario("rows_are_cancelled", _some_are_cancelled, _ROWS, ("crash", "lose", "late", "stall"), ("x",)),
        Scenario("one_key", _one_key, _SEQUENCED, ("crash", "stall"), ("x",), ending="living"),
        Scenario("rows_of_one_key", _one_key, _ROWS, ("crash", "stall"), ("x",), ending="living"),
        Scenario("two_tick", _two_tick, _ROWS, ("crash", "stall", "jump"), ("x",), ending="living"),
        Scenario("two_at_a_rate", _two_at_a_rate, _ROWS | {"rate_limit": 1.0}, ("crash", "stall"), ("x",)),
        Scenario(
            "two_at_the_rate_of_a_key", _two_at_the_rate_of_a_key, _ROWS | {"rate": {"group": "1/s"}}, _HARMS, ("x",)
        ),
        Scenario(
            "three_share_keys", _three_share_keys, _ROWS | _LIMITED, _HARMS, ("x", "y"), sometimes=("sent again",)
        ),
        Scenario("one_freezes_with_a_key", _three_share_keys, _ROWS | _LIMITED, ("freeze",), ("x",), "frozen"),
        Scenario("keys_take_turns", _three_share_keys, _ROWS | {"fair_by": "group"}, _HARMS, ("x", "y")),
        Scenario(
            "plain_sql_keeps_a_message_of_a_key",
            _plain_sql_keeps_a_message,
            _ROWS | {"limit": {"group": 2}},
            ending="frozen",
        ),
        Scenario(
            "plain_sql_changes_keys",
            _plain_sql_changes_keys,
            _ROWS | {"limit": {"group": 2}},
            ("crash", "lose", "late", "stall"),
            ("x", "y"),
        ),
        Scenario("plain_sql_acks_messages_of_keys", _plain_sql_acks, _ROWS | _LIMITED),
        Scenario(
            "two_work", _two_work, _SEQUENCED, ("crash", "lose", "late", "stall"), ("x", "y"), sometimes=("sent again",)
        ),
        Scenario("two_work_to_own", _two_work, _EXCLUSIVE, ("crash", "lose", "late", "stall"), ("x", "y")),
        Scenario("rows_are_worked_on", _two_work, _ROWS, ("crash", "lose", "late", "stall"), ("x", "y")),
        Scenario("an_operator_ends", _an_operator_ends, _SEQUENCED, sometimes=("blocked",)),
        Scenario("an_operator_ends_owned", _an_operator_ends, _EXCLUSIVE, sometimes=("blocked",)),
        Scenario("a_producer_closes", _a_producer_closes, _EXCLUSIVE, sometimes=("blocked",)),
        Scenario("an_operator_commands", _an_operator_commands, _EXCLUSIVE, sometimes=("blocked",)),
    )
}

SCENARIOS |= topic_scenarios.SCENARIOS
