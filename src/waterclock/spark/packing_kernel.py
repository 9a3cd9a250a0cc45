"""What packing does to every message, compiled with Numba. Everything that is compiled for it stands in this file.

`waterclock.batching.event_time.kernel` says why. A record is seen as numbers of four bytes, little-endian: NumPy would
fill it field by field and copy it once more, each time through memory that is too large for the processor to keep near.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, types

Times = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint32]
Words = npt.NDArray[np.uint32]
"""Records, one a row."""

EVENT_TIME, RECEIVE_TIME, STREAM, LEDGER, ENTRY, INDEX = 0, 2, 4, 5, 7, 9
"""Where the fields of a record begin, in numbers of four bytes."""

_times_in = types.Array(types.int64, 1, "C", readonly=True)
_codes_in = types.Array(types.uint32, 1, "C", readonly=True)
_indices_in = types.Array(types.int32, 1, "C", readonly=True)
_times_out = types.Array(types.int64, 1, "C")
_codes_out = types.Array(types.uint32, 1, "C")
_words_in = types.Array(types.uint32, 2, "C", readonly=True)
_words_out = types.Array(types.uint32, 2, "C")

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

    Records without positions have no ledgers, entries and indices. ``places`` move on.
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
    """Tell whether messages are in order of position already, as those of a topic are."""
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
    """Tell whether records with positions stand in order of source and position already."""
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
