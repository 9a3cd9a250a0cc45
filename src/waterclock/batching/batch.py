"""The two outcomes of batching: a batch of messages that belong together, and a rejected message."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import pyarrow as pa

from waterclock._support.html import facts_as_html, rows_as_html
from waterclock._support.quoting import quoted
from waterclock.arrow import check_messages, from_arrow, from_ipc, to_arrow, to_ipc
from waterclock.batching.facts import maybe, moment, parsed, read_as, text, whole
from waterclock.batching.outside import OutsideCounts, count_outside, outside_messages
from waterclock.checksum import has_trailer, trailer, without_trailer
from waterclock.errors import DamagedError, InvalidArgumentError, SchemaError
from waterclock.frames import to_pandas
from waterclock.message import Message
from waterclock.time import format_time

if TYPE_CHECKING:
    import pandas as pd

CloseReason = Literal["timeout", "conflict", "boundary", "complete", "slots", "gap", "start", "stall", "flush"]
"""Why a batch closed."""

RejectReason = Literal["late", "future", "duplicate", "replaced", "no_id", "undeclared"]
"""Why a message is in no batch. The last two are only used by id: no valid id, or a stream that was not declared."""

_REASONS: dict[str, CloseReason] = {reason: reason for reason in get_args(CloseReason)}
_METADATA_KEY = b"waterclock.batch"
_TRAILER = b"WCB1"
"""Begins the trailer after the stream's end. Other Arrow readers stop at that end, and see a plain stream."""


_MOST_SHOWN = 10
"""Messages of a batch that a notebook shows."""

_to_json = json.JSONEncoder().encode

LONGEST_SOURCE = 234
"""Maximum length of a source's name that batch ids contain unabridged: with the start, the ids fit a message table."""

SOURCE_BEGINNING, SOURCE_DIGITS = 201, 32
"""For longer names: how many characters of the name batch ids begin with, and how many digits of its SHA-256 follow."""

NUL = "\0"
"""A character that message tables refuse, because PostgreSQL cannot store it in text."""


def batch_id(source: str, start: int) -> str:
    """Name the batch of ``source`` that starts at ``start`` (ns). Unique, because windows of a source never overlap.

    Batches by id have their ``number`` for the start.
    """
    return f"{short_source(source)}@{start}"


def short_source(source: str) -> str:
    """Return a source's name as used in ids and groups of message tables: short enough, and without NUL."""
    if len(source) <= LONGEST_SOURCE and NUL not in source:
        return source
    beginning = source[:SOURCE_BEGINNING].replace(NUL, "")
    return f"{beginning}~{hashlib.sha256(source.encode()).hexdigest()[:SOURCE_DIGITS]}"


def encode_batch(columns: pa.RecordBatch, facts: bytes) -> bytes:
    """Write a batch whose messages are contiguous columns of `POSITIONED_SCHEMA`, as `Batch.to_bytes` does."""
    return add_trailer(to_ipc(columns.replace_schema_metadata(batch_metadata(facts))))


def encode_facts(
    source: str,
    start: int,
    end: int,
    closed_at: int,
    reason: str,
    number: int | None = None,
    offsets: Mapping[str, int] | None = None,
    run: int | None = None,
) -> bytes:
    """Encode the facts of a batch, without its messages; the last three only if the batch has them."""
    facts: dict[str, object] = {"source": source, "start": start, "end": end, "closed_at": closed_at, "reason": reason}
    if number is not None:
        facts["number"] = number
    if offsets:
        facts["offsets"] = dict(sorted(offsets.items()))
    if run is not None:
        facts["run"] = run
    return _to_json(facts).encode()


def batch_metadata(facts: bytes) -> dict[bytes, bytes]:
    """Return the schema metadata of a batch with these facts."""
    return {_METADATA_KEY: facts}


def add_trailer(stream: bytes) -> bytes:
    """Append the checksum of a batch to its Arrow IPC stream."""
    return stream + batch_trailer(stream)


def batch_trailer(stream: bytes | memoryview) -> bytes:
    """Return the checksum that follows the Arrow IPC stream of a batch."""
    return trailer(_TRAILER, stream)


