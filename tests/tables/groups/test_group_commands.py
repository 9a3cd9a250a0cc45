from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.tables.conftest import MovableClock
from tests.tables.grouped import names, put

from waterclock.connection import Database
from waterclock.errors import InvalidArgumentError, LeaseLostError, NotFoundError
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.group_admin.group_commands import GroupChange


def test_the_list_shows_id_owner_counts_and_the_head(sequenced: MessageTable, clock: MovableClock) -> None:
    put(sequenced, "a1", "a2", "a3", "b1")
    sequenced.receive(2, consumer="x")
    clock.move("7s")
    a, b = sequenced.groups.list()
    assert (a.group, a.owner, a.in_flight, a.waiting) == ("a", "x", 2, 1)
    assert (a.head_id, a.head_age, a.head_attempts) == (1, 7_000_000_000, 1)
    assert "message 1 is with x until" in (a.blocked_by or "")
    assert (b.group, b.owner, b.in_flight, b.waiting, b.blocked_by) == ("b", None, 0, 1, None)


@pytest.mark.parametrize("ungrouped", ["default", "free"])
def test_the_first_groups_by_name_are_listed_whether_they_were_routed_or_not(
    make_table: Callable[..., MessageTable], ungrouped: str
) -> None:
    table = make_table(groups="sequenced", ungrouped=ungrouped)
    put(table, "b1", "d1", "d2", "e1")
    assert names(table.receive(1)) == ["b1"]
    put(table, "a1", "c1", "d3")
    table.put("of no group")
    first = [None] if ungrouped == "default" else []
    for count in range(1, 8):
        infos = table.groups.list(count)
        assert [info.group for info in infos] == [*first, "a", "b", "c", "d", "e"][:count]
        assert infos == table.groups.list()[:count]
    assert [(info.group, info.in_flight, info.waiting) for info in table.groups.list(6)][-4:-1] == [
        ("b", 1, 0),
        ("c", 0, 1),
        ("d", 0, 3),
    ]
    with pytest.raises(InvalidArgumentError, match=r"^limit must be an integer from 1 to .*, got 0"):
        table.groups.list(0)


def test_looking_takes_nothing(sequenced: MessageTable) -> None:
    put(sequenced, "a1")
    assert sequenced.groups.info("a").waiting == 1
    assert names(sequenced.receive(consumer="x")) == ["a1"]


def test_a_group_that_never_was_is_not_found(sequenced: MessageTable) -> None:
    with pytest.raises(NotFoundError, match="'unknown'"):
        sequenced.groups.info("unknown")


def test_a_table_without_groups_has_none_to_handle(orders: MessageTable) -> None:
    with pytest.raises(InvalidArgumentError, match=r"has no groups"):
        _ = orders.groups


def test_purging_skips_messages_in_flight_and_obeys_a_count(sequenced: MessageTable) -> None:
    put(sequenced, "a1", "a2", "a3", "a4", "a5", "b1")
    out = sequenced.receive(2)
    assert names(out) == ["a1", "a2"]
    assert sequenced.groups.purge("a", count=1, dry_run=True) == GroupChange(1, 2)
    assert sequenced.groups.info("a").waiting == 3
    assert sequenced.groups.purge("a", count=1) == GroupChange(1, 2)
    assert sequenced.groups.info("a").waiting == 2
    assert names(sequenced.receive()) == ["b1"]
    for delivery in out:
        delivery.ack()
    assert names(sequenced.receive()) == ["a4", "a5"]


def test_sent_messages_count_in_their_table_even_after_a_purge_and_a_move(
    sequenced: MessageTable, make_table: Callable[..., MessageTable]
) -> None:
    other = make_table("other", groups="sequenced")
    put(sequenced, "a1", "a2", "b1")
    for _ in range(2):
        for head in [delivery for delivery in sequenced.receive() if delivery.payload != "a2"]:
            head.nack(0)
    assert sequenced.stats().sent == 4  # the one behind a head that was given back does not count
    sequenced.groups.purge("a")
    assert sequenced.stats().sent == 4
    assert sequenced.groups.move("b", other) == GroupChange(1)
    assert (sequenced.stats().sent, other.stats().sent) == (4, 0)
    other.receive()
    assert (sequenced.stats().sent, other.stats().sent) == (4, 1)


