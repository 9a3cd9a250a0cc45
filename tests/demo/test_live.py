"""The live demo with a real Mosquitto and a real collectd, in processes of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.support.services import program

import waterclock as wc
from waterclock.cli.app import run as command
from waterclock.demo.live import LiveBooks

PATIENCE_S = 240
pytestmark = pytest.mark.timeout(PATIENCE_S + 60)


def demo(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "waterclock", "demo", "--live", "--folder", str(folder), "--json", *options]
    programs = {Path(program(name, name)).parent for name in ("mosquitto", "collectd")}
    environment = os.environ | {"PATH": ":".join([*map(str, programs), os.environ["PATH"]])}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, object], str, Path]:
    folder = tmp_path_factory.mktemp("live") / "here"
    data, talk = demo(folder, "--seconds", "4").communicate(timeout=PATIENCE_S)
    return json.loads(data), talk, folder


def test_each_measurement_of_this_machine_is_in_one_batch_or_rejected(
    run: tuple[dict[str, object], str, Path],
) -> None:
    books, talk, _ = run
    assert books["balances"], (books, talk)
    assert int(str(books["streams"])) > 5


def test_messages_have_the_times_and_names_that_collectd_gave_them(run: tuple[dict[str, object], str, Path]) -> None:
    with wc.connect(f"sqlite:///{run[2] / 'live.db'}") as database:
        messages = list(database.topic("telemetry").read())
        assert database.topic("ingest-dead-letters").info.messages == 0  # not even the NUL after each value
    assert len({message.source for message in messages}) == 1
    assert any(message.stream.startswith("memory/") for message in messages)
    assert all(abs(message.receive_time - message.event_time) < 3_600_000_000_000 for message in messages)


def test_the_picture_shows_the_batches(run: tuple[dict[str, object], str, Path]) -> None:
    assert "This machine" in (run[2] / "live.svg").read_text()


def test_sigterm_ends_the_measurement_and_every_process(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    process = demo(folder, "--seconds", "600")
    assert process.stderr is not None
    for line in process.stderr:
        if "measurements" in line:
            break
    process.send_signal(signal.SIGTERM)
    data, talk = process.communicate(timeout=PATIENCE_S)
    # It may have ended before the first measurement came.
    assert json.loads(data)["balances"] is (process.returncode == 0), talk
    assert not list(commands_with(str(folder)))


def commands_with(text: str) -> Generator[str]:
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command:
            yield command


def test_a_missing_program_is_named_before_the_folder_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waterclock.demo.live._FOLDERS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command(["demo", "--live", "--folder", str(tmp_path / "here")]) == 1
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize(
    "options", [["--seconds", "5"], ["--live", "--seconds", "0"]], ids=["without --live", "no seconds"]
)
def test_seconds_that_cannot_be_used_are_refused(options: list[str], tmp_path: Path) -> None:
    assert command(["demo", "--folder", str(tmp_path / "here"), *options]) == 2


def test_figures_that_do_not_balance_are_said_in_capitals() -> None:
    books = LiveBooks(received=10, batched=8, batches=2, rejected={"late": 1}, streams=3)
    assert not books.balances
    assert "THE FIGURES DO NOT BALANCE" in books.lines()
