"""Counts messages outside their windows over columns, as `waterclock.batching.outside.count_outside` does."""

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
    """Count how many messages of each batch lie outside its window.

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