def test_a_forced_purge_takes_messages_in_flight_too(sequenced: MessageTable) -> None:
    put(sequenced, "a1", "a2")
    [first] = sequenced.receive(1)
    assert sequenced.groups.purge("a", force=True) == GroupChange(2, 0)
    with pytest.raises(LeaseLostError):
        first.ack()
    assert sequenced.groups.list() == []


def test_moving_leaves_messages_in_flight_and_keeps_the_order(
    sequenced: MessageTable, make_table: Callable[..., MessageTable]
) -> None:
    other = make_table("other", groups="sequenced")
    put(sequenced, "a1", "a2", "a3", "a4")
    [first] = sequenced.receive(1)
    assert sequenced.groups.move("a", other, count=1) == GroupChange(1, 1)
    assert sequenced.groups.move("a", "other") == GroupChange(2, 1)
    assert names(other.receive()) == ["a2", "a3", "a4"]
    first.ack()
    assert sequenced.receive() == []


def test_a_message_whose_id_the_other_table_has_stays(
    sequenced: MessageTable, make_table: Callable[..., MessageTable]
) -> None:
    other = make_table("other", groups="sequenced")
    other.put("there", id=1, group="a")
    put(sequenced, "a1", "a2")
    assert sequenced.groups.move("a", other) == GroupChange(1, 1)
    assert names(sequenced.receive()) == ["a1"]


def test_a_table_of_another_kind_takes_no_group(
    sequenced: MessageTable, make_table: Callable[..., MessageTable]
) -> None:
    make_table("texts", id_type="text")
    with pytest.raises(InvalidArgumentError, match=r"to 'texts': id_type must be equal"):
        sequenced.groups.move("a", "texts")


def test_rerouting_puts_messages_behind_those_of_another_group(sequenced: MessageTable) -> None:
    put(sequenced, "a1", "a2", "b1", "a3")
    out = sequenced.receive(1)
    assert names(out) == ["a1"]
    assert sequenced.groups.reroute("a", "b") == GroupChange(2, 1)
    put(sequenced, "b2")
    assert names(sequenced.receive()) == ["b1", "a2", "a3", "b2"]


def test_a_paused_group_waits_and_says_so(sequenced: MessageTable, clock: MovableClock) -> None:
    put(sequenced, "a1", "b1")
    sequenced.groups.pause("a", clock.now + 5_000_000_000)
    assert names(sequenced.receive()) == ["b1"]
    assert "it is paused until" in (sequenced.groups.info("a").blocked_by or "")
    assert sequenced.explain(1).state == "paused"
    clock.move("5s")
    assert names(sequenced.receive()) == ["a1"]


def test_a_group_can_be_paused_before_it_has_messages(sequenced: MessageTable) -> None:
    sequenced.groups.pause("a")
    put(sequenced, "a1")
    assert sequenced.receive() == []
    assert sequenced.groups.resume("a").done == 1
    assert names(sequenced.receive()) == ["a1"]


def test_releasing_takes_a_group_from_its_consumer_only_by_force(sequenced: MessageTable) -> None:
    put(sequenced, "a1", "a2")
    [first] = sequenced.receive(1)
    assert sequenced.groups.release("a") == GroupChange(0, 1)
    assert sequenced.groups.release("a", force=True) == GroupChange(1, 0)
    with pytest.raises(LeaseLostError):
        first.ack()
    assert names(sequenced.receive()) == ["a1", "a2"]


def test_releasing_by_force_counts_an_attempt_of_the_first_message_alone(sequenced: MessageTable) -> None:
    put(sequenced, "a1", "a2", "a3")
    assert names(sequenced.receive(2)) == ["a1", "a2"]
    assert sequenced.groups.release("a", force=True) == GroupChange(2, 0)
    assert [(one.id, one.epoch) for one in sequenced.peek()] == [(1, 1), (2, 0), (3, 0)]


@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
def test_a_pinned_group_waits_for_its_consumer(make_table: Callable[..., MessageTable], policy: str) -> None:
    table = make_table(groups=policy)
    table.groups.pin("a", "x")
    put(table, "a1", "a2")
    assert table.receive(consumer="y") == []
    assert names(table.receive(1, consumer="x")) == ["a1"]
    table.groups.unpin("a")
    table.ack(1)
    assert names(table.receive(consumer="y")) == ["a2"]


