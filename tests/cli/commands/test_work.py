"""What ``waterclock work`` refuses; tests/work runs it."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.cli.conftest import Shell
from tests.work.conftest import PATIENCE, until

from waterclock._support import moments
from waterclock.cli import work as command
from waterclock.cli.app import WRONG_USAGE
from waterclock.cli.terminal.output import Output
from waterclock.connection import connect
from waterclock.work.worker import Worker


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["shop"], "must be MODULE:NAME, got 'shop'"),
        (["nowhere:handle"], "no module named 'nowhere'"),
        (["tests.work.shop:nothing"], "module 'tests.work.shop' has no attribute 'nothing'"),
        (["tests.work.shop:handle", "tests.work.shop:hold"], "got two handlers for 'orders'"),
        (["tests.work.shop:handle", "--concurrency", "0"], "concurrency"),
        (
            ["tests.work.shop:handle", "--recycle-after", "9"],
            "recycle_after needs processes, got 9 without processes",
        ),
        (
            ["tests.work.shop:handle", "--recycle-above", "9"],
            "recycle_above needs processes, got 9 without processes",
        ),
    ],
)
def test_invalid_options_are_usage_errors(shell: Shell, words: list[str], said: str) -> None:
    shell("table", "add", "orders")
    shell("work", *words, "--table", "orders", expect=WRONG_USAGE)
    assert said in shell.said.replace("\n", " ")


def test_a_handler_without_a_table_is_wrong_usage(shell: Shell) -> None:
    shell("table", "add", "orders")
    shell("work", "tests.work.shop:handle", expect=WRONG_USAGE)
    assert "must be tests.work.shop:handle@TABLE" in shell.said.replace("\n", " ")


def test_with_log_format_json_each_line_of_the_log_is_an_object_with_time_and_traceback(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'f.db'}"
    command = [sys.executable, "-m", "waterclock", "work", "tests.work.shop:fail_and_stop", "--url", url]

    def log_of(table: str, *words: str) -> str:
        with connect(url) as database:
            database.create_table(table, payload="text", min_backoff="1h").put("x")
        return subprocess.run(
            [*command, "--table", table, *words], capture_output=True, text=True, check=True, timeout=PATIENCE
        ).stderr

    # Each needs a message: the first worker may handle a second one before it sees the signal.
    lines, text = log_of("orders", "--log-format", "json"), log_of("mails")
    said = [json.loads(line) for line in lines.splitlines()]
    [failure] = [each for each in said if each["level"] == "warning"]
    assert failure["message"].endswith("KeyError: 'missing-key'")
    assert (failure["event"], failure["table"], failure["attempt"]) == ("message_failed", "orders", 1)
    assert (said[-1]["event"], said[-1]["failed"], said[-1]["slots"]) == ("progress", 1, 1)
    assert failure["exception"].startswith("Traceback")
    assert "in fail_and_stop" in failure["exception"]
    assert all(each["timestamp"].endswith("Z") for each in said)
    assert re.search(r"^\d{4}-\d\d-\d\dT[\d:.]+Z .*KeyError: 'missing-key'", text, re.MULTILINE)
    assert "in fail_and_stop" in text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_how_far_a_worker_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with connect(f"sqlite:///{tmp_path / 'f.db'}") as database:
        worker = Worker(database.create_table("orders"), print, concurrency=3)
        with command._saying(worker, Output()):
            until(lambda: "0 done; 0 of 3 slots in use" in terminal.getvalue())


def test_a_program_that_ran_the_command_as_a_function_is_not_ended_after_its_grace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exits: list[int] = []
    threads: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        threads.append(thread)
        thread.start()

    monkeypatch.setattr(command, "_exit", exits.append)
    monkeypatch.setattr(moments, "start", start)
    worker = SimpleNamespace(ends_by=moments.monotonic())  # its grace is over at once
    with command._ending_in_time(worker):  # pyright: ignore[reportArgumentType]
        threads[0].join()
    assert exits == [0]  # it was still in the command

    worker.ends_by = moments.monotonic() + 0.01
    with command._ending_in_time(worker):  # pyright: ignore[reportArgumentType]
        pass
    threads[1].join()
    assert exits == [0]
