"""Keeps long-waiting messages out of the state that each micro-batch rewrites.

A window closes ``max_delay`` after its end. So a message is not needed until the receive clock is ``max_delay`` past
its event time. If the delay is long, nearly all messages wait for that time, and are stored in chunks. A chunk is
written once, and read when its first message is due.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.batching.facts import count, each, maybe, moment
from waterclock.checksum import framed, unframed
from waterclock.columnar.many_sources import ManySources, many_from_cell
from waterclock.columnar.streams.judged_rows import begins
from waterclock.errors import DamagedError
from waterclock.time import MIN_NS

MOST_RECENT = 4096
"""Maximum messages of a bucket that each micro-batch rewrites instead of writing a chunk: 200 kB."""

_MICRO_BATCHES = 4
"""A message that is needed earlier is not worth a chunk."""

_CELLS_OF_DELAY = (256, 16)
"""Event time is cut into cells of these fractions of ``max_delay``.

Messages go to a cell of the widest kind that has not begun, and to narrower ones when it begins, so each is written at
most three times, however long it waits.
"""

_FORM = b"WCW1"
_LENGTH_BYTES = 8

# 0.1 µs per message. RocksDB's own LZ4 leaves 17 of 44 bytes, and this 6 to 11.
_ZSTD = pa.Codec("zstd", compression_level=1)
_NAME = "a chunk of waiting messages"


class ChunkStore(Protocol):
    """The chunks by number: a part of the state, or a dict."""

    def get(self, number: int, /) -> bytes | None:
        """Read the chunk of a number; None if missing."""
        ...

    def __setitem__(self, number: int, chunk: bytes, /) -> None:
        """Write a chunk."""
        ...

    def __delitem__(self, number: int, /) -> None:
        """Delete a chunk."""
        ...


class WaitingChunk(NamedTuple):
    """A chunk of messages whose event times lie in one cell."""

    number: int  # its number in the store; chunks of one cell are numbered in the order in which they were written
    begin: int  # start of the cell, ns
    earliest: int  # the first of the event times, ns
    windows: int  # how many windows begin in it, according to the messages so far


class WaitingChunks:
    """The chunks of a bucket.

    Messages of one event time are never in two cells, because the kind of cell depends on which cells have begun, and a
    cell is read as a whole. So among equal messages the earliest stays first.
    """

    __slots__ = ("_advance", "_chunks", "_widths", "horizon")

    def __init__(self, max_delay: int, horizon: int | None = None, chunks: Iterable[WaitingChunk] = ()) -> None:
        self._widths = [max(max_delay // parts, 1) for parts in _CELLS_OF_DELAY]
        self._chunks = list(chunks)
        self._advance = 0
        self.horizon = horizon  # messages with event times up to it are needed, ns; None before the first

    def __bool__(self) -> bool:
        return bool(self._chunks)

    @property
    def earliest(self) -> int | None:
        """The first event time of all, ns; None without messages."""
        return min((chunk.earliest for chunk in self._chunks), default=None)

    @property
    def windows(self) -> int:
        """How many windows begin in the chunks."""
        return sum(chunk.windows for chunk in self._chunks)

    def facts(self) -> list[Any]:
        """Return the facts of the chunks in the state, for `of_facts`."""
        return [self.horizon, *map(list, self._chunks)]

    @classmethod
    def of_facts(cls, max_delay: int, facts: list[Any]) -> WaitingChunks:
        """Read what `facts` returned."""
        horizon, *chunks = each(facts, lambda value: value)
        return cls(max_delay, maybe(horizon, moment), [_chunk(*facts) for facts in chunks])

    def due(self, horizon: int, store: ChunkStore | None, record: np.dtype[Any]) -> Iterator[ManySources]:
        """Advance the horizon, and take the needed messages from the store.

        Raises `DamagedError` if a chunk is corrupt.
        """
        if self.horizon is not None:
            horizon = max(horizon, self.horizon)
            self._advance = horizon - self.horizon
        self.horizon = horizon
        due = [chunk for chunk in self._chunks if chunk.begin <= horizon]
        self._chunks = [chunk for chunk in self._chunks if chunk.begin > horizon]
        for chunk in due:
            if store is None or (data := store.get(chunk.number)) is None:
                raise DamagedError(f"{_NAME} is corrupt: chunk {chunk.number} is missing")
            yield read_chunk(data, record)
            del store[chunk.number]

    def waiting(self, event_times: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
        """Find messages that are worth chunks; none if there are few."""
        if self.horizon is None or not self._advance:
            return np.empty(0, np.intp)
        soon = self.horizon + max(_MICRO_BATCHES * self._advance, 2 * self._widths[0])
        found = np.flatnonzero(event_times > soon)
        return found if len(found) > MOST_RECENT else found[:0]

    def put(self, many: ManySources, begins_window: npt.NDArray[np.bool_], store: ChunkStore) -> None:
        """Write the messages that `waiting` found as chunks.

        Parameters
        ----------
        begins_window
            For each message, whether it is the first of a window.
        """
        times = np.ascontiguousarray(many.messages["event_time"])
        cells = self._cells(times)
        order = np.argsort(cells, kind="stable")
        firsts = np.flatnonzero(begins(cells[order]))
        number = 1 + max((chunk.number for chunk in self._chunks), default=-1)
        for part in np.split(order, firsts[1:]):
            some = many.take(part)
            met = np.flatnonzero(np.bincount(some.sources, minlength=len(some.source_names)))
            store[number] = write_chunk(some.of_sources(met))
            windows = int(np.count_nonzero(begins_window[part]))
            self._chunks.append(WaitingChunk(number, int(cells[part[0]]), int(times[part].min()), windows))
            number += 1

    def _cells(self, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Find the start of the cell of each event time: the widest that has not begun at the horizon."""
        horizon = MIN_NS if self.horizon is None else self.horizon
        cells = times
        for width in self._widths:
            begin = times - times % width
            fits = (begin > horizon) & (begin <= times)  # an underflow of int64 would wrap around
            cells = np.where(fits, begin, cells)
        return cells


def write_chunk(many: ManySources) -> bytes:
    """Write messages as a chunk."""
    cell = many.to_cell()
    return framed(_FORM, len(cell).to_bytes(_LENGTH_BYTES, "little"), _ZSTD.compress(cell, asbytes=True))


def read_chunk(chunk: bytes, record: np.dtype[Any]) -> ManySources:
    """Read the output of `write_chunk`.

    Raises `DamagedError` if it is something else.
    """
    body = unframed(_FORM, chunk, _NAME)
    length = int.from_bytes(body[:_LENGTH_BYTES], "little")
    return many_from_cell(memoryview(_ZSTD.decompress(body[_LENGTH_BYTES:], length)), record, _NAME)


def _chunk(number: object, begin: object, earliest: object, windows: object) -> WaitingChunk:
    return WaitingChunk(count(number), moment(begin), moment(earliest), count(windows))
