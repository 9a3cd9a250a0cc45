"""The forms in which things are written down as bytes, with samples of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa

from waterclock.arrow import to_arrow
from waterclock.batching.batch import Batch
from waterclock.batching.by_id.batcher import IdBatcher
from waterclock.batching.by_id.rule import IdRule
from waterclock.batching.event_time.batcher import EventTimeBatcher
from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.batching.rate.by_column.columns import RateAwareColumns
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.columnar.many_sources import ManySources, from_packed, nothing
from waterclock.columnar.message_ids import with_numbers
from waterclock.columnar.packing import ROWS, pack
from waterclock.columnar.records import NUMBERED, POSITIONED
from waterclock.columnar.streams.event_time_stream import EventTimeStream
from waterclock.columnar.streams.id_stream import IdStream
from waterclock.columnar.streams.judging import judge
from waterclock.columnar.streams.rate_options import RateOptions
from waterclock.columnar.streams.rate_stream import RateStream
from waterclock.columnar.streams.waiting_chunks import read_chunk, write_chunk
from waterclock.errors import WaterclockError
from waterclock.message import Message, Position
from waterclock.spark.streaming.batch_rows import messages_in

_METADATA = ["source", "stream", "event_time", "receive_time", "ledger", "entry", "index"]
_MS = 1_000_000
_RULE = EventTimeRule.checked("50ms", "20ms", 0, "replace")
_OPTIONS = RateOptions.checked("1s", None, gated=True)


@dataclass(frozen=True)
class Form:
    """One form.

    Attributes
    ----------
    samples
        Bytes that are written so.
    read
        Reads bytes, uses what came of them, and describes it.
    guarded
        It has a checksum: what is read is what was written.
    """

    samples: list[bytes]
    read: Callable[[bytes], object]
    guarded: bool = True


def flow(count: int, step: int = 7 * _MS) -> list[Message]:
    return [
        Message(
            "press-01",
            ("load", "speed", "öl")[k % 3],
            k * step,
            bytes(range(k % 50)) * (k % 4),
            publish_time=k * step,
            receive_time=k * step + _MS,
            headers={"unit": "°C"} if k % 5 else None,
            position=Position(k // 100, k // 10 % 10, k % 10),
        )
        for k in range(count)
    ]


def batches() -> list[Batch]:
    return [
        Batch("press-01", 0, 50, 70, "timeout", tuple(flow(5))),
        Batch("press-01", 0, 50, 70, "timeout", tuple(flow(6))),
        Batch("öl", -5, 2**63 - 1, 2**63 - 1, "conflict", tuple(flow(200))),
        Batch("empty", 0, 1, 2, "gap", ()),
    ]


def _event_time_states() -> list[bytes]:
    states: list[bytes] = []
    for count, streams in ((1, None), (40, ["load", "speed", "öl"]), (41, None)):
        batcher = EventTimeBatcher("50ms", "100ms", on_conflict="replace", streams=streams)
        for message in flow(count):
            batcher.add(message)
        batcher.add(flow(1)[0])
        states.append(batcher.state())
    return [EventTimeBatcher("1s", "1s").state(), *states]


def _read_event_time(data: bytes) -> object:
    batcher = EventTimeBatcher.restore(data)
    state = batcher.state()
    batcher.add(Message(batcher._source or "press-01", "load", 10**12, receive_time=10**12))
    return state, batcher.flush(), batcher.take_rejected()


def _id_of(message: Message) -> int:
    return message.event_time // (30 * _MS)


def _id_states() -> list[bytes]:
    states: list[bytes] = []
    for count, streams in ((0, None), (1, None), (40, ["load", "speed", "öl"])):
        batcher = IdBatcher(_id_of, max_delay="100ms", streams=streams)
        for message in flow(count):
            batcher.add(message)
        batcher.add(flow(1)[0])  # is late or a duplicate
        states.append(batcher.state())
    return states


def _read_id(data: bytes) -> object:
    batcher = IdBatcher.restore(data, _id_of)
    return batcher.state(), batcher.flush(), batcher.take_rejected()


def _still() -> float:
    return 0.0


def _calls() -> list[list[Message]]:
    return [flow(30, 30 * _MS)[k : k + 3] for k in range(0, 30, 3)] + [[flow(1)[0].replace(event_time=3 * 10**9)]]


def _rate_states() -> list[bytes]:
    states: list[bytes] = []
    for count, gated in ((0, True), (1, ["load"]), (11, True)):
        batcher = RateAwareBatcher(gated=gated, clock=_still)
        for call in _calls()[:count]:
            batcher.add(call)
        states.append(batcher.state())
    return states


def _read_rate(data: bytes) -> object:
    batcher = RateAwareBatcher.restore(data, clock=_still)
    return batcher.state(), batcher.flush()


def _rate_columns() -> list[bytes]:
    states: list[bytes] = []
    for count in (0, 3, 11):
        columns = RateAwareColumns(["load", "speed", "öl"])
        calls = _calls()[:count]
        times = np.array([m.event_time for call in calls for m in call], np.int64)
        bounds = np.cumsum([0, *map(len, calls)])
        columns.add(np.arange(len(times)) % 3, times, bounds)
        states.append(columns.state())
    return states


def _read_columns(data: bytes) -> object:
    return RateAwareColumns.restore(data).state()


def _packed(messages: list[Message]) -> list[pa.RecordBatch]:
    (rows,) = pack([to_arrow(messages, positions=True).select(_METADATA)], POSITIONED)
    return [rows.select(ROWS.names).cast(ROWS)]


def _many(messages: list[Message]) -> ManySources:
    return from_packed(pa.Table.from_batches(_packed(messages)), POSITIONED) if messages else nothing(POSITIONED)


def _event_time_streams() -> list[bytes]:
    states: list[bytes] = []
    for count in (0, 20, 21):
        stream = EventTimeStream(_RULE, POSITIONED)
        stream.take(_many(flow(count)), 1)
        states.append(stream.state())
    return states


@cache
def _three() -> ManySources:
    return _many(flow(3))


def _read_event_time_stream(data: bytes) -> object:
    stream = EventTimeStream.restore(data, _RULE, POSITIONED)
    state = stream.state()
    stream.take(_three(), 5)
    return state


def _read_chunk(data: bytes) -> object:
    return read_chunk(data, POSITIONED).to_cell()


def _rate_streams() -> list[bytes]:
    states: list[bytes] = []
    for count in (0, 20, 21):
        stream = RateStream(_OPTIONS)
        stream.take(_many(flow(count, 30 * _MS)))
        states.append(stream.state())
    return states


def _read_rate_stream(data: bytes) -> object:
    return RateStream.restore(data, _OPTIONS).state()


_IDS = IdRule.checked("pulse", "100ms", ["load", "speed"])


def _id_streams() -> list[bytes]:
    states: list[bytes] = []
    for size in (0, 20, 21):
        stream = IdStream(_IDS)
        stream.take(_numbered(size), 0)
        states.append(stream.state())
    return states


def _numbered(size: int) -> ManySources:
    messages = [message.replace(headers={"pulse": str(n // 4 * 2)}) for n, message in enumerate(flow(size))]
    rows = to_arrow(messages, positions=True).select([*_METADATA, "headers"])
    packed = list(pack([with_numbers(rows, "pulse")], NUMBERED))
    return (
        from_packed(pa.Table.from_batches(packed).select(ROWS.names).cast(ROWS), NUMBERED)
        if size
        else nothing(NUMBERED)
    )


def _read_id_stream(data: bytes) -> object:
    stream = IdStream.restore(data, _IDS)
    state = stream.state()
    stream.take(nothing(NUMBERED), 10**9)
    return state


@cache
def _packed_row() -> tuple[list[str], int, bytes]:
    (row,) = _packed(flow(20))[0].to_pylist()
    return row["streams"], row["count"], row["messages"]


def _read_packed(data: bytes) -> object:
    streams, count, _ = _packed_row()
    names = ["source", "streams", "count", "messages"]
    arrays = [pa.array([value], kind) for value, kind in zip(("press-01", streams, count, data), _ROW, strict=True)]
    rows = pa.record_batch(arrays, names)
    ways: list[Callable[[], object]] = [
        lambda: from_packed(pa.table(rows), POSITIONED).to_cell(),
        lambda: messages_in(rows, None).num_rows,
        lambda: pa.Table.from_batches(judge([rows], POSITIONED, _RULE)).num_rows,
    ]
    refused: list[WaterclockError] = []
    found: list[object] = []
    for way in ways:
        try:
            found.append(way())
        except WaterclockError as error:
            refused.append(error)
    if refused:
        assert not found, "what one way refuses, all do"
        raise refused[0]
    return found


_ROW = (pa.string(), pa.list_(pa.string()), pa.int32(), pa.binary())


FORMS: dict[str, Callable[[], Form]] = {
    "batch": lambda: Form([batch.to_bytes() for batch in batches()], Batch.from_bytes),
    "event-time batcher": lambda: Form(_event_time_states(), _read_event_time),
    "id batcher": lambda: Form(_id_states(), _read_id),
    "rate-aware batcher": lambda: Form(_rate_states(), _read_rate),
    "rate-aware columns": lambda: Form(_rate_columns(), _read_columns),
    "event-time stream": lambda: Form(_event_time_streams(), _read_event_time_stream),
    "waiting chunk": lambda: Form([write_chunk(_many(flow(count))) for count in (1, 20)], _read_chunk),
    "id stream": lambda: Form(_id_streams(), _read_id_stream),
    "rate stream": lambda: Form(_rate_streams(), _read_rate_stream),
    "packed row": lambda: Form([_packed_row()[2]], _read_packed, guarded=False),
}
"""Made when they are asked for, because some compile code."""
