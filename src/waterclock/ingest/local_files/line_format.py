"""Formats of files with a message per line: JSON lines, CSV, and the files of collectd's plugin ``csv``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

from waterclock._support.quoting import quoted
from waterclock.errors import InvalidArgumentError
from waterclock.ingest.files import parse_json_line
from waterclock.ingest.mapping.collectd import collectd_time
from waterclock.ingest.mapping.csv_columns import CsvColumns, CsvOptions
from waterclock.message import Message
from waterclock.time import TimeUnit

FormatName = Literal["jsonl", "csv", "collectd", "parquet"]
"""All but ``parquet`` are read by lines."""

ParseLine = Callable[[bytes], Message]
"""Parses one line without its end; raises InvalidArgumentError with the reason."""

_BY_SUFFIX: dict[str, FormatName] = {".csv": "csv", ".parquet": "parquet"}
_OF_COLLECTD = re.compile(r"(?:.*/)?([^/]+)/([^/]+)/([^/]+)-[0-9]{4}-[0-9]{2}-[0-9]{2}", re.DOTALL)


@dataclass(frozen=True)
class LineFormat:
    """How the lines of files become messages."""

    name: FormatName | None = None
    """The format; None: by the suffix of each file, JSON lines unless it is .csv or .parquet."""
    csv: CsvOptions = field(default_factory=CsvOptions)  # how the columns of CSV files become messages
    time_unit: TimeUnit = "ns"  # unit of times that are numbers since 1970

    def __post_init__(self) -> None:
        if self.name is not None and self.name not in get_args(FormatName):
            raise InvalidArgumentError(
                f"format must be one of {', '.join(get_args(FormatName))}, got {quoted(self.name)}"
            )

    def of(self, path: str) -> FormatName:
        """Return the format of a file."""
        if self.name is not None:
            return self.name
        for suffix, name in _BY_SUFFIX.items():
            if path.endswith(suffix):
                return name
        return "jsonl"

    def has_header(self, path: str) -> bool:
        """Return whether the first line of a file names its columns."""
        return self.of(path) in ("csv", "collectd")

    def parser(self, path: str, header: bytes) -> ParseLine:
        """Return the parser of a file's lines.

        Raises `InvalidArgumentError` if the header lacks a column, or the path is not one that collectd creates.
        """
        name = self.of(path)
        if name == "csv":
            return CsvColumns(self.csv, header, self.time_unit).parse
        if name == "collectd":
            return _collectd_parser(path)
        return lambda line: parse_json_line(line, self.time_unit)


def _collectd_parser(path: str) -> ParseLine:
    found = _OF_COLLECTD.fullmatch(path)
    if found is None:
        raise InvalidArgumentError(
            f"the path of a collectd CSV file must end in HOST/PLUGIN/TYPE-YYYY-MM-DD, got {path}"
        )
    host, stream = found[1], f"{found[2]}/{found[3]}"

    def parse(line: bytes) -> Message:
        payload = line.replace(b",", b":")  # as collectd publishes it over MQTT
        return Message(host, stream, collectd_time(payload), payload)

    return parse
