"""Prints the output of commands: tables for people, tab-separated text for pipes, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from waterclock.errors import UnavailableError
from waterclock.time import MAX_NS, format_duration, format_time

if TYPE_CHECKING:
    from waterclock.message import Message

_MICROSECOND = 1_000  # ns
_MILLISECOND = 1_000_000
_SECOND = 1_000_000_000
_DIGITS = 3  # of a measured rate that is shown to people


@dataclass(frozen=True)
class Span:
    """A length of time in ns: in its largest unit for people (``1d``), a number of seconds in JSON (``86400``)."""

    ns: int

    @property
    def seconds(self) -> float:
        """How many seconds; whole ones as an int."""
        return self.ns // _SECOND if self.ns % _SECOND == 0 else self.ns / _SECOND

    def __str__(self) -> str:
        # A measured length, such as an age, is shown to the second, millisecond or microsecond.
        for unit in (_SECOND, _MILLISECOND, _MICROSECOND):
            if self.ns >= 10 * unit and self.ns % _MILLISECOND:
                return format_duration(round(self.ns / unit) * unit)
        return format_duration(self.ns)


def span(ns: int | None) -> Span | None:
    """Convert a length of time to the form that output takes; None stays None."""
    return None if ns is None else Span(ns)


@dataclass(frozen=True)
class PerSecond:
    """A measured rate: rounded for people (``0.0333/s``), the exact number in JSON."""

    rate: float

    def __str__(self) -> str:
        return f"{self.rate:.{_DIGITS}g}/s" if self.rate < 10**_DIGITS else f"{self.rate:.0f}/s"


def pause_end(until: int | None) -> str | None:
    """Convert the end of a pause to the form that output takes; None: not paused."""
    return None if until is None else "no end" if until == MAX_NS else format_time(until)


@contextmanager
def writing() -> Generator[None]:
    """Raise UnavailableError if standard output cannot be written, such as on a full disk."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        drop(sys.stdout)
        raise UnavailableError(f"cannot write the output: {error.strerror}") from error


def drop(stream: TextIO) -> None:
    """Send buffered and later output to the null device: writing it would fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _print(*parts: object) -> None:
    with writing():
        print(*parts, sep="\t")


def _say(text: str) -> None:
    try:
        print(without_controls(text), file=sys.stderr)
    except BrokenPipeError:  # the reader has gone; the command continues
        drop(sys.stderr)


_complains: Output | None = None


def complain_to(output: Output | None) -> None:
    """Choose the output for the error that ends a command; None: text on stderr."""
    global _complains  # noqa: PLW0603  # as there is one stderr
    _complains = output


def last_complaint(text: str, *, on_new_line: bool = False) -> None:
    """Report the error that ends the command."""
    (_complains or Output()).complain(text, on_new_line=on_new_line)


class Output:
    """Data on stdout, notes on stderr.

    Parameters
    ----------
    as_json
        Write one JSON object per line instead of text.
    quiet
        Say nothing on stderr.
    """

    logs = False
    """Whether notes go to the log."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet

    def talk(self, text: str) -> None:
        """Print a note to the user, on stderr."""
        if not self.quiet:
            _say(text)

    def relay(self, line: str) -> None:
        """Pass on a line of another process, which has decided whether to print it."""
        _say(line)

    def complain(self, text: str, *, on_new_line: bool = False) -> None:
        """Print an error to the user, even with --quiet."""
        start = "\n" if on_new_line and sys.stderr.isatty() else ""
        _say(f"{start}waterclock: {text}")

    @contextmanager
    def progress(self, what: str) -> Generator[Callable[[int, int], None]]:
        """Show progress on a terminal; return a function that takes how many are done, and their total."""
        from rich.console import Console
        from rich.progress import Progress, TextColumn

        shows = sys.stderr.isatty() and not self.quiet
        title = TextColumn("{task.description}", style="progress.description", markup=False)
        with Progress(
            title, *Progress.get_default_columns()[1:], console=Console(stderr=True), disable=not shows
        ) as bar:
            task = bar.add_task(without_controls(what), total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    def text(self, text: str) -> None:
        """Print text for people."""
        _print(without_controls(text))

    def rows(self, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
        """Print rows with the same columns."""
        if self.as_json:
            for row in rows:
                _print(json.dumps({name: _plain(row[name]) for name in columns}))
        elif sys.stdout.isatty():
            _print_table(list(rows), columns)
        else:
            _print("\t".join(columns))
            for row in rows:
                _print("\t".join(_text(row[name]) for name in columns))

    def facts(self, facts: Mapping[str, Any]) -> None:
        """Print one thing's properties."""
        if self.as_json:
            _print(json.dumps({name: _plain(value) for name, value in facts.items()}))
            return
        _print_facts(facts)

    def message(self, message: Message) -> None:
        """Print one message on a line."""
        if self.as_json:
            from waterclock.ingest.files import message_to_json

            _print(json.dumps(message_to_json(message)))
            return
        _print(
            message.position,
            format_time(message.event_time),
            _text(message.source),
            _text(message.stream),
            _text(message.payload),
        )


def _plain(value: object) -> object:
    """Convert a value for JSON; one of an unknown type is written as text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Span):
        return value.seconds
    if isinstance(value, PerSecond):
        return value.rate
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return [_plain(item) for item in value]
    return _text(value)


def _print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Print rows as a table, or as a list if the terminal is too narrow for their words."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        table.add_column(name.replace("_", " "))
    for row in rows:
        table.add_row(*[Text(_text(row[name])) for name in columns])  # a str would be parsed as Rich's markup
    if console.measure(table).minimum < console.width:
        console.print(table)
        return
    for number, row in enumerate(rows):
        if number:
            _print()
        _print_facts({name: row[name] for name in columns})


def _print_facts(facts: Mapping[str, Any]) -> None:
    width = max(map(len, facts))
    for name, value in facts.items():
        _print(f"{name.replace('_', ' '):<{width}}  {_text(value)}")


def _text(value: object) -> str:
    """Write a value on one line of text: a JSON value as JSON, and no control characters."""
    if value is None:
        return "-"
    if isinstance(value, bytes):
        text = value.decode(errors="backslashreplace")
    elif isinstance(value, dict | list | bool):
        text = json.dumps(value, ensure_ascii=False, default=str)
    else:
        text = str(value)
    return _escaped(text)


def without_controls(text: str) -> str:
    """Escape control characters, except line feeds and tabs, because a terminal would execute them."""
    return "".join(each if each in "\n\t" else _escaped(each) for each in text)


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
