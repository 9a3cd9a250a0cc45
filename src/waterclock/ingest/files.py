"""Reads messages from files: JSON lines, CSV and Parquet."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from waterclock._support.quoting import quoted
from waterclock.arrow import as_message_columns, from_arrow
from waterclock.errors import InvalidArgumentError, NotFoundError, SchemaError, UnavailableError, WaterclockError
from waterclock.ingest.mapping.csv_columns import CsvColumns, CsvOptions
from waterclock.message import Message
from waterclock.time import TimeUnit, format_time, in_nanoseconds
from waterclock.topics.model.names import check_size

CHUNK = 1_000
"""Messages that are read from a file at a time: few enough for memory, enough for a large entry."""

CHUNK_BYTES = 4 << 20
"""Bytes of payloads that are read from a file at a time: by default, MariaDB takes entries of up to 8 MiB."""

MAX_PAYLOAD = 64 << 20
"""Default maximum bytes of a payload: a file without line ends must not fill the memory."""

_WRITTEN = 6
"""Bytes that one byte of a payload may take in a line of JSON: a control character as \\u001f."""

_BESIDE_PAYLOAD = 1 << 20
"""Bytes of a line for everything except the payload, such as headers."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Progress = Callable[[int, int], None]

_FIELDS = {"source", "stream", "event_time", "publish_time", "receive_time", "headers", "payload", "payload_base64"}
_TIMES = ("event_time", "publish_time", "receive_time")
_OF_A_TOPIC = {"position"}


def message_to_json(message: Message) -> dict[str, Any]:
    """Convert a message to an object for JSON.

    Times become ISO 8601; a payload in UTF-8 becomes ``payload``, any other ``payload_base64``.
    """
    fields: dict[str, Any] = {
        "source": message.source,
        "stream": message.stream,
        "event_time": format_time(message.event_time),
    }
    if message.publish_time is not None:
        fields["publish_time"] = format_time(message.publish_time)
    if message.receive_time is not None:
        fields["receive_time"] = format_time(message.receive_time)
    if message.headers is not None:
        fields["headers"] = dict(message.headers)
    if message.position is not None:
        fields["position"] = str(message.position)
    try:
        fields["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        fields["payload_base64"] = base64.b64encode(message.payload).decode()
    return fields


def message_from_json(fields: object) -> Message:
    """Build a message from the output of `message_to_json`, or from a user's own JSON.

    A ``position`` is ignored, because a message gets its position from its topic.

    Raises
    ------
    InvalidArgumentError
        For a field that is missing, unknown, or has a wrong value.
    """
    if not isinstance(fields, Mapping):
        raise InvalidArgumentError(
            f"a message must be an object with source, stream and event_time, got {quoted(fields)}"
        )
    given: dict[str, Any] = {str(name): value for name, value in fields.items() if name not in _OF_A_TOPIC}
    unknown = given.keys() - _FIELDS
    if unknown:
        raise InvalidArgumentError(
            f"no message field named {quoted(min(unknown))}; the fields are {', '.join(sorted(_FIELDS))}"
        )
    missing = {"source", "stream", "event_time"} - given.keys()
    if missing:
        raise InvalidArgumentError(
            f"the message must have the field {quoted(min(missing))}, got {json.dumps(fields)[:200]}"
        )
    payload = given.pop("payload", "")
    if isinstance(payload, str):
        try:
            payload = payload.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(
                f"payload must be valid Unicode: {error}. Pass the payload as payload_base64"
            ) from None
    encoded = given.pop("payload_base64", None)
    if encoded is not None:
        payload = _decode_base64(encoded)
    return Message(**given, payload=payload)


@dataclass(frozen=True)
class MessageFile:
    """A file of messages."""

    path: str
    """``.parquet`` (columns as in a topic's ledgers), ``.csv`` (columns named as fields of a message), or any other
    name: JSON lines; ``-`` is standard input.
    """
    max_payload: int = MAX_PAYLOAD  # maximum bytes of a payload; a longer line is not read to its end
    time_unit: TimeUnit = "ns"  # unit of times that are ints since the epoch; other times have their own unit

    def __post_init__(self) -> None:
        check_size(self.max_payload, "max_payload")

    def chunks(self, progress: Progress | None = None) -> Iterator[list[Message]]:
        """Read the messages in chunks of at most `CHUNK` messages and about `CHUNK_BYTES`; see `numbered` for errors.

        Parameters
        ----------
        progress
            Called with the amount read and the total amount: bytes, or messages in Parquet. Not called for an input
            without a length, such as standard input.
        """
        chunk: list[Message] = []
        size = 0
        for _, message in self.numbered(progress):
            if chunk and (len(chunk) == CHUNK or size + len(message.payload) > CHUNK_BYTES):
                yield chunk
                chunk, size = [], 0
            chunk.append(message)
            size += len(message.payload)
        if chunk:
            yield chunk

    def numbered(self, progress: Progress | None = None) -> Iterator[tuple[int, Message]]:
        """Read the messages, each with the number of its line, from 1, or of its row in Parquet.

        Raises
        ------
        NotFoundError
            If the file does not exist.
        InvalidArgumentError, SchemaError
            If a line or column is not a message, or a payload is too large; it names the line or column.
        UnavailableError
            If the file cannot be read.
        """
        path = Path("/dev/stdin" if self.path == "-" else self.path)
        try:
            found = path.exists()
        except OSError as error:
            raise InvalidArgumentError(f"cannot read {quoted(str(path))}: {error.strerror}") from error
        if not found:
            raise NotFoundError(f"no file {quoted(str(path))} found")
        read = self._read_parquet if path.suffix == ".parquet" else self._read_lines
        for number, message in read(path, progress or _unseen):
            if len(message.payload) > self.max_payload:
                raise self._too_large(path, number, len(message.payload))
            yield number, message

    def can_be_read_again(self) -> bool:
        """Return whether this is a file, which reads the same again, and not a pipe such as standard input."""
        try:
            return self.path != "-" and Path(self.path).is_file()
        except OSError:
            return False  # an invalid file name; reading it reports that

    def _read_lines(self, path: Path, progress: Progress) -> Iterator[tuple[int, Message]]:
        longest = longest_line(self.max_payload)
        with _opened(path) as lines:
            size = path.stat().st_size if path.is_file() else 0
            done = number = 0
            parse = partial(parse_json_line, time_unit=self.time_unit)
            while line := lines.readline(longest + 1):
                number += 1
                if len(line) > longest:
                    raise self._too_large(path, number, len(line))
                try:
                    if number == 1:
                        line = line.removeprefix(_BYTE_ORDER_MARK)
                    if number == 1 and path.suffix == ".csv":
                        parse = CsvColumns(CsvOptions(), line.rstrip(b"\r\n"), self.time_unit).parse
                    elif line.strip():
                        yield number, parse(line.rstrip(b"\r\n"))
                except InvalidArgumentError as error:
                    raise InvalidArgumentError(f"{path}, line {number}: {error}") from None
                done += len(line)
                if size and number % CHUNK == 0:
                    progress(done, size)

    def _read_parquet(self, path: Path, progress: Progress) -> Iterator[tuple[int, Message]]:
        with _opened(path) as opened:
            yield from enumerate(parquet_messages(path, opened, self.time_unit, progress), start=1)

    def _too_large(self, path: Path, number: int, size: int) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"{path}, message or line {number}: payload must have at most {self.max_payload} bytes, got {size} or more."
            " Raise the limit with --max-payload"
        )


