"""``waterclock ingest file`` appends files to a topic, once or as they grow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from waterclock._support.quoting import quoted
from waterclock._support.small_process import keep_small
from waterclock.cli.gateway.ingest_talk import saying, signals, teller
from waterclock.cli.terminal.common import Common
from waterclock.cli.terminal.log_format import LogOptions
from waterclock.errors import InvalidArgumentError
from waterclock.time import TimeUnit

if TYPE_CHECKING:
    from waterclock.ingest.local_files.file_ingest import FileProgress


def file(
    paths: list[str],
    /,
    *,
    topic: str,
    follow: Annotated[bool, Parameter(negative="")] = False,
    format: Literal["jsonl", "csv", "collectd", "parquet"] | None = None,  # noqa: A002  # the name of the option
    column: Annotated[list[str] | None, Parameter(negative="")] = None,
    source: str | None = None,
    stream: str | None = None,
    delimiter: str = ",",
    time_unit: TimeUnit = "ns",
    complete: Annotated[bool, Parameter(negative="")] = False,
    dead_letters: str = "ingest-dead-letters",
    max_payload: int = 1 << 20,
    log: LogOptions = LogOptions(),
    common: Common = Common(),
) -> None:
    """Append files to a topic, once or as they grow.

    Each message is appended once: if the command is killed, the next run continues. Rotated and truncated files are
    recognised. Lines that cannot be mapped become dead letters.

    Parameters
    ----------
    paths
        Files, or globs in quotes; with --format collectd the folder of its plugin csv.
    topic
        The topic that takes the messages.
    follow
        Continue with new lines and new files until SIGTERM or SIGINT.
    format
        jsonl, csv, collectd or parquet; by the name of each file unless given: .csv, .parquet, else jsonl.
    column
        CSV: FIELD=COLUMN for a field whose column has another name, such as event_time=ts; may be given several times.
    source
        CSV: the source of all messages, if no column holds it.
    stream
        CSV: the stream of all messages, if no column holds it.
    delimiter
        CSV: the separator of columns.
    time_unit
        Unit of numeric times, since 1970.
    complete
        Append a last line without a newline; by default, such a line waits, because it may be incomplete.
    dead_letters
        The topic of lines that cannot be mapped.
    max_payload
        Maximum size of a payload, in bytes.
    """
    keep_small()
    from waterclock.ingest.local_files.file_ingest import FileIngest, FilePlan
    from waterclock.ingest.local_files.line_format import LineFormat
    from waterclock.ingest.mapping.csv_columns import CsvOptions
    from waterclock.monitoring.process_reports import ProcessReport

    csv = CsvOptions(_columns(column), source, stream, delimiter)
    line_format = LineFormat(format, csv, time_unit)
    plan = FilePlan(paths, topic, line_format, dead_letters, max_payload, complete)
    output = log.output(common)
    with common.connect() as database:
        runner = FileIngest(database, plan, teller(output))
        progress = runner.progress
        to_pages = ProcessReport(database.backend, "ingest", ", ".join(map(str, paths)), 0, counts="appended")
        with signals(runner.stop), saying(lambda: progress.bytes, lambda rate: _line(progress, rate), output, to_pages):
            runner.run(follow=follow)
        if not output.as_json:
            output.facts(vars(progress))


def _columns(given: list[str] | None) -> dict[str, str]:
    columns: dict[str, str] = {}
    for text in given or []:
        name, equals, column = text.partition("=")
        if not equals or not column:
            raise InvalidArgumentError(f"--column must be FIELD=COLUMN, got {quoted(text)}")
        columns[name] = column
    return columns


def _line(progress: FileProgress, rate: float) -> tuple[str, dict[str, object]]:
    left = max(progress.all_bytes - progress.bytes, 0)
    seconds = round(left / rate) if rate > 0 else None
    done = f"{progress.bytes / 1e6:,.1f} of {progress.all_bytes / 1e6:,.1f} MB of {progress.files:,} files"
    said = [f"{progress.appended:,} appended, {done}, {rate / 1e6:,.1f} MB/s"]
    if left and seconds is not None:
        said.append(f"{seconds:,} s left")
    said += [f"{vars(progress)[name]:,} {name}" for name in ("dead", "rejected") if vars(progress)[name]]
    if progress.is_database_away:
        said.append("database away")
    return ", ".join(said), {**vars(progress), "bytes_per_second": round(rate), "seconds_left": seconds}
