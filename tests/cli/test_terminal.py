from __future__ import annotations

import json

import pytest

from waterclock import connect
from waterclock.cli.app import COMMANDS, FAILED, WRONG_USAGE

from .conftest import ESCAPED, HOSTILE, Shell, Terminal


def test_hostile_text_of_table_messages_is_shown_escaped(terminal: Terminal) -> None:
    terminal(
        "table",
        "add",
        "jobs",
        "--id-type",
        "text",
        "--payload",
        "text",
        "--groups",
        "exclusive",
        "--dead-letter",
        "dead",
    )
    terminal("table", "put", "jobs", HOSTILE, "--id", HOSTILE, "--group", HOSTILE, "--header", f"{HOSTILE}={HOSTILE}")
    for words in (
        ("table", "peek", "jobs"),
        ("group", "ls", "jobs"),
        ("group", "info", "jobs", HOSTILE),
        ("table", "receive", "jobs"),
        ("table", "cancel", "jobs", HOSTILE, "--reason", HOSTILE),
        ("table", "explain", "jobs", HOSTILE),
    ):
        text = terminal(*words)
        assert words[1] == "cancel" or ESCAPED in text, words


def test_saved_progress_is_shown_escaped(terminal: Terminal, shell: Shell) -> None:
    terminal("table", "add", "jobs")
    terminal("table", "put", "jobs", "x")
    with connect("sqlite:///factory.db") as database:
        [delivery] = database.table("jobs").receive()
        delivery.save({"page": 3, "note": HOSTILE})
        delivery.nack("0s")
    escaped = ESCAPED.replace("\\x1b", "\\u001b").replace("\\x07", "\\u0007")  # as JSON has it
    assert f'{{"page": 3, "note": "{escaped}"}}' in terminal("table", "receive", "jobs")
    with connect("sqlite:///factory.db") as database:
        database.table("jobs").reschedule([1], 0)
    [row] = shell.json("table", "receive", "jobs")
    assert row["progress"] == {"page": 3, "note": HOSTILE}


def test_hostile_text_of_topics_is_shown_escaped(terminal: Terminal, shell: Shell) -> None:
    message = {"source": HOSTILE, "stream": HOSTILE, "event_time": "2026-07-01T12:00:00Z", "payload": HOSTILE}
    (shell.folder / "messages.jsonl").write_text(
        json.dumps({**message, "receive_time": message["event_time"], "headers": {HOSTILE: HOSTILE}})
    )
    terminal("topic", "add", "telemetry")
    terminal("topic", "append", "telemetry", "messages.jsonl")
    terminal("subscription", "add", "telemetry", "billing")
    for words in (("topic", "read", "telemetry"), ("subscription", "read", "telemetry", "billing")):
        assert terminal(*words).count(ESCAPED) == 3
    for words in (
        ("topic", "info", "telemetry"),
        ("topic", "ls"),
        ("topic", "ledgers", "telemetry"),
        ("topic", "verify", "telemetry"),
        ("subscription", "ls", "telemetry"),
        ("batch", "messages.jsonl", "--window", "1s", "--max-delay", "1s"),
        ("upkeep",),
        ("doctor",),
    ):
        terminal(*words)


def test_hostile_schedules_and_dead_letters_are_shown_escaped(terminal: Terminal) -> None:
    terminal("table", "add", "jobs", "--payload", "json", "--ack-wait", "1ms", "--max-attempts", "1")
    terminal("schedule", "add", "jobs", "nightly", json.dumps({HOSTILE: [HOSTILE]}), "--cron", "@daily")
    assert "[later]" in terminal("schedule", "ls")
    terminal("table", "put", "jobs", json.dumps(HOSTILE))
    with connect("sqlite:///factory.db") as database:
        (delivery,) = database.table("jobs").receive()
        delivery.dead_letter(HOSTILE)
    assert terminal("table", "dead", "jobs").count(ESCAPED) >= 2


def test_every_noun_refuses_hostile_arguments_without_obeying_them(terminal: Terminal) -> None:
    for noun in COMMANDS:
        if noun not in ("demo", "doctor", "spark"):
            terminal(noun, HOSTILE, "--no-such-option", expect=WRONG_USAGE)
    for words in (("topic", "info"), ("table", "info"), ("group", "ls"), ("subscription", "ls"), ("schedule", "ls")):
        terminal(*words, HOSTILE, expect=FAILED)


def test_doctor_shows_the_extra_in_a_remedy(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waterclock.cli.operations.doctor._DRIVERS", {"Other": (("no-such-driver",), "postgresql")})
    monkeypatch.setattr(
        "waterclock.cli.operations.doctor.install_command", lambda extra="": f"pip install '.[{extra}]'"
    )
    assert "pip install '.[postgresql]'" in terminal("doctor")


def test_json_values_are_printed_as_json(terminal: Terminal, shell: Shell) -> None:
    terminal("table", "add", "jobs", "--payload", "json")
    terminal("table", "put", "jobs", '{"done": true, "left": null}', "--header", "of=a cow")
    for text in (terminal("table", "peek", "jobs"), shell("table", "peek", "jobs")):
        assert '{"done": true, "left": null}' in text
        assert '{"of": "a cow"}' in text


def test_narrow_terminal_shows_rows_one_below_the_other(terminal: Terminal) -> None:
    terminal("table", "add", "jobs")
    terminal("table", "add", "other")
    text = terminal("table", "ls", columns=60)
    assert "name       jobs\n" in text
    assert "in flight  0\n" in text
    assert all(len(line) <= 60 for line in text.splitlines())
    assert "name       jobs" not in terminal("table", "ls", columns=200)
