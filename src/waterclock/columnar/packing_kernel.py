"""The kernel that packs messages into records. Numba compiles it.

A record is treated as little-endian numbers of four bytes. NumPy would fill the records field by field, and then copy
them. Each of these passes would touch more memory than the processor's cache holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from waterclock.batching.kernels import numba_for

njit, types = numba_for(__name__)

Times = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]
"""Records, one per row."""

EVENT_TIME, RECEIVE_TIME, STREAM, LEDGER, ENTRY, INDEX = 0, 2, 4, 5, 7, 9
"""Offsets of the fields of a record, in numbers of four bytes."""

FIELDS = np.array([EVENT_TIME, RECEIVE_TIME, STREAM, LEDGER, ENTRY, INDEX])
IS_WIDE = np.array([True, True, False, True, True, False])
"""Which of these fields have eight bytes."""

RECORD_BYTES = 40
HEADER_BYTES = RECORD_BYTES + 6
"""Bytes of the header of a cell of differences: its first record, and a width for each field."""

WIDEST = 8
MOST_IN_A_CELL = 2**16
"""Maximum messages in a cell of differences: equal ones take no bytes, so the cell's size does not limit memory."""

_times_in = types.Array(types.int64, 1, "C", readonly=True)
_codes_in = types.Array(types.uint32, 1, "C", readonly=True)
_indices_in = types.Array(types.int32, 1, "C", readonly=True)
_times_out = types.Array(types.int64, 1, "C")
_codes_out = types.Array(types.uint32, 1, "C")
_words_in = types.Array(types.uint32, 2, "C", readonly=True)
_words_out = types.Array(types.uint32, 2, "C")

_bytes_in = types.Array(types.uint8, 1, "C", readonly=True)
_bytes_out = types.Array(types.uint8, 1, "C")
_widths_in = types.Array(types.uint8, 2, "C", readonly=True)
_widths_out = types.Array(types.uint8, 2, "C")

_inlined = njit(inline="always")


@_inlined
def _put(words: Words, row: Any, at: int, value: Any) -> None:
    words[row, at] = np.uint32(value)
    words[row, at + 1] = np.uint32(value >> 32)


@_inlined
def _get(words: Words, row: Any, at: int) -> Any:
    return (np.int64(words[row, at + 1]) << 32) | np.int64(words[row, at])


@njit(
    types.void(_codes_in, _times_out, _times_in, _times_in, _codes_in, _times_in, _times_in, _indices_in, _words_out),
    cache=True,
    nogil=True,
)
def scatter(
    sources: Codes,
    places: Times,
    event_times: Times,
    receive_times: Times,
    streams: Codes,
    ledgers: Times,
    entries: Times,
    indices: npt.NDArray[np.int32],
    words: Words,
) -> None:
    """Write messages as records, each to the next place of its source.

    Records without positions have no ledgers, entries and indices. ``places`` are advanced.
    """
    positioned = words.shape[1] > LEDGER
    for row in range(sources.size):
        place = places[sources[row]]
        places[sources[row]] = place + 1
        _put(words, place, EVENT_TIME, event_times[row])
        _put(words, place, RECEIVE_TIME, receive_times[row])
        words[place, STREAM] = streams[row]
        if positioned:
            _put(words, place, LEDGER, ledgers[row])
            _put(words, place, ENTRY, entries[row])
            words[place, INDEX] = indices[row]


@njit(types.boolean(_times_in, _times_in, _indices_in), cache=True, nogil=True)
def is_ascending(ledgers: Times, entries: Times, indices: npt.NDArray[np.int32]) -> bool:
    """Return whether messages are already in order of position, as those of a topic are."""
    for row in range(1, ledgers.size):
        if ledgers[row] != ledgers[row - 1]:
            if ledgers[row] < ledgers[row - 1]:
                return False
        elif entries[row] != entries[row - 1]:
            if entries[row] < entries[row - 1]:
                return False
        elif indices[row] < indices[row - 1]:
            return False
    return True


@njit(types.boolean(_codes_in, _words_in), cache=True, nogil=True)
def is_in_order(sources: Codes, words: Words) -> bool:
    """Return whether records with positions are already in order of source and position."""
    for row in range(1, sources.size):
        if sources[row] != sources[row - 1]:
            if sources[row] < sources[row - 1]:
                return False
            continue
        ledger, before = _get(words, row, LEDGER), _get(words, row - 1, LEDGER)
        if ledger == before:
            ledger, before = _get(words, row, ENTRY), _get(words, row - 1, ENTRY)
            if ledger == before:
                ledger, before = np.int64(np.int32(words[row, INDEX])), np.int64(np.int32(words[row - 1, INDEX]))
        if ledger < before:
            return False
    return True


@_inlined
def _value(words: Words, row: Any, at: Any, is_wide: Any) -> Any:
    if is_wide:
        return _get(words, row, at)
    return np.int64(words[row, at])


@_inlined
def _unsigned(difference: Any) -> Any:
    """Map differences near zero, of either sign, to small numbers."""
    return np.uint64((difference << 1) ^ (difference >> 63))


