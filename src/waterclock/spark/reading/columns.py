"""The columns that a topic has in Spark."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from waterclock._support.quoting import quoted
from waterclock.arrow import POSITIONED_SCHEMA
from waterclock.errors import InvalidArgumentError

METADATA_COLUMNS = ("source", "stream", "event_time", "receive_time", "ledger", "entry", "index")
"""The columns that batching needs. The option ``packed`` returns just these, and payloads stay in the topic."""

TIMESTAMPS = {
    "event_timestamp": "event_time",
    "publish_timestamp": "publish_time",
    "receive_timestamp": "receive_time",
}
"""Timestamps added next to the exact times, for people and SQL functions: Spark's end at microseconds."""

NS_PER_US = 1000

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


_OPTIONAL = ("headers",)
"""Appending fills in the other columns. Spark checks every value of a nullable column for null."""


def check_columns(given: str | None) -> tuple[str, ...]:
    """Read the option ``columns``: names, separated by commas; None means all."""
    known = (*POSITIONED_SCHEMA.names, *TIMESTAMPS)
    if given is None:
        return known
    names = tuple(name.strip() for name in given.split(","))
    for name in names:
        if name not in known:
            raise InvalidArgumentError(f"columns must be chosen from {', '.join(known)}, got {quoted(name)}")
    if len(set(names)) < len(names):
        raise InvalidArgumentError(f"columns must not repeat a name, got {quoted(given)}")
    return names


def spark_schema(columns: Sequence[str]) -> str:
    """Return the columns as Spark's DDL: times BIGINT ns, each with a timestamp to the microsecond."""
    types = {name: "TIMESTAMP" if name in TIMESTAMPS else _SPARK_TYPES[name] for name in columns}
    return ", ".join(f"`{name}` {kind}{'' if name in _OPTIONAL else ' NOT NULL'}" for name, kind in types.items())


def stored_columns(columns: Sequence[str]) -> list[str]:
    """Name the columns of a topic that ``columns`` are made of."""
    return list(dict.fromkeys(TIMESTAMPS.get(name, name) for name in columns))


def laid_out(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Convert a batch that was read from a topic to the requested columns."""
    arrays = [_timestamps(batch, name) if name in TIMESTAMPS else batch.column(name) for name in columns]
    fields = [
        pa.field(name, array.type, nullable=name in _OPTIONAL) for name, array in zip(columns, arrays, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _timestamps(batch: pa.RecordBatch, name: str) -> pa.Array:
    micros = pc.call_function("divide", [batch.column(TIMESTAMPS[name]), pa.scalar(NS_PER_US, pa.int64())])
    return micros.cast(pa.timestamp("us", tz="UTC"))
