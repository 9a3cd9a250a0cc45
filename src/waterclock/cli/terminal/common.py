"""The options that every command takes, and the function that opens the command's database."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from waterclock._support.log_events import FIELDS, NAME
from waterclock.cli.terminal.output import Output, without_controls
from waterclock.errors import InvalidArgumentError

if TYPE_CHECKING:
    from waterclock.connection import Database

_GROUP = "Everywhere"

TopicName = Annotated[str, Parameter(help="The topic.")]
TableName = Annotated[str, Parameter(help="The message table.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    """Options of every command."""

    url: Annotated[str | None, Parameter(env_var="WATERCLOCK_URL", group=_GROUP)] = field(default=None, repr=False)
    """Database: sqlite:///FILE, postgresql://…, mysql://…"""
    ledgers: Annotated[str | None, Parameter(env_var="WATERCLOCK_LEDGERS", group=_GROUP)] = field(
        default=None, repr=False
    )
    """Folder or URL of sealed ledgers, for new topics and for topics whose store was moved there. Defaults to
    FILE-ledgers for new topics on SQLite.
    """
    json: Annotated[bool, Parameter(negative="", group=_GROUP)] = False
    """Write JSON: one object per line."""
    yes: Annotated[bool, Parameter(name=("--yes", "-y"), negative="", group=_GROUP)] = False
    """Do not ask before something is deleted."""
    quiet: Annotated[bool, Parameter(name=("--quiet", "-q"), negative="", group=_GROUP)] = False
    """Print only errors to stderr."""
    verbose: Annotated[bool, Parameter(name=("--verbose", "-v"), negative="", group=_GROUP)] = False
    """Log all activity to stderr."""

    @property
    def output(self) -> Output:
        """The terminal, for results and messages to the user."""
        if self.verbose:
            log_to_stderr()
        return Output(as_json=self.json, quiet=self.quiet)

    def confirm(self, what: str) -> None:
        """Ask before an irreversible action; refuse without a terminal to ask on."""
        if self.yes:
            return
        if not sys.stdin.isatty():
            raise InvalidArgumentError(f"this would {what}. To confirm, add --yes")
        if input(f"This will {without_controls(what)}. Go on? [y/N] ").strip().lower() not in ("y", "yes"):
            raise InvalidArgumentError("cancelled; nothing was changed")

    @property
    def database_url(self) -> str:
        """The database's URL; InvalidArgumentError if missing."""
        if self.url is None:
            raise InvalidArgumentError(
                "no database given. Add --url, such as --url sqlite:///factory.db, or set WATERCLOCK_URL"
            )
        return self.url

    def connect(self, *, create: bool | None = False) -> Database:
        """Open the database, which must have a catalogue unless the command creates one; ``create`` as in `connect`."""
        from waterclock.connection import connect

        return connect(self.database_url, self.ledgers, create=create)


def log_to_stderr(*, as_json: bool = False, warnings_only: bool = False) -> None:
    """Write log lines with their time and level to stderr, or one JSON object each."""
    import logging

    import structlog

    named: list[Any] = []
    if as_json:
        named = [structlog.stdlib.add_logger_name, _add_event]
        render = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    else:
        plain = structlog.dev.plain_traceback
        colored = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)
        render = [structlog.processors.format_exc_info, _escape_controls, colored]
    formatter = structlog.stdlib.ProcessorFormatter(
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _add_formatted_traceback,
            *named,
        ],
    )
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=logging.WARNING if warnings_only else logging.INFO, force=True)


def _add_event(_logger: Any, _level: str, event: Any) -> Any:
    """Add the stable name and the fields of a log line; its text becomes ``message``."""
    record = event["_record"]
    named = {"event": getattr(record, NAME, "log"), "message": event["event"]}
    return event | getattr(record, FIELDS, {}) | named


def _escape_controls(_logger: Any, _level: str, event: Any) -> Any:
    """Escape control characters in everything logged, before the renderer adds colors."""
    return {name: without_controls(value) if isinstance(value, str) else value for name, value in event.items()}


def _add_formatted_traceback(_logger: Any, _level: str, event: Any) -> Any:
    """Add a traceback that the record has as text, for example from a handler in another process."""
    if text := event["_record"].exc_text:
        event.pop("exc_info", None)
        event["exception"] = text
    return event
