"""A name that is not known suggests the nearest one; options of every command may stand before it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from waterclock.cli.app import _EVERYWHERE, FAILED, WRONG_USAGE
from waterclock.cli.terminal.common import Common

from .conftest import Shell


def fill(shell: Shell) -> None:
    shell("table", "add", "jobs", "--groups", "sequenced", "--payload", "text")
    shell("table", "put", "jobs", "x", "--group", "cart-17")
    shell("schedule", "add", "jobs", "nightly", "x", "--cron", "@daily", "--group", "cart-17")
    shell("topic", "add", "telemetry")
    shell("subscription", "add", "telemetry", "billing")


@pytest.fixture
def filled(shell: Shell, kept: Path) -> Shell:
    return shell.filled_by(fill, kept)


@pytest.mark.parametrize(
    ("command", "near", "code"),
    [
        ("topic info telemetri", "telemetry", FAILED),
        ("table archive jobs telemetri", "telemetry", FAILED),
        ("table info job", "jobs", FAILED),
        ("group move jobs cart-17 job", "jobs", FAILED),
        ("group info jobs cart17", "cart-17", FAILED),
        ("subscription rm telemetry biling", "billing", FAILED),
        ("subscription info telemetry biling", "billing", FAILED),
        ("schedule pause jobs nightl", "nightly", FAILED),
        ("schedule run jobs nightl", "nightly", FAILED),
        ("schedule rm jobs nightl", "nightly", FAILED),
        ("table put jobs x --column priorty=3", "priority", WRONG_USAGE),
        ("table alter jobs --unset rate-limits", "rate_limit", WRONG_USAGE),
        ("topic alter telemetry --unset retentions", "retention", WRONG_USAGE),
        ("table ls --jsn", "--json", WRONG_USAGE),
        ("tabel ls", "table", WRONG_USAGE),
        ("upkeep statsu", "status", WRONG_USAGE),
    ],
)
def test_an_unknown_name_suggests_the_nearest(filled: Shell, command: str, near: str, code: int) -> None:
    filled(*command.split(), expect=code)
    said = filled.said.lower()
    assert any(f"did you mean {quote}{near}{quote}?" in said for quote in ("", "'", '"')), filled.said


@pytest.mark.parametrize(
    "command",
    [
        "info",
        "purge",
        "move jobs cart17 others",
        "reroute jobs cart17 cart-18",
        "resume",
        "close",
        "release",
        "unpin",
        "skip-head",
        "purge jobs cart17 --dry-run",
    ],
)
def test_a_command_for_an_unknown_group_fails_by_its_name(filled: Shell, command: str) -> None:
    filled("table", "add", "others", "--groups", "sequenced", "--payload", "text")
    verb, *words = command.split()
    filled("group", verb, *(words or ["jobs", "cart17"]), "--yes", expect=FAILED)
    assert "no group named 'cart17' in message table 'jobs'; did you mean 'cart-17'?" in filled.said


def test_a_command_that_finds_a_group_with_nothing_to_do_succeeds(filled: Shell) -> None:
    filled("group", "resume", "jobs", "cart-17")
    assert "resumed 0 groups" in filled.said


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("table receive jobs --wait -1s", "wait must be a duration of 0 or more, got '-1s'"),
        ("table put jobs x --delay -1.5h", "delay must be a duration of 0 or more, got '-1.5h'"),
        ("upkeep --every -1m", "every must be a duration of 0 or more, got '-1m'"),
        ("topic read telemetry --since -1h", "since must be ISO 8601"),
        ("topic read telemetry --until -1h", "until must be ISO 8601"),
        ("topic read telemetry --limit -1", "limit must be an integer ≥ 1, got -1"),
    ],
)
def test_a_negative_value_behind_a_space_is_called_so(filled: Shell, command: str, says: str) -> None:
    filled(*command.split(), expect=WRONG_USAGE)
    assert says in filled.said


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("upkeep now", "no command named 'now' in 'waterclock upkeep'; choose from status"),
        ("schedule zzz", "no command named 'zzz' in 'waterclock schedule'; choose from add, ls"),
        ("table zzz", "no command named 'zzz' in 'waterclock table'; choose from add, ls"),
        ("zzz", "no command named 'zzz' in 'waterclock'; choose from"),
        (
            "topic info telemetry all of it",
            "'waterclock topic info' takes no more arguments, got 'all'. Run 'waterclock topic info --help'",
        ),
        ("topic info telemetry postgresql://u:secret@h/d", "'waterclock topic info' takes no more arguments, got"),
    ],
)
def test_a_word_too_many_is_named_with_the_remedy(filled: Shell, command: str, says: str) -> None:
    filled(*command.split(), expect=WRONG_USAGE)
    assert says in filled.said
    assert "secret" not in filled.said


@pytest.mark.parametrize("command", ["pause jobs cart17", "pin jobs cart17 picker"])
def test_a_group_that_is_held_before_its_first_message_is_compared_with_known_ones(filled: Shell, command: str) -> None:
    filled("group", *command.split())
    assert "warning: no group named 'cart17' in message table 'jobs'; did you mean 'cart-17'? The p" in filled.said
    filled("table", "put", "jobs", "x", "--group", "cart17")
    filled("group", *command.split())
    assert "warning" not in filled.said


def test_an_unknown_group_is_compared_with_a_bounded_number_of_names(
    filled: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waterclock.tables.message_groups._NAMES_COMPARED", 1)
    filled("table", "put", "jobs", "x", "--group", "aaa")
    filled("group", "info", "jobs", "cart17", expect=FAILED)
    assert "no group named 'cart17' in message table 'jobs'; it never had messages, or has none left" in filled.said


def test_an_unknown_pipeline_suggests_the_nearest(shell: Shell) -> None:
    names = ("hourly", "daily")
    (shell.folder / "p.toml").write_text("".join(map(_pipeline, names)))
    words = ("pipeline", "replay", "p.toml", "--since", "2h", "--until", "1h")
    shell(*words, "--pipeline", "dayly", expect=FAILED)
    assert "no pipeline named 'dayly'; did you mean 'daily'?" in shell.said
    shell(*words, expect=WRONG_USAGE)
    assert "pipeline is missing; name one of hourly, daily" in shell.said


def _pipeline(name: str) -> str:
    return f"""
[[pipeline]]
name = "{name}"
[pipeline.source]
url = "sqlite:///factory.db"
topic = "telemetry"
[pipeline.batching]
window = "1s"
max_delay = "1s"
[[pipeline.output]]
what = "batches"
table = "{name}"
[pipeline.run]
checkpoint = "checkpoints/{name}"
"""


def test_options_of_every_command_may_stand_before_it(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WATERCLOCK_URL")
    url = f"sqlite:///{tmp_path}/other.db"
    shell("--url", url, "-q", "table", "add", "jobs", "--payload", "text")
    shell(f"--url={url}", "--json", "table", "put", "jobs", "--", "-x")
    assert '"ready": 1' in shell("--json", "--url", url, "table", "ls")
    assert "oldest_age\t" not in shell("--url", url, "--yes", "upkeep", "status")
    for words, unknown in ((["--json", "tabel"], "tabel"), (["--nope", "table", "ls"], "--nope"), (["--url"], "--url")):
        shell(*words, expect=WRONG_USAGE)
        assert f"named '{unknown}' in 'waterclock'" in shell.said


def test_all_options_of_every_command_may_stand_before_it() -> None:
    assert {name.strip("-") for name in _EVERYWHERE if name.startswith("--")} == {
        field.name for field in fields(Common)
    }
