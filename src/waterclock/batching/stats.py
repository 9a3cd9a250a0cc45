"""The statistics of a batcher."""

from __future__ import annotations

from typing import NamedTuple

from waterclock.batching.outside import OutsideCounts
from waterclock.batching.stream_clocks import StreamClock


class BatcherStats(NamedTuple):
    """The state of a batcher.

    Attributes
    ----------
    source
        The source of its messages; None before the first.
    clock
        Its clock, ns; None if it has not begun. By event time, the receive clock: the earliest receive time that it
        still accepts. By rate, the high-water mark.
    ahead
        How far the clock was ahead of the newest arrival, ns; 0 if that one moved it, and after ``restore``. If it far
        exceeds the messages' disorder, one message with a wrong clock makes the good ones late: ``reset`` is the
        remedy.
    buffered
        How many messages are in no batch yet.
    outside
        By rate, how many messages lay outside the window of their batch, by stream, since the batcher was created or
        restored; see ``Batch.outside``. At most 1,000 streams are counted.
    streams
        By rate, how the clock of each stream differs from the receive clock, and how late and disordered it arrives,
        from batches of the last 30 s; at most 1,000 streams.
    """

    source: str | None
    clock: int | None
    ahead: int
    buffered: int
    outside: dict[str, OutsideCounts]
    streams: dict[str, StreamClock]
