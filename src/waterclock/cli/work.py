"""``waterclock work`` runs handlers on the messages of message tables until it is stopped."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from waterclock._support.quoting import counted, in_a_line, quoted, said_of
from waterclock.cli.terminal.common import Common, log_to_stderr
from waterclock.cli.terminal.exporting import MetricsOptions, exporting
from waterclock.cli.terminal.log_format import LoggedOutput, LogOptions
from waterclock.cli.terminal.output import Output
from waterclock.errors import InvalidArgumentError, WaterclockError

if TYPE_CHECKING:
    from waterclock.connection import Database
    from waterclock.tables.message_table import MessageTable
    from waterclock.work.upkeep import Task
    from waterclock.work.worker import Worker

_SAY_EVERY = 30.0  # s
_LOOK_EVERY = 0.5  # s
_UPKEEP_EVERY = 60_000_000_000  # ns
_UPKEEP_ENDS = 2.0  # s for a running task of upkeep, once the worker has ended


def work(
    handlers: list[str],
    /,
    *,
    table: str | None = None,
    concurrency: int = 1,
    processes: int = 0,
    consumer: str | None = None,
    where: str | None = None,
    rate_limit: float | None = None,
    timeout: str | None = None,
    grace: str = "30s",
    recycle_after: int | None = None,
    recycle_above: int | None = None,
    upkeep: Annotated[bool, Parameter(negative="")] = False,
    metrics: MetricsOptions = MetricsOptions(),
    log: LogOptions = LogOptions(),
    common: Common = Common(),
) -> None:
    """Run handlers on the messages of message tables.

    SIGTERM and SIGINT stop the worker: it takes no more messages, waits for handlers until the grace period ends, and
    returns the other messages to the table. A second signal ends the worker at once. It reports progress on stderr
    every 30 seconds, and logs failures there with the traceback.

    Parameters
    ----------
    handlers
        MODULE:NAME, or MODULE:NAME@TABLE; NAME is a function, functions by kind, or a context manager that yields
        either. Modules are looked for in the current folder, too.
    table
        The table of handlers that name no table.
    concurrency
        How many messages are handled at a time.
    processes
        How many child processes call the handlers, one message in each at a time.
    consumer
        Name of this consumer in statistics.
    where
        An SQL condition that selects messages, for example "region = 'eu' AND amount > 3".
    rate_limit
        Maximum number of messages per second from each table.
    timeout
        How long a handler may take, for example 5m.
    grace
        How long handlers may continue after a stop.
    recycle_after
        After how many messages a child process is replaced.
    recycle_above
        Above how many bytes of memory a child process that has handled a message is replaced.
    upkeep
        Do the upkeep of all topics and message tables of the database as well, as `waterclock upkeep --every 1m` does.
    """
    from waterclock.work.worker import Worker

    as_json = common.json or log.log_format == "json"
    output = LogOptions("json" if as_json else "text").output(common)
    with common.connect() as database:
        found = _found(database, handlers, table)
        worker = Worker(
            found,
            concurrency=concurrency,
            processes=processes,
            consumer=consumer,
            where=where,
            rate_limit=rate_limit,
            timeout=timeout,
            grace=grace,
            recycle_after=recycle_after,
            recycle_above=recycle_above,
        )
        with (
            _ending_in_time(worker),
            _saying(worker, output),
            _exporting(worker, metrics, output, database, upkeep=upkeep) as tell,
            _keeping_up(database, tell, wanted=upkeep),
        ):
            # Inside, because the status line takes over stderr.
            log_to_stderr(as_json=as_json, warnings_only=common.quiet if as_json else not common.verbose)
            at_a_time = f"{counted(processes or concurrency, 'message')} at a time"
            output.talk(f"working on {', '.join(each.name for each in found)}, {at_a_time}")
            _run(worker)
        _report(output, worker)
        if worker.unfinished:  # Python would wait for their threads
            _exit(0)


def _exit(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def _ending_in_time(worker: Worker) -> Generator[None]:
    """End this process in time after a signal, even if a factory or a thread of a handler hangs.

    Python would wait for such threads, and a call in the main thread cannot be ended from another.
    """
    from waterclock._support import moments

    over, failed = threading.Event(), threading.Event()

    def end() -> None:
        while worker.ends_by is None and not moments.wait(over, _LOOK_EVERY):
            pass
        while (by := worker.ends_by) is not None and (left := by - moments.monotonic()) > 0:
            moments.sleep(min(left, _LOOK_EVERY))  # another signal may shorten it
        # While Python waits for threads at exit, the main thread counts as ended.
        goes_on = over.is_set() and threading.main_thread().is_alive()
        if worker.ends_by is not None and not goes_on:
            _exit(int(failed.is_set()))

    moments.start(threading.Thread(target=end, name="waterclock-work-ends", daemon=True))
    try:
        yield
    except BaseException:
        failed.set()
        raise
    finally:
        over.set()


def _run(worker: Worker) -> None:
    try:
        worker.run()
    except WaterclockError:
        raise
    except Exception as error:
        raise InvalidArgumentError(f"handler factory failed: {in_a_line(said_of(error))}") from error


def _found(database: Database, handlers: list[str], table: str | None) -> dict[MessageTable, Any]:
    sys.path.insert(0, "")
    found: dict[str, Any] = {}
    for text in handlers:
        place, _, its_table = text.partition("@")
        name = its_table or table
        if name is None:
            raise InvalidArgumentError(f"handler must be {place}@TABLE if --table is omitted, got {quoted(text)}")
        if name in found:
            raise InvalidArgumentError(
                "each table must have either one handler or one function for each kind of message, got two handlers"
                f" for {quoted(name)}"
            )
        found[name] = _imported(place)
    return {database.table(name): handler for name, handler in found.items()}


def _imported(place: str) -> Any:
    module, colon, name = place.partition(":")
    if not (module and colon and name):
        raise InvalidArgumentError(f"handler must be MODULE:NAME, got {quoted(place)}")
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise InvalidArgumentError(
                f"no module named {quoted(module)} in this folder or among the installed packages"
            ) from None
        said = in_a_line(said_of(error))
        raise InvalidArgumentError(f"cannot import module {quoted(module)}: {said}") from error
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise InvalidArgumentError(f"module {quoted(module)} has no attribute {quoted(name)}") from None
    return found


@contextmanager
def _keeping_up(database: Database, tell: Callable[[Task], None], *, wanted: bool) -> Generator[None]:
    """Do the upkeep of the database meanwhile; a task under way at the end is abandoned; its next run completes it."""
    if not wanted:
        yield
        return
    from waterclock._support import moments
    from waterclock.work.upkeep import Upkeep

    runner = Upkeep(database)
    keeping = threading.Thread(target=runner.run_for_ever, args=(_UPKEEP_EVERY, tell), daemon=True)
    moments.start(keeping)
    try:
        yield
    finally:
        runner.stop()
        moments.join(keeping, _UPKEEP_ENDS)


@contextmanager
def _exporting(
    worker: Worker, options: MetricsOptions, output: Output, database: Database, *, upkeep: bool
) -> Generator[Callable[[Task], None]]:
    """Serve metrics meanwhile, if requested; yield the callback for each task of upkeep."""
    from waterclock.cli.operations.upkeep import tell

    if options.metrics is None:
        yield lambda task: tell(output, task)
        return
    from waterclock.work.metrics import UpkeepMetrics, WorkerMetrics

    observer = WorkerMetrics(lambda: worker.counts, worker.facts, lambda: worker.unfinished, options.metrics_labels)
    worker.observe(observer)
    tasks = UpkeepMetrics()

    def note(task: Task) -> None:
        tasks.note(task)
        tell(output, task)

    collectors = [observer, tasks] if upkeep else [observer]
    with exporting(options, output, lambda: database, collectors, worker.reasons_not_ready):
        yield note


@contextmanager
def _saying(worker: Worker, output: Output) -> Generator[None]:
    """Report the progress meanwhile: on a terminal as a status line."""
    from waterclock._support import moments

    ended = threading.Event()

    def say(show: Any, every: float) -> None:
        while not moments.wait(ended, every):
            show(_line(worker))

    if sys.stderr.isatty() and not (output.quiet or output.logs):
        from rich.console import Console
        from rich.text import Text

        shown: Any = Console(stderr=True).status("works")
        given = (lambda line: shown.update(Text(line))), 1.0  # a str would be parsed as Rich's markup
    else:
        shown, given = nullcontext(), ((lambda _: _report(output, worker)), _SAY_EVERY)
    with shown:
        moments.start(threading.Thread(target=say, args=given, daemon=True))
        try:
            yield
        finally:
            ended.set()


def _report(output: Output, worker: Worker) -> None:
    if isinstance(output, LoggedOutput):
        output.report("progress", _line(worker), **vars(worker.counts), **worker.facts())
    else:
        output.talk(_line(worker))


def _line(worker: Worker) -> str:
    counts, facts = vars(worker.counts), worker.facts()
    said = [f"{counts['done']:,} done"]
    said += [f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count and name != "done"]
    return f"{', '.join(said)}; {facts['running']} of {facts['slots']} slots in use"
