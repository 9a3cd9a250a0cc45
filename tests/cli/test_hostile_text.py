"""No command lets text from outside reach a terminal as markup or control characters."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Iterator

import pytest
from cyclopts import App

from waterclock.cli import app as command_line
from waterclock.cli.app import DONE, FAILED, app
from waterclock.cli.demo import _TerminalReport
from waterclock.cli.terminal.output import Output
from waterclock.spark.pipeline.progress import Progress
from waterclock.spark.pipeline.reporting import Reporter

from .conftest import ESCAPED, FORBIDDEN, HOSTILE, Shell, Terminal

MESSAGE = {"source": HOSTILE, "stream": HOSTILE, "event_time": "2026-07-01T12:00:00Z", "payload": HOSTILE}
NAME = HOSTILE.replace("/", "|")
"""For a file or a folder."""

SCENARIOS = {
    "topics": """
        0 topic add telemetry
        0 db migrate
        0 db status
        0 db sql
        0 bench --seconds 0.001
        2 bench --seconds @
        2 topic append telemetry messages.jsonl --producer @
        0 topic append telemetry messages.jsonl
        0 topic ls
        0 topic info telemetry
        0 topic read telemetry
        0 topic read telemetry --where-time --by event_time
        0 topic find telemetry 2026-07-01T12:00:00Z --by event_time
        0 topic ledgers telemetry
        2 topic export telemetry --to @
        0 topic roll telemetry
        0 topic seal telemetry
        0 topic compact telemetry
        0 topic files telemetry
        0 topic verify telemetry --deep
        0 topic relocate telemetry # --yes
        0 topic files telemetry
        0 topic repair telemetry --yes
        2 topic expire telemetry @ --yes
        2 topic truncate telemetry @ --yes
        0 topic forget telemetry @ --yes
        2 topic alter telemetry --unset @
        2 topic rename telemetry @
        2 subscription add telemetry @
        0 subscription add telemetry billing
        0 subscription ls telemetry
        0 subscription info telemetry billing
        0 subscription read telemetry billing
        2 subscription seek telemetry billing --to @
        2 subscription expire telemetry billing @
        1 subscription rm telemetry @ --yes
        0 batch messages.jsonl --window 1s --max-delay 1s
        2 batch @ --window 1s --max-delay 1s
        2 topic rm @ --yes
    """,
    "tables": """
        0 init
        0 topic add telemetry
        0 table add jobs --id-type text --payload text --max-attempts 1
        0 table put jobs @ --id @ --header @=@
        0 table ls
        0 table info jobs
        0 table peek jobs
        0 table explain jobs @
        0 table pause jobs
        0 table resume jobs
        2 table alter jobs --unset @
        1 table retry jobs @@
        0 table receive jobs
        0 table cancel jobs @ --reason @
        0 table explain jobs @
        1 table ack jobs @@
        0 table dead jobs
        0 table failures jobs
        1 table redrive jobs @
        1 table dead-letter jobs @ --reason @
        2 table dead-letter jobs --text @ --group @ --header @=@ --error @ --where @ --reason @
        0 table archive jobs telemetry
        0 table purge jobs
        1 table rm @ --yes
        0 schedule add jobs @ @ --cron @daily
        0 schedule ls
        0 schedule pause jobs @
        0 schedule resume jobs @
        0 schedule reset jobs @
        0 schedule run jobs @
        1 schedule rm jobs @@
        0 upkeep
        0 upkeep status
        2 token add @ --read topic:t
        0 token add name --read table:@ --expires 1d
        0 token ls
        2 serve --listen @
        1 token rm @
        0 doctor
    """,
    "groups": """
        0 table add jobs --payload text --groups exclusive
        0 table add other --payload text --groups exclusive
        0 table put jobs @ --group @
        0 group ls jobs
        0 group info jobs @
        0 group pause jobs @
        0 group resume jobs @
        0 group pin jobs @ @
        0 group info jobs @
        0 group unpin jobs @
        0 group close jobs @
        0 group release jobs @
        0 group rebalance jobs
        0 group reroute jobs @ @@
        0 group move jobs @@ other
        0 group skip-head other @@
        1 group purge other @@ --yes
        1 group info other @@@
    """,
    "others": """
        0 topic add telemetry
        0 topic append telemetry messages.jsonl
        0 topic roll telemetry
        0 topic seal telemetry
        0 backup #
        0 restore # --url sqlite:///restored.db --ledgers restored
        1 restore @ --url sqlite:///again.db
        1 demo --folder #
        1 pipeline run @
        2 pipeline run #.toml
        2 pipeline replay topicless.toml --since 2h --until 1h
        2 pipeline run topicless.toml
        2 spark prepare
        2 work @
        2 metrics --listen @
        2 upkeep --every 1m --metrics @
        2 ingest @ --topic telemetry
        2 ingest kafka://127.0.0.1:1 --topic telemetry --kafka-topic @
        1 ingest check @
        1 ingest file @ --topic telemetry
        1 run @
        2 run #.toml
        1 ingest replay @
    """,
}
"""Commands with their exit codes; ``@`` stands for hostile text, ``#`` for a hostile name of a file."""


