"""Reads a topic on Spark: ``spark.read.format("waterclock")``. Sealed ledgers come from Parquet, the rest as rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition

from waterclock.arrow import POSITIONED_SCHEMA
from waterclock.connection import connect
from waterclock.errors import InvalidArgumentError
from waterclock.message import Position
from waterclock.spark.options import needed, refuse_unknown
from waterclock.time import to_time
from waterclock.topics.slicing import Slice, read_slice
from waterclock.topics.topic import Topic

METADATA_COLUMNS = ("source", "stream", "event_time", "receive_time", "ledger", "entry", "index")
"""What batching needs of a message; give them as option ``columns`` so that payloads stay where they are."""

SLICE_MESSAGES = 500_000
"""Messages a task reads, at the most, where a row group is no larger: some 20 MB of metadata."""

_READ_OPTIONS = frozenset(
    {"url", "ledgers", "topic", "columns", "startingtimestamp", "endingtimestamp", "startingposition"}
)
_SPARK_TYPES = {
    "source": "STRING",
    "stream": "STRING",
    "event_time": "BIGINT",
    "publish_time": "BIGINT",
    "receive_time": "BIGINT",
    "headers": "MAP<STRING, STRING>",
    "payload": "BINARY",
    "ledger": "BIGINT",
    "entry": "BIGINT",
    "index": "INT",
}
# Spark's timestamps end at microseconds, so they stand beside the exact times, for people and for SQL's functions.
_TIMESTAMPS = {
    "event_timestamp": "event_time",
    "publish_timestamp": "publish_time",
    "receive_timestamp": "receive_time",
}
_NS_PER_US = 1000


class _Part(InputPartition):
    def __init__(self, value: Slice) -> None:
        super().__init__(value)


class ReadOptions(NamedTuple):
    """The options of a read, checked.

    Attributes
    ----------
    url, ledgers, topic
        What to open; ``ledgers`` is None where the default of `connect` is meant.
    columns
        The columns wanted, in order.
    start, stop
        First position and the one to stop before; None: from the first message, up to the end.
    """

    url: str
    ledgers: str | None
    topic: str
    columns: tuple[str, ...]
    start: Position | None
    stop: Position | None

    @classmethod
    def checked(cls, options: Mapping[str, str]) -> ReadOptions:
        """Check what the user gave.

        Raises
        ------
        InvalidArgumentError
            Naming the option that is missing, unknown or has a wrong value.
        """
        given = {name.lower(): value for name, value in options.items()}
        refuse_unknown(given, _READ_OPTIONS)
        url, topic = (needed(given, name) for name in ("url", "topic"))
        columns = check_columns(given.get("columns"))
        if "startingtimestamp" in given and "startingposition" in given:
            raise InvalidArgumentError("startingTimestamp and startingPosition both say where to begin; give one")
        if not given.keys() & {"startingtimestamp", "endingtimestamp", "startingposition"}:
            return cls(url, given.get("ledgers"), topic, columns, None, None)
        with connect(url, given.get("ledgers")) as database:
            start, stop = _range(database.topic(topic), given)
        return cls(url, given.get("ledgers"), topic, columns, start, stop)


class TopicReader(DataSourceReader):
    """Plans the slices of a topic on the driver and reads each in a task."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the range into slices, as one snapshot of the topic shows it."""
        options = self._options
        with connect(options.url, options.ledgers) as database:
            topic = database.topic(options.topic)
            return [_Part(part) for part in topic.plan(options.start, options.stop, max_messages=SLICE_MESSAGES)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one slice as record batches."""
        columns = self._options.columns
        stored = list(dict.fromkeys(_TIMESTAMPS.get(name, name) for name in columns))
        for batch in read_slice(cast("Slice", partition.value), stored):
            arrays = [_timestamps(batch, name) if name in _TIMESTAMPS else batch.column(name) for name in columns]
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


def spark_schema(columns: Sequence[str]) -> str:
    """Give the columns as Spark's DDL: times BIGINT ns, and timestamps to the microsecond beside them."""
    return ", ".join(f"`{name}` {'TIMESTAMP' if name in _TIMESTAMPS else _SPARK_TYPES[name]}" for name in columns)


def check_columns(given: str | None) -> tuple[str, ...]:
    """Read the option ``columns``: names, a comma between them; None means all."""
    known = (*POSITIONED_SCHEMA.names, *_TIMESTAMPS)
    if given is None:
        return known
    names = tuple(name.strip() for name in given.split(","))
    for name in names:
        if name not in known:
            raise InvalidArgumentError(f"columns: {name!r} is none of a topic's; choose from {', '.join(known)}")
    return names


def _range(topic: Topic, options: Mapping[str, str]) -> tuple[Position | None, Position | None]:
    start = stop = None
    if "startingposition" in options:
        start = Position.parse(options["startingposition"])
    elif "startingtimestamp" in options:
        start = topic.find(to_time(_number_or_text(options["startingtimestamp"]), "startingTimestamp")).position
    if "endingtimestamp" in options:
        stop = topic.find(to_time(_number_or_text(options["endingtimestamp"]), "endingTimestamp")).position
    return start, stop


def _number_or_text(option: str) -> int | str:
    # Options are texts to Spark, so a time in ns arrives as its digits.
    return int(option) if option.lstrip("-").isdigit() else option


def _timestamps(batch: pa.RecordBatch, name: str) -> pa.Array:
    micros = pc.call_function("divide", [batch.column(_TIMESTAMPS[name]), pa.scalar(_NS_PER_US, pa.int64())])
    return micros.cast(pa.timestamp("us", tz="UTC"))
