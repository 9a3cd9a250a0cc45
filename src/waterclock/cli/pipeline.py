"""``waterclock pipeline``: run what a file describes on Spark, as a stream or over the archive."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import App
from rich.console import Console

from waterclock.cli.common import Common
from waterclock.errors import InvalidArgumentError
from waterclock.quoting import quoted
from waterclock.time import system_clock, to_time

if TYPE_CHECKING:
    from waterclock.spark.pipeline.running import Progress

app = App(name="pipeline")


@app.command
def run(
    file: Path,
    /,
    *,
    once: bool = False,
    master: str = "local[*]",
    common: Common = Common(),
) -> None:
    """Batch a topic as it grows, and write the batches; go on where the checkpoint says.

    Parameters
    ----------
    file
        The pipeline: a TOML file.
    once
        Read what there is now, and end.
    master
        Spark's cluster; an embedded Spark on every core unless given.
    """
    from waterclock.spark.pipeline.file import PipelineFile
    from waterclock.spark.pipeline.running import run_pipeline
    from waterclock.spark.session.session import session

    pipeline = PipelineFile.read(file)
    pipeline.check_places()
    output = common.output
    with _stopping() as stop, _telling(quiet=output.quiet) as tell:
        spark = session(f"waterclock {pipeline.name}", master)
        stop.listen()  # Spark has put a handler of its own in place
        progress = run_pipeline(spark, pipeline, once=once, tell=tell, stopping=stop.is_wished)
    output.facts(_facts(progress))


@app.command
def replay(
    file: Path,
    /,
    *,
    since: str,
    until: str,
    master: str = "local[*]",
    common: Common = Common(),
) -> None:
    """Batch a range of the archive anew, and write the batches.

    Parameters
    ----------
    file
        The pipeline: a TOML file.
    since
        Publish time to begin at, or how long ago.
    until
        Publish time to stop before, or how long ago.
    master
        Spark's cluster; an embedded Spark on every core unless given.
    """
    from waterclock.spark.pipeline.file import PipelineFile
    from waterclock.spark.pipeline.running import replay_pipeline
    from waterclock.spark.session.session import session

    pipeline = PipelineFile.read(file)
    pipeline.check_places()
    now = system_clock()
    begin, end = to_time(since, "since", now=now), to_time(until, "until", now=now)
    if begin >= end:
        raise InvalidArgumentError(f"since: {quoted(since)} is not before until: {quoted(until)}")
    spark = session(f"waterclock {pipeline.name}", master)
    progress = replay_pipeline(spark, pipeline, begin, end)
    common.output.facts({"messages": progress.messages, "rejected": progress.rejected})


def _facts(progress: Progress) -> dict[str, object]:
    return {
        "micro_batches": progress.micro_batches,
        "messages": progress.messages,
        "lag": progress.lag,
        "open_sources": progress.open_sources,
        "rejected": progress.rejected,
    }


class _Stop:
    """Turns SIGINT and SIGTERM into a wish to stop after the micro-batch under way; a second one ends at once."""

    def __init__(self) -> None:
        self._wished = False
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def is_wished(self) -> bool:
        return self._wished

    def listen(self) -> None:
        if not self._wished:
            for number in self._before:
                signal.signal(number, self._note)

    def be_deaf(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, _number: int, _frame: object) -> None:
        self._wished = True
        self.be_deaf()


@contextmanager
def _stopping() -> Generator[_Stop]:
    stop = _Stop()
    stop.listen()
    try:
        yield stop
    finally:
        stop.be_deaf()


@contextmanager
def _telling(*, quiet: bool) -> Generator[Callable[[Progress], None]]:
    """Show progress on a line that changes, on a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    with Console(stderr=True).status("starting Spark") as status:
        yield lambda progress: status.update(_line(progress))


def _line(progress: Progress) -> str:
    lag = "?" if progress.lag is None else f"{progress.lag:,}"
    opened = "?" if progress.open_sources is None else f"{progress.open_sources:,}"
    return (
        f"{progress.messages:,} messages, {progress.rate:,.0f}/s, {lag} behind; {opened} sources open,"
        f" {progress.rejected:,} rejected"
    )
