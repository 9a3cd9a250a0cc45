from __future__ import annotations

import shutil
import signal

import pytest
from tests.cli.conftest import Shell

from waterclock.cli.app import FAILED, WRONG_USAGE
from waterclock.cli.operations import upkeep
from waterclock.cli.terminal.output import Span


def test_upkeep_runs_once_and_its_status_says_what_failed(shell: Shell) -> None:
    shell("topic", "add", "telemetry")
    shell("table", "add", "orders")
    assert {row["due_at"] for row in shell.json("upkeep", "status")} == {"now"}
    assert [row["task"] for row in shell.json("upkeep")] == ["seal", "compact", "tick", "release", "purge"]
    shutil.rmtree(shell.folder / "factory.db-ledgers")
    shell("upkeep", "--quiet", expect=FAILED)
    assert "waterclock: seal of topic 'telemetry' failed: cannot use the ledger store" in shell.said
    rows = {row["task"]: row for row in shell.json("upkeep", "status")}
    assert "waterclock-store.json is missing" in rows["seal"]["error"]
    assert (rows["purge"]["did"], rows["purge"]["error"]) == (0, None)
    assert rows["seal"]["due_at"] > rows["seal"]["ran_at"]


def test_upkeep_continues_until_a_signal_ends_it_after_the_task_under_way(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell("table", "add", "orders")
    done: list[str] = []

    def signalled(_: object, task: object) -> None:
        done.append(str(task))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(upkeep, "tell", signalled)
    shell("upkeep", "--every", "1h")
    assert len(done) == 1
    shell("upkeep", "--every", "0s", expect=WRONG_USAGE)


@pytest.mark.parametrize(
    ("ns", "text"), [(4_839_985, "4840us"), (12_345_678, "12ms"), (12_345_678_901, "12s"), (86_400 * 10**9, "1d")]
)
def test_a_measured_length_is_shown_in_a_unit_that_it_fills(ns: int, text: str) -> None:
    assert str(Span(ns)) == text