def _unseen(done: int, total: int) -> None:
    """Show no progress."""


def _opened(path: Path) -> BufferedReader:
    try:
        return path.open("rb")
    except OSError as error:
        raise UnavailableError(f"cannot read {path}: {error.strerror}") from error


def parse_json_line(line: bytes, time_unit: TimeUnit) -> Message:
    """Parse a line of JSON; InvalidArgumentError if it is not a message."""
    try:
        fields = json.loads(line.decode())
        if time_unit != "ns" and isinstance(fields, dict):
            fields = in_nanoseconds(fields, _TIMES, time_unit)
        message = message_from_json(fields)
        if b"\\u" in line:
            json.dumps(fields, ensure_ascii=False).encode()  # half of a surrogate pair is invalid text
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"the line must be UTF-8: {error}") from None
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"the line must be valid Unicode, got {quoted(line)}: {error.reason}") from None
    except RecursionError:
        raise InvalidArgumentError(f"cannot read the line: its JSON is nested too deeply, got {quoted(line)}") from None
    except InvalidArgumentError:
        raise
    except ValueError as error:  # errors of JSON, including numbers of 5,000 digits
        raise InvalidArgumentError(f"the line must be JSON: {error}") from None
    return message


def longest_line(max_payload: int) -> int:
    """Return the maximum bytes of a line of JSON with such a payload."""
    return _WRITTEN * max_payload + _BESIDE_PAYLOAD


def parquet_messages(
    path: Path, opened: BufferedReader, time_unit: TimeUnit, progress: Progress | None = None
) -> Iterator[Message]:
    """Read the messages of an open Parquet file; SchemaError if it is not Parquet."""
    try:
        with pq.ParquetFile(opened, page_checksum_verification=True) as file:
            done = 0
            for batch in file.iter_batches(CHUNK):
                yield from from_arrow(as_message_columns(batch, time_unit))
                done += batch.num_rows
                if progress is not None:
                    progress(done, file.metadata.num_rows)
    except (pa.ArrowException, OSError) as error:
        raise SchemaError(f"cannot read {path} as Parquet: {error}") from error
    except WaterclockError as error:
        raise type(error)(f"{path}: {error}") from None


def _decode_base64(encoded: object) -> bytes:
    try:
        return base64.b64decode(str(encoded), validate=True)
    except binascii.Error as error:
        raise InvalidArgumentError(f"payload_base64 must be base64, got {quoted(str(encoded))}: {error}") from None
