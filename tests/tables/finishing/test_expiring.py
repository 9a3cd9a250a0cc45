"""Messages that expire: never given out, never in the way of others, removed once, by a claim or a purge."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.statements import statements_of
from tests.tables.conftest import MovableClock
from tests.tables.kinds import group_of
from tests.tables.options.plain_sql import run
from tests.tables.plans import complaints

from waterclock.connection import Database
from waterclock.errors import InvalidArgumentError, LeaseLostError
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.claiming import claim_groups_in_steps, claiming
from waterclock.tables.messages.finishing import expiring
from waterclock.time import format_time, to_duration

MakeTable = Callable[..., MessageTable]
POLICIES = ("sequenced", "exclusive")


def payloads(table: MessageTable, limit: int = 100) -> list[Any]:
    return [one.payload for one in table.receive(limit)]


def soon(clock: MovableClock, seconds: str = "10s") -> int:
    return clock.now + to_duration(seconds)


def test_a_message_that_expired_is_never_given_out_and_the_others_are(
    make_table: MakeTable, clock: MovableClock, kind: dict[str, Any]
) -> None:
    table = make_table(**kind)
    group = group_of(kind)
    table.put("stale", expires_at=soon(clock), **group)
    table.put("tea", **group)
    table.put("fresh", expires_at=soon(clock, "1h"), **group)
    clock.move("10s")
    assert table.stats().expired == 1
    assert [one.payload for one in table.peek()] == ["tea", "fresh"]
    assert payloads(table) == ["tea", "fresh"]
    stats = table.stats()
    assert (stats.expired, stats.in_flight, stats.ready, stats.acked, stats.sent) == (1, 2, 0, 0, 2)
    assert table.explain(1).state == "expired"
    assert format_time(clock.now) in str(table.explain(1))


def test_a_claim_of_one_continues_behind_many_that_expired(
    make_table: MakeTable, clock: MovableClock, kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiring, "AT_ONCE", 2)
    table = make_table(**kind)
    table.put_many([{"payload": "stale", "expires_at": soon(clock), **group_of(kind)} for _ in range(7)])
    table.put("tea", **group_of(kind))
    clock.move("10s")
    assert payloads(table, 1) == ["tea"]
    assert table.stats().expired == 7


@pytest.mark.parametrize("policy", ["sequenced", "exclusive"])
def test_a_claim_passes_many_groups_whose_messages_expired_without_looking_at_each(
    make_table: MakeTable, clock: MovableClock, database: Database, policy: str
) -> None:
    table = make_table(groups=policy)
    table.put_many([{"payload": "stale", "group": f"g{number}", "expires_at": soon(clock)} for number in range(150)])
    table.put("fresh", group="h")
    clock.move("20s")
    with statements_of(database.backend, "orders") as seen:
        assert payloads(table, 1) == ["fresh"]
    assert table.stats().expired == 150
    assert len(seen) < 150


@pytest.mark.parametrize(
    "options", [{}, {"columns": {"customer": "text"}, "fair_by": "customer"}], ids=["plain", "fair"]
)
def test_a_claim_of_one_removes_many_that_expired_at_once(
    make_table: MakeTable, clock: MovableClock, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    table = make_table(**options)
    customers = [f"c{number}" for number in range(40)] if options else []
    table.put_many([{"payload": "stale", "expires_at": soon(clock)} | {"customer": one} for one in customers])
    table.put_many([{"payload": "stale", "expires_at": soon(clock)} for _ in range(40 - len(customers))])
    clock.move("20s")
    claims: list[object] = []

    def claim(context: Any, wanted: Any) -> Any:
        claims.append(wanted)
        return claiming.claim(context, wanted)

    monkeypatch.setattr("waterclock.tables.consumers.receiving.claim", claim)
    assert payloads(table, 1) == []
    assert len(claims) <= 3
    assert table.stats().expired == 40


def test_a_leased_message_that_expires_stays_with_its_consumer(
    make_table: MakeTable, clock: MovableClock, kind: dict[str, Any]
) -> None:
    table = make_table(ack_wait="30s", **kind)
    table.put("tea", expires_at=soon(clock), **group_of(kind))
    [delivery] = table.receive()
    assert delivery.expires_at == soon(clock)
    clock.move("20s")
    assert table.stats().in_flight == 1
    assert table.explain(1).state == "leased"
    assert table.purge() == 0
    delivery.extend("1m")
    delivery.ack()
    assert (table.stats().acked, table.stats().expired) == (1, 0)


def test_a_message_that_expired_while_leased_is_not_sent_again(
    make_table: MakeTable, clock: MovableClock, kind: dict[str, Any]
) -> None:
    table = make_table(ack_wait="30s", **kind)
    for payload in ("given back", "lapsed"):
        table.put(payload, expires_at=soon(clock), **group_of(kind))
    given_back, lapsed = table.receive()
    clock.move("10s")
    given_back.nack("0s")
    clock.move("1h")
    assert payloads(table) == []
    assert table.stats().expired == 2
    with pytest.raises(LeaseLostError):
        lapsed.ack()


def test_a_late_ack_counts_as_long_as_the_message_was_not_removed(
    make_table: MakeTable, clock: MovableClock, kind: dict[str, Any]
) -> None:
    table = make_table(ack_wait="30s", **kind)
    table.put("tea", expires_at=soon(clock), **group_of(kind))
    [delivery] = table.receive()
    clock.move("1h")
    delivery.ack()
    assert table.stats().acked == 1


def test_purging_removes_them_without_any_claim(
    make_table: MakeTable, clock: MovableClock, kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiring, "AT_ONCE", 3)
    table = make_table(purge_after="1m", **kind)
    table.put_many([{"payload": "stale", "expires_at": soon(clock), **group_of(kind)} for _ in range(10)])
    table.put("tea", **group_of(kind))
    clock.move("10s")
    assert table.purge() == 0
    with_acks = "SELECT COUNT(*) FROM orders WHERE time_acked IS NOT NULL AND acked_by = 0"
    assert count(table, with_acks) == 10
    clock.move("1m")
    assert table.purge() == 10
    assert payloads(table) == ["tea"]
    assert (table.stats().expired, table.stats().purged, table.stats().sent) == (0, 10, 1)


def count(table: MessageTable, statement: str) -> int:
    with table.context.backend.snapshot() as connection:
        return connection.execute(sa.text(statement)).scalar_one()


def test_dead_letters_say_that_they_expired_and_come_back_without_an_end(
    make_table: MakeTable, database: Database, clock: MovableClock, kind: dict[str, Any]
) -> None:
    table = make_table(dead_letter="dead", on_expired="dead_letter", **kind)
    for payload in ("claimed", "purged"):
        table.put(payload, expires_at=soon(clock), **group_of(kind))
        clock.move("10s")
        if payload == "claimed":
            assert payloads(table) == []
        else:
            table.purge()
    assert [(one["payload"], one["dead_reason"], one["epoch"]) for one in table.dead_letters()] == [
        ("purged", "expired", 0),
        ("claimed", "expired", 0),
    ]
    stats = table.stats()
    assert (stats.dead, stats.expired, stats.sent, stats.ready) == (2, 0, 0, 0)
    assert table.explain(1).state == "dead"
    clock.move("1h")
    assert len(database.table("dead").peek()) == 2
    assert table.redrive() == 2
    assert payloads(table) == ["claimed", "purged"]


@pytest.mark.parametrize("ack_order", ["strict", "hold", "lenient"])
@pytest.mark.parametrize("policy", POLICIES)
def test_an_expired_head_never_blocks_its_group(
    make_table: MakeTable, clock: MovableClock, policy: str, ack_order: str
) -> None:
    table = make_table(groups=policy, ack_order=ack_order, max_attempts=2, on_exhausted="block", ack_wait="30s")
    table.put("backs off", group="a", expires_at=soon(clock, "1m"))
    table.put("scheduled", group="b", delay="1h", expires_at=soon(clock, "2h"))
    table.put("exhausted", group="c", expires_at=soon(clock, "1m"))
    first = {one.payload: one for one in table.receive()}
    assert set(first) == {"backs off", "exhausted"}
    for group in "abc":
        table.put(f"behind {group}", group=group)
    first["backs off"].nack("1d")
    first["exhausted"].nack("0s")
    table.nack(table.receive(), "0s")
    assert payloads(table) == []
    assert {info.group: info.state for info in table.groups.list()} == {
        "a": "due_later",
        "b": "due_later",
        "c": "exhausted",
    }
    clock.move("1m")
    assert {info.group: info.state for info in table.groups.list()} == {"a": "ready", "b": "due_later", "c": "ready"}
    assert sorted(payloads(table)) == ["behind a", "behind c"]
    table.reschedule([2], soon(clock, "1d"))
    clock.move("2h")
    assert "behind b" in payloads(table)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_others_keep_their_order(make_table: MakeTable, clock: MovableClock, policy: str) -> None:
    table = make_table(groups=policy)
    for number in range(20):
        ends = {"expires_at": soon(clock)} if number % 3 == 0 else {}
        table.put(str(number), group="g", **ends)
    clock.move("10s")
    got: list[str] = []
    while some := table.receive(4):
        got += [one.payload for one in some]
        table.ack(some)
    assert got == [str(number) for number in range(20) if number % 3]
    assert table.groups.list() == [] or table.groups.list()[0].state == "idle"


@pytest.mark.parametrize("policy", POLICIES)
def test_an_ack_skips_what_expired(make_table: MakeTable, clock: MovableClock, policy: str) -> None:
    table = make_table(groups=policy, ack_wait="30s")
    table.put("stale", group="g", expires_at=soon(clock))
    table.put("tea", group="g")
    clock.move("10s")
    assert table.explain(2).state == "ready"
    assert table.ack([2]) == 1
    assert payloads(table) == []
    assert (table.stats().acked, table.stats().expired) == (1, 1)


def test_a_message_that_expires_in_a_subscription_is_not_handed_out(
    make_table: MakeTable, clock: MovableClock, kind: dict[str, Any]
) -> None:
    table = make_table(ack_wait="1h", **kind)
    group = group_of(kind)
    table.put("first", **group)
    table.put("stale", expires_at=soon(clock), **group)
    table.put("last", **group)
    with table.subscribe() as deliveries:
        next(deliveries).ack()
        clock.move("10s")
        last = next(deliveries)
        assert last.payload == "last"
        last.ack()
    stats = table.stats()
    assert (stats.acked, stats.expired, stats.sent) == (2, 1, 2)


def test_messages_expire_under_plain_sql(make_table: MakeTable, database: Database, clock: MovableClock) -> None:
    table = make_table()
    run(database, "INSERT INTO orders(id, message, expires_at) VALUES (1, 'tea', :at)", at=clock.now - 1)
    run(database, "INSERT INTO orders(id, message) VALUES (2, 'cake')")
    clock.move("1h")
    assert payloads(table) == ["cake"]


def test_times_are_understood_in_all_their_forms(make_table: MakeTable, clock: MovableClock) -> None:
    table = make_table(dead_letter="dead")
    at = datetime(2100, 1, 1, tzinfo=UTC)
    table.put_many([{"payload": "a", "expires_at": form} for form in (at, at.isoformat(), int(at.timestamp()) * 10**9)])
    assert {one.expires_at for one in table.peek()} == {int(at.timestamp()) * 10**9}
    for wrong in ("tomorrow", "2h", 1.5, datetime(2100, 1, 1)):  # noqa: DTZ001  # that is what is wrong with it
        with pytest.raises(InvalidArgumentError, match="expires_at"):
            table.put("a", expires_at=wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidArgumentError, match=r"^expires_at must be later than"):
        table.put("a", at=at, expires_at=at)
    with pytest.raises(InvalidArgumentError, match=r"^expires_at must be later than"):
        table.put("a", delay="1h", expires_at=clock.now + 1)


def test_dead_letters_need_a_table(make_table: MakeTable) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"on_expired='dead_letter' needs .* Set dead_letter or max_attempts"
    ):
        make_table(on_expired="dead_letter")
    with pytest.raises(InvalidArgumentError, match="on_expired must be one of 'drop', 'dead_letter', got 'later'"):
        make_table(on_expired="later")
    table = make_table()
    with pytest.raises(InvalidArgumentError, match="needs a dead-letter table"):
        table.alter(on_expired="dead_letter")
    table.alter(on_expired="dead_letter", dead_letter="dead")
    with pytest.raises(InvalidArgumentError, match="needs a dead-letter table"):
        table.alter(dead_letter=None)
    table.alter(on_expired="drop", dead_letter=None)


def test_a_moved_group_keeps_its_ends(make_table: MakeTable, clock: MovableClock) -> None:
    table, target = make_table(groups="sequenced"), make_table("others", groups="sequenced")
    table.put("stale", group="g", expires_at=soon(clock))
    table.put("tea", group="g")
    assert table.groups.move("g", target).done == 2
    clock.move("10s")
    assert payloads(target) == ["tea"]


def test_a_rerouted_group_keeps_its_ends(make_table: MakeTable, clock: MovableClock) -> None:
    table = make_table(groups="sequenced")
    table.put("stale", group="g", expires_at=soon(clock))
    table.put("tea", group="g")
    assert table.groups.reroute("g", "h").done == 2
    clock.move("10s")
    assert payloads(table) == ["tea"]
    assert table.stats().expired == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_an_ack_that_is_held_back_behind_what_expired_blocks_none(
    make_table: MakeTable, clock: MovableClock, policy: str
) -> None:
    table = make_table(groups=policy, ack_order="hold")
    for payload in ("stale", "stale", "tea"):
        ends = {"expires_at": soon(clock)} if payload == "stale" else {}
        table.put(payload, group="g", **ends)
    table.groups.purge("no such group")  # gives all messages their places
    clock.move("10s")
    assert table.ack([2]) == 1
    assert (table.explain(2).state, table.explain(3).state) == ("ack_held_back", "ready")
    assert payloads(table) == ["tea"]
    assert (table.stats().acked, table.stats().expired) == (1, 1)


@pytest.mark.parametrize("kind", ["ungrouped", "sequenced"], indirect=True)
@pytest.mark.parametrize("removes", ["claim", "purge"])
def test_a_message_extended_just_before_its_removal_stays(
    make_table: MakeTable,
    database: Database,
    clock: MovableClock,
    kind: dict[str, Any],
    removes: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = make_table(ack_wait="30s", **kind)
    table.put("tea", expires_at=soon(clock), **group_of(kind))
    clock.move("10s")
    remove = expiring.expire
    modules = [expiring, claim_groups_in_steps]

    def given_longer(context: Any, connection: Any, seqs: Any) -> int:
        longer = "UPDATE orders SET expires_at = :at WHERE id = 1"
        connection.execute(sa.text(longer), {"at": soon(clock, "1h")})  # as if plain SQL had come in between
        return remove(context, connection, seqs)

    for module in modules:
        monkeypatch.setattr(module, "expire", given_longer)
    if removes == "claim":
        table.receive()
    else:
        table.purge()
    assert table.stats().expired == 0
    clock.move("30s")
    assert payloads(table) == ["tea"]


@pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)
def test_in_a_table_with_partitions_they_go_with_the_day_on_which_they_were_dropped(
    make_table: MakeTable, clock: MovableClock
) -> None:
    table = make_table(purge_by="partition", purge_after="1d")
    table.put_many([{"payload": "stale", "expires_at": soon(clock)} for _ in range(3)])
    table.put("tea")
    clock.move("10s")
    assert payloads(table) == ["tea"]
    assert table.stats().expired == 3
    clock.move("3d")
    assert table.purge() == 3
    assert (table.stats().expired, table.stats().purged) == (0, 3)


def test_an_id_that_expired_stays_taken_until_it_is_purged(make_table: MakeTable, clock: MovableClock) -> None:
    table = make_table(purge_after="1m")
    table.put("tea", id=1, expires_at=soon(clock))
    clock.move("10s")
    assert payloads(table) == []
    assert table.put_many([{"payload": "again", "id": 1}]).existing == [1]
    clock.move("1m")
    assert table.purge() == 1
    table.put("again", id=1)
    assert payloads(table) == ["again"]


def test_no_more_are_looked_at_than_have_expired(make_table: MakeTable, clock: MovableClock) -> None:
    table = make_table()
    table.put_many([{"payload": "tea", "expires_at": soon(clock, "1h")} for _ in range(20)])
    table.put_many([{"payload": "tea"} for _ in range(20)])
    clock.move("10s")
    assert expiring.expire_some(table.context) == 0
    assert len(table.receive(100)) == 40


def test_a_rate_limit_does_not_count_them(make_table: MakeTable, clock: MovableClock) -> None:
    table = make_table(rate_limit=1)
    table.put_many([{"payload": "stale", "expires_at": soon(clock)} for _ in range(5)])
    table.put("tea")
    clock.move("10s")
    assert payloads(table, 6) == ["tea"]


def test_queries_for_them_use_an_index(make_table: MakeTable, database: Database, clock: MovableClock) -> None:
    table = make_table()
    table.put_many([{"payload": "tea", "expires_at": soon(clock, "1h")} for _ in range(5000)])
    table.ack(table.receive(2000))
    table.put_many([{"payload": "stale", "expires_at": soon(clock)} for _ in range(20)])
    analyze = {"sqlite": "ANALYZE", "postgresql": "ANALYZE orders", "mysql": "ANALYZE TABLE orders"}
    with database.backend.engine.connect() as connection:
        connection.exec_driver_sql(analyze[database.backend.dialect.name])
        connection.commit()
    clock.move("10s")
    with statements_of(database.backend, "orders") as seen:
        assert expiring.expire_some(table.context) == 20
    [look] = [(text, values) for text, values in seen if "LIMIT" in text]  # the others go by key
    assert not complaints(database, *look), look
