"""Builds the rows of batches that `waterclock.spark.batches_of` returns, and looks up their messages."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from waterclock._support.quoting import quoted
from waterclock.arrow import POSITION_FIELDS, POSITIONED_SCHEMA
from waterclock.columnar.batch_bytes import encode_batches
from waterclock.columnar.packing import row_counts, unpack
from waterclock.errors import (
    DamagedError,
    InvalidArgumentError,
    NotFoundError,
    SchemaError,
    UnavailableError,
    WaterclockError,
)
from waterclock.spark.pace import FIRST_LOOK, MESSAGES_AT_ONCE, MOST_BYTES, Pace
from waterclock.time_columns import as_nanoseconds
from waterclock.topics.catalogue.damage_policy import OnDamage
from waterclock.topics.finding.looking_up import TooManyBytesError, look_up
from waterclock.topics.reading.decoded_groups import DecodedGroups
from waterclock.topics.store.ledger_files import LostFileError
from waterclock.topics.topic import Topic

POSITION = tuple(field.name for field in POSITION_FIELDS)
"""The columns of a position."""

BATCH_COLUMNS = ("id", "source", "start", "end", "closed_at", "reason", "run", "number", "streams", "count", "messages")
"""The columns of a batch."""

LOST_HEADER = "waterclock.lost"
"""Header of a message whose payload and headers could not be read any more: ``payload``."""

_NAMES = ("source", "stream")
_TIMES = ("event_time", "receive_time")
_NS_PER_US = 1_000

_REMEDY = (
    ". To write such messages without payloads, set failOnDataLoss=false for deleted messages, or onDamage=skip for"
    " damaged or missing messages (in a pipeline's file: fail_on_data_loss or on_damage of source)"
)
_TOO_LARGE = (TooManyBytesError, MemoryError, pa.ArrowInvalid, pa.ArrowCapacityError)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Payloads:
    """The topic that messages were read from, to look up their other columns."""

    topic: Topic
    pass_over: tuple[type[WaterclockError], ...] = ()
    """Errors for which a message continues without its payload, with `LOST_HEADER`; any other ends the look-up."""
    remedy: str = ""  # text added to errors
    decoded: DecodedGroups = field(default_factory=DecodedGroups)
    """The row groups decoded last, for the lookups of one task."""

    @classmethod
    def to_write(cls, topic: Topic, *, fail_on_data_loss: bool, on_damage: OnDamage) -> Payloads:
        """Look up the payloads, as the options of a write say."""
        deleted = () if fail_on_data_loss else (NotFoundError,)
        return cls(topic, deleted + ((DamagedError, LostFileError) if on_damage == "skip" else ()), _REMEDY)


def looks(
    batches: Iterator[pa.RecordBatch], payloads: Payloads | None
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Yield the messages of batches, as many batches at once as memory allows.

    Yields
    ------
    rows, messages
        Some of the batches, and what `messages_in` returns for them.

    Raises
    ------
    UnavailableError
        If the messages of a single batch are too large; the text names their topic, position and size.
    """
    pace = Pace(MESSAGES_AT_ONCE if payloads is None else FIRST_LOOK)
    for run in pace.runs(batches):
        left = [run]
        while left:
            rows = left.pop()
            try:
                messages = _columns(messages_in(rows, payloads, None if rows.num_rows == 1 else MOST_BYTES))
            except _TOO_LARGE as error:
                if rows.num_rows == 1:
                    raise _exceeds_worker(rows, payloads, error) from error
                half = rows.num_rows // 2
                fewer = [rows.slice(0, half), rows.slice(half)]
                if isinstance(error, TooManyBytesError):
                    # Halving alone would read 24 messages of 100 MB three times.
                    pace.learn(error.size, error.messages)
                    fewer = list(chain.from_iterable(pace.runs(iter([some])) for some in fewer))
                left += reversed(fewer)
                continue
            pace.learn(messages.nbytes, messages.num_rows)
            yield rows, messages


def _columns(messages: pa.Table) -> pa.RecordBatch:
    columns = messages.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], messages.schema)]
    if len(columns) > 1:
        raise TooManyBytesError(messages.nbytes, messages.num_rows)
    return columns[0]


def _exceeds_worker(rows: pa.RecordBatch, payloads: Payloads | None, error: Exception) -> UnavailableError:
    limit = f"the memory of a worker, or 2 GiB, the limit of a column ({type(error).__name__}: {error})"
    return too_large(rows, payloads, limit, "Give workers more memory")


def too_large(rows: pa.RecordBatch, payloads: Payloads | None, limit: str, remedy: str) -> UnavailableError:
    """Return the error of a batch, the first of the rows, that exceeds a limit."""
    _, known = unpack(rows)
    place = ":".join(str(known[name][0]) for name in POSITION)
    topic = "" if payloads is None else f" of topic {quoted(payloads.topic.name)}"
    source, count = (rows.column(name)[0].as_py() for name in ("source", "count"))
    return UnavailableError(
        f"cannot write a batch of source {quoted(source)}, whose first message is at {place}{topic}: its"
        f" {count} messages exceed {limit}. {remedy}, choose a shorter window, or send smaller messages"
    )


