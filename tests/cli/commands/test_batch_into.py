"""``waterclock batch TOPIC --into TABLE`` runs once or follows, continues after a kill, and names what is missing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.cli.conftest import Shell
from tests.live.conftest import expected, landed, traffic
from tests.support.forked import Forked

import waterclock as wc
from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.live.follower import Follower
from waterclock.live.rules import ByEventTime
from waterclock.monitoring.process_reports import read_reports
from waterclock.time import to_time

RULE = ("--window", "2s", "--max-delay", "1500ms")
FOLLOW = ("batch", "telemetry", "--into", "batches", *RULE)


@pytest.fixture
def filled(shell: Shell) -> Shell:
    with wc.connect("sqlite:///factory.db") as database:
        topic = database.create_topic("telemetry")
        for first in range(0, 180, 6):
            topic.append(traffic()[first : first + 6])
        database.create_table("batches", id_type="text")
        database.create_table("cut", id_type="text")
        database.create_table("numbers")
    return shell


def test_a_run_batches_what_there_is_and_the_next_continues(filled: Shell) -> None:
    *_, first = filled.json(*FOLLOW)  # after progress events on a slow machine
    assert (first["event"], first["messages"], first["lag_messages"], first["open_batches"]) == ("ended", 180, 0, 0)
    *_, again = filled.json(*FOLLOW)
    assert (again["messages"], again["batches"]) == (0, 0)
    with wc.connect("sqlite:///factory.db") as database:
        assert landed(database.table("batches")) == expected(database.topic("telemetry"))
        with database.backend.snapshot() as connection:
            (report,) = read_reports(connection, ("batch",), 10)
    assert (report["starts"], report["facts"]["ended"], report["facts"]["messages"]) == (2, True, 0)
    assert report["facts"]["rule"].startswith("window = ")


def test_people_read_a_line_and_pipes_get_no_data(filled: Shell) -> None:
    assert filled(*FOLLOW) == ""
    assert "telemetry → batches: 180 messages in 58 batches, 0 open; rejected: 17 late; 0 behind" in filled.said


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("batch", "telemetry", "--into", "batches"), "--window is missing. Batching by event time needs"),
        (("batch", "telemetry", "--into", "nowhere", *RULE), "no message table named 'nowhere'"),
        (("batch", "nowhere", "--into", "batches", *RULE), "no topic named 'nowhere'"),
        (("batch", "telemetry", "--into", "numbers", *RULE), "with text ids, got 'numbers', which has bigint ids"),
        (
            ("batch", "telemetry", *RULE, "--follow"),
            "--into is missing: --by rate, --follow, --since, --source and --max-skew need",
        ),
        (
            ("batch", "telemetry", *RULE, "--max-skew", "1s"),
            "--into is missing: --by rate, --follow, --since, --source and --max-skew",
        ),
        ((*FOLLOW, "--limit", "1"), "--svg and --limit cannot be combined with --into"),
        ((*FOLLOW, "--by", "id", "--id-of", "train"), "--window cannot be used with --by id"),
        ((*FOLLOW, "--stream", "a"), "--stream cannot be used with --by event_time"),
        ((*FOLLOW, "--max-disorder", "1s"), "--max-disorder cannot be used with --by event_time"),
        (
            ("batch", "telemetry", "--into", "batches", "--by", "rate", "--max-delay", "1s"),
            "--max-delay cannot be used with --by rate",
        ),
        (
            ("batch", "telemetry", "--into", "batches", *RULE, "--since", "noon"),
            "since must be ISO 8601 with an offset",
        ),
    ],
)
def test_missing_or_wrong_parts_are_named(filled: Shell, words: tuple[str, ...], text: str) -> None:
    assert filled(*words, expect=1 if text.startswith("no ") else 2) == ""
    assert text in filled.said


def test_by_rate_needs_no_window(filled: Shell) -> None:
    (done,) = filled.json("batch", "telemetry", "--into", "batches", "--by", "rate", "--timeout", "inf")
    assert done["batches"] > 0


def test_by_id_batches_a_header_and_counts_what_is_missing(filled: Shell) -> None:
    sent = [("a", 1), ("b", 1), ("a", 2), ("a", 7), ("b", 7), ("c", 7)]
    with wc.connect("sqlite:///factory.db") as database:
        topic = database.create_topic("pulses")
        topic.append([wc.Message("x", name, 0, receive_time=0, headers={"pulse": str(n)}) for name, n in sent])
        topic.append([wc.Message("x", "a", 0, receive_time=0)])
    by_id = ("batch", "pulses", "--by", "id", "--id-of", "pulse", "--max-delay", "1s", "--stream", "a", "--stream", "b")
    *_, done = filled.json(*by_id, "--into", "batches")
    assert (done["batches"], done["missing_ids"], done["incomplete_batches"]) == (3, 4, 1)
    assert done["rejected"] == {"no_id": 1, "undeclared": 1}
    printed = filled.json(*by_id)
    with wc.connect("sqlite:///factory.db") as database:
        assert sorted(landed(database.table("batches"))) == sorted(row["id"] for row in printed)
    assert filled("batch", "pulses", "--by", "id", "--into", "batches", expect=2) == ""
    assert "--id-of is missing. Batching by id needs" in filled.said


def test_boundaries_cut_batches_in_a_table_and_on_the_terminal(filled: Shell) -> None:
    words = (*RULE, "--on-conflict", "keep", "--boundary", "m1", "--boundary", "m2")
    filled("batch", "telemetry", "--into", "batches", *words)
    printed = filled.json("batch", "telemetry", *words)
    with wc.connect("sqlite:///factory.db") as database:
        rule = ByEventTime(EventTimeRule.checked("2s", "1500ms", on_conflict="keep", boundaries=["m1", "m2"]))
        wanted = expected(database.topic("telemetry"), rule)
        assert landed(database.table("batches")) == wanted
    runs = {name: wc.Batch.from_bytes(data).run for name, data in wanted.items()}
    assert {row["id"]: row["run"] and to_time(row["run"], "run") for row in printed} == runs
    filled("batch", "telemetry", "--into", "cut", "--by", "rate", "--boundary", "m1")
    with wc.connect("sqlite:///factory.db") as database:
        by_rate = [wc.Batch.from_bytes(data) for data in landed(database.table("cut")).values()]
    assert len({batch.run for batch in by_rate if batch.reason == "boundary"}) > 3
    by_id = ("--by", "id", "--id-of", "pulse", "--max-delay", "1s")
    filled("batch", "telemetry", "--into", "batches", *by_id, "--boundary", "m1", expect=2)
    assert "--boundary cannot be used with --by id" in filled.said


def test_a_follower_ends_at_a_signal_having_committed_whole_steps(filled: Shell) -> None:
    words = [*FOLLOW, "--follow", "--json", f"--url=sqlite:///{Path.cwd()}/factory.db"]
    with Forked("tests.ingest.mqtt.command", *words) as process:
        with wc.connect("sqlite:///factory.db") as database:
            table = database.table("batches")
            while not table.peek(1):
                assert process.poll() is None
        os.kill(process.pid, signal.SIGTERM)
        assert '"event": "ended"' in process.stdout.read()
        assert process.wait() == 0


def test_a_database_that_is_away_is_waited_for(filled: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = iter([wc.UnavailableError("away"), wc.UnavailableError("away"), None, KeyboardInterrupt()])
    waits: list[float] = []

    def step(_self: Follower, _limit: int = 0) -> int:
        error = next(steps)
        if error is not None:
            raise error
        return 1

    monkeypatch.setattr(Follower, "step", step)
    monkeypatch.setattr("waterclock.work.running.signals.StopFlag.wait", lambda _stop, seconds: waits.append(seconds))
    filled(*FOLLOW, "--follow", expect=130)
    assert waits == [30 / 64, 30 / 32]


def test_each_change_of_an_adaptive_length_is_a_line(filled: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("batch", "telemetry", "--into", "batches", "--by", "rate", "--batch-length", "adaptive")
    seconds = iter([1, 1, 2, 2])

    def step(self: Follower, _limit: int = 0) -> int:
        length = next(seconds, None)
        if length is not None:
            self.counts.batch_length = length * 10**9
        return 0 if length is None else 1

    monkeypatch.setattr(Follower, "step", step)
    filled(*words)
    assert filled.said.count("telemetry → batches: batch length 1s → 2s, following the time that batches take") == 1
    seconds = iter([1, 2])
    changed = filled.json(*words)[0]
    assert (changed["event"], changed["batch_length_before"], changed["batch_length"]) == (
        "batch_length",
        10**9,
        2 * 10**9,
    )
    assert filled(*words[:-1], "1s", "--longest", "8s", expect=2) == ""
    assert "--longest can only be used with --batch-length adaptive, got '1s'" in filled.said
