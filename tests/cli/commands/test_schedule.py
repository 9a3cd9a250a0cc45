from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from tests.cli.conftest import Shell

from waterclock.cli.app import FAILED, WRONG_USAGE


@pytest.fixture
def orders(shell: Shell) -> Shell:
    shell("table", "add", "orders", "--payload", "text")
    return shell


def test_schedules_are_added_listed_paused_resumed_run_and_removed(orders: Shell) -> None:
    rule = ("--cron", "0 3 * * *", "--timezone", "Europe/Berlin", "--catch-up", "one", "--within", "2d")
    orders("schedule", "add", "orders", "nightly", "totals", *rule, "--header", "kind=report")
    [row] = orders.json("schedule", "ls")
    assert (row["table"], row["name"], row["payload"], row["within"]) == ("orders", "nightly", "totals", "2d")
    assert row["next_tick"] is not None
    assert row["last_tick"] is None
    orders("schedule", "pause", "orders", "nightly")
    [row] = orders.json("schedule", "ls", "orders")
    assert (row["paused"], row["next_tick"]) == (True, None)
    orders("schedule", "resume", "orders", "nightly")
    [row] = orders.json("schedule", "run", "orders", "nightly")
    [message] = orders.json("table", "peek", "orders")
    assert (str(message["id"]), message["headers"]["waterclock.schedule"]) == (row["id"], "nightly")
    orders("schedule", "rm", "orders", "nightly")
    orders("schedule", "rm", "orders", "nightly", expect=FAILED)
    assert orders.json("schedule", "ls") == []
    orders("schedule", "pause", "orders", "nightly", expect=FAILED)
    orders("schedule", "add", "orders", "x", "y", "--cron", "0 0 3 * * *", expect=WRONG_USAGE)
    assert "cron must have five fields" in orders.said


def test_a_schedule_that_saw_a_clock_ahead_is_shown_and_reset(orders: Shell) -> None:
    orders("schedule", "add", "orders", "minutely", "1", "--cron", "* * * * *")
    with closing(sqlite3.connect(orders.folder / "factory.db")) as connection:
        connection.execute("UPDATE waterclock_schedules SET seen_until = seen_until + 86400000000000")
        connection.commit()
    [row] = orders.json("schedule", "ls")
    assert 86_000 < row["ahead"] <= 86_400
    assert "Run 'waterclock schedule reset orders minutely'" in orders.said
    orders("schedule", "reset", "orders", "minutely")
    [row] = orders.json("schedule", "ls")
    assert row["ahead"] is None
    assert orders.said == ""
    orders("schedule", "reset", "orders", "other", expect=FAILED)


def test_keys_are_given_and_messages_are_cancelled(orders: Shell) -> None:
    first = orders.json("table", "put", "orders", "a", "--unique", "k")
    assert orders.json("table", "put", "orders", "b", "--unique", "k", "--on-conflict", "replace") == first
    assert [row["payload"] for row in orders.json("table", "peek", "orders")] == ["b"]
    orders("table", "cancel", "orders", "1", "--reason", "withdrawn")
    assert "cancelled 1 of 1" in orders.said
    assert "withdrawn" in orders("table", "explain", "orders", "1")
