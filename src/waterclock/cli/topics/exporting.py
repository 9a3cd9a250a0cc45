"""``waterclock topic export`` writes messages of a topic to a file for other programs."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from waterclock._support.quoting import counted, quoted
from waterclock.cli.terminal.common import Common, TopicName
from waterclock.errors import AlreadyExistsError, InvalidArgumentError, UnavailableError
from waterclock.message import Position
from waterclock.topics.model.literals import By

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = (
    "position",
    "source",
    "stream",
    "event_time",
    "publish_time",
    "receive_time",
    "headers",
    "payload",
    "payload_base64",
)
"""The columns of a CSV file: the keys of the JSON lines that `waterclock topic read --json` prints."""


def export(
    name: TopicName,
    /,
    *,
    to: Path,
    start: str | None = None,
    stop: str | None = None,
    since: str | None = None,
    until: str | None = None,
    by: By = "publish_time",
    source: Annotated[list[str] | None, Parameter(negative="")] = None,
    stream: Annotated[list[str] | None, Parameter(negative="")] = None,
    limit: int | None = None,
    common: Common = Common(),
) -> None:
    """Write messages to a file. An unfinished file is never left under its name.

    Parameters
    ----------
    to
        A new file, whose ending selects the format: .parquet (times as datetimes in UTC), .csv, or .jsonl, which
        `waterclock topic append` reads.
    start
        First position, ledger:entry:index.
    stop
        Position before which to stop.
    since
        First time: with offset, or a duration such as 2h for that long ago.
    until
        Time before which to stop.
    by
        The time of a message to which --since and --until refer.
    source
        Only messages of this source; may be given several times.
    stream
        Only messages of this stream; may be given several times.
    limit
        At most this many messages.
    """
    writer = _writer(to)
    with common.connect() as database:
        topic = database.topic(name)
        batches = topic.read_arrow(
            None if start is None else Position.parse(start),
            None if stop is None else Position.parse(stop),
            since=since,
            until=until,
            by=by,
            source=source,
            stream=stream,
            limit=limit,
        )
        most = topic.info.messages if limit is None else min(limit, topic.info.messages)
        with common.output.progress(f"exporting {name}") as progress:
            count = _write(to, writer, _Batches(batches, most, progress))
        common.output.talk(f"exported {counted(count, 'message')} of {name} to {to}")


def _writer(to: Path) -> Callable[[Path, Iterable[pa.RecordBatch]], None]:
    writers = {".parquet": _write_parquet, ".csv": _write_csv, ".jsonl": _write_lines}
    if to.suffix not in writers:
        raise InvalidArgumentError(f"the file must end in {', '.join(writers)}, got {quoted(str(to))}")
    _check_new(to)
    return writers[to.suffix]


def _check_new(to: Path) -> None:
    if os.path.lexists(to):  # also for a link to a missing file, which the rename would replace
        raise AlreadyExistsError(f"cannot export to {quoted(str(to))}: the file exists. Choose another name")


class _Batches:
    """Record batches, counted as they are read."""

    def __init__(self, batches: Iterable[pa.RecordBatch], most: int, progress: Callable[[int, int], None]) -> None:
        self._batches = batches
        self._most = most
        self._progress = progress
        self.count = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            yield batch
            self.count += batch.num_rows
            self._progress(self.count, max(self.count, self._most))


def _write(to: Path, writer: Callable[[Path, Iterable[pa.RecordBatch]], None], batches: _Batches) -> int:
    part = to.with_name(f".{to.name}.{os.getpid()}.part")
    try:
        writer(part, batches)
        _check_new(to)
        part.rename(to)
    except OSError as error:
        raise UnavailableError(f"cannot write {quoted(str(to))}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # the error of the writer says more
            part.unlink()
    return batches.count


def _write_parquet(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from waterclock.arrow import POSITIONED_SCHEMA
    from waterclock.frames import with_moments

    schema = with_moments(POSITIONED_SCHEMA.empty_table()).schema
    with pq.ParquetWriter(path, schema, compression="zstd") as file:
        for batch in batches:
            file.write_table(with_moments(pa.Table.from_batches([batch])))


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    from waterclock.arrow import from_arrow
    from waterclock.ingest.files import message_to_json

    for batch in batches:
        yield from map(message_to_json, from_arrow(batch))


def _write_lines(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in _rows(batches):
            file.write(json.dumps(row) + "\n")


def _write_csv(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        rows: csv.DictWriter[str] = csv.DictWriter(file, _COLUMNS)
        rows.writeheader()
        for row in _rows(batches):
            headers = row.get("headers")
            rows.writerow(row | {"headers": None if headers is None else json.dumps(headers)})
