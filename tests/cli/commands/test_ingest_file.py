"""``waterclock ingest file`` appends files once or as they grow, and names mistakes before anything is appended."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from tests.cli.conftest import Shell
from tests.ingest.running import until
from tests.support.forked import Forked

import waterclock as wc
from waterclock.cli.app import DONE, FAILED, WRONG_USAGE

CSV = "event_time,source,stream,payload\n2026-07-01T12:00:00Z,press,load,17\n"
LINE = '{"source": "press", "stream": "load", "event_time": "2026-07-01T12:00:00Z", "payload": "17"}\n'


@pytest.fixture
def database(shell: Shell) -> wc.Database:
    database = wc.connect("sqlite:///factory.db")
    database.create_topic("telemetry")
    return database


def test_files_are_appended_once(shell: Shell, database: wc.Database, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    (tmp_path / "b.jsonl").write_text(LINE + "bad\n")
    (done,) = [
        each
        for each in shell.json("ingest", "file", "*.jsonl", "a.csv", "--topic", "telemetry")
        if each["event"] == "stopped"
    ]
    assert (done["files"], done["appended"], done["dead"], done["bytes"]) == (2, 2, 1, done["all_bytes"])
    said = shell("ingest", "file", "a.csv", "b.jsonl", "--topic", "telemetry")
    assert "appended          0\n" in said
    assert [message.payload for message in database.topic("telemetry").read()] == [b"17", b"17"]


def test_topic_append_reads_the_same_csv(shell: Shell, database: wc.Database, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    shell("topic", "append", "telemetry", "a.csv")
    (tmp_path / "bad.csv").write_text(CSV + "1,2\n")
    shell("topic", "append", "telemetry", "bad.csv", expect=WRONG_USAGE)
    assert "bad.csv, line 3: the row must have 4 columns, got 2" in shell.said
    [message, *_] = database.topic("telemetry").read()
    assert (message.source, message.payload) == ("press", b"17")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("a.csv", "--topic", "nowhere"), FAILED, "no topic named 'nowhere'"),
        (("missing.csv", "--topic", "telemetry"), FAILED, "cannot read missing.csv: No such file or directory"),
        (("a.csv", "--topic", "telemetry", "--column", "ts"), WRONG_USAGE, "column must be FIELD=COLUMN, got 'ts'"),
        (("a.csv", "--topic", "telemetry", "--column", "time=ts"), WRONG_USAGE, "no field named 'time'"),
        (("a.csv", "--topic", "telemetry", "--delimiter", ";;"), WRONG_USAGE, "delimiter must be one character"),
    ],
)
def test_mistakes_are_named(
    shell: Shell, database: wc.Database, tmp_path: Path, words: tuple[str, ...], code: int, text: str
) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    shell("ingest", "file", *words, expect=code)
    assert text in shell.said
    assert database.topic("telemetry").info.messages == 0


def test_it_follows_until_a_signal(database: wc.Database, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(LINE)
    url = f"--url=sqlite:///{tmp_path}/factory.db"
    words = ["ingest", "file", path, "--topic", "telemetry", "--follow", "--json", url]
    with Forked("tests.ingest.mqtt.command", *words) as own:
        until(lambda: database.topic("telemetry").info.messages == 1)
        with path.open("a") as file:
            file.write(LINE)
        until(lambda: database.topic("telemetry").info.messages == 2)
        os.kill(own.pid, signal.SIGTERM)
        assert own.wait() == DONE
        stopped = json.loads(own.stdout.read().splitlines()[-1])
    assert (stopped["event"], stopped["appended"]) == ("stopped", 2)
