from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from waterclock._support.urls import text_without_secrets, without_secrets
from waterclock.cli.app import FAILED, WRONG_USAGE, app

from .conftest import Shell


def test_commands_on_unknown_ids_exit_1(shell: Shell) -> None:
    shell("table", "add", "jobs", "--dead-letter", "jobs_dead")
    shell("table", "put", "jobs", "tea")
    for verb in ("ack", "cancel", "retry", "redrive"):
        shell("table", verb, "jobs", "99", expect=FAILED)
    shell("table", "retry", "jobs", "1")
    shell("table", "ack", "jobs", "1", "99", expect=FAILED)
    assert "acked 1 of 2" in shell.said


def test_near_miss_of_a_name_is_suggested(shell: Shell) -> None:
    shell("topic", "add", "telemetry")
    shell("table", "add", "orders")
    shell("topic", "info", "telemetri", expect=FAILED)
    assert "no topic named 'telemetri'; did you mean 'telemetry'?" in shell.said
    shell("table", "info", "order", expect=FAILED)
    assert "no message table named 'order'; did you mean 'orders'?" in shell.said
    shell("table", "info", "zebra", expect=FAILED)
    assert "no message table named 'zebra'; create it first" in shell.said


def test_output_that_cannot_be_written_is_an_error_and_no_traceback(shell: Shell) -> None:
    shell("table", "add", "jobs", "--payload", "text")
    shell("table", "put", "jobs", "\u20ac")
    words = [sys.executable, "-m", "waterclock", "table", "peek", "jobs"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, check=False, stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, b"waterclock: cannot write the output: No space left on device\n")
    latin = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(words, check=False, capture_output=True, env=latin)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\u20ac" in done.stdout


@pytest.mark.parametrize(
    ("words", "closing", "code"),
    [("topic ls", ">&-", 0), ("topic ls", "<&- >&- 2>&-", 0), ("topic --help", ">&-", 0), ("topic rm t", "<&-", 2)],
)
def test_streams_that_are_closed_end_no_command_with_a_traceback(
    shell: Shell, words: str, closing: str, code: int
) -> None:
    shell("topic", "add", "t")
    command = f"{sys.executable} -m waterclock {words} {closing}"
    done = subprocess.run(["/bin/sh", "-c", command], check=False, capture_output=True)
    assert done.returncode == code
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "code"), [(("topic", "--help"), 0), (("--version",), 0), (("topic", "ls"), 0), (("topic", "lz"), 2)]
)
@pytest.mark.parametrize("broken", [("stdout",), ("stderr",), ("stdout", "stderr")])
def test_readers_that_have_gone_change_no_exit_code(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, broken: tuple[str, ...]
) -> None:
    shell("topic", "add", "telemetry")
    monkeypatch.setattr(app["topic"].console, "quiet", False)  # Rich leaves it True once its reader has gone
    with ExitStack() as opened:
        for name in broken:
            reading, writing = os.pipe()
            os.close(reading)
            stream = opened.enter_context(os.fdopen(writing, "w", buffering=1))
            monkeypatch.setattr(sys, name, stream)
        shell(*words, expect=code)
    assert "Traceback" not in shell.said


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("table", "receive", "jobs", "--limit", "hunter2"), "--limit must be an integer"),
        (("table", "add", "jobs", "--jitter", "hunter2"), "--jitter must be a number"),
    ],
)
def test_an_invalid_number_is_not_echoed(shell: Shell, words: tuple[str, ...], complaint: str) -> None:
    shell(*words, expect=WRONG_USAGE)
    assert shell.said == f"waterclock: {complaint}\n"


@pytest.mark.parametrize("place", ["s3:/KEY:SECRET@bucket", "s3:KEY:SECRET@bucket/folder", "s3:/KEY:SEC@RET@bucket"])
def test_secret_of_a_mistyped_place_is_hidden(place: str) -> None:
    for text in (without_secrets(place), text_without_secrets(f"cannot use {place}", place)):
        assert "KEY" not in text
        assert "SEC" not in text
        assert "bucket" in text
    assert without_secrets("/a/b:c@d") == "/a/b:c@d"
    assert without_secrets("C:\\a:b@c") == "C:\\a:b@c"
