"""``waterclock demo`` runs the demo on recorded data, or measures this machine live.

Progress goes to stderr, and figures go to stdout.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from waterclock.cli.terminal.common import Common
from waterclock.cli.terminal.output import without_controls
from waterclock.errors import InvalidArgumentError

if TYPE_CHECKING:
    from waterclock.demo.live import LiveBooks
    from waterclock.demo.reconciliation import Reconciliation
    from waterclock.demo.report import ProgressReport


def demo(
    *, folder: Path = Path("demo"), live: bool = False, seconds: int | None = None, common: Common = Common()
) -> int:
    """Run the whole flow on a recording of real messages, and draw it.

    Parameters
    ----------
    folder
        Folder for the database, the ledgers and the picture; recreated each time.
    live
        Batch this machine's own measurements instead, from collectd through Mosquitto, which must be installed.
    seconds
        How long to measure with --live; default 60. Ctrl-C ends the measurement early.
    """
    report = _TerminalReport(quiet=common.quiet)
    if live:
        from waterclock.demo.live import run_live
        from waterclock.tables.model.options import check_count

        duration = 60 if seconds is None else check_count(seconds, "seconds")
        books = run_live(folder, duration, report)
    else:
        from waterclock.demo.main_job import run_main_job

        if seconds is not None:
            raise InvalidArgumentError(
                "--seconds can only be used with --live: it sets how long the live demo measures"
            )
        books = run_main_job(folder, report)
    _print(books, common)
    return 0 if books.balances else 1


def _print(books: Reconciliation | LiveBooks, common: Common) -> None:
    if common.json:
        common.output.facts(books.facts())
    else:
        common.output.text("\n".join(books.lines()))


class _TerminalReport:
    """Progress on stderr: moving on a terminal, a line a step elsewhere."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._console = Console(stderr=True, highlight=False, emoji=False, quiet=quiet)

    @contextmanager
    def step(self, text: str, total: int | None = None) -> Generator[ProgressReport]:
        """Show a step's progress until it is done."""
        text = without_controls(text)
        if self._quiet or not sys.stderr.isatty():
            self._console.print(f"… {text}", markup=False)
            yield lambda _done: None
            return
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (
            SpinnerColumn(finished_text="[green]✔"),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("[dim]{task.completed:,}[/]" if total else ""),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task(text, total=total)
            yield lambda done: progress.update(task, completed=done)
            progress.update(task, total=total or 1, completed=total or 1)

    def say(self, text: str) -> None:
        """Print a result."""
        self._console.print(f"  {without_controls(text)}", markup=False)
