"""The live demo with a real Mosquitto and a real collectd, in processes of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.spark.pipeline.pipeline_process import processes_of
from tests.support.services import program

import waterclock as wc
from waterclock._support import moments
from waterclock.cli.app import run as command
from waterclock.demo import live
from waterclock.demo.live import LiveBooks
from waterclock.work.running.signals import StopFlag

PATIENCE_S = 240
ENOUGH = 5
"""More streams than these are measured."""
pytestmark = pytest.mark.timeout(PATIENCE_S + 60)


def demo(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "waterclock", "demo", "--live", "--folder", str(folder), "--json", *options]
    programs = {Path(program(name, name)).parent for name in ("mosquitto", "collectd")}
    environment = os.environ | {"PATH": ":".join([*map(str, programs), os.environ["PATH"]])}
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


class Run(NamedTuple):
    folder: Path
    books: dict[str, object]
    talk: str
    left: dict[int, bytes]
    """The processes that outlived it."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Measure until there are some streams, and end the measurement with SIGTERM."""
    folder = tmp_path_factory.mktemp("live") / "here"
    process = demo(folder, "--seconds", "600")
    assert process.stderr is not None
    said: list[str] = []
    for line in process.stderr:
        said.append(line)
        if "measurements" in line:
            break
    with wc.connect(f"sqlite:///{folder / 'live.db'}") as database:
        topic = database.topic("telemetry")
        give_up_at = time.monotonic() + PATIENCE_S
        while len({message.stream for message in topic.read()}) <= ENOUGH and process.poll() is None:
            assert time.monotonic() < give_up_at
            time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    data, talk = process.communicate(timeout=PATIENCE_S)
    return Run(folder, json.loads(data), "".join([*said, talk]), processes_of([process]))


def test_each_measurement_of_this_machine_is_in_one_batch_or_rejected(run: Run) -> None:
    assert run.books["balances"], (run.books, run.talk)
    assert int(str(run.books["streams"])) > ENOUGH


def test_messages_have_the_times_and_names_that_collectd_gave_them(run: Run) -> None:
    with wc.connect(f"sqlite:///{run.folder / 'live.db'}") as database:
        messages = list(database.topic("telemetry").read())
        assert database.topic("ingest-dead-letters").info.messages == 0  # not even the NUL after each value
    assert len({message.source for message in messages}) == 1
    assert any(message.stream.startswith("memory/") for message in messages)
    assert all(abs(message.receive_time - message.event_time) < 3_600_000_000_000 for message in messages)


def test_the_picture_shows_the_batches(run: Run) -> None:
    assert "This machine" in (run.folder / "live.svg").read_text()


def test_sigterm_ends_the_measurement_and_every_process(run: Run) -> None:
    assert run.left == {}


def test_a_measurement_ends_after_its_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    told: list[int] = []
    monkeypatch.setattr(moments, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(moments, "sleep", lambda _: None)
    with subprocess.Popen(["sleep", "600"]) as gateway:
        live._wait(3, gateway, tmp_path / "run.log", told.append, StopFlag())
        gateway.kill()
    assert told == [1, 2]


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
