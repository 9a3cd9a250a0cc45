"""The command ``waterclock``: finds the noun and turns errors into exit codes."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version

from cyclopts import App, CycloptsError
from rich.console import Console
from sqlalchemy.exc import DBAPIError

from waterclock.cli import backup, batch, demo, doctor, group, pipeline, subscription, table_settings, topic
from waterclock.errors import InvalidArgumentError, WaterclockError

DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130

app = App(
    name="waterclock",
    help="Keeps messages found by time, batches them by when they happened, and hands them out as work done once.",
    version=version("waterclock"),
    result_action="return_value",
)
app.command(demo.demo)
app.command(doctor.doctor)
app.command(topic.app)
app.command(subscription.app)
app.command(table_settings.app)  # what `table` has, and more
app.command(group.app)
app.command(batch.batch)
app.command(pipeline.app)
app.command(backup.backup)
app.command(backup.restore)


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its code."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run one command; returns 0 where it is done, 1 where it failed, 2 for wrong usage."""
    try:
        result = app(arguments, exit_on_error=False, print_error=False, help_on_error=False)
    except (CycloptsError, InvalidArgumentError) as error:
        _complain(error)
        return WRONG_USAGE
    except WaterclockError as error:
        _complain(error)
        return FAILED
    except DBAPIError as error:
        _complain(f"the database refused: {error.orig}")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our stdout has seen enough (``| head``); the flush at exit must not complain about it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    return result if isinstance(result, int) else DONE


def _complain(error: Exception | str) -> None:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print("[red]waterclock:[/]", end=" ")
    console.print(str(error), markup=False)