@_inlined
def _signed(number: Any) -> Any:
    return np.int64(number >> np.uint64(1)) ^ -np.int64(number & np.uint64(1))


@_inlined
def _measured(words: Words, first: Any, stop: Any, at: Any, is_wide: Any) -> Any:
    met = np.uint64(0)
    before = _value(words, first, at, is_wide)
    for row in range(first + 1, stop):
        value = _value(words, row, at, is_wide)
        met |= _unsigned(value - before)
        before = value
    return met


@njit(types.void(_words_in, _times_in, _widths_out), cache=True, nogil=True)
def measure(words: Words, bounds: Times, widths: Bytes) -> None:
    """Measure the bytes of each cell's differences, by field; cells begin and end at ``bounds``."""
    for cell in range(bounds.size - 1):
        for field in range(FIELDS.size):
            at = FIELDS[field]
            if IS_WIDE[field]:
                met = _measured(words, bounds[cell], bounds[cell + 1], at, True)
            else:
                met = _measured(words, bounds[cell], bounds[cell + 1], at, False)
            width = 0
            while met:
                met >>= np.uint64(8)
                width += 1
            widths[cell, field] = width


@_inlined
def _written(words: Words, first: Any, stop: Any, at: Any, is_wide: Any, data: Any, place: Any, width: Any) -> None:
    before = _value(words, first, at, is_wide)
    for row in range(first + 1, stop):
        value = _value(words, row, at, is_wide)
        number = _unsigned(value - before)
        before = value
        for byte in range(width):
            data[place + byte] = (number >> np.uint64(8 * byte)) & np.uint64(255)
        place += width


@njit(types.void(_words_in, _times_in, _widths_in, _times_in, _bytes_out), cache=True, nogil=True)
def write_differences(words: Words, bounds: Times, widths: Bytes, places: Times, data: Bytes) -> None:
    """Write cells of differences, each to its place."""
    for cell in range(bounds.size - 1):
        place, first, stop = places[cell], bounds[cell], bounds[cell + 1]
        for word in range(RECORD_BYTES // 4):
            for byte in range(4):
                data[place] = (words[first, word] >> np.uint32(8 * byte)) & np.uint32(255)
                place += 1
        for field in range(FIELDS.size):
            data[place] = widths[cell, field]
            place += 1
        for field in range(FIELDS.size):
            at, width = FIELDS[field], np.int64(widths[cell, field])
            if not width:
                continue
            if IS_WIDE[field]:
                _written(words, first, stop, at, True, data, place, width)
            else:
                _written(words, first, stop, at, False, data, place, width)
            place += width * (stop - first - 1)


@_inlined
def _read(words: Words, first: Any, stop: Any, at: Any, is_wide: Any, data: Any, place: Any, width: Any) -> None:
    value = _value(words, first, at, is_wide)
    for row in range(first + 1, stop):
        number = np.uint64(0)
        for byte in range(width):
            number |= np.uint64(data[place + byte]) << np.uint64(8 * byte)
        place += width
        value += _signed(number)
        if is_wide:
            _put(words, row, at, value)
        else:
            words[row, at] = np.uint32(value)


@njit(types.boolean(_bytes_in, _times_in, _times_in), cache=True, nogil=True)
def are_whole(data: Bytes, bounds: Times, counts: Times) -> bool:
    """Return whether the lengths of cells, at ``bounds``, fit their counts of messages, as records or differences."""
    for cell in range(counts.size):
        place, count, length = bounds[cell], counts[cell], bounds[cell + 1] - bounds[cell]
        if length % 2 == 0:
            if length != count * RECORD_BYTES:
                return False
            continue
        if count < 1 or count > MOST_IN_A_CELL or length < HEADER_BYTES:
            return False
        total = 0
        for field in range(FIELDS.size):
            width = np.int64(data[place + RECORD_BYTES + field])
            if width > WIDEST:
                return False
            total += width
        if (HEADER_BYTES + total * (count - 1)) | 1 != length:
            return False
    return True


@njit(types.void(_bytes_in, _times_in, _times_in, _words_out), cache=True, nogil=True)
def read_cells(data: Bytes, bounds: Times, counts: Times, words: Words) -> None:
    """Read valid cells, of records and of differences, as consecutive records."""
    row = 0
    for cell in range(counts.size):
        place, stop, length = bounds[cell], row + counts[cell], bounds[cell + 1] - bounds[cell]
        in_full = 1 if length % 2 else counts[cell]
        for record in range(row, row + in_full):
            for word in range(RECORD_BYTES // 4):
                value = np.uint32(0)
                for byte in range(4):
                    value |= np.uint32(data[place + byte]) << np.uint32(8 * byte)
                words[record, word] = value
                place += 4
        if length % 2:
            widths = data[place : place + FIELDS.size]
            place += FIELDS.size
            for field in range(FIELDS.size):
                at, width = FIELDS[field], np.int64(widths[field])
                if IS_WIDE[field]:
                    _read(words, row, stop, at, True, data, place, width)
                else:
                    _read(words, row, stop, at, False, data, place, width)
                place += width * (counts[cell] - 1)
        row = stop
