"""Reads the new part of a file: the complete lines after a position, or the rows of a Parquet file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

from waterclock.errors import InvalidArgumentError
from waterclock.ingest.files import longest_line, parquet_messages
from waterclock.ingest.local_files.file_rows import FilePosition
from waterclock.ingest.local_files.fingerprint import HEAD, fingerprint
from waterclock.ingest.local_files.line_format import LineFormat, ParseLine
from waterclock.message import Message
from waterclock.time import TimeUnit

BLOCK = 1 << 20
"""Approximate bytes of a file per transaction: enough for large entries, few enough for any database."""

MOST_LINES = 10_000
"""Maximum lines per transaction."""

KEPT_OF_LONG = 64 << 10
"""Bytes that are kept of a line that is too long."""


class BadLine(NamedTuple):
    """A line that cannot be mapped."""

    number: int  # number of the line in the file, from 1; of the row in Parquet
    line: bytes  # its beginning
    reason: str  # why it cannot be mapped


@dataclass
class Piece:
    """A part of a file."""

    messages: list[Message]
    bad: Sequence[BadLine]  # the lines that cannot be mapped
    position: FilePosition  # the position after it


class OpenedFile(Protocol):
    """A file of messages."""

    def still_holds(self, position: FilePosition) -> bool:
        """Return whether the file still begins with the appended bytes; if not, it was truncated or replaced."""
        ...

    def size(self) -> int:
        """Return the file's size, in the unit of offsets."""
        ...

    def read(self, position: FilePosition, *, complete: bool) -> Piece | None:
        """Read the part after a position; None at the end, and before a line that is not whole.

        Parameters
        ----------
        complete
            Accept a last line without a line end.
        """
        ...


def open_file(descriptor: int, path: str, line_format: LineFormat, most_payload: int) -> OpenedFile:
    """Open a file of the format that its name or the options say."""
    if line_format.of(path) == "parquet":
        return ParquetFile(descriptor, path, line_format, most_payload)
    return TextFile(descriptor, path, line_format, most_payload)


class TextFile:
    """A file with a message in each line.

    Parameters
    ----------
    descriptor
        The open file.
    path
        Its name, for its format and errors.
    line_format
        How its lines are parsed.
    most_payload
        Bytes that a payload may have.
    """

    def __init__(self, descriptor: int, path: str, line_format: LineFormat, most_payload: int) -> None:
        self._descriptor = descriptor
        self._path = path
        self._format = line_format
        self._most_payload = most_payload
        self._longest = longest_line(most_payload)
        self._parse: ParseLine | None = None
        self._searched = 0, 0  # the offset of a line, and how much of it was searched for its end

    def still_holds(self, position: FilePosition) -> bool:
        """Return whether the file still begins with the appended bytes."""
        if position.offset == 0:
            return True
        if self.size() >= position.offset and fingerprint(self._descriptor, position.offset) == position.fingerprint:
            return True
        self._parse, self._searched = None, (0, 0)
        return False

    def size(self) -> int:
        """Return its bytes."""
        return os.fstat(self._descriptor).st_size

    def read(self, position: FilePosition, *, complete: bool) -> Piece | None:
        """Read whole lines after a position."""
        lines, offset = self._lines(position.offset, complete=complete)
        if not lines:
            return None
        messages: list[Message] = []
        bad: list[BadLine] = []
        number = position.lines
        for line in lines:
            number += 1
            if number == 1 and self._format.has_header(self._path):
                continue
            if len(line) > self._longest:
                bad.append(BadLine(number, line[:KEPT_OF_LONG], f"line must have at most {self._longest} bytes"))
            elif line.strip(b"\r\n\t "):
                self._add(line.rstrip(b"\r\n"), number, messages, bad)
        return Piece(messages, bad, FilePosition(offset, number, fingerprint(self._descriptor, offset)))

    def _add(self, line: bytes, number: int, messages: list[Message], bad: list[BadLine]) -> None:
        if self._parse is None:
            header = self._header() if self._format.has_header(self._path) else b""
            self._parse = self._format.parser(self._path, header)  # an error here affects the whole file
        try:
            message = self._parse(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)
        except InvalidArgumentError as error:
            bad.append(BadLine(number, line[:KEPT_OF_LONG], str(error)))
            return
        if len(message.payload) > self._most_payload:
            bad.append(BadLine(number, line[:KEPT_OF_LONG], _too_large(self._most_payload)))
            return
        messages.append(message)

    def _header(self) -> bytes:
        return os.pread(self._descriptor, self._longest, 0).partition(b"\n")[0].rstrip(b"\r")

    def _lines(self, offset: int, *, complete: bool) -> tuple[list[bytes], int]:
        """Return lines, and the offset after them. A line above the limit is returned alone, as its beginning."""
        for size in (BLOCK, self._longest + 1):
            block = os.pread(self._descriptor, size, offset)
            lines = _split(block)
            if lines and not lines[-1].endswith(b"\n"):
                last = lines.pop()
                if offset + len(block) >= self.size():
                    lines += [last] if complete else []
                elif not lines and len(block) > self._longest:
                    return self._long_line(offset, complete=complete)
            if lines:
                break
        lines = lines[:MOST_LINES]
        return lines, offset + sum(map(len, lines))

    def _long_line(self, offset: int, *, complete: bool) -> tuple[list[bytes], int]:
        begin, at = self._searched
        at = at if begin == offset and at else offset
        found = -1
        while found < 0 and (block := os.pread(self._descriptor, BLOCK, at)):
            found = block.find(b"\n")
            at += len(block) if found < 0 else found + 1
        self._searched = offset, at
        if found < 0 and not complete:
            return [], offset
        return [os.pread(self._descriptor, self._longest + 1, offset)], at


