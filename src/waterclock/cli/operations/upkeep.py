"""``waterclock upkeep`` runs the regular tasks of all topics and message tables, and shows when each last ran."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cyclopts import App

from waterclock.cli.terminal.common import Common
from waterclock.cli.terminal.exporting import MetricsOptions, exporting
from waterclock.cli.terminal.log_format import LoggedOutput, LogOptions
from waterclock.cli.terminal.output import span
from waterclock.errors import InvalidArgumentError
from waterclock.time import format_time, to_duration

if TYPE_CHECKING:
    from waterclock.cli.terminal.output import Output
    from waterclock.connection import Database
    from waterclock.work.upkeep import Task

app = App(name="upkeep")

_SECOND = 1_000_000_000


@app.default
def run(
    *,
    every: str | None = None,
    metrics: MetricsOptions = MetricsOptions(),
    log: LogOptions = LogOptions(),
    common: Common = Common(),
) -> int:
    """Do the upkeep of all topics and message tables of the database, once or repeatedly.

    SIGTERM and SIGINT end it after the current task, a second signal immediately. Exit code 1 if a task failed, after
    all others are done.

    Parameters
    ----------
    every
        Run all due tasks repeatedly, with this pause, for example 1m; without it, run every task once.
    """
    from waterclock.work.running.signals import stopping_at_signals
    from waterclock.work.upkeep import Upkeep

    pause = None if every is None else to_duration(every, "every", minimum=_SECOND)
    output = log.output(common)
    with common.connect() as database:
        runner = Upkeep(database)

        def stop(*, again: bool) -> None:
            if again:
                raise KeyboardInterrupt
            runner.stop()

        with stopping_at_signals(stop):
            if pause is not None:
                with _exporting(metrics, output, database) as note:
                    runner.run_for_ever(pause, note)
                return 0
            if metrics.metrics is not None:
                raise InvalidArgumentError(
                    "--metrics can only be used with --every: a single run ends before Prometheus can read its metrics"
                )
            failed = 0
            for task in runner.run():
                tell(output, task)
                failed += task.error is not None
            return 1 if failed else 0


@contextmanager
def _exporting(options: MetricsOptions, output: Output, database: Database) -> Generator[Callable[[Task], None]]:
    """Serve metrics meanwhile, if requested; yield the callback for each task."""
    if options.metrics is None:
        yield lambda task: tell(output, task)
        return
    from waterclock.work.metrics import UpkeepMetrics

    tasks = UpkeepMetrics()

    def note(task: Task) -> None:
        tasks.note(task)
        tell(output, task)

    with exporting(options, output, lambda: database, [tasks], list[str]):
        yield note


@app.command
def status(*, common: Common = Common()) -> None:
    """Show for each topic and message table which tasks ran when, are due, or failed."""
    from waterclock.work.upkeep import Upkeep

    with common.connect() as database:
        rows = [_shown(task) for task in Upkeep(database).status()]
        common.output.rows(rows, ("kind", "name", "task", "ran_at", "took", "did", "due_at", "owner", "error"))


def tell(output: Output, task: Task) -> None:
    """Print the outcome of a task if it changed something or failed; with --json always."""
    if isinstance(output, LoggedOutput):
        if task.did or task.error is not None:
            facts = {name: getattr(task, name) for name in ("kind", "name", "task", "took", "did", "error")}
            output.report("upkeep_task", str(task), is_warning=task.error is not None, **facts)
    elif output.as_json:
        facts = _shown(task)
        output.facts({name: facts[name] for name in ("kind", "name", "task", "took", "did", "error")})
    elif task.error is not None:
        output.complain(str(task))
    elif task.did:
        output.talk(str(task))


def _shown(task: Task) -> dict[str, Any]:
    due_at = "now" if task.due_at is None else format_time(task.due_at)
    ran_at = None if task.ran_at is None else format_time(task.ran_at)
    return asdict(task) | {"ran_at": ran_at, "took": span(task.took), "due_at": due_at}
