"""The Parquet file of a sealed ledger: how it is laid out, written, checked, and read one row group at a time.

Times and places stand side by side in the file, so that one request fetches a time and the positions that belong to
it, and payloads come last, so that a reader who does not want them never reads across them.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from waterclock.errors import SchemaError
from waterclock.topics.entries import PLACED_SCHEMA
from waterclock.topics.ledger_files import LedgerFiles, LostFileError
from waterclock.topics.row_groups import RowGroup

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

SHARED_SCHEMA = FILE_SCHEMA.insert(FILE_SCHEMA.get_field_index("entry"), pa.field("ledger", pa.int64(), nullable=False))
"""The columns of a file that several ledgers share: those, and which ledger it is."""

ENCODED = ("source", "stream")
"""The columns that hold each text once in a row group, and its number in each row."""

_INTEGERS = ("event_time", "publish_time", "entry", "index", "receive_time")


def write_ledger(sink: Any, batches: Iterable[pa.RecordBatch]) -> tuple[list[RowGroup], bytes]:
    """Write `PLACED_SCHEMA` batches, in order, as one Parquet file; give its row groups and its footer."""
    groups: list[RowGroup] = []

    def measured() -> Iterator[pa.Table]:
        for table in _cut(batches):
            groups.append(RowGroup.of_table(table, groups[-1] if groups else None))
            yield table

    footer = write_row_groups(sink, FILE_SCHEMA, measured())
    return groups, footer


def write_row_groups(sink: Any, schema: pa.Schema, tables: Iterable[pa.Table]) -> bytes:
    """Write each table as one row group, in the layout of ledger files; give the footer."""
    integers = [name for name in schema.names if name in (*_INTEGERS, "ledger")]
    footers: list[Any] = []
    with pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        use_dictionary=[*ENCODED],  # pyright: ignore[reportArgumentType]  # the default says bool, it takes names
        write_statistics=[*ENCODED, *integers],  # pyright: ignore[reportArgumentType]  # as above
        column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
        write_page_checksum=True,
        metadata_collector=footers,
    ) as writer:
        for table in tables:
            writer.write_table(table.select(schema.names), row_group_size=table.num_rows)
    return _footer_bytes(footers[0])


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
        Its footer, as `write_ledger` gave it; None: it is read from the file, once in a while.
    check
        Compare every page that is read with its checksum.
    encoded
        Read sources and streams as Arrow's dictionaries, as they are stored.

    Raises
    ------
    SchemaError
        Where the footer is damaged.
    LostFileError
        Where it has to be read from the file, and that is gone or damaged.
    """

    def __init__(
        self,
        files: LedgerFiles,
        path: str,
        size: int,
        footer: bytes | None,
        *,
        check: bool = False,
        encoded: bool = False,
    ) -> None:
        self._files = files
        self._path = path
        self._size = size
        self._window = _Window(size)
        try:
            self._metadata = parsed_footer(files, path, footer)
            self._parquet = pq.ParquetFile(
                pa.PythonFile(self._window, mode="r"),
                metadata=self._metadata,
                pre_buffer=False,  # what is read is in the window already
                page_checksum_verification=check,
                read_dictionary=[*ENCODED] if encoded else None,
            )
        except (pa.ArrowException, OSError) as error:
            raise SchemaError(f"the catalogue's footer of {files.name(path)} is damaged: {error}") from error

    def read(self, group: int, columns: Collection[str]) -> pa.Table:
        """Read some columns of one row group, in the order of the file.

        Parameters
        ----------
        group
            Number of the row group, from 0.
        columns
            Names out of `FILE_SCHEMA`; at least one.

        Raises
        ------
        LostFileError
            Where the file is gone or damaged.
        UnavailableError
            Where it cannot be reached now.
        """
        wanted = [name for name in self.columns if name in columns]
        start, stop = self._range(group, wanted)
        self._window.show(self._files.read_range(self._path, self._size, start, stop - start), start)
        try:
            return self._parquet.read_row_group(group, columns=wanted)
        except (pa.ArrowException, OSError) as error:
            raise LostFileError(f"the ledger file {self._files.name(self._path)} is damaged: {error}") from error

    @property
    def columns(self) -> list[str]:
        """Names of the columns in the order of the file: `FILE_SCHEMA`, or `SHARED_SCHEMA`."""
        return self._parquet.schema_arrow.names

    @property
    def row_groups(self) -> int:
        """How many row groups there are."""
        return self._metadata.num_row_groups

    def measure(self, columns: Collection[str] = _INTEGERS) -> list[RowGroup]:
        """Measure every row group by reading it: its times and places, or more than is needed, to see it read.

        Raises
        ------
        LostFileError
            Where the file is gone or damaged.
        """
        groups: list[RowGroup] = []
        for group in range(self._metadata.num_row_groups):
            groups.append(RowGroup.of_table(self.read(group, columns), groups[-1] if groups else None))
        return groups

    def _range(self, group: int, wanted: Collection[str]) -> tuple[int, int]:
        row_group = self._metadata.row_group(group)
        # Headers are two columns of the file, keys and values, so columns are told by name and not by number.
        chunks = [row_group.column(i) for i in range(row_group.num_columns)]
        chunks = [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] in wanted]
        starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
        stops = [start + chunk.total_compressed_size for start, chunk in zip(starts, chunks, strict=True)]
        return min(starts), max(stops)


def parsed_footer(files: LedgerFiles, path: str, footer: bytes | None) -> pq.FileMetaData:
    """Parse a file's footer; where the catalogue has no copy of it, take it from the file, once in a while."""
    return _footer_of(files, path) if footer is None else pq.read_metadata(pa.BufferReader(footer))


@lru_cache(maxsize=16)
def _footer_of(files: LedgerFiles, path: str) -> pq.FileMetaData:
    # A file never changes under its name, so what was read once is right for ever.
    return pq.read_metadata(pa.BufferReader(read_footer(files, path)))


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


class _Window(io.RawIOBase):
    """Stands for a file, and shows some of its bytes, at the offsets at which they stand there."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.show(pa.py_buffer(b""), 0)

    def show(self, data: pa.Buffer, start: int) -> None:
        self._data = data
        self._start = start
        self._at = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
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
