"""A message that the database refuses to let be claimed keeps no other message, and no other group."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.tables.conftest import MovableClock
from tests.tables.options.plain_sql import run

from waterclock._support import moments
from waterclock.connection import Database
from waterclock.errors import RefusedError
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.claiming import refused_claims
from waterclock.tables.model.claims.passed_by import (
    LONGEST_REST,
    MOST_PASSED_BY,
    PASSED_BY_FOR,
    REST,
    Narrowing,
    PassedBy,
)


def refuse(database: Database, payload: str, what: str) -> None:
    """Install a trigger of the user's that refuses updates of messages with this payload that set ``what``."""
    if database.backend.dialect.name == "mysql":
        run(
            database,
            f"CREATE TRIGGER refuse BEFORE UPDATE ON orders FOR EACH ROW"
            f" IF OLD.message = '{payload}' AND {what} THEN SIGNAL SQLSTATE '45000'; END IF",
        )
        return
    if database.backend.dialect.name == "sqlite":
        run(
            database,
            f"CREATE TRIGGER refuse BEFORE UPDATE ON orders WHEN OLD.message = '{payload}' AND {what}"
            " BEGIN SELECT RAISE(ABORT, 'not now'); END",
        )
        return
    run(
        database,
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$",
    )
    run(
        database,
        f"CREATE TRIGGER refuse BEFORE UPDATE ON orders FOR EACH ROW WHEN (OLD.message = '{payload}' AND {what})"
        " EXECUTE FUNCTION refuse()",
    )


CLAIMED, ROUTED = "NEW.claim_id IS NOT NULL", "NEW.routed = 1"


@pytest.fixture(autouse=True)
def undo_functions(database: Database) -> Any:
    yield
    if database.backend.dialect.name == "postgresql":
        run(database, "DROP FUNCTION IF EXISTS refuse CASCADE")


def drain(table: MessageTable, most: int = 20) -> list[str]:
    found: list[str] = []
    for _ in range(most):
        some = table.receive(10, consumer="press")
        if not some:
            break
        table.ack(some)
        found += [one.payload for one in some]
    return found


def drain_at_leisure(table: MessageTable, claims: int) -> list[str]:
    """Drain a table while what is passed by may be tried at each claim."""
    found: list[str] = []
    for _ in range(claims):
        table.context.probing.rest_no_more()
        some = table.receive(10, consumer="press")
        if some:
            table.ack(some)
        found += [one.payload for one in some]
    return found


