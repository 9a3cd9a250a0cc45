"""Writes, checks and reads the Parquet file of a sealed ledger, one row group at a time.

Times and positions are adjacent in the file, so that one request fetches both. Payloads come last, so that a reader
that does not need them never reads across them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from waterclock._support.closing import closing_writer
from waterclock.checksum import checksum
from waterclock.errors import DamagedError
from waterclock.topics.format.entries import PLACED_SCHEMA
from waterclock.topics.format.file_checksums import MAGIC, footer_mark
from waterclock.topics.format.fingerprints import fingerprint
from waterclock.topics.format.row_groups import RowGroup
from waterclock.topics.store.ledger_files import LedgerFiles

ROW_GROUP_MESSAGES = 65_536
"""Messages in a row group, at most."""

ROW_GROUP_BYTES = 64 << 20
"""Bytes of columns at which a row group ends early, to bound a reader's memory."""

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
"""The columns of a file that several ledgers share: those, and the ledger."""

ENCODED = ("source", "stream")
"""The columns that hold each text once in a row group, and its number in each row."""

# Errors of pyarrow for corrupt bytes, including those that the window it reads from raises.
_DECODING = (pa.ArrowException, OSError, ValueError, IndexError, KeyError, TypeError, OverflowError)

_INTEGERS = ("event_time", "publish_time", "entry", "index", "receive_time")


def write_ledger(
    sink: Any,
    pieces: Iterable[tuple[int, pa.RecordBatch]],
    facts: Callable[[list[RowGroup]], Mapping[str, str]] | None = None,
) -> tuple[list[RowGroup], bytes, list[int]]:
    """Write the messages of a ledger, in order, as one Parquet file.

    Returns its row groups, its footer, and the fingerprint of each row group (`waterclock.topics.format.fingerprints`).

    Parameters
    ----------
    sink
        The file to write to.
    pieces
        Batches of `PLACED_SCHEMA`, each with the number of messages that are lost immediately before it.
    facts
        Builds the file's facts from its row groups (`waterclock.topics.format.file_facts`).
    """
    groups: list[RowGroup] = []
    fingerprints: list[int] = []

    def measured() -> Iterator[pa.Table]:
        for skipped, table in _cut(pieces):
            groups.append(RowGroup.of_table(table, groups[-1] if groups else None, skipped))
            fingerprints.append(fingerprint(table.select(FILE_SCHEMA.names)))
            yield table

    footer = write_row_groups(sink, FILE_SCHEMA, measured(), None if facts is None else lambda: facts(groups))
    return groups, footer, fingerprints


def write_row_groups(
    sink: Any, schema: pa.Schema, tables: Iterable[pa.Table], facts: Callable[[], Mapping[str, str]] | None = None
) -> bytes:
    """Write each table as one row group, in the layout of ledger files; return the footer in the catalogue's form.

    ``facts`` is called for the file's facts when all are written.
    """
    integers = [name for name in schema.names if name in (*_INTEGERS, "ledger")]
    held = _FooterHeld(sink)
    writer = pq.ParquetWriter(
        held,
        schema,
        compression="zstd",
        use_dictionary=[*ENCODED],  # pyright: ignore[reportArgumentType]  # the default says bool, it takes names
        write_statistics=[*ENCODED, *integers],  # pyright: ignore[reportArgumentType]  # as above
        column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
        write_page_checksum=True,
    )
    try:
        with closing_writer(writer):
            for table in tables:
                writer.write_table(table.select(schema.names), row_group_size=table.num_rows)
            if facts is not None:
                writer.add_key_value_metadata(facts())
            held.footer = MAGIC
    finally:
        writer.is_open = False  # otherwise its finalizer would try again after a failed close
    sink.write(footer_mark(held.footer))
    sink.write(held.footer[len(MAGIC) :])
    return held.footer


class _FooterHeld:
    """Passes on the row groups that pyarrow writes, and holds back the footer, to write its checksum before it."""

    closed = False

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._written = 0
        self.footer = b""  # the footer as the catalogue keeps it; empty while row groups are written

    def write(self, data: bytes) -> int:
        if self.footer:
            self.footer += data
        else:
            self._sink.write(data)
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        pass


def _cut(pieces: Iterable[tuple[int, pa.RecordBatch]]) -> Iterator[tuple[int, pa.Table]]:
    held: list[pa.RecordBatch] = []
    messages = size = before = 0
    for skipped, batch in pieces:
        if skipped and held:
            yield before, pa.Table.from_batches(held)
            held, messages, size, before = [], 0, 0, 0
        before += skipped
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
                yield before, pa.Table.from_batches(held)
                held, messages, size, before = [], 0, 0, 0
    if held:
        yield before, pa.Table.from_batches(held)