class ParquetFile:
    """A file of rows, which does not grow.

    Parameters
    ----------
    descriptor
        The open file.
    path
        Its name, for errors.
    line_format
        The unit of its times.
    most_payload
        Bytes that a payload may have.
    """

    def __init__(self, descriptor: int, path: str, line_format: LineFormat, most_payload: int) -> None:
        self._descriptor = descriptor
        self._path = Path(path)
        self._unit: TimeUnit = line_format.time_unit
        self._most_payload = most_payload
        self._rows: Iterator[Message] | None = None
        self._at = 0

    def still_holds(self, position: FilePosition) -> bool:
        """Return whether it is the appended file."""
        return position.offset == 0 or self._fingerprint() == position.fingerprint

    def size(self) -> int:
        """Return its bytes."""
        return os.fstat(self._descriptor).st_size

    def read(self, position: FilePosition, *, complete: bool) -> Piece | None:  # noqa: ARG002  # it always is
        """Read rows after a position."""
        if position.offset == self.size():
            return None
        if self._rows is None or self._at != position.lines:
            opened = os.fdopen(os.dup(self._descriptor), "rb")
            opened.seek(0)
            self._rows = islice(parquet_messages(self._path, opened, self._unit), position.lines, None)
        try:
            rows = list(islice(self._rows, MOST_LINES))
        except BaseException:
            self._rows = None  # a generator that failed yields nothing more, like one at its end
            raise
        number = position.lines + len(rows)
        is_end = len(rows) < MOST_LINES
        self._at = number
        messages = [row for row in rows if len(row.payload) <= self._most_payload]
        bad = [
            BadLine(position.lines + place, row.payload[:KEPT_OF_LONG], _too_large(self._most_payload))
            for place, row in enumerate(rows, start=1)
            if len(row.payload) > self._most_payload
        ]
        # The offset, in bytes as for other files, moves only at the end.
        return Piece(messages, bad, FilePosition(self.size() if is_end else 1, number, self._fingerprint()))

    def _fingerprint(self) -> bytes:
        return fingerprint(self._descriptor, max(self.size(), HEAD))


def _split(block: bytes) -> list[bytes]:
    """Split only at line feeds: a JSON string may contain other line ends."""
    lines = block.split(b"\n")
    last = lines.pop()
    return [*(line + b"\n" for line in lines), *([last] if last else [])]


def _too_large(most: int) -> str:
    return f"payload must have at most {most} bytes"