def commands(noun: App, path: tuple[str, ...] = ()) -> Iterator[str]:
    if path and noun.default_command is not None:
        yield " ".join(path)
    for name in noun:
        if not name.startswith("-"):
            yield from commands(noun[name], (*path, name))


def words_of(line: str) -> tuple[int, list[str]]:
    code, *words = shlex.split(line)
    return int(code), [word if word == "@daily" else word.replace("@", HOSTILE).replace("#", NAME) for word in words]


def runs(scenario: str) -> list[tuple[int, list[str]]]:
    return [words_of(line) for line in SCENARIOS[scenario].strip().splitlines()]


def test_every_command_is_run_with_hostile_text() -> None:
    every = [words for scenario in SCENARIOS for _, words in runs(scenario)]
    run = {" ".join(app.parse_commands(words)[0]) for words in every}
    assert set(commands(app)) == run


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_command_obeys_hostile_text(
    scenario: str, terminal: Terminal, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATERCLOCK_CLASS_ARCHIVE", "off")
    (shell.folder / "messages.jsonl").write_text(json.dumps({**MESSAGE, "receive_time": MESSAGE["event_time"]}))
    (shell.folder / f"{NAME}.toml").write_text(f"[source]\nurl = {json.dumps(HOSTILE)}\n{json.dumps(HOSTILE)} = 1\n")
    (shell.folder / "topicless.toml").write_text(pipeline("sqlite:///factory.db"))
    for code, words in runs(scenario):
        text = terminal(*words, expect=code)
        assert "Traceback" not in text, words


def pipeline(url: str) -> str:
    hostile = json.dumps(HOSTILE.strip())
    return f"""
[source]
url = "{url}"
topic = {hostile}
[batching]
window = "1s"
max_delay = "1s"
[[output]]
what = "batches"
table = {hostile}
[run]
checkpoint = "checkpoints"
"""


HANDLER = f"""
import logging, os, signal

def handle(job):
    logging.getLogger("theirs").warning("%s", {HOSTILE!r})
    os.kill(os.getpid(), signal.SIGTERM)
    raise ValueError({HOSTILE!r})
"""


@pytest.mark.parametrize("options", [(), ("--verbose",), ("--json",)])
def test_log_lines_of_a_worker_are_escaped(
    options: tuple[str, ...], terminal: Terminal, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shell.folder / "hostile_handlers.py").write_text(HANDLER)
    monkeypatch.syspath_prepend(str(shell.folder))
    monkeypatch.delitem(sys.modules, "hostile_handlers", raising=False)
    terminal("table", "add", "jobs", "--payload", "text")
    terminal("table", "put", "jobs", HOSTILE)
    text = terminal("work", "hostile_handlers:handle", "--table", "jobs", *options)
    assert text.count("[/var/log/x] [later]") >= 2
    assert options == ("--json",) or ESCAPED in text


def test_tracebacks_of_faults_are_escaped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr("threading.excepthook", None)
    monkeypatch.setattr(command_line, "run", lambda _: DONE)
    with pytest.raises(SystemExit):
        command_line.main([])
    sys.excepthook(ValueError, ValueError(HOSTILE), None)
    text = capsys.readouterr().err
    assert f"ValueError: {ESCAPED}" in text
    assert not any(sequence in text for sequence in FORBIDDEN)


def test_warnings_of_commands_that_do_not_log_are_escaped(terminal: Terminal) -> None:
    terminal("table", "ls", expect=FAILED)
    assert logging.lastResort is not None
    record = logging.LogRecord("any", logging.WARNING, __file__, 1, "%s", (HOSTILE,), None)
    assert logging.lastResort.format(record) == ESCAPED


def test_progress_of_the_demo_and_of_pipelines_is_escaped(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def show(arguments: list[str]) -> int:
        report = _TerminalReport(quiet=False)
        with report.step(f"append to {HOSTILE}"):
            report.say(HOSTILE)
        with Reporter([], as_json=False, quiet=False).shown():
            pass
        Reporter([], as_json=False, quiet=False)._say("progress", Progress(HOSTILE), "3 messages")
        with Output().progress(HOSTILE):
            pass
        return DONE

    monkeypatch.setattr("tests.cli.conftest.run", show)
    text = terminal()
    assert f"append to {ESCAPED}" in text
    assert f"  {ESCAPED}" in text
    assert f"{ESCAPED}: 3 messages" in text
