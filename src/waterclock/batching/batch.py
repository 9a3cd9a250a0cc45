"""The batch: messages that belong together, and the rejection: a message that belongs to none."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pyarrow as pa

from waterclock.arrow import from_arrow, from_ipc, to_arrow, to_ipc
from waterclock.errors import SchemaError
from waterclock.message import Message

CloseReason = Literal["timeout", "conflict", "complete", "slots", "gap", "start", "stall", "flush"]
"""Why a batch closed."""

RejectReason = Literal["late", "future", "duplicate", "replaced"]
"""Why a message is in no batch."""

_METADATA_KEY = b"waterclock.batch"


def batch_id(source: str, start: int) -> str:
    """Name the batch of ``source`` that starts at ``start`` (ns). Unique, because windows of a source never overlap."""
    return f"{source}@{start}"


def encode_batch(columns: pa.RecordBatch, source: str, start: int, end: int, closed_at: int, reason: str) -> bytes:
    """Write a batch whose messages are columns of `POSITIONED_SCHEMA`, freshly laid out, as `Batch.to_bytes` does."""
    facts = {"source": source, "start": start, "end": end, "closed_at": closed_at, "reason": reason}
    return to_ipc(columns.replace_schema_metadata({_METADATA_KEY: json.dumps(facts).encode()}))


@dataclass(frozen=True, slots=True)
class Batch:
    """The messages of one source that belong together.

    Attributes
    ----------
    source
        Whose messages these are.
    start, end
        The window in event time, ns. ``end`` is start + window and included; after a conflict it is the event time
        of the message that conflicted, and excluded (message batching, UC3). Where conflicts are isolated, that of a
        batch of conflicting messages is ``start``, and included.
    closed_at
        Receive-clock time at which nothing more can belong here, ns: ``end`` + max_delay. Of a batch by rate, the
        high-water mark at its closing, in event time. A fact of the data, not of when the code ran.
    reason
        Why it closed.
    messages
        In event-time order; equal times in order of stream.
    """

    source: str
    start: int
    end: int
    closed_at: int
    reason: CloseReason
    messages: tuple[Message, ...]

    @property
    def id(self) -> str:
        """What names this batch everywhere, also as a message id: source and start."""
        return batch_id(self.source, self.start)

    def to_bytes(self) -> bytes:
        """Write the batch as Arrow IPC, its facts in the schema metadata: the payload of a batch in a message table."""
        columns = to_arrow(self.messages, positions=True)
        return encode_batch(columns, self.source, self.start, self.end, self.closed_at, self.reason)

    @classmethod
    def from_bytes(cls, data: bytes) -> Batch:
        """Read back what `to_bytes` wrote.

        Raises
        ------
        SchemaError
            Where the bytes are something else.
        """
        columns = from_ipc(data)
        facts = (columns.schema.metadata or {}).get(_METADATA_KEY)
        if facts is None:
            raise SchemaError(f"{len(data)} bytes of Arrow are no batch: the schema has no {_METADATA_KEY.decode()!r}")
        return cls(**json.loads(facts), messages=tuple(from_arrow(columns)))


class Rejection(NamedTuple):
    """A message that is in no batch, and why."""

    message: Message
    reason: RejectReason
