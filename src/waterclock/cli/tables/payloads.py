"""Parses the command-line arguments of a message (payload, headers, columns) into the types of its table."""

from __future__ import annotations

import base64
import binascii
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError, WaterclockError
from waterclock.time import TimeUnit, in_nanoseconds

if TYPE_CHECKING:
    from waterclock.tables.message_table import MessageTable
    from waterclock.tables.messages.putting.putting import MessageId

LINES_TOGETHER = 1_000
"""Lines of a file that are put in one transaction: few enough for memory, enough to be worth a round trip."""

_TIMES = ("at", "expires_at")
_BOOLEANS = {"true": True, "false": False}


def payload_of(table: MessageTable, text: str) -> Any:
    """Read a payload in the table's type; @FILE names a file, @- standard input."""
    content = _content(text)
    if table.options.payload == "bytes":
        return content
    try:
        decoded = content.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"payload must be UTF-8 for message table {table.name!r}, got {quoted(content)}: {error.reason}"
        ) from None
    return decoded if table.options.payload == "text" else _json("payload", decoded)


def headers_of(given: list[str] | None) -> dict[str, str] | None:
    """Read headers, each name=text."""
    return pairs("header", given) or None


def columns_of(table: MessageTable, given: list[str] | None) -> dict[str, Any]:
    """Read values of the table's further columns, each name=value, in the columns' types."""
    kinds = table.options.columns
    return {
        name: _READERS[kinds[name]](name, value) if name in kinds else value
        for name, value in pairs("column", given).items()
    }


def pairs(option: str, given: list[str] | None) -> dict[str, str]:
    """Parse the values of an option of the form name=value."""
    found: dict[str, str] = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidArgumentError(f"--{option} must be NAME=VALUE, got {quoted(text)}")
        found[name] = value
    return found


def put_lines(table: MessageTable, file: str, options: Mapping[str, Any], time_unit: TimeUnit) -> Iterator[MessageId]:
    """Put the messages of a file of JSON lines and yield their ids; ``options`` are the defaults of lines.

    Ints that are times count ``time_unit``.

    Raises
    ------
    WaterclockError
        The error of reading or putting, with the affected lines and the number of messages put before.
    """
    lines = _lines(file)
    done = 0
    while chunk := list(islice(lines, LINES_TOGETHER)):
        try:
            rows = [{**options, **_row(table, number, line, time_unit)} for number, line in chunk]
            ids = table.put_many(rows)
        except WaterclockError as error:
            failed = f"lines {chunk[0][0]} to {chunk[-1][0]} of {quoted(file)}"
            raise type(error)(f"{error}. {done} messages were put; {failed} were not") from error
        done += len(ids)
        yield from ids


def _lines(file: str) -> Iterator[tuple[int, bytes]]:
    try:
        with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as opened:
            yield from ((number, line) for number, line in enumerate(opened, start=1) if line.strip())
    except OSError as error:
        raise InvalidArgumentError(f"cannot read {quoted(file)}: {error.strerror}") from error


def _row(table: MessageTable, number: int, line: bytes, time_unit: TimeUnit) -> dict[str, Any]:
    try:
        row = _parsed(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, or nested too deeply
        raise InvalidArgumentError(f"line {number} must be a JSON object, got {quoted(line)}: {error}") from None
    if not isinstance(row, dict) or ("payload" in row) == ("payload_base64" in row):
        raise InvalidArgumentError(
            f"line {number} must be a JSON object with 'payload' or 'payload_base64', got {quoted(line)}"
        )
    fields: dict[str, Any] = dict(row)  # pyright: ignore[reportUnknownArgumentType]  # JSON may hold anything
    if "payload_base64" in fields:
        fields["payload"] = _base64(number, fields.pop("payload_base64"))
    elif table.options.payload == "bytes" and isinstance(fields["payload"], str):
        fields["payload"] = fields["payload"].encode(errors="surrogatepass")
    return in_nanoseconds(fields, _TIMES, time_unit)


def _base64(number: int, text: object) -> bytes:
    try:
        return base64.b64decode(str(text), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidArgumentError(
            f"line {number}: payload_base64 must be base64, got {quoted(text)}: {error}"
        ) from None


def _content(text: str) -> bytes:
    if not text.startswith("@"):
        return text.encode(errors="surrogateescape")
    if text == "@-":
        return sys.stdin.buffer.read()
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"cannot read payload {quoted(text)}: {error.strerror}") from error


def _json(name: str, text: str) -> Any:
    try:
        return _parsed(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            f"{name} must be JSON, got {quoted(text)}: {error}. A JSON string needs its double quotes, as in '\"text\"'"
        ) from None


def _parsed(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):  # Python would take the last one
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {quoted(next(name for name in names if names.count(name) > 1))} occurs twice")
    return found


def _number(name: str, text: str, kind: Callable[[str], float]) -> float:
    try:
        return kind(text)
    except ValueError:
        what = "an integer" if kind is int else "a number"
        raise InvalidArgumentError(f"{name} must be {what}, got {quoted(text)}") from None


def _boolean(name: str, text: str) -> bool:
    if text not in _BOOLEANS:
        raise InvalidArgumentError(f"{name} must be true or false, got {quoted(text)}")
    return _BOOLEANS[text]


_READERS: dict[str, Callable[[str, str], Any]] = {
    "bigint": lambda name, text: _number(name, text, int),
    "double": lambda name, text: _number(name, text, float),
    "boolean": _boolean,
    "text": lambda _name, text: text,
    "bytes": lambda _name, text: text.encode(errors="surrogateescape"),
    "json": _json,
}
