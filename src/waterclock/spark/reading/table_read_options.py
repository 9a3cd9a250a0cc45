"""The options and the columns of a stream that reads a message table."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from waterclock.errors import InvalidArgumentError
from waterclock.spark.options import Opening, known_only, needed, number

_KNOWN = ("url", "ledgers", "table", "maxMessagesPerTrigger", "consumer", "tasks")
_COLUMNS: dict[str, tuple[str, Any]] = {
    "id": ("STRING", pa.string()),
    "payload": ("BINARY", pa.binary()),
    "headers": ("MAP<STRING, STRING>", pa.map_(pa.string(), pa.string())),
    "group": ("STRING", pa.string()),
    "priority": ("INT", pa.int32()),
    "epoch": ("BIGINT", pa.int64()),
    "time_created": ("BIGINT", pa.int64()),
    "time_scheduled": ("BIGINT", pa.int64()),
}


@dataclass(frozen=True, repr=False)
class TableReadOptions(Opening):
    """The options of a stream from a message table, checked."""

    table: str  # the message table
    max_messages: int | None  # messages of a micro-batch at most; None: the default
    consumer: str  # under which name the messages are claimed
    tasks: int  # among how many tasks the groups of a micro-batch are shared out

    @classmethod
    def checked(cls, options: Mapping[str, str]) -> TableReadOptions:
        """Check the user's options, without opening anything.

        Raises
        ------
        InvalidArgumentError
            Naming the option that is missing, unknown or has a wrong value.
        """
        given = known_only(options, _KNOWN)
        return cls(
            url=needed(given, "url"),
            ledgers=given.get("ledgers"),
            table=needed(given, "table"),
            max_messages=number(given, "maxMessagesPerTrigger"),
            consumer=given.get("consumer", "spark"),
            tasks=number(given, "tasks") or os.cpu_count() or 1,
        )

    def schema(self) -> str:
        """Return the columns as Spark's DDL, for a table that exists."""
        with self.connect() as database:
            database.table(self.table)
        return ", ".join(f"`{name}` {kind}" for name, (kind, _) in _COLUMNS.items())

    def batch(self, rows: Sequence[Any], epochs: Sequence[int]) -> pa.RecordBatch:
        """Lay out rows of the SQL table in these columns."""
        values: dict[str, list[Any]] = {
            "id": [str(row.id) for row in rows],
            "payload": [_payload_bytes(row.message) for row in rows],
            "headers": [None if row.headers is None else list(json.loads(row.headers).items()) for row in rows],
            "group": [row.group_id or None for row in rows],
            "priority": [row.priority for row in rows],
            "epoch": list(epochs),
            "time_created": [row.time_created for row in rows],
            "time_scheduled": [row.time_scheduled for row in rows],
        }
        return pa.record_batch([pa.array(values[name], kind) for name, (_, kind) in _COLUMNS.items()], list(_COLUMNS))


def refuse_batch_read() -> None:
    """Return how to read a message table without claiming from it."""
    raise InvalidArgumentError(
        "a message table must be read with spark.readStream, which claims and acks messages. To inspect the table, use"
        ' format("jdbc"): it is an ordinary SQL table'
    )


def _payload_bytes(message: Any) -> bytes | None:
    if message is None or isinstance(message, bytes):
        return message
    return (message if isinstance(message, str) else json.dumps(message)).encode()