@dataclass(frozen=True, slots=True)
class Batch:
    """The messages of one source that belong together.

    Attributes
    ----------
    source
        The source of its messages.
    start, end
        The window in event time, ns. ``end`` is start + window, inclusive; after a conflict or a boundary it is the
        event time of that message, exclusive (message batching, UC3). If conflicts are isolated, a batch of conflicting
        messages has ``end`` equal to ``start``, inclusive. By id, the first and the last event time.
    closed_at
        Receive-clock time from which no more messages can join the batch, ns: ``end`` + max_delay; by id, the receive
        time of the first message + max_delay. For a batch by rate, the high-water mark at its closing, in event time.
        It depends on the data only, not on when the code ran.
    reason
        Why it closed.
    messages
        Its messages in event-time order; equal times in order of stream.
    number
        By id, the integer id of its messages; else None.
    offsets
        If clocks were aligned (``clocks="align"``), the ns that were added to the event times of each stream before the
        window was chosen; for a stream whose offset changed within the batch, that of its latest message. ``messages``
        keep the times that were sent; the window is in aligned time. Else empty.
    run
        Event time of the boundary that opened its run, ns; None without ``boundaries``, and before the first one. The
        boundary is in the batch that starts at this time.
    """

    source: str
    start: int
    end: int
    closed_at: int
    reason: CloseReason
    messages: tuple[Message, ...]
    number: int | None = None
    offsets: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)
    run: int | None = None

    @property
    def id(self) -> str:
        """The batch's identity, also as a message id: source and start, or source and number."""
        return batch_id(self.source, self.start if self.number is None else self.number)

    @property
    def outside(self) -> dict[str, OutsideCounts]:
        """How many messages lie outside the window, for each stream that has any; by rate only.

        Messages within half a period of their stream do not count: that may be jitter. The first batch (``start``) has
        no window.
        """
        return {} if self.reason == "start" else count_outside(self.messages, self.start, self.end, self.offsets)

    def messages_outside(self) -> list[Message]:
        """List the messages that `outside` counts."""
        if self.reason == "start":
            return []
        return [message for message, _ in outside_messages(self.messages, self.start, self.end, self.offsets)]

    def to_arrow(self) -> pa.RecordBatch:
        """Return the messages as columns of `waterclock.arrow.POSITIONED_SCHEMA`, the batch's facts in its metadata."""
        return to_arrow(self.messages, positions=True).replace_schema_metadata(batch_metadata(self._facts))

    @property
    def _facts(self) -> bytes:
        facts = self.source, self.start, self.end, self.closed_at, self.reason
        return encode_facts(*facts, self.number, self.offsets, self.run)

    def to_pandas(self) -> pd.DataFrame:
        """Return the messages as a pandas data frame. Times are datetimes in UTC, payloads bytes, headers dicts.

        Raises
        ------
        InvalidArgumentError
            If pandas is not installed.
        """
        return to_pandas(self.to_arrow())

    def _repr_html_(self) -> str:
        """Show the batch in a notebook: its facts, and its first messages without their payloads."""
        facts = {
            "source": self.source,
            "start": format_time(self.start),
            "end": format_time(self.end),
            "closed at": format_time(self.closed_at),
            "reason": self.reason,
            **({} if self.run is None else {"run": format_time(self.run)}),
            "messages": f"{len(self.messages):,}",
        }
        rows = [
            [message.stream, format_time(message.event_time), f"{len(message.payload):,} B"]
            for message in self.messages[:_MOST_SHOWN]
        ]
        return facts_as_html(f"Batch {self.id}", facts) + rows_as_html(
            ["stream", "event time", "payload"], rows, len(self.messages)
        )

    def to_bytes(self) -> bytes:
        """Write the batch as Arrow IPC, its facts in the schema metadata: the payload of a batch in a message table."""
        return encode_batch(to_arrow(self.messages, positions=True), self._facts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Batch:
        """Read back what `to_bytes` wrote.

        Raises
        ------
        DamagedError
            If the bytes are a corrupt batch.
        SchemaError
            If they are something else, or from a newer version.
        """
        if not isinstance(data, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]  # drivers give other buffers
            data = _as_bytes(data)
        checked = has_trailer(_TRAILER, data)
        columns = from_ipc(without_trailer(_TRAILER, data, "the batch") if checked else data)
        metadata = columns.schema.metadata or {}
        written = metadata.get(_METADATA_KEY)
        if written is None:
            raise SchemaError(
                f"{len(data)} bytes of Arrow are not a batch: the schema metadata lacks {_METADATA_KEY.decode()!r}"
            )
        if not checked:
            raise DamagedError(f"the batch is corrupt: the checksum at the end of its {len(data)} bytes is missing")
        check_messages(columns)
        with read_as("the batch"):
            facts = parsed(written)
            source, reason = text(facts["source"]), text(facts["reason"])
            start, end, closed_at = (moment(facts[name]) for name in ("start", "end", "closed_at"))
            number, run = (maybe(facts.get(name), moment) for name in ("number", "run"))
            offsets = {stream: whole(ns) for stream, ns in facts.get("offsets", {}).items()}
        if reason not in _REASONS:
            raise SchemaError(
                f"cannot read the batch: its close reason {quoted(reason)} is unknown to this version of Waterclock."
                " Read the batch with the version that wrote it"
            )
        messages = tuple(from_arrow(columns))
        return cls(source, start, end, closed_at, _REASONS[reason], messages, number, offsets, run)


def check_batch(value: object) -> None:
    """Raise InvalidArgumentError unless a value is a batch."""
    if not isinstance(value, Batch):
        raise InvalidArgumentError(f"batch must be a waterclock.Batch, got {quoted(value)}")


def _as_bytes(data: object) -> bytes:
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise InvalidArgumentError(f"data must be the bytes of a batch, got {quoted(data)}")


class Rejection(NamedTuple):
    """A message that is in no batch, and why."""

    message: Message
    reason: RejectReason