def messages_in(rows: pa.RecordBatch, payloads: Payloads | None, most_bytes: int | None = None) -> pa.Table:
    """List the messages of all batches, one after another, with their columns from the topic.

    Parameters
    ----------
    rows
        Batches.
    payloads
        The topic that holds them; None: the messages get none.
    most_bytes
        Bytes of messages at which to give up, with `TooManyBytesError`; None: no limit.

    Returns
    -------
    pyarrow.Table
        Columns of `waterclock.arrow.POSITIONED_SCHEMA`.
    """
    numbers, known = unpack(rows)
    known["source"] = rows.column("source").take(pa.array(numbers))
    if payloads is None:
        return _filled(known, len(numbers))
    if known["ledger"].null_count:
        raise SchemaError(
            "the batches must have the position of each message, because payloads are looked up by position. Read the"
            " topic with the columns ledger, entry and index"
        )
    return found_at(payloads, pa.table(known), most_bytes)


def found_at(payloads: Payloads, rows: pa.Table, most_bytes: int | None = None) -> pa.Table:
    """Return the messages of a topic at the positions of some rows, and check that they belong to the rows.

    Parameters
    ----------
    rows
        With the columns of a position, source, stream, event_time and receive_time.

    Raises
    ------
    InvalidArgumentError
        If another message stands at a position: these are rows of another topic.
    NotFoundError, DamagedError, LostFileError
        If it cannot be read any more, and is not to be skipped.
    """
    try:
        storage, names = payloads.topic.storage, POSITIONED_SCHEMA.names
        places = rows.select(POSITION)
        found = look_up(storage, places, names, payloads.pass_over, most_bytes, payloads.decoded)
    except (NotFoundError, DamagedError, LostFileError) as error:
        raise type(error)(f"payloads: {error}{payloads.remedy}") from error
    found = _with_lost(found, rows, payloads.topic.name)
    differs = ~_same_times(found.column("event_time").to_numpy(), _event_times(rows))
    for name in _NAMES:
        other = pc.call_function("not_equal", [found.column(name), rows.column(name).cast(pa.string())])
        differs |= pc.call_function("coalesce", [other, pa.scalar(True)]).to_numpy()  # the place of a null
    if differs.any():
        number = int(np.argmax(differs))
        place = ":".join(str(rows.column(name)[number]) for name in POSITION)
        there, here = (
            " and stream ".join(quoted(table.column(name)[number].as_py()) for name in _NAMES)
            for table in (found, rows)
        )
        raise InvalidArgumentError(
            f"payloads must name the topic that the rows were read from: at {place} topic"
            f" {quoted(payloads.topic.name)} has a message of source {there}, and the rows have a message of source"
            f" {here}. If the rows were changed after reading, their payloads cannot be read"
        )
    return found


def _with_lost(found: pa.Table, rows: pa.Table, topic: str) -> pa.Table:
    """Fill in skipped messages from the rows, with a header that says so."""
    lost = pc.call_function("is_null", [found.column("ledger")])
    number = pc.call_function("sum", [lost]).as_py()
    if not number:
        return found
    _log.warning(
        "the payloads of %d messages of topic %r are lost or corrupt; the batches are written without these payloads",
        number,
        topic,
    )
    count = len(rows)
    known = {name: rows.column(name).cast(POSITIONED_SCHEMA.field(name).type) for name in (*POSITION, *_NAMES)}
    known |= {name: as_nanoseconds(rows.column(name), name) for name in _TIMES if name in rows.column_names}
    known["payload"] = pa.repeat(pa.scalar(b"", pa.binary()), count)
    known["headers"] = pa.repeat(pa.scalar([(LOST_HEADER, "payload")], found.schema.field("headers").type), count)
    columns = {
        name: pc.call_function("if_else", [lost, known[name], column]) if name in known else column
        for name, column in zip(found.column_names, found.columns, strict=True)
    }
    return pa.table(columns, schema=found.schema)


def encoded(
    batches: Iterator[pa.RecordBatch], payloads: Payloads | None
) -> Iterator[tuple[pa.RecordBatch, pa.BinaryArray]]:
    """Write batches as `waterclock.Batch.to_bytes` does: the same bytes, whichever runtime made the batch.

    Yields
    ------
    rows, messages
        Some batches, as many as one look at the topic serves, and the bytes of each.

    Raises
    ------
    UnavailableError
        As `looks`.
    """
    for rows, messages in looks(batches, payloads):
        try:
            written = encode_batches(rows, messages, row_counts(rows))
        except _TOO_LARGE as error:
            raise _exceeds_worker(rows, payloads, error) from error
        yield rows, written


def _same_times(stored: npt.NDArray[np.int64], given: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return where times equal the stored ones, or those cut to whole microseconds, where Spark's TIMESTAMP ends.

    For times before 1970 the cut may round up or down, depending on the query's division.
    """
    cut = stored - np.fmod(stored, _NS_PER_US)
    below = stored - np.mod(stored, _NS_PER_US)
    return (given == stored) | (given == cut) | (given == below)


def _event_times(rows: pa.Table) -> npt.NDArray[np.int64]:
    return as_nanoseconds(rows.column("event_time"), "event_time").to_numpy()


def _filled(known: Mapping[str, pa.Array], count: int) -> pa.Table:
    empty = pa.repeat(pa.scalar(b"", pa.binary()), count)
    arrays = [
        known.get(field.name, empty if field.name == "payload" else pa.nulls(count, field.type))
        for field in POSITIONED_SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=POSITIONED_SCHEMA)
