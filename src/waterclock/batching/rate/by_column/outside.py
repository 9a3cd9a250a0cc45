"""Counts messages outside their windows, and finds the clock offsets of batches, for whole columns.

The results equal the results of `RateAwareBatcher`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def count_outside(
    starts: Ints,
    ends: Ints,
    windows: npt.NDArray[np.bool_],
    offsets: Ints,
    streams: npt.NDArray[np.integer],
    times: Ints,
) -> Ints:
    """Count how many messages of each batch lie outside its window, as `waterclock.batching.outside` does.

    Parameters
    ----------
    starts, ends
        Of the batches, ns.
    windows
        Which batches have a window; first batches have none.
    offsets
        Batch k holds the messages ``offsets[k]`` to ``offsets[k + 1]``.
    streams, times
        Number of the stream and event time (ns) of each message.
    """
    batches = np.repeat(np.arange(len(starts)), np.diff(offsets))
    beyond = ((times < starts[batches]) | (times > ends[batches])) & windows[batches]
    some = np.flatnonzero(np.bincount(batches[beyond], minlength=len(starts))[batches])
    order = some[np.lexsort((times[some], streams[some], batches[some]))]
    batch, stream, time, beyond = batches[order], streams[order], times[order], beyond[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (np.diff(batch) != 0) | (np.diff(stream) != 0)
    differs = begins.copy()
    differs[1:] |= time[1:] != time[:-1]
    pair = np.cumsum(begins) - 1
    different = np.bincount(pair[differs])[pair]
    start, end = starts[batch], ends[batch]
    # Unsigned, since distances may exceed the largest signed number.
    distance = np.where(
        time < start, start.view(np.uint64) - time.view(np.uint64), time.view(np.uint64) - end.view(np.uint64)
    )
    outside = beyond & (distance > ((end - start) // (2 * different)).astype(np.uint64))
    return np.bincount(batch[outside], minlength=len(starts))


def latest_of_streams(batches: Ints, streams: npt.NDArray[np.integer], times: Ints, offsets: Ints) -> tuple[Ints, Ints]:
    """Find the latest message of each stream in each batch: its offset is that of the batch.

    Returns the places of the latest messages, by batch and stream; and for each message the number of its pair.

    Parameters
    ----------
    batches, streams, times, offsets
        Of each message: its batch, its stream, its aligned time and the offset that was added, ns. The latest is the
        one with the greatest time, and of these with the greatest offset.
    """
    order = np.lexsort((offsets, times, streams, batches))
    ends = np.ones(len(order), np.bool_)
    ends[:-1] = (np.diff(batches[order]) != 0) | (np.diff(streams[order]) != 0)
    pair = np.empty(len(order), np.int64)
    pair[order] = np.cumsum(ends) - ends
    return order[ends], pair
