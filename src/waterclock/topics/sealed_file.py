"""The Parquet file of a sealed ledger: how it is laid out, written, checked, and read one row group at a time.

Times and places stand side by side in the file, so that one request fetches a time and the positions that belong to
it, and payloads come last, so that a reader who does not want them never reads across them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from waterclock.database.topic_catalogue import BOUNDED, TIMES
from waterclock.errors import SchemaError
from waterclock.topics.bounds import Bounds, raised
from waterclock.topics.entries import PLACED_SCHEMA
from waterclock.topics.ledger_files import LedgerFiles, LostFileError

ROW_GROUP_MESSAGES = 65_536
"""Messages in a row group, at most."""

ROW_GROUP_BYTES = 64 << 20
"""Bytes of columns at which a row group ends although it could hold more messages: what a reader has in memory."""

_ORDER = (
    "source",
    "stream",
    "event_time",
    "publish_time",
    "entry",
    "index",
    "receive_time",
    "headers",
    "payload",
)
FILE_SCHEMA = pa.schema([PLACED_SCHEMA.field(name) for name in _ORDER])
"""The columns of a ledger file. The ledger's number is in the catalogue and in the file's name."""

_INTEGERS = ("event_time", "publish_time", "entry", "index", "receive_time")


@dataclass(frozen=True, slots=True)
class RowGroup:
    """What the catalogue knows of one row group of a sealed ledger.

    Attributes
    ----------
    messages
        How many it holds.
    entry, index
        Place of its first message in the ledger.
    bounds
        Bounds of its times.
    peak
        Running maximum of each time from the start of the ledger to the end of this row group, ns.
    """

    messages: int
    entry: int
    index: int
    bounds: Bounds
    peak: dict[str, int]

    @classmethod
    def of_table(cls, table: pa.Table, before: RowGroup | None) -> RowGroup:
        """Measure a row group that follows ``before``."""
        bounds = Bounds.of_messages(table)
        peak = raised(before.peak if before else None, bounds.end)
        return cls(table.num_rows, table["entry"][0].as_py(), table["index"][0].as_py(), bounds, dict(peak))


def row_groups_to_json(groups: Sequence[RowGroup]) -> str:
    """Write row groups as the catalogue keeps them."""
    return json.dumps(
        [
            [
                group.messages,
                group.entry,
                group.index,
                [group.bounds.begin[time] for time in TIMES],
                [group.bounds.end[time] for time in BOUNDED],
                [group.peak[time] for time in BOUNDED],
            ]
            for group in groups
        ],
        separators=(",", ":"),
    )


def row_groups_from_json(text: str) -> list[RowGroup]:
    """Read what `row_groups_to_json` wrote."""
    return [
        RowGroup(
            messages,
            entry,
            index,
            Bounds(dict(zip(TIMES, begin, strict=True)), dict(zip(BOUNDED, end, strict=True))),
            dict(zip(BOUNDED, peak, strict=True)),
        )
        for messages, entry, index, begin, end, peak in json.loads(text)
    ]


def write_ledger(sink: Any, batches: Iterable[pa.RecordBatch]) -> tuple[list[RowGroup], bytes]:
    """Write `PLACED_SCHEMA` batches, in order, as one Parquet file; give its row groups and its footer."""
    groups: list[RowGroup] = []
    footers: list[Any] = []
    with pq.ParquetWriter(
        sink,
        FILE_SCHEMA,
        compression="zstd",
        use_dictionary=["source", "stream"],  # pyright: ignore[reportArgumentType]  # the default says bool, it takes names
        column_encoding=dict.fromkeys(_INTEGERS, "DELTA_BINARY_PACKED"),
        write_page_checksum=True,
        metadata_collector=footers,
    ) as writer:
        for table in _cut(batches):
            groups.append(RowGroup.of_table(table, groups[-1] if groups else None))
            writer.write_table(table.select(_ORDER), row_group_size=table.num_rows)
    return groups, _footer_bytes(footers[0])


def _cut(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    messages = size = 0
    for batch in batches:
        rest = batch
        while rest.num_rows:
            part = rest.slice(0, ROW_GROUP_MESSAGES - messages)
            too_large = size + part.nbytes > ROW_GROUP_BYTES
            if too_large:
                part = part.slice(0, max(part.num_rows * (ROW_GROUP_BYTES - size) // part.nbytes, 1))
            rest = rest.slice(part.num_rows)
            held.append(part)
            messages += part.num_rows
            size += part.nbytes
            if messages >= ROW_GROUP_MESSAGES or too_large:
                yield pa.Table.from_batches(held)
                held, messages, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


class SealedFile:
    """A ledger file that can be read by row group, each with one ranged read.

    Parameters
    ----------
    files
        Where it lies.
    path
        Its name there.
    size
        Its length in bytes, as the catalogue has it: a file of another length is not the one that was sealed.
    footer
        Its footer, as `write_ledger` gave it.
    """

    def __init__(self, files: LedgerFiles, path: str, size: int, footer: bytes) -> None:
        self._files = files
        self._path = path
        self._size = size
        try:
            self._metadata = pq.read_metadata(pa.BufferReader(footer))
        except (pa.ArrowInvalid, OSError) as error:
            raise SchemaError(f"the catalogue's footer of {files.name(path)} is damaged: {error}") from error

    def read(self, group: int, columns: Collection[str], *, check: bool = False) -> pa.Table:
        """Read some columns of one row group, in the order of the file.

        Parameters
        ----------
        group
            Number of the row group, from 0.
        columns
            Names out of `FILE_SCHEMA`; at least one.
        check
            Compare every page with its checksum.

        Raises
        ------
        LostFileError
            Where the file is gone or damaged.
        UnavailableError
            Where it cannot be reached now.
        """
        wanted = [i for i, name in enumerate(FILE_SCHEMA.names) if name in columns]
        start, stop = self._range(group, wanted)
        window = _Window(self._files.read_range(self._path, self._size, start, stop - start), start)
        try:
            file = pq.ParquetFile(
                pa.PythonFile(window, mode="r"),
                metadata=self._metadata,
                pre_buffer=False,  # the bytes are here already
                page_checksum_verification=check,
            )
            return file.read_row_group(group, columns=[FILE_SCHEMA.names[i] for i in wanted])
        except (pa.ArrowException, OSError) as error:
            raise LostFileError(f"the ledger file {self._files.name(self._path)} is damaged: {error}") from error

    def measure(self, *, check: bool = False) -> list[RowGroup]:
        """Measure every row group by reading it: its times and places, or with ``check`` everything in it.

        Raises
        ------
        LostFileError
            Where the file is gone or damaged.
        """
        columns = FILE_SCHEMA.names if check else _INTEGERS
        groups: list[RowGroup] = []
        for group in range(self._metadata.num_row_groups):
            table = self.read(group, columns, check=check)
            groups.append(RowGroup.of_table(table, groups[-1] if groups else None))
        return groups

    def _range(self, group: int, wanted: list[int]) -> tuple[int, int]:
        row_group = self._metadata.row_group(group)
        # Headers are two columns of the file, keys and values: names, not numbers, tell which belong.
        names = {FILE_SCHEMA.names[i] for i in wanted}
        chunks = [row_group.column(i) for i in range(row_group.num_columns)]
        chunks = [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] in names]
        starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
        stops = [start + chunk.total_compressed_size for start, chunk in zip(starts, chunks, strict=True)]
        return min(starts), max(stops)


def read_footer(files: LedgerFiles, path: str) -> bytes:
    """Read the footer from the file itself, in the form that `SealedFile` takes.

    Raises
    ------
    LostFileError
        Where the file is gone or damaged.
    """
    with files.open(path) as file:
        try:
            return _footer_bytes(pq.read_metadata(file))
        except (pa.ArrowException, OSError) as error:
            raise LostFileError(f"the ledger file {files.name(path)} is damaged: {error}") from error


def _footer_bytes(metadata: Any) -> bytes:
    sink = pa.BufferOutputStream()
    metadata.write_metadata_file(sink)
    return sink.getvalue().to_pybytes()


def row_of(entry: npt.NDArray[np.int64], index: npt.NDArray[np.int32], place: tuple[int, int]) -> int:
    """Find the first row whose (entry, index) is ``place`` or later; the number of rows where there is none."""
    start, stop = np.searchsorted(entry, [place[0], place[0] + 1])
    return int(start) + int(np.searchsorted(index[start:stop], place[1]))


class _Window(io.RawIOBase):
    """Some bytes of a file, at the offsets at which they stand there."""

    def __init__(self, data: pa.Buffer, start: int) -> None:
        self._data = data
        self._start = start
        self._at = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._start + len(self._data)}[whence]
        self._at = origin + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        return self.read_buffer(size).to_pybytes()

    def read_buffer(self, size: int) -> pa.Buffer:
        # pyarrow takes this where it finds it, and saves a copy.
        offset = self._at - self._start
        part = self._data.slice(offset, min(size, len(self._data) - offset))
        self._at += len(part)
        return part