@pytest.mark.both_servers  # each refuses with an error of its own
def test_a_message_at_the_head_that_is_refused_is_passed_by_and_reported(
    database: Database,
    orders: MessageTable,
    clock: MovableClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for payload in ("kept", "kept", "a", "b", "kept", "c"):
        orders.put(payload)
        clock.move("1ms")
    refuse(database, "kept", CLAIMED)
    assert drain(orders) == ["a", "b", "c"]
    stats = orders.stats()
    assert stats.ready == 3
    assert "skipped for up to 60 s" in (stats.failure or "")
    assert "cannot claim from table 'orders': messages with seq" in caplog.text
    first = next(iter(orders.peek(limit=1))).id
    assert "skipped for up to 60 s" in orders.explain(first).reason
    orders.put("later")
    clock.move("1ms")
    assert drain(orders) == ["later"]


@pytest.mark.both_servers  # each refuses with an error of its own
@pytest.mark.parametrize("groups", ["sequenced", "exclusive"])
@pytest.mark.parametrize("what", [CLAIMED, ROUTED])
def test_a_group_whose_first_message_is_refused_does_not_block_others(
    database: Database, make_table: Callable[..., MessageTable], clock: MovableClock, groups: Any, what: str
) -> None:
    table = make_table(groups=groups)
    for payload, group in (("kept", "g"), ("behind", "g"), ("a", "h"), ("b", "h"), ("c", "i")):
        table.put(payload, group=group)
        clock.move("1ms")
    refuse(database, "kept", what)
    assert drain(table) == ["a", "b", "c"]
    assert "skipped for up to 60 s" in (table.stats().failure or "")
    table.put("d", group="h")
    clock.move("1ms")
    assert drain(table) == ["d"]
    assert "skipped for up to 60 s" in table.explain(1).reason


def test_hundreds_of_refused_messages_at_the_head_keep_none_behind_them(
    database: Database, orders: MessageTable, clock: MovableClock, caplog: pytest.LogCaptureFixture
) -> None:
    orders.put_many([{"payload": "kept"}] * 300 + [{"payload": "between"}] + [{"payload": "kept"}] * 100)
    clock.move("1ms")
    orders.put_many([{"payload": "behind"}] * 20)
    refuse(database, "kept", CLAIMED)
    clock.move("1ms")
    assert orders.receive(1)[0].payload in ("between", "behind")
    assert "behind them are skipped" in caplog.text
    assert len(orders.context.refused_seqs.all()) >= 300


def test_messages_skipped_with_refused_ones_come_soon_after(
    database: Database, orders: MessageTable, clock: MovableClock
) -> None:
    orders.put_many([{"payload": "kept"}] * 8 + [{"payload": "between"}] + [{"payload": "kept"}] * 4)
    clock.move("1ms")
    orders.put_many([{"payload": "behind"}] * 20)
    refuse(database, "kept", CLAIMED)
    clock.move("1ms")
    assert drain_at_leisure(orders, 40).count("between") == 1
    assert orders.stats().ready == 12
    assert len(orders.context.refused_seqs.all()) == 12


def test_messages_no_longer_refused_come_after_a_while(
    database: Database, orders: MessageTable, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.put_many([{"payload": "kept"}] * 12 + [{"payload": "behind"}])
    refuse(database, "kept", CLAIMED)
    clock.move("1ms")
    assert drain_at_leisure(orders, 20) == ["behind"]
    run(database, f"DROP TRIGGER refuse{' ON orders' if database.backend.dialect.name == 'postgresql' else ''}")
    assert not drain(orders)
    later = moments.monotonic_ns() + PASSED_BY_FOR
    monkeypatch.setattr(moments, "monotonic_ns", lambda: later)
    assert drain(orders) == ["kept"] * 12
    assert not orders.context.refused_seqs.some


@pytest.mark.parametrize("groups", ["sequenced", "exclusive"])
@pytest.mark.parametrize("what", [CLAIMED, ROUTED])
def test_dozens_of_groups_that_are_refused_do_not_block_others(
    database: Database, make_table: Callable[..., MessageTable], clock: MovableClock, groups: Any, what: str
) -> None:
    table = make_table(groups=groups)
    table.put_many([{"payload": "kept", "group": f"g{number}"} for number in range(10)])
    clock.move("1ms")
    table.put_many([{"payload": "behind", "group": f"h{number}"} for number in range(3)])
    refuse(database, "kept", what)
    clock.move("1ms")
    found = table.receive(1, consumer="press")
    table.ack(found)
    while len(found) < 3:  # some of them may be postponed with those that are refused
        table.context.narrowing.rest_no_more()
        with suppress(RefusedError):  # nothing else is due just now
            if one := table.receive(1, consumer="press"):
                table.ack(one)
                found += one
        clock.move("31s")
    assert [one.payload for one in found] == ["behind"] * 3


def test_groups_that_were_refused_with_others_are_routed_soon_after(
    database: Database, make_table: Callable[..., MessageTable], clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(groups="sequenced")
    payloads = ["kept", "kept", "behind"] * 4
    table.put_many([{"payload": payload, "group": f"g{number}"} for number, payload in enumerate(payloads)])
    refuse(database, "kept", ROUTED)
    monkeypatch.setattr(refused_claims, "MOST_TRIES", 6)
    began, found = moments.monotonic_ns(), list[str]()
    for second in range(PASSED_BY_FOR // 1_000_000_000):
        if len(found) == payloads.count("behind"):
            break
        monkeypatch.setattr(moments, "monotonic_ns", lambda now=began + second * 1_000_000_000: now)
        clock.move("1s")
        table.context.narrowing.rest_no_more()
        with suppress(RefusedError):  # by chance, all groups that it tried are refused
            found += drain(table)
    assert found == ["behind"] * 4, "within the minute for which refused groups are passed by"


@pytest.mark.both_servers  # each refuses with an error of its own
def test_a_refusal_of_all_messages_is_raised_and_skips_none(database: Database, orders: MessageTable) -> None:
    orders.put_many([{"payload": "kept"}, {"payload": "kept"}])
    refuse(database, "kept", CLAIMED)
    with pytest.raises(RefusedError):
        orders.receive(1)
    assert not orders.context.refused_seqs.now()


@pytest.mark.parametrize("groups", [None, "sequenced", "exclusive"])
def test_claims_are_not_narrowed_down_again_soon_after_all_messages_were_refused(
    database: Database, make_table: Callable[..., MessageTable], monkeypatch: pytest.MonkeyPatch, groups: Any
) -> None:
    table = make_table(groups=groups)
    table.put_many([{"payload": "kept", "group": f"g{number}"} for number in range(3)])
    refuse(database, "kept", CLAIMED)
    with pytest.raises(RefusedError):
        table.receive(1, consumer="press")
    narrowed: list[str] = []
    monkeypatch.setattr(refused_claims, "_past_rows", lambda *_: narrowed.append("rows"))
    monkeypatch.setattr(refused_claims, "_past_groups", lambda *_: narrowed.append("groups"))
    with pytest.raises(RefusedError):
        table.receive(1, consumer="press")
    assert not narrowed


def test_a_narrowing_that_found_nothing_rests_ten_times_as_long_as_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0
    narrowing = Narrowing()
    monkeypatch.setattr(moments, "monotonic_ns", lambda: now)

    def fail_after(ns: int) -> None:
        nonlocal now
        with narrowing.timed():
            now += ns
            raise RefusedError("not now")

    with pytest.raises(RefusedError):
        fail_after(100)
    assert not narrowing.may_begin()
    now += REST * 100
    assert narrowing.may_begin()
    with pytest.raises(RefusedError):
        fail_after(LONGEST_REST)
    assert not narrowing.may_begin()
    now += LONGEST_REST
    assert narrowing.may_begin()
    now -= 1
    with narrowing.timed():
        pass
    assert narrowing.may_begin()


def test_a_refused_claim_keeps_the_table_context(database: Database, orders: MessageTable) -> None:
    orders.put("kept")
    refuse(database, "kept", CLAIMED)
    context = orders.context
    with pytest.raises(RefusedError):
        orders.receive(1)
    assert orders.context is context


def test_skipped_messages_are_tried_again_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0
    monkeypatch.setattr(moments, "monotonic_ns", lambda: now)
    passed = PassedBy[int]()
    passed.note(range(MOST_PASSED_BY + 1))
    assert passed.now() == frozenset(range(1, MOST_PASSED_BY + 1))
    now = PASSED_BY_FOR
    assert not passed.now()
    assert not passed.some
