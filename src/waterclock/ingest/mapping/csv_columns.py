"""Parses the lines of CSV files whose first line names the columns."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from waterclock._support.quoting import quoted, unknown_name
from waterclock.errors import InvalidArgumentError
from waterclock.ingest.mapping.times import parse_time
from waterclock.message import Message
from waterclock.time import TimeUnit

_TIMES = ("event_time", "publish_time", "receive_time")
_FIELDS = ("source", "stream", *_TIMES, "payload")
_REQUIRED = ("source", "stream", "event_time")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class CsvOptions:
    """How the columns of a CSV file become messages."""

    # The column of a field, if it has another name than the field.
    columns: Mapping[str, str] = field(default_factory=dict[str, str])
    # Source and stream of all messages, if no column holds them.
    source: str | None = None
    stream: str | None = None
    delimiter: str = ","  # the character between columns

    def __post_init__(self) -> None:
        for each in self.columns:
            if each not in _FIELDS:
                raise InvalidArgumentError(unknown_name("field", each, _FIELDS, f"choose from {', '.join(_FIELDS)}"))
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n\0':
            raise InvalidArgumentError(f"delimiter must be one character, got {quoted(self.delimiter)}")


class CsvColumns:
    """The columns of one file.

    Raises `InvalidArgumentError` if a column is missing, or has the name of another.

    Parameters
    ----------
    options
        The mapping of columns to fields.
    header
        The first line.
    time_unit
        Unit of times that are numbers since 1970.
    """

    def __init__(self, options: CsvOptions, header: bytes, time_unit: TimeUnit) -> None:
        self._options = options
        self._unit: TimeUnit = time_unit
        names = self._cells(header.removeprefix(_BYTE_ORDER_MARK))
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InvalidArgumentError(f"column names in the first line must be unique, got {quoted(twice)} twice")
        self._count = len(names)
        self._places: dict[str, int] = {}
        for each in _FIELDS:
            column = options.columns.get(each, each)
            if column in names:
                self._places[each] = names.index(column)
            elif each in options.columns or (each in _REQUIRED and getattr(options, each, None) is None):
                raise InvalidArgumentError(
                    f"no column named {quoted(column)} for {each} in the first line; the columns are"
                    f" {quoted(', '.join(names))}"
                )
        taken = set(self._places.values())
        self._others = {name: place for place, name in enumerate(names) if place not in taken}

    def parse(self, line: bytes) -> Message:
        """Parse a line; InvalidArgumentError if it is not a message."""
        cells = self._cells(line)
        if len(cells) != self._count:
            raise InvalidArgumentError(f"the row must have {self._count} columns, got {len(cells)}")
        found = {name: cells[place] for name, place in self._places.items()}
        source = found.get("source") or self._options.source
        stream = found.get("stream") or self._options.stream
        if not source or not stream:
            raise InvalidArgumentError("the row must have a source and a stream")
        published, received = (self._time(text) if (text := found.get(name)) else None for name in _TIMES[1:])
        return Message(
            source,
            stream,
            self._time(found["event_time"]),
            self._payload(cells, found),
            publish_time=published,
            receive_time=received,
        )

    def _time(self, text: str) -> int:
        return parse_time(text, self._unit)

    def _payload(self, cells: Sequence[str], found: Mapping[str, str]) -> bytes:
        """Return the payload column; without one, the columns that are not a field, as JSON."""
        if "payload" in found:
            return found["payload"].encode()
        others = {name: cells[place] for name, place in self._others.items()}
        return json.dumps(others, ensure_ascii=False).encode()

    def _cells(self, line: bytes) -> list[str]:
        try:
            rows = list(csv.reader([line.decode()], delimiter=self._options.delimiter, strict=True))
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"the row must be UTF-8: {error}") from None
        except csv.Error as error:
            raise InvalidArgumentError(f"the row must be CSV: {error}") from None
        return rows[0] if rows else []
