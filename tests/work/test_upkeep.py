"""Upkeep: each task of each topic and table is done by one runner, and one that fails stops no other."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from tests.tables.conftest import MovableClock

import waterclock as wc
from waterclock.connection import Database
from waterclock.database.schema.topic_catalogue import entries
from waterclock.message import Message
from waterclock.work import upkeep
from waterclock.work.upkeep import LEASE, Task, Upkeep


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def database(connect: Callable[..., Database], clock: MovableClock) -> Database:
    return connect(clock=clock)


def done(tasks: list[Task]) -> dict[tuple[str, str], int | None]:
    return {(one.name, one.task): one.did for one in tasks}


def test_upkeep_does_what_is_due_of_every_topic_and_table_and_says_when(
    database: Database, clock: MovableClock
) -> None:
    topic = database.create_topic("telemetry", roll_after="1m")
    topic.append([Message("a", "b", clock.now)])
    plain = database.create_table("plain", payload="text", purge_after="1m")
    plain.put_many([{"payload": "tea"}] * 3)
    plain.ack([one.id for one in plain.receive(2)])
    plain.schedule("often", cron="* * * * *", payload="x", catch_up="one")
    owned = database.create_table("owned", payload="text", groups="exclusive", ack_wait="30s")
    owned.put("tea", group="g")
    assert owned.receive(consumer="dies")
    runner = Upkeep(database)
    assert {one.due_at for one in runner.status()} == {None}
    clock.move("3m")
    found = done(list(runner.run()))
    assert found == {
        ("telemetry", "seal"): 1,
        ("telemetry", "compact"): 0,
        ("owned", "tick"): 0,
        ("owned", "release"): 1,
        ("owned", "purge"): 0,
        ("plain", "tick"): 1,
        ("plain", "release"): 0,
        ("plain", "purge"): 2,
    }
    assert owned.groups.info("g").owner is None
    assert list(runner.run(only_due=True)) == []
    clock.move("1m")
    assert {one.task for one in runner.run(only_due=True)} == {"seal", "tick", "release", "purge"}
    status = {(one.name, one.task): one for one in runner.status()}
    assert status["telemetry", "compact"].ran_at == clock.now - 60_000_000_000
    assert status["telemetry", "compact"].due_at == clock.now + 3540_000_000_000


def noted(database: Database) -> set[tuple[str, str, str]]:
    with database.backend.snapshot() as connection:
        return {tuple(row) for row in connection.execute(sa.text("SELECT kind, name, task FROM waterclock_upkeep"))}


def test_the_upkeep_of_a_renamed_topic_continues_under_its_new_name(database: Database, clock: MovableClock) -> None:
    database.create_topic("telemetry")
    database.create_table("telemetry")  # of another kind
    runner = Upkeep(database)
    list(runner.run())
    ran_at = clock.now
    clock.move("2m")
    [seal] = [one for one in runner.status() if one.task == "seal"]
    assert runner._take(seal, 0)
    database.topic("telemetry").rename("measurements")
    topic = [one for one in runner.status() if one.kind == "topic"]
    assert [(one.name, one.task, one.ran_at, one.owner) for one in topic] == [
        ("measurements", "seal", ran_at, None),
        ("measurements", "compact", ran_at, None),
    ]
    assert {name for kind, name, _ in noted(database) if kind == "topic"} == {"measurements"}
    assert {name for kind, name, _ in noted(database) if kind == "table"} == {"telemetry"}


def test_a_topic_takes_the_name_of_one_that_was_removed_while_a_runner_noted_it(database: Database) -> None:
    database.create_topic("telemetry")
    database.create_topic("removed")
    runner = Upkeep(database)
    list(runner.run())
    [seal] = [one for one in runner.status() if (one.name, one.task) == ("removed", "seal")]
    database.topic("removed").remove()
    assert runner._take(seal, 0)
    database.topic("telemetry").rename("removed")
    assert [(one.name, one.owner) for one in runner.status()] == [("removed", None)] * 2


def test_nothing_of_the_upkeep_is_left_of_what_is_removed(database: Database) -> None:
    topic = database.create_topic("telemetry")
    table = database.create_table("telemetry")
    list(Upkeep(database).run())
    topic.remove()
    assert {kind for kind, _, _ in noted(database)} == {"table"}
    table.drop()
    assert noted(database) == set()


def test_a_damaged_topic_does_not_stop_others_and_its_fault_stays_until_it_is_fixed(
    database: Database, clock: MovableClock
) -> None:
    for name in ("damaged", "whole"):
        topic = database.create_topic(name, roll_after="1m")
        topic.append([Message("a", "b", clock.now)])
    damaged = sa.select(entries.c.topic_id).order_by(entries.c.topic_id).limit(1).scalar_subquery()
    with database.backend.engine.begin() as connection:
        first = connection.scalar(sa.select(damaged))
        connection.execute(sa.update(entries).where(entries.c.topic_id == first).values(data=b"no entry"))
    clock.move("2m")
    runner = Upkeep(database)
    found = {(one.name, one.task): one for one in runner.run()}
    assert found["whole", "seal"].did == 1
    assert "waterclock topic verify damaged" in str(found["damaged", "seal"].error)
    assert [one.task for one in runner.status() if one.error is not None] == ["seal"]
    database.topic("damaged").repair()
    list(runner.run())
    assert {one.error for one in runner.status()} == {None}


@pytest.mark.both_servers
def test_one_runner_at_a_time_does_a_task_and_one_that_died_holds_it_up_for_its_lease(
    database: Database, connect: Callable[..., Database], clock: MovableClock
) -> None:
    database.create_table("orders")
    other = connect(clock=clock)
    one, another = Upkeep(database), Upkeep(other)
    [tick, release, purge] = one.status()
    assert one._take(tick, 0)
    assert not another._take(tick, 0)
    assert {task.task for task in another.run()} == {"release", "purge"}
    assert not another._take(release, 60_000_000_000)  # it has just been done
    assert [task.owner is None for task in another.status()] == [False, True, True]
    clock.now += LEASE
    assert {task.task for task in another.run()} == {"tick", "release", "purge"}
    assert one._do("table", "orders", "tick") is not None  # it lives after all
    assert (another.status()[0].owner, purge.owner) == (None, None)


def test_a_fault_of_ours_in_one_task_does_not_stop_others(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> int:
        raise ZeroDivisionError("by zero")

    monkeypatch.setitem(upkeep._TASKS["table"], "tick", upkeep._RegularTask(1, breaks))  # type: ignore[index]
    database.create_table("orders")
    found = {one.task: one for one in Upkeep(database).run()}
    assert found["tick"].error == "ZeroDivisionError: by zero"
    assert found["purge"].did == 0


@pytest.mark.both_servers
def test_upkeep_continues_until_it_is_stopped_even_if_the_database_is_away_for_a_while(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.create_table("orders")
    runner = Upkeep(database)
    status, tries, heard = runner.status, [], threading.Event()

    def away_once() -> list[Task]:
        tries.append(1)
        if len(tries) == 1:
            raise wc.UnavailableError("away")
        return status()

    monkeypatch.setattr(runner, "status", away_once)
    thread = threading.Thread(target=runner.run_for_ever, args=(1000, lambda _: heard.set()))
    thread.start()
    assert heard.wait(60)
    runner.stop()
    thread.join(60)
    assert not thread.is_alive()