@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
def test_a_pinned_group_is_not_closed(make_table: Callable[..., MessageTable], policy: str) -> None:
    table = make_table(groups=policy)
    put(table, "a1", "a2")
    table.groups.pin("a", "x")
    for dry_run in (True, False):
        with pytest.raises(InvalidArgumentError, match=r"^cannot close group 'a' of .*: it is pinned to 'x'\."):
            table.groups.close("a", dry_run=dry_run)
    assert table.receive(consumer="y") == []
    assert names(table.receive(1, consumer="x")) == ["a1"]


def test_skipping_the_head_lets_a_group_continue(sequenced: MessageTable, clock: MovableClock) -> None:
    put(sequenced, "a1", "a2")
    sequenced.receive(1)[0].nack("1h")
    assert sequenced.receive() == []
    assert sequenced.groups.skip_head("a") == GroupChange(1)
    assert names(sequenced.receive()) == ["a2"]
    assert sequenced.groups.skip_head("a") == GroupChange(0, 1)


def test_a_group_whose_head_used_up_its_attempts_blocks_and_says_so(
    make_table: Callable[..., MessageTable], clock: MovableClock
) -> None:
    table = make_table(groups="sequenced", max_attempts=2, on_exhausted="block")
    put(table, "a1", "a2", "b1")
    for _ in range(2):
        next(one for one in table.receive() if one.payload == "a1").nack(0)
    clock.move("1h")
    assert names(table.receive()) == ["b1"]
    assert "used up its attempts (2)" in (table.groups.info("a").blocked_by or "")
    assert table.explain(1).state == "exhausted"
    assert table.explain(2).blocking_id == 1
    table.groups.skip_head("a")
    assert names(table.receive()) == ["a2"]


@pytest.mark.parametrize("groups", ["sequenced", "exclusive"])
@pytest.mark.parametrize("ungrouped", ["default", "free"])
def test_messages_behind_an_exhausted_one_are_counted_as_blocked(
    make_table: Callable[..., MessageTable], clock: MovableClock, groups: str, ungrouped: str
) -> None:
    table = make_table(groups=groups, ungrouped=ungrouped, max_attempts=1, on_exhausted="block")
    put(table, "a1", "a2", "b1")
    table.put("later", group="a", at=clock.now + 10**12)
    table.receive(1)[0].nack(0)
    table.put("of no group")
    put(table, "a3")
    stats = table.stats()
    assert (stats.ready, stats.exhausted, stats.blocked, stats.scheduled, stats.in_flight) == (2, 1, 3, 0, 0)
    states = {one.payload: one.state for one in table.peek()}
    assert states == {
        "a1": "exhausted",
        **dict.fromkeys(("a2", "a3", "later"), "blocked"),
        **dict.fromkeys(("b1", "of no group"), "ready"),
    }
    table.groups.skip_head("a")
    stats = table.stats()
    assert (stats.ready, stats.exhausted, stats.blocked, stats.scheduled) == (4, 0, 0, 1)


@pytest.mark.parametrize("groups", ["sequenced", "exclusive"])
def test_a_group_is_not_counted_as_blocked_while_its_last_attempt_lasts(
    make_table: Callable[..., MessageTable], clock: MovableClock, groups: str
) -> None:
    table = make_table(groups=groups, max_attempts=1, on_exhausted="block", ack_wait="1s")
    put(table, "a1", "a2")
    table.receive(1)
    assert (table.stats().in_flight, table.stats().ready, table.stats().blocked) == (1, 1, 0)
    clock.move("2s")
    assert (table.stats().exhausted, table.stats().ready, table.stats().blocked) == (1, 0, 1)


@pytest.mark.parametrize("groups", ["sequenced", "exclusive"])
@pytest.mark.parametrize("altered", [False, True])
def test_a_group_continues_without_an_exhausted_message_by_default(
    make_table: Callable[..., MessageTable], groups: str, *, altered: bool
) -> None:
    table = make_table(groups=groups, **({} if altered else {"max_attempts": 1}))
    if altered:
        table.alter(max_attempts=1)
    put(table, "a1", "a2")
    table.receive(1)[0].nack(0)
    assert names(table.receive()) == ["a2"]
    assert [letter["payload"] for letter in table.dead_letters()] == ["a1"]


