"""Commands that read change nothing: not the catalogue, not a database of another program, not the folder."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pytest
from cyclopts import App
from tests.cli.conftest import Shell

import waterclock as wc
from waterclock.cli.app import COMMANDS, FAILED
from waterclock.database.migrating import HEAD

_MESSAGE = json.dumps(
    {
        "source": "press",
        "stream": "load",
        "event_time": "2026-07-01T12:00:00Z",
        "publish_time": "2026-07-01T12:00:01Z",
        "payload": "17",
    }
)
_CREATING = {"demo", "init", "restore", "topic add", "table add"}
_WITHOUT_A_DATABASE = {"doctor", "run", "pipeline run", "pipeline replay", "spark prepare", "ingest check"}
_OF_ANY_CATALOGUE = {"db status", "db sql"}
_ARGUMENTS = {
    "bench": ("--seconds", "0.001"),
    "db migrate": (),
    "topic alter": ("t", "--retention", "1d"),
    "topic append": ("t", "messages.jsonl"),
    "topic export": ("t", "--to", "export.csv"),
    "topic find": ("t", "2026-07-01T12:00:00Z"),
    "topic expire": ("t", "1d"),
    "topic forget": ("t", "p"),
    "topic relocate": ("t", "elsewhere"),
    "topic rename": ("t", "u"),
    "topic truncate": ("t", "2026-07-01T12:00:00Z"),
    "ingest file": ("messages.jsonl", "--topic", "t"),
    "ingest replay": ("mqtt://nowhere", "--topic", "t", "--format", "collectd"),
    "subscription add": ("t", "s"),
    "subscription info": ("t", "s"),
    "subscription read": ("t", "s"),
    "subscription seek": ("t", "s", "--end"),
    "subscription expire": ("t", "s", "1d"),
    "subscription rm": ("t", "s"),
    "table put": ("t", "1"),
    "table ack": ("t", "1"),
    "table cancel": ("t", "1"),
    "table explain": ("t", "1"),
    "table dead-letter": ("t", "1", "--reason", "r"),
    "table archive": ("t", "t"),
    "table alter": ("t", "--ack-wait", "1m"),
    "group info": ("t", "g"),
    "group purge": ("t", "g"),
    "group move": ("t", "g", "h"),
    "group reroute": ("t", "g", "h"),
    "group pause": ("t", "g"),
    "group resume": ("t", "g"),
    "group close": ("t", "g"),
    "group release": ("t", "g"),
    "group pin": ("t", "g", "c"),
    "group unpin": ("t", "g"),
    "group skip-head": ("t", "g"),
    "schedule add": ("t", "s", "1", "--cron", "* * * * *"),
    "schedule pause": ("t", "s"),
    "schedule resume": ("t", "s"),
    "schedule run": ("t", "s"),
    "schedule reset": ("t", "s"),
    "schedule rm": ("t", "s"),
    "topic ls": (),
    "table ls": (),
    "upkeep": (),
    "upkeep status": (),
    "serve": ("--listen", "127.0.0.1:0"),
    "token add": ("n", "--read", "topic:t"),
    "token ls": (),
    "metrics": ("--listen", "127.0.0.1:0"),
    "work": ("tests.cli.test_looking:handle", "--table", "t"),
    "batch": ("t", "--window", "1s", "--max-delay", "1s"),
    "backup": ("copy",),
}
"""What follows each command; the name of a topic or table unless given."""


def handle(delivery: wc.Delivery) -> None: ...


def commands() -> list[str]:
    found: list[str] = []
    for noun, (home, _) in COMMANDS.items():
        module, name = home.split(":")
        app = getattr(import_module(f"waterclock.cli.{module}"), name)
        verbs = [verb for verb in app if not verb.startswith("-")] if isinstance(app, App) else []
        found += [f"{noun} {verb}" for verb in verbs] or [noun]
    return [*found, "upkeep"]


def words_of(command: str) -> list[str]:
    return [*command.split(), *_ARGUMENTS.get(command, ("t",)), "--yes"]


_NEEDING = sorted(set(commands()) - _CREATING - _WITHOUT_A_DATABASE - _OF_ANY_CATALOGUE)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def foreign(shell: Shell) -> Shell:
    """A database of another program."""
    with closing(sqlite3.connect(shell.folder / "factory.db")) as connection:
        connection.execute("CREATE TABLE theirs (id INTEGER)")
    (shell.folder / "messages.jsonl").write_text(_MESSAGE)
    return shell


def test_every_command_refuses_a_database_without_a_catalogue_and_leaves_it_alone(foreign: Shell) -> None:
    before = contents(foreign.folder)
    for command in _NEEDING:
        assert foreign(*words_of(command), expect=FAILED) == "", command
        assert "no Waterclock catalogue found in sqlite:///factory.db. Run 'waterclock init'" in foreign.said, command
        assert contents(foreign.folder) == before, command
    foreign("doctor")
    assert contents(foreign.folder) == before


def test_every_command_refuses_a_missing_file_and_creates_none(shell: Shell) -> None:
    for command in _NEEDING:
        shell(*words_of(command), expect=FAILED)
        assert "no database file 'factory.db' found. Run 'waterclock init'" in shell.said, command
        assert list(shell.folder.iterdir()) == [], command


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("9999", f"has version 9999, and this Waterclock only supports versions up to {HEAD}"),
        ("0000", f"has version 0000.* needs {HEAD}.*db migrate"),
    ],
)
def test_every_command_refuses_a_catalogue_of_another_version_and_leaves_it_alone(
    shell: Shell, version: str, why: str
) -> None:
    shell("init")
    (shell.folder / "messages.jsonl").write_text(_MESSAGE)
    with closing(sqlite3.connect(shell.folder / "factory.db")) as connection:
        connection.execute("UPDATE waterclock_migrations SET version_num = ?", (version,))
        connection.commit()
    before = contents(shell.folder)
    refused = [*_NEEDING, "topic add", "table add", "init"]
    if version < HEAD:
        refused.remove("db migrate")
    for command in refused:
        shell(*(["init"] if command == "init" else words_of(command)), expect=FAILED)
        assert re.search(why, shell.said), (command, shell.said)
        assert contents(shell.folder) == before, command


def test_init_creates_the_catalogue_once_and_migrate_needs_one(shell: Shell) -> None:
    shell("db", "migrate", expect=FAILED)
    assert list(shell.folder.iterdir()) == []
    shell("init")
    assert "created the catalogue in sqlite:///factory.db" in shell.said
    shell("init")
    assert "the catalogue exists already" in shell.said
    shell("db", "migrate")
    assert shell.json("topic", "ls") == []


def test_the_status_of_the_catalogue_is_shown_in_each_state_and_nothing_is_created(shell: Shell) -> None:
    def status(expect: int) -> tuple[str | None, str]:
        (row,) = shell.json("db", "status", expect=expect)
        assert row["needed"] == HEAD
        return row["version"], row["state"]

    def pretend(version: str) -> None:
        with closing(sqlite3.connect(shell.folder / "factory.db")) as connection:
            connection.execute("UPDATE waterclock_migrations SET version_num = ?", (version,))
            connection.commit()

    assert status(FAILED) == (None, "missing: run 'waterclock init'")
    assert "CREATE TABLE waterclock_topics" in shell("db", "sql")
    assert list(shell.folder.iterdir()) == []
    shell("init")
    assert status(0) == (HEAD, "up to date")
    assert shell("db", "sql") == ""
    assert "up to date" in shell.said
    pretend("0000")
    assert status(FAILED) == ("0000", "older: run 'waterclock db migrate'")
    pretend("9999")
    assert status(FAILED) == ("9999", "newer: update waterclock")
    shell("db", "sql", expect=FAILED)
    assert "Update waterclock" in shell.said


def test_an_administrator_creates_the_catalogue_from_the_sql(shell: Shell) -> None:
    (statements,) = shell.json("db", "sql")
    with closing(sqlite3.connect(shell.folder / "factory.db")) as connection:
        connection.executescript(statements["sql"])
    shell("db", "status")
    shell("table", "add", "orders")
    shell("table", "put", "orders", "1")


@pytest.mark.parametrize(
    "words",
    [
        ["doctor"],
        ["topic", "ls"],
        ["topic", "info", "t"],
        ["topic", "read", "t"],
        ["topic", "find", "t", "2026-07-01T12:00:00Z"],
        ["topic", "ledgers", "t"],
        ["topic", "files", "t"],
        ["topic", "verify", "t"],
        ["subscription", "ls", "t"],
        ["subscription", "info", "t", "s"],
        ["table", "ls"],
        ["table", "info", "q"],
        ["table", "peek", "q"],
        ["table", "explain", "q", "1"],
        ["table", "dead", "q"],
        ["table", "failures", "q"],
        ["group", "ls", "q"],
        ["group", "info", "q", "g"],
        ["schedule", "ls", "q"],
        ["upkeep", "status"],
        ["token", "ls"],
        ["batch", "t", "--window", "1s", "--max-delay", "1s"],
    ],
    ids=" ".join,
)
def test_a_command_that_reads_writes_no_row_and_no_file(filled: Shell, words: list[str]) -> None:
    before = contents(filled.folder)
    filled(*words)
    assert contents(filled.folder) == before


def fill(shell: Shell) -> None:
    shell("topic", "add", "t")
    (shell.folder / "messages.jsonl").write_text(_MESSAGE)
    shell("topic", "append", "t", "messages.jsonl")
    shell("topic", "seal", "t")
    (shell.folder / "messages.jsonl").write_text(_MESSAGE.replace("17", "18"))
    shell("topic", "append", "t", "messages.jsonl")
    shell("subscription", "add", "t", "s")
    shell("table", "add", "q", "--groups", "sequenced", "--dead-letter", "dead")
    shell("table", "put", "q", "1", "--group", "g", "--id", "1")
    shell("schedule", "add", "q", "each", "1", "--cron", "0 0 1 1 *")


@pytest.fixture
def filled(shell: Shell, kept: Path) -> Shell:
    return shell.filled_by(fill, kept)
