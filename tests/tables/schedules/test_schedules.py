"""Schedules: each tick puts one message, whichever processes look."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from tests.support.moments import SteppedHeartbeat, later_each_time
from tests.support.statements import statements_of
from tests.tables.conftest import MovableClock
from tests.tables.options.plain_sql import run
from tests.tables.received import payloads

from waterclock._support import moments
from waterclock.connection import Database, connect
from waterclock.errors import ForbiddenError, InvalidArgumentError, NotFoundError, RefusedError
from waterclock.tables.catalogue import table_row
from waterclock.tables.catalogue.table_row import LOOK_EVERY
from waterclock.tables.consumers.heartbeats.ticking import Ticking
from waterclock.tables.message_table import MessageTable
from waterclock.tables.messages.putting.scheduling import tick
from waterclock.tables.model.timing.cron import MOST, ON_TIME, Ticks
from waterclock.time import MAX_NS, format_time, to_duration, to_time

MakeTable = Callable[..., MessageTable]
NOON = to_time("2030-07-01T12:00:00Z")


@pytest.fixture
def jobs(make_table: MakeTable, clock: MovableClock) -> MessageTable:
    clock.now = NOON
    return make_table("jobs", payload="json")


def test_a_tick_puts_a_message_that_says_of_which_schedule_and_when(jobs: MessageTable, clock: MovableClock) -> None:
    jobs.schedule("hourly", cron="@hourly", payload={"n": 1}, headers={"kind": "report"}, priority=2)
    assert jobs.tick() == 0
    clock.move("59m")
    assert jobs.tick() == 0
    clock.move("61s")
    assert (jobs.tick(), jobs.tick()) == (1, 0)
    [delivery] = jobs.receive()
    assert (delivery.payload, delivery.priority) == ({"n": 1}, 2)
    assert delivery.headers == {
        "kind": "report",
        "waterclock.schedule": "hourly",
        "waterclock.tick": format_time(to_time("2030-07-01T13:00:00Z")),
        "waterclock.caught_up": "false",
    }
    [schedule] = jobs.schedules()
    assert (schedule.last_tick, schedule.last_id) == (to_time("2030-07-01T13:00:00Z"), delivery.id)
    assert schedule.next_tick == to_time("2030-07-01T14:00:00Z")


def test_a_schedule_that_is_new_changed_or_resumed_begins_with_the_next_tick(
    jobs: MessageTable, clock: MovableClock
) -> None:
    def declare(cron: str) -> None:
        jobs.schedule("nightly", cron=cron, payload=1, timezone="Europe/Berlin", catch_up="all")

    declare("0 3 * * *")
    clock.move("1d")
    declare("0 3 * * *")  # as it was: the tick that is due stays due
    assert jobs.tick() == 1
    clock.move("1d")
    declare("0 4 * * *")
    assert jobs.tick() == 0
    jobs.schedules.pause("nightly")
    clock.move("5d")
    assert jobs.tick() == 0
    assert jobs.schedules()[0].paused
    jobs.schedules.resume("nightly")
    assert jobs.tick() == 0
    clock.move("1d")
    assert jobs.tick() == 1
    before = jobs.schedules()[0].next_tick
    put = jobs.schedules.run("nightly")
    assert (jobs.schedules()[0].next_tick, jobs.schedules()[0].last_id) == (before, put)
    assert jobs.unschedule("nightly")
    assert not jobs.unschedule("nightly")
    clock.move("9d")
    assert (jobs.tick(), jobs.schedules()) == (0, [])
    with pytest.raises(NotFoundError, match="nightly"):
        jobs.schedules.run("nightly")


def test_a_program_that_declares_all_schedules_removes_those_that_are_gone_from_it(jobs: MessageTable) -> None:
    for name in ("a", "b", "c"):
        jobs.schedule(name, cron="@daily", payload=1)
    assert jobs.schedules.keep(["b"]) == ["a", "c"]
    assert jobs.schedules.keep(["b"]) == []
    assert [one.name for one in jobs.schedules()] == ["b"]


def test_missed_ticks_are_put_as_the_schedule_says_and_overlap_is_avoided(
    jobs: MessageTable, clock: MovableClock
) -> None:
    jobs.schedule("none", cron="0 * * * *", payload="none")
    jobs.schedule("one", cron="0 * * * *", payload="one", catch_up="one")
    jobs.schedule("all", cron="0 * * * *", payload="all", catch_up="all", within="5h")
    jobs.schedule("skip", cron="0 * * * *", payload="skip", catch_up="all", overlap="skip")
    clock.move("10h")
    clock.move("30m")
    assert jobs.tick() == 1 + 5 + 1
    out = jobs.receive(20)
    assert sorted(one.payload for one in out) == ["all"] * 5 + ["one", "skip"]
    assert {one.headers["waterclock.caught_up"] for one in out} == {"true"}
    clock.move("30m")
    assert jobs.tick() == 3
    jobs.ack([one for one in out if one.payload == "skip"])
    clock.move("1h")
    assert jobs.tick() == 4


def test_a_schedule_keeps_its_last_ten_ticks_with_their_outcomes(jobs: MessageTable, clock: MovableClock) -> None:
    jobs.schedule("hourly", cron="0 * * * *", payload="x", overlap="skip")
    clock.move("1h")
    jobs.tick()
    by_tick = jobs.schedules()[0].last_id
    clock.move("1h")
    jobs.tick()
    jobs.ack([by_tick])
    clock.move("150m")
    jobs.tick()
    by_hand = jobs.schedules.run("hourly")
    found = [(one.at - NOON, one.outcome, one.message_id) for one in jobs.schedules()[0].history]
    hour = to_duration("1h")
    assert found == [
        (hour, "put", str(by_tick)),
        (2 * hour, "skipped", None),
        (3 * hour, "missed", None),
        (clock.now - NOON, "run", str(by_hand)),
    ]
    for _ in range(12):
        jobs.schedules.run("hourly")
    assert [one.outcome for one in jobs.schedules()[0].history] == ["run"] * 10


FAULTS = {
    "sqlite": "CREATE TRIGGER small BEFORE INSERT ON jobs WHEN NEW.priority > 4"
    " BEGIN SELECT RAISE(ABORT, 'small'); END",
    "postgresql": "ALTER TABLE jobs ADD CONSTRAINT small CHECK (priority < 5)",
    "mysql": "ALTER TABLE jobs ADD CONSTRAINT small CHECK (priority < 5)",
}


@pytest.mark.parametrize("fault", ["a zone that this machine lacks", "a constraint"])
def test_a_schedule_that_cannot_put_its_message_does_not_stop_others(
    jobs: MessageTable, database: Database, clock: MovableClock, fault: str
) -> None:
    jobs.schedule("a bad one", cron="* * * * *", payload="bad", priority=5)
    jobs.schedule("good", cron="* * * * *", payload="good")
    zone = "UPDATE waterclock_schedules SET timezone = 'Europe/Atlantis' WHERE name = 'a bad one'"
    with database.backend.engine.begin() as connection:
        connection.execute(sa.text(FAULTS[database.backend.dialect.name] if fault == "a constraint" else zone))
    context = jobs.context
    for _ in range(3):
        clock.move("60s")
        with pytest.raises(RefusedError, match="schedule 'a bad one' of table 'jobs' cannot put its message: "):
            tick(context)
    assert context.ticks.due_at == clock.now + to_duration("1m")
    assert payloads(jobs) == ["good"] * 3
    bad, good = jobs.schedules()
    assert [(one.at, one.outcome, bool(one.error)) for one in bad.history] == [(bad.next_tick, "failed", True)]
    assert [one.outcome for one in good.history] == ["put"] * 3


def test_of_many_processes_with_clocks_of_their_own_one_puts_each_tick(
    database: Database, database_url: str, jobs: MessageTable, clock: MovableClock, tmp_path: Any
) -> None:
    jobs.schedule("hourly", cron="@hourly", payload=1)
    clock.move("1h")
    clock.move("1s")
    others = [connect(database_url, tmp_path / "ledgers", clock=clock) for _ in range(3)]
    tables = [jobs, *(one.table("jobs") for one in others)]
    ready = threading.Barrier(4)

    def ticks(table: MessageTable) -> int:
        ready.wait()
        return sum(table.tick() for _ in range(3))

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(ticks, tables)) == 1
    clock.now -= 2 * 3600 * 10**9  # set back
    assert [table.tick() for table in tables] == [0] * 4
    for one in others:
        one.close()


def test_a_clock_that_steps_back_and_a_purge_next_to_two_that_tick_leave_one_message_a_tick(
    database_url: str, make_table: MakeTable, clock: MovableClock, tmp_path: Any
) -> None:
    clock.now = NOON
    jobs = make_table("jobs", payload="json", purge_after="1s")
    jobs.schedule("hourly", cron="@hourly", payload=1)
    other = connect(database_url, tmp_path / "ledgers", clock=lambda: clock.now - to_duration("5m"))
    seen: list[str] = []

    def tick_and_ack(table: MessageTable) -> None:
        table.tick()
        for delivery in table.receive(10):
            assert delivery.headers is not None
            seen.append(delivery.headers["waterclock.tick"])
            delivery.ack()

    with ThreadPoolExecutor(3) as pool:
        for by in ("1h", "5m", "-5m", "55m", "-5m", "5m", "5m"):
            clock.now += to_duration(by.removeprefix("-")) * (-1 if by.startswith("-") else 1)
            purging = pool.submit(jobs.purge)
            list(pool.map(tick_and_ack, (jobs, other.table("jobs"))))
            purging.result()
    jobs.purge()
    other.close()
    assert seen == ["2030-07-01T13:00:00Z", "2030-07-01T14:00:00Z"]
    stats = jobs.stats()
    assert (stats.sent, stats.acked, stats.purged) == (2, 1, 1)
    assert jobs.peek() == []


def test_the_heartbeat_of_a_subscription_ticks_and_asks_nothing_where_nothing_is_due(
    jobs: MessageTable, database: Database, clock: MovableClock
) -> None:
    with jobs.subscribe(limit=1) as deliveries:
        ticking = deliveries._ticking
        ticking.beat()
        with statements_of(database.backend, "waterclock_schedules") as statements:
            ticking.beat()
        assert statements == []
        jobs.schedule("hourly", cron="@hourly", payload="scheduled")
        deliveries._row.read()
        ticking.beat()
        with statements_of(database.backend, "waterclock_schedules") as statements:
            ticking.beat()
        assert statements == []
        clock.move("1h")
        clock.move("1s")
        ticking.beat()
        assert next(deliveries).payload == "scheduled"
    assert ticking.over


def test_a_process_obeys_changes_of_others_at_its_next_look_also_while_it_is_busy(
    jobs: MessageTable, database_url: str, clock: MovableClock, tmp_path: Any
) -> None:
    def minutes_later() -> int:
        clock.move("1m")
        deliveries._row._looked_at -= LOOK_EVERY
        table_row._looks.of(jobs.context.backend).clear()  # what all who have it open share
        deliveries._ticking.beat()
        return jobs.stats().ready

    with jobs.subscribe(limit=1) as deliveries, connect(database_url, tmp_path / "ledgers", clock=clock) as other:
        theirs = other.table("jobs")
        assert minutes_later() == 0
        theirs.schedule("new", cron="* * * * *", payload=1)
        assert minutes_later() == 1
        theirs.schedules.pause("new")
        assert minutes_later() == 1
        theirs.schedules.resume("new")
        assert minutes_later() == 2
        theirs.schedules.keep([])  # the file that declared it declares none any more
        assert minutes_later() == 2


def test_a_heartbeat_puts_many_missed_ticks_a_piece_at_a_time(jobs: MessageTable, clock: MovableClock) -> None:
    jobs.schedule("often", cron="* * * * *", payload="x", catch_up="all")
    clock.move("4h")
    ticking = Ticking(jobs._row)  # without a subscription, whose own heartbeat would tick as well
    ready = 0
    for put in (MOST, MOST, 240 - 2 * MOST, 0):
        ticking.beat()
        assert jobs.stats().ready - ready == put
        assert (ticking.beat_at <= moments.monotonic_ns()) == (put > 0)  # at once, as there may be more
        ready += put


@pytest.mark.parametrize("id_type", ["text", "uuid"])
def test_a_tick_puts_one_message_in_a_table_with_text_ids_or_uuids(
    make_table: MakeTable, clock: MovableClock, id_type: str
) -> None:
    clock.now = NOON
    table = make_table(id_type=id_type)
    table.schedule("hourly", cron="@hourly", payload="x", overlap="skip")
    clock.move("1h")
    assert (table.tick(), table.tick()) == (1, 0)
    [first] = table.receive()
    assert (first.id == "hourly@2030-07-01T13:00:00Z") == (id_type == "text")
    assert table.schedules()[0].last_id == first.id
    clock.move("1h")
    assert table.tick() == 0  # the first is under way
    assert len({table.schedules.run("hourly"), table.schedules.run("hourly"), first.id}) == 3


def test_a_tick_whose_id_is_text_stays_one_message_although_its_schedule_was_set_back(
    make_table: MakeTable, database: Database, clock: MovableClock
) -> None:
    clock.now = NOON
    table = make_table(id_type="text")
    table.schedule("hourly", cron="@hourly", payload="x")
    clock.move("1h")
    assert table.tick() == 1
    run(database, f"UPDATE waterclock_schedules SET seen_until = {NOON}, next_tick = {clock.now}")  # noqa: S608  # ours
    assert database.table("orders").tick() == 0
    assert table.stats().ready == 1


def test_a_name_that_leaves_no_room_in_text_ids_is_refused(make_table: MakeTable) -> None:
    table = make_table(id_type="text")
    table.schedule("n" * 200, cron="* * * * *", payload="x")
    assert len(str(table.schedules.run("n" * 200))) <= 255
    with pytest.raises(InvalidArgumentError, match="1 to 200 characters"):
        table.schedule("n" * 201, cron="* * * * *", payload="x")


def test_a_consumer_that_gains_the_right_to_put_schedules_without_a_restart(
    jobs: MessageTable, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.schedule("hourly", cron="@hourly", payload="scheduled", catch_up="one")
    heartbeat = SteppedHeartbeat(later_each_time(31_000_000_000))
    monkeypatch.setattr("waterclock.tables.consumers.subscription.heartbeat_of", lambda _backend: heartbeat)
    with jobs.subscribe() as deliveries:
        with monkeypatch.context() as patch:
            patch.setattr("waterclock.tables.consumers.heartbeats.ticking.tick", _forbid)
            clock.move("2h")
            heartbeat.beat()
        heartbeat.beat()
        assert jobs.stats().ready == 0  # it does not ask each second
        heartbeat.beat()
        assert next(deliveries).payload == "scheduled"


def _forbid(_context: object, **_options: object) -> None:
    raise ForbiddenError("denied")


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"cron": "* * *"}, "cron"),
        ({"timezone": "Mars"}, "timezone"),
        ({"catch_up": "some"}, "catch_up"),
        ({"overlap": "yes"}, "overlap"),
        ({"within": "soon"}, "within"),
        ({"name": ""}, "name"),
        ({"headers": {"a": 1}}, "headers"),
    ],
)
def test_invalid_schedules_are_refused(jobs: MessageTable, given: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        jobs.schedule(**{"name": "n", "cron": "@daily", "payload": 1, **given})


@pytest.mark.parametrize("payload", ["bytes", "text"])
def test_payloads_of_every_kind_come_back(make_table: MakeTable, clock: MovableClock, payload: str) -> None:
    table = make_table(payload=payload)
    given: Any = b"\x00\xff" if payload == "bytes" else "grüß"
    table.schedule("n", cron="* * * * *", payload=given)
    clock.move("1m")
    table.tick()
    assert [one.payload for one in table.receive()] == [given]
    assert table.schedules()[0].payload == given


def test_a_clock_that_was_a_day_ahead_is_reported_and_the_schedule_can_be_reset(
    jobs: MessageTable, clock: MovableClock, caplog: pytest.LogCaptureFixture
) -> None:
    jobs.schedule("minutely", cron="* * * * *", payload=1)
    clock.move("1d")
    assert jobs.tick() == 1
    assert jobs.schedules()[0].ahead is None
    clock.now = NOON + to_duration("1h")
    assert (jobs.tick(), jobs.tick()) == (0, 0)
    [warning] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "schedule 'minutely' of table 'jobs' puts nothing until 2030-07-02T12:00:00Z" in warning
    assert "clock was 23h ahead" in warning
    assert "Run 'waterclock schedule reset jobs minutely'" in warning
    assert jobs.schedules()[0].ahead == to_duration("23h")
    jobs.schedules.reset("minutely")
    clock.move("60s")
    assert jobs.tick() == 1
    assert jobs.schedules()[0].ahead is None
    with pytest.raises(NotFoundError, match="other"):
        jobs.schedules.reset("other")


def test_a_paused_schedule_that_is_reset_stays_paused(jobs: MessageTable, clock: MovableClock) -> None:
    jobs.schedule("minutely", cron="* * * * *", payload=1)
    jobs.schedules.pause("minutely")
    jobs.schedules.reset("minutely")
    clock.move("1h")
    assert jobs.tick() == 0
    assert jobs.schedules()[0].next_tick is None


def test_a_consumer_looks_again_when_the_clock_was_set_back() -> None:
    ticks = Ticks()
    assert ticks.is_due(lambda: NOON)
    ticks.due_at, ticks.looked_at = NOON + 60, NOON
    assert not ticks.is_due(lambda: NOON)
    assert not ticks.is_due(lambda: NOON - ON_TIME)
    assert ticks.is_due(lambda: NOON - ON_TIME - 1)


def test_the_clock_of_the_database_is_not_read_without_schedules() -> None:
    ticks = Ticks()
    ticks.due_at, ticks.looked_at = MAX_NS, NOON
    assert not ticks.is_due(lambda: pytest.fail("the clock was read"))