def test_a_held_ack_counts_once_its_turn_comes_also_after_a_restart(
    make_table: Callable[..., MessageTable], connect: Callable[..., Database], clock: MovableClock
) -> None:
    table = make_table(groups="sequenced", ack_order="hold")
    put(table, "a1", "a2", "a3", "a4")
    first, second, third = table.receive(3)
    third.ack()
    second.ack()
    stats = table.stats()
    assert (stats.acked, stats.held) == (0, 2)
    first.nack(0)
    elsewhere = connect(clock=clock).table("orders")
    again = elsewhere.receive(1)
    assert names(again) == ["a1"]
    again[0].ack()
    assert elsewhere.stats().acked == 3
    assert names(elsewhere.receive()) == ["a4"]


def test_lenient_acks_skip_earlier_ones(make_table: Callable[..., MessageTable]) -> None:
    table = make_table(groups="sequenced", ack_order="lenient")
    put(table, "a1", "a2", "a3")
    first, second, _ = table.receive()
    second.ack()
    first.nack(0)
    assert names(table.receive()) == ["a1", "a3"]


def test_messages_that_are_free_have_no_order_and_flow_next_to_groups(make_table: Callable[..., MessageTable]) -> None:
    table = make_table(groups="sequenced", ungrouped="free")
    table.put_many([{"payload": "free"} for _ in range(4)] + [{"payload": name, "group": "a"} for name in ("a1", "a2")])
    taken = [delivery for _ in range(5) for delivery in table.receive(1)]
    # Nothing of the group is behind its head, and no free message waits for another one, leased or not.
    assert sorted(names(taken)) == ["a1", "free", "free", "free", "free"]
    assert table.receive(10) == []
    free = [delivery for delivery in taken if delivery.group is None]
    free[-1].ack()
    free[0].nack(0)
    assert [delivery.id for delivery in table.receive(10)] == [free[0].id]
    [head] = [delivery for delivery in taken if delivery.group == "a"]
    head.ack()
    assert names(table.receive(10)) == ["a2"]


def test_a_message_without_a_group_is_refused_if_the_table_rejects_it(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="sequenced", ungrouped="reject")
    with pytest.raises(InvalidArgumentError, match=r"^group is missing"):
        table.put("1")
    with pytest.raises(InvalidArgumentError, match=r"^group is missing"):
        table.put("1", group="")
    import sqlalchemy as sa  # noqa: PLC0415

    for value in (None, ""):
        with pytest.raises(sa.exc.DBAPIError), database.backend.engine.begin() as connection:
            connection.execute(sa.text("INSERT INTO orders(id, message, group_id) VALUES (1, 'x', :g)"), {"g": value})


@pytest.mark.both_servers
def test_a_group_continues_without_a_head_that_died_and_the_dead_letter_keeps_its_group(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="sequenced", max_attempts=1, on_exhausted="dead_letter")
    put(table, "a1", "a2")
    table.receive(1)[0].nack(0)
    assert names(table.receive()) == ["a2"]
    [dead] = database.table("orders_dead").receive()
    assert (dead.payload, dead.group) == ("a1", "a")


@pytest.mark.both_servers
def test_a_free_message_that_used_up_its_attempts_dies(
    make_table: Callable[..., MessageTable], database: Database
) -> None:
    table = make_table(groups="sequenced", ungrouped="free", max_attempts=1)
    table.put("1")
    table.receive(1)[0].nack(0)
    assert table.receive() == []
    assert names(database.table("orders_dead").receive()) == ["1"]


@pytest.mark.one_database
@pytest.mark.parametrize("command", ["purge", "pause", "resume", "close", "release", "unpin", "skip_head"])
@pytest.mark.parametrize("group", [None, ""])
def test_a_command_about_messages_that_are_in_no_group_is_refused(
    make_table: Callable[..., MessageTable], command: str, group: str | None
) -> None:
    table = make_table(groups="exclusive", ungrouped="free")
    table.put("tea")
    with pytest.raises(InvalidArgumentError, match="group must be a non-empty name, got"):
        getattr(table.groups, command)(group)
    assert names(table.receive()) == ["tea"]
