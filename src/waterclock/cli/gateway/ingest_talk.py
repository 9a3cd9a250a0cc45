"""The output of a running ingest: events, and a status line on a terminal. Also handles the signals that stop it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, cast

from waterclock.cli.terminal.log_format import LoggedOutput
from waterclock.cli.terminal.output import Output
from waterclock.time import format_time, system_clock
from waterclock.work.running.signals import raise_if_interrupted

if TYPE_CHECKING:
    from waterclock.ingest.progress import Event
    from waterclock.monitoring.process_reports import ProcessReport

Line = Callable[[float], tuple[str, dict[str, object]]]
"""Takes a rate per second, and returns the progress as a line and as facts."""

_SAY_EVERY = 30.0  # s
_SHOW_EVERY = 1.0
_LAST_REPORT_WITHIN = 2.0


def teller(output: Output) -> Callable[[Event], None]:
    """Return a function that prints events; safe from any thread."""
    lock = threading.Lock()

    def tell(event: Event) -> None:
        with lock:
            if isinstance(output, LoggedOutput):
                output.report(event.name, event.text, is_warning=event.is_warning, **event.facts)
            elif output.as_json:
                output.facts(
                    {"event": event.name, "at": format_time(system_clock()), "text": event.text, **event.facts}
                )
                sys.stdout.flush()
            elif event.is_warning:
                output.complain(event.text)
            else:
                output.talk(event.text)

    return tell


@contextmanager
def signals(stop: Callable[[], None], reload: Callable[[], None] | None = None) -> Generator[None]:
    """Stop at SIGINT and SIGTERM, and reload at SIGHUP, until the block ends."""

    def note_stop(_number: int, _frame: object) -> None:
        stop()

    def note_reload(_number: int, _frame: object) -> None:
        if reload is not None:
            reload()

    handlers = {signal.SIGINT: note_stop, signal.SIGTERM: note_stop, signal.SIGHUP: note_reload}
    before: dict[Any, Any] = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # a supervisor blocks it until now
    try:
        raise_if_interrupted()
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


@contextmanager
def saying(count: Callable[[], int], line: Line, output: Output, to_pages: ProcessReport) -> Generator[None]:
    """Report the progress until the block ends: on a terminal as a status line, with --json as events; and to pages.

    Parameters
    ----------
    count
        The number whose rate is shown.
    """
    from waterclock._support import moments
    from waterclock.ingest.progress import Event

    ended = threading.Event()
    tell = teller(output)

    def say(show: Callable[[str, dict[str, object]], object], every: float) -> None:
        before = count()
        to_pages.write(line(0)[1])
        while not moments.wait(ended, every):
            done = count()
            text, facts = line((done - before) / every)
            show(text, facts)
            to_pages.write_sometimes(facts)
            before = done

    if sys.stderr.isatty() and not (output.quiet or output.as_json or output.logs):
        from rich.console import Console
        from rich.text import Text

        shown: Any = Console(stderr=True).status("ingests")
        given = (lambda text, _facts: shown.update(Text(text))), _SHOW_EVERY  # a str would be parsed as Rich's markup
    else:
        shown = nullcontext()
        given = (lambda text, facts: tell(Event("progress", text, facts))), _SAY_EVERY

    def say_or_stop() -> None:
        try:
            say(*given)
        except Exception as error:  # noqa: BLE001  # such as a reader that has gone; the main thread raises it
            failures.append(error)
            signal.pthread_kill(cast("int", threading.main_thread().ident), signal.SIGTERM)

    failures: list[Exception] = []
    with shown:
        thread = threading.Thread(target=say_or_stop, daemon=True)
        moments.start(thread)
        try:
            yield
        finally:
            ended.set()
            thread.join(_LAST_REPORT_WITHIN)
            to_pages.write(line(0)[1], ended=True)
        if failures:
            raise failures[0]
