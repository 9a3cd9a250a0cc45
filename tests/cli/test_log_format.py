"""``--log-format json``: every line on stderr is an object with the name of an event, also the one that ends it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import HOSTILE, Shell

import waterclock as wc
from waterclock.cli.app import DONE, FAILED, WRONG_USAGE

SOURCES = Path(wc.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "operation" / "monitor.md"


@pytest.fixture(autouse=True)
def restored_log() -> Generator[None]:
    """Restore the handlers of the log, which a command replaces by one that writes to the stderr of its test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def lines_of(shell: Shell, *words: str, expect: int = DONE) -> list[dict[str, Any]]:
    shell(*words, "--log-format", "json", expect=expect)
    lines = [json.loads(line) for line in shell.said.splitlines()]
    assert all({"event", "message", "level", "timestamp", "logger"} <= line.keys() for line in lines)
    return lines


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("metrics", "--listen", "here"), WRONG_USAGE),
        (("work", "nowhere:handle", "--table", "t"), WRONG_USAGE),
        (("upkeep", "--every", "1m", "--metrics", HOSTILE), WRONG_USAGE),
        (("ingest", "mqtt://nowhere", "--topic", "telemetry", "--metrics", "here"), WRONG_USAGE),
        (("ingest", "file", "nowhere.jsonl", "--topic", "nowhere"), FAILED),
        (("batch", "telemetry", "--window", "1s", "--max-delay", "1s", "--into", "t"), WRONG_USAGE),
        (("serve", "--listen", "here"), WRONG_USAGE),
        (("run", "nowhere.toml"), FAILED),
        (("pipeline", "run", "nowhere.toml"), FAILED),
    ],
)
def test_the_error_that_ends_a_command_is_a_line_of_the_log(shell: Shell, words: tuple[str, ...], code: int) -> None:
    with wc.connect("sqlite:///factory.db") as database:
        database.create_table("t")
        database.create_topic("telemetry")
    last = lines_of(shell, *words, expect=code)[-1]
    assert (last["event"], last["level"]) == ("error", "error")
    shell("table", "info", "nowhere", expect=FAILED)
    assert shell.said.startswith("waterclock: ")


def test_upkeep_and_live_batching_log_what_they_did(shell: Shell) -> None:
    with wc.connect("sqlite:///factory.db") as database:
        database.create_table("t", id_type="text")
        topic = database.create_topic("telemetry")
        topic.append([wc.Message("press", "load", 1, publish_time=1, receive_time=1)])
        topic.roll()
    into = ("batch", "telemetry", "--window", "1s", "--max-delay", "1s", "--into", "t")
    [ended] = [line for line in lines_of(shell, *into) if line["event"] == "ended"]
    assert (ended["event"], ended["topic"], ended["table"], ended["messages"]) == ("ended", "telemetry", "t", 1)
    [sealed] = [line for line in lines_of(shell, "upkeep") if line.get("task") == "seal"]
    assert (sealed["event"], sealed["kind"], sealed["name"], sealed["did"]) == ("upkeep_task", "topic", "telemetry", 1)


def test_the_events_of_the_library_are_those_that_are_documented() -> None:
    used = {
        name for path in SOURCES.rglob("*.py") for name in re.findall(r"\bevent\(\s*\"(\w+)\"", path.read_text("utf-8"))
    }
    used |= set(re.findall(r"_event\(\"(\w+)\"", (SOURCES / "tables/consumers/claim_failures.py").read_text("utf-8")))
    listed = set(re.findall(r"^\| `(?!waterclock_)(\w+)` \|", PAGE.read_text("utf-8"), re.MULTILINE))
    assert used - {"error"} == listed - {"upkeep_task"}