class SealedFile:
    """A ledger file that can be read by row group, each with one ranged read, and checked before it is decoded.

    Raises `DamagedError` if the footer is not that of a ledger file.

    Parameters
    ----------
    files
        The store that holds it.
    path
        Its name there.
    size
        Its length in bytes, as the catalogue has it: a file of another length is not the one that was sealed.
    metadata
        Its footer (`waterclock.topics.reading.footers`).
    chunks
        The checksums of its column chunks, by row group (`FileChecksums`). None if the catalogue lacks them: then the
        checksum of every page is compared, and all values are validated.
    encoded
        Read sources and streams as Arrow's dictionaries, as they are stored.
    """

    def __init__(
        self,
        files: LedgerFiles,
        path: str,
        size: int,
        metadata: pq.FileMetaData,
        chunks: Mapping[int, Sequence[int]] | None,
        *,
        encoded: bool = False,
    ) -> None:
        self._files = files
        self._path = path
        self._size = size
        self._window = _ByteWindow(size)
        self.metadata = metadata
        self._chunks = chunks
        try:
            self._parquet = pq.ParquetFile(
                pa.PythonFile(self._window, mode="r"),
                metadata=metadata,
                pre_buffer=False,  # the data is already in the window
                page_checksum_verification=chunks is None,
                read_dictionary=[*ENCODED] if encoded else None,
            )
            self.columns = self._parquet.schema_arrow.names
        except _DECODING as error:
            raise self._damaged("its footer", error) from error
        if self.columns not in (FILE_SCHEMA.names, SHARED_SCHEMA.names):
            raise self._damaged("its footer", f"expected the columns of a ledger file, got {self.columns}")

    def read(self, group: int, columns: Collection[str]) -> pa.Table:
        """Read some columns of one row group, in the order of the file.

        Raises `DamagedError` if they differ from their written form. Raises `LostFileError` if the file is gone. Raises
        `UnavailableError` if it cannot be reached now.

        Parameters
        ----------
        group
            Number of the row group, from 0.
        columns
            Names out of `columns`; at least one.
        """
        table, _ = self._read(group, [name for name in self.columns if name in columns])
        return table

    def read_back(self, group: int, before: int) -> tuple[pa.Table, list[int], int]:
        """Read one row group whole, with the checksums of its bytes in the file.

        Returns the row group, the checksum of each column chunk, and that of all of them, continued from ``before``.

        Raises
        ------
        DamagedError, LostFileError, UnavailableError
            As `read`.
        """
        table, chunks = self._read(group, self.columns)
        for _, data in chunks:
            before = checksum(data, before)
        return table, [checksum(data) for _, data in chunks], before

    @property
    def footer(self) -> bytes:
        """Its footer, in the catalogue's form."""
        return footer_bytes(self.metadata)

    @property
    def row_groups(self) -> int:
        """How many row groups it has."""
        return self.metadata.num_row_groups

    def _read(self, group: int, wanted: list[str]) -> tuple[pa.Table, list[tuple[_ChunkRange, memoryview]]]:
        places = self._places(group, wanted)
        start, stop = min(place.start for place in places), max(place.stop for place in places)
        data = self._files.read_range(self._path, self._size, start, stop - start)
        view = memoryview(data)
        chunks = [(place, view[place.start - start : place.stop - start]) for place in places]
        self._check(group, chunks)
        self._window.show(data, start)
        try:
            table = self._parquet.read_row_group(group, columns=wanted)
            if self._chunks is None:
                table.validate(full=True)  # the pages' checksums do not cover their headers
        except _DECODING as error:
            raise self._damaged(f"row group {group}", error) from error
        return table, chunks

    def _check(self, group: int, chunks: Iterable[tuple[_ChunkRange, memoryview]]) -> None:
        if self._chunks is None:
            return
        expected = self._chunks.get(group, ())
        for place, data in chunks:
            if place.number >= len(expected) or checksum(data) != expected[place.number]:
                raise self._damaged(f"row group {group}", f"column {place.column} does not match its checksum")

    def _places(self, group: int, wanted: Collection[str]) -> list[_ChunkRange]:
        try:
            row_group = self.metadata.row_group(group)
            chunks = [row_group.column(i) for i in range(row_group.num_columns)]
            starts = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
            # Headers are two columns of the file, keys and values, so columns go by name and not by number.
            places = [
                _ChunkRange(number, chunk.path_in_schema.split(".")[0], start, start + chunk.total_compressed_size)
                for number, (chunk, start) in enumerate(zip(chunks, starts, strict=True))
            ]
        except _DECODING as error:
            raise self._damaged("its footer", error) from error
        places = [place for place in places if place.column in wanted]
        if not places or not all(0 <= place.start <= place.stop <= self._size for place in places):
            raise self._damaged("its footer", f"row group {group} lies outside the file")
        return places

    def _damaged(self, what: str, why: object) -> DamagedError:
        return DamagedError(f"the ledger file {self._files.name(self._path)} is corrupt, {what}: {why}")


def footer_bytes(metadata: Any) -> bytes:
    """Convert a footer to the catalogue's form: the same bytes behind another magic."""
    sink = pa.BufferOutputStream()
    metadata.write_metadata_file(sink)
    return sink.getvalue().to_pybytes()


class _ChunkRange(NamedTuple):
    """The place of a column chunk: its number in the row group, its column, and its byte range in the file."""

    number: int
    column: str
    start: int
    stop: int


class _ByteWindow(io.RawIOBase):
    """A file object that holds only some bytes of a file, at their original offsets."""

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
        # pyarrow calls this instead of `read` if it exists, and saves a copy.
        offset = self._at - self._start
        part = self._data.slice(offset, min(size, len(self._data) - offset))
        self._at += len(part)
        return part
