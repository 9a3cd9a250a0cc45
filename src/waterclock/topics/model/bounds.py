"""The time bounds of a part of a topic: its smallest and largest times, and the largest time up to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import pyarrow as pa
import pyarrow.compute as pc

from waterclock.database.schema.topic_catalogue import BOUNDED, TIMES
from waterclock.message import Message


@dataclass(frozen=True, slots=True)
class Bounds:
    """The time bounds of some messages."""

    begin: Mapping[str, int]  # smallest event_time, publish_time and receive_time, ns
    end: Mapping[str, int]  # largest of those, and of effective_time, the smaller of publish_time and receive_time, ns

    @classmethod
    def of_messages(cls, batch: pa.RecordBatch | pa.Table) -> Self:
        """Measure at least one message; publish_time and receive_time must be filled in."""
        extremes = {time: pc.call_function("min_max", [batch.column(time)]) for time in TIMES}
        end = {time: extremes[time]["max"].as_py() for time in TIMES}
        end["effective_time"] = pc.call_function("max", [effective_time(batch)]).as_py()
        return cls({time: extremes[time]["min"].as_py() for time in TIMES}, end)

    @classmethod
    def of_few(cls, messages: Sequence[Message]) -> Self:
        """Measure at least one message, one by one; publish_time and receive_time must be filled in."""
        event = [message.event_time for message in messages]
        publish = [cast("int", message.publish_time) for message in messages]
        receive = [cast("int", message.receive_time) for message in messages]
        begin = {"event_time": min(event), "publish_time": min(publish), "receive_time": min(receive)}
        end = {"event_time": max(event), "publish_time": max(publish), "receive_time": max(receive)}
        end["effective_time"] = max(map(min, publish, receive))
        return cls(begin, end)

    @classmethod
    def of_row(cls, row: Mapping[Any, Any]) -> Self | None:
        """Read bounds from a catalogue row; None if it has none, or lacks one of them."""
        return cls.of_values([*(row[f"begin_{time}"] for time in TIMES), *(row[f"end_{time}"] for time in BOUNDED)])

    @classmethod
    def of_values(cls, values: Sequence[int | None]) -> Self | None:
        """Take the values of ``begin_*`` and ``end_*`` in the catalogue's order; None if one is missing."""
        if None in values:
            return None
        known = cast("Sequence[int]", values)
        return cls(dict(zip(TIMES, known, strict=False)), dict(zip(BOUNDED, known[len(TIMES) :], strict=True)))

    def joined(self, other: Bounds | None) -> Bounds:
        """Bound the messages of both."""
        if other is None:
            return self
        return Bounds(
            {time: min(value, other.begin[time]) for time, value in self.begin.items()},
            {time: max(value, other.end[time]) for time, value in self.end.items()},
        )

    def columns(self) -> dict[str, int]:
        """Name the values as the catalogue does."""
        columns = {f"begin_{time}": value for time, value in self.begin.items()}
        columns.update((f"end_{time}", value) for time, value in self.end.items())
        return columns


def raised(peak: Mapping[str, int] | None, end: Mapping[str, int]) -> Mapping[str, int]:
    """Extend a running maximum by a piece whose largest times are ``end``."""
    return end if peak is None else {time: max(value, peak[time]) for time, value in end.items()}


def peak_of_row(row: Mapping[Any, Any]) -> Mapping[str, int] | None:
    """Read a running maximum from a catalogue row; None if nothing came before."""
    peak = {time: row[f"peak_{time}"] for time in BOUNDED}
    return None if None in peak.values() else peak


def peak_columns(peak: Mapping[str, int] | None) -> dict[str, int | None]:
    """Name a running maximum as the catalogue does."""
    return {f"peak_{time}": None if peak is None else peak[time] for time in BOUNDED}


def effective_time(batch: pa.RecordBatch | pa.Table) -> pa.ChunkedArray | pa.Array:
    """Return the time by which messages expire. A producer whose clock is ahead must not keep them forever."""
    return pc.call_function("min_element_wise", [batch.column("publish_time"), batch.column("receive_time")])


def time_column(batch: pa.RecordBatch | pa.Table, time: str) -> pa.ChunkedArray | pa.Array:
    """Return one of the bounded times of some messages."""
    return effective_time(batch) if time == "effective_time" else batch.column(time)
