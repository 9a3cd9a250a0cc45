"""Messages in files: JSON lines and Parquet."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from waterclock.arrow import as_message_columns, from_arrow
from waterclock.errors import InvalidArgumentError, NotFoundError, SchemaError, UnavailableError, WaterclockError
from waterclock.message import Message
from waterclock.quoting import quoted
from waterclock.time import format_time

CHUNK = 1_000
"""Messages that are read from a file at a time: few enough to keep in memory, enough to make one good entry."""

_FIELDS = {"source", "stream", "event_time", "publish_time", "receive_time", "headers", "payload", "payload_base64"}
_OF_A_TOPIC = {"position"}


def message_to_json(message: Message) -> dict[str, Any]:
    """Lay a message out as JSON can hold it.

    Times become ISO 8601; a payload that is UTF-8 becomes ``payload``, any other ``payload_base64``.
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
    """Make a message of what `message_to_json` wrote, or of what a user wrote by hand.

    A ``position`` is passed over, because a message gets one from the topic it is in.

    Raises
    ------
    InvalidArgumentError
        For a field that is missing, unknown, or has a wrong value.
    """
    if not isinstance(fields, Mapping):
        raise InvalidArgumentError(
            f"{quoted(fields)} is no message; write an object with source, stream and event_time"
        )
    given: dict[str, Any] = {str(name): value for name, value in fields.items() if name not in _OF_A_TOPIC}
    unknown = given.keys() - _FIELDS
    if unknown:
        raise InvalidArgumentError(
            f"a message has no field {quoted(min(unknown))}; it has {', '.join(sorted(_FIELDS))}"
        )
    missing = {"source", "stream", "event_time"} - given.keys()
    if missing:
        raise InvalidArgumentError(f"the message has no {quoted(min(missing))}: {json.dumps(fields)[:200]}")
    payload = given.pop("payload", "")
    if isinstance(payload, str):
        try:
            payload = payload.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(f"payload: {error}; give such bytes as payload_base64") from None
    encoded = given.pop("payload_base64", None)
    if encoded is not None:
        payload = _decode_base64(encoded)
    return Message(**given, payload=payload)


def read_messages(path: str | Path) -> Iterator[list[Message]]:
    """Read a file of messages in chunks of at most `CHUNK`; what is given and raised is as of `numbered_messages`."""
    messages = numbered_messages(path)
    while chunk := [message for _, message in islice(messages, CHUNK)]:
        yield chunk


def numbered_messages(path: str | Path) -> Iterator[tuple[int, Message]]:
    """Read a file of messages, each with the number of its line, from 1; in Parquet with its own.

    Parameters
    ----------
    path
        ``.parquet`` (columns as in a topic's ledgers), or any other name: JSON lines; ``-`` is standard input.

    Raises
    ------
    NotFoundError
        Where there is no such file.
    InvalidArgumentError, SchemaError
        Naming the line or column that is no message.
    UnavailableError
        Where the file cannot be read.
    """
    if str(path) == "-":
        path = "/dev/stdin"
    path = Path(path)
    try:
        found = path.exists()
    except OSError as error:
        raise InvalidArgumentError(f"the file {quoted(str(path))} cannot be read: {error.strerror}") from error
    if not found:
        raise NotFoundError(f"there is no file {quoted(str(path))}")
    if path.suffix == ".parquet":
        yield from enumerate(_read_parquet(path), start=1)
        return
    with _opened(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, _parse_line(path, number, line)


def can_be_read_again(path: str | Path) -> bool:
    """Say whether a path is a file, which reads the same again, and not a pipe such as standard input."""
    try:
        return str(path) != "-" and Path(path).is_file()
    except OSError:
        return False  # no name for a file at all, as reading it says


def _opened(path: Path) -> BufferedReader:
    try:
        return path.open("rb")
    except OSError as error:
        raise UnavailableError(f"cannot read {path}: {error.strerror}") from error


def _parse_line(path: Path, number: int, line: bytes) -> Message:
    try:
        fields = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        message = message_from_json(fields)
        if b"\\u" in line:
            json.dumps(fields, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path}, line {number}: is not UTF-8: {error}") from None
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{path}, line {number}: {quoted(line)} is not a text: {error.reason}") from None
    except RecursionError:
        raise InvalidArgumentError(f"{path}, line {number}: {quoted(line)} is nested too deeply") from None
    except ValueError as error:  # ours, those of JSON, and that of a number of 5,000 digits
        raise InvalidArgumentError(f"{path}, line {number}: {error}") from None
    return message


def _read_parquet(path: Path) -> Iterator[Message]:
    with _opened(path) as opened:
        yield from _messages_of(path, opened)


def _messages_of(path: Path, opened: BufferedReader) -> Iterator[Message]:
    try:
        with pq.ParquetFile(opened, page_checksum_verification=True) as file:
            for batch in file.iter_batches(CHUNK):
                yield from from_arrow(as_message_columns(batch))
    except (pa.ArrowException, OSError) as error:
        raise SchemaError(f"{path} is not Parquet, or cannot be read: {error}") from error
    except WaterclockError as error:
        raise type(error)(f"{path}: {error}") from None


def _decode_base64(encoded: object) -> bytes:
    try:
        return base64.b64decode(str(encoded), validate=True)
    except binascii.Error as error:
        raise InvalidArgumentError(f"payload_base64: {quoted(str(encoded))} is not base64: {error}") from None
