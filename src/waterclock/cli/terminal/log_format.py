"""Formats the progress and log lines of long-running commands: as text, or as one JSON object per line."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any, Literal

from cyclopts import Parameter

from waterclock._support.log_events import event
from waterclock.cli.terminal.common import Common, log_to_stderr
from waterclock.cli.terminal.output import Output, complain_to

_log = logging.getLogger(__name__)


@Parameter(name="*")
@dataclass(frozen=True)
class LogOptions:
    """The option for the format of a log."""

    log_format: Literal["text", "json"] = "text"
    """How to write progress and log lines to stderr: as text, or each as a JSON object with the name of its event."""

    def output(self, common: Common) -> Output:
        """Return the output for results and notes, and begin to log as JSON if chosen."""
        if self.log_format == "text":
            return common.output
        log_to_stderr(as_json=True, warnings_only=common.quiet)
        logged = LoggedOutput(as_json=common.json, quiet=common.quiet)
        complain_to(logged)
        return logged


class LoggedOutput(Output):
    """Output whose notes go to the log, so that each line on stderr is a JSON object."""

    logs = True

    def talk(self, text: str) -> None:
        """Log it."""
        self.report("talk", text)

    def complain(self, text: str, *, on_new_line: bool = False) -> None:
        """Log it as an error."""
        del on_new_line  # only a terminal has a line to finish
        _log.error("%s", text, extra=event("error"))

    def relay_log(self, part: str, facts: Any, line: str) -> None:
        """Pass on a line of another process: a JSON object with the process's name added, a text as a log line."""
        if isinstance(facts, dict):
            self.relay(json.dumps({"part": part, **facts}))
        else:
            self.report("talk", f"{part}: {line}", part=part)

    def report(self, name: str, text: str, /, *, is_warning: bool = False, **fields: Any) -> None:
        """Log an event with its fields."""
        if is_warning or not self.quiet:
            _log.log(logging.WARNING if is_warning else logging.INFO, "%s", text, extra=event(name, **fields))
