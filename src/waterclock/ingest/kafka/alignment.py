"""Orders the records of several partitions by time while some of them are behind. Does no I/O.

A consumer that catches up gets a long piece of one partition, then a long piece of another. If the pieces were appended
in this order, a batcher's clock would pass the end of windows before the messages of later partitions arrive. So each
record waits until every partition that is behind has a record with an equal or later time. A partition is behind until
the ingest has reached its end for the first time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from waterclock.ingest.kafka.partition import Arrived, Partition

MOST_BYTES = 2 << 20
"""Maximum bytes of records that wait for others."""

MOST_WAITING = 2_000
"""Maximum records that wait for others; each takes a kilobyte in addition to its content."""

PATIENCE = 10.0
"""Seconds after which others no longer wait for a silent partition, such as one without a leader."""


@dataclass
class _Queue:
    heard_at: float
    is_behind: bool = True
    newest: int = 0
    bytes: int = 0
    waiting: deque[tuple[int, Arrived]] = field(default_factory=deque[tuple[int, Arrived]])


class Alignment:
    """Records that wait for those of other partitions.

    Parameters
    ----------
    most_bytes, most_waiting
        The limits of all partitions together.
    """

    def __init__(self, most_bytes: int = MOST_BYTES, most_waiting: int = MOST_WAITING) -> None:
        self._most_bytes = most_bytes
        self._most_waiting = most_waiting
        self._queues: dict[Partition, _Queue] = {}

    def track(self, partition: Partition, now: float) -> None:
        """Add a partition, which counts as behind."""
        self._queues[partition] = _Queue(now)

    def forget(self, partition: Partition) -> None:
        """Drop a partition and its records."""
        self._queues.pop(partition, None)

    def add(self, arrived: Arrived, now: float) -> None:
        """Add a record, or the end of a partition."""
        queue = self._queues[arrived.partition]
        queue.heard_at = now
        queue.newest = max(queue.newest, arrived.record.time or 0)
        queue.bytes += arrived.size
        queue.waiting.append((queue.newest, arrived))
        if arrived.is_end:
            queue.is_behind = False

    def end(self, partition: Partition) -> None:
        """Wait no longer for a partition, because no more of its records come for now."""
        self._queues[partition].is_behind = False

    def take(self, now: float) -> list[Arrived]:
        """Remove and return the records that need not wait, in the order of their times."""
        taken: list[Arrived] = []
        waiting = {partition: queue for partition, queue in self._queues.items() if queue.waiting}
        behind = [queue for queue in self._queues.values() if queue.is_behind]
        for queue in behind:
            if not queue.waiting and now - queue.heard_at > PATIENCE:
                queue.is_behind = False
        if not behind and len(waiting) == 1:
            [queue] = waiting.values()
            return self._drained(queue)
        while waiting and not any(queue.is_behind and not queue.waiting for queue in self._queues.values()):
            first = min(waiting, key=lambda each: waiting[each].waiting[0][0])
            queue = waiting[first]
            limit = min((each.waiting[0][0] for key, each in waiting.items() if key is not first), default=None)
            while queue.waiting and (limit is None or queue.waiting[0][0] <= limit):
                arrived = queue.waiting.popleft()[1]
                queue.bytes -= arrived.size
                taken.append(arrived)
            if not queue.waiting:
                del waiting[first]
        return taken

    def full(self) -> set[Partition]:
        """Return the partitions that should send no more for now."""
        count = max(1, len(self._queues))
        return {
            partition
            for partition, queue in self._queues.items()
            if queue.bytes > self._most_bytes // count or len(queue.waiting) > self._most_waiting // count
        }

    def behind(self) -> Iterable[Partition]:
        """Return the partitions whose ends have not been seen."""
        return [partition for partition, queue in self._queues.items() if queue.is_behind]

    @staticmethod
    def _drained(queue: _Queue) -> list[Arrived]:
        taken = [arrived for _, arrived in queue.waiting]
        queue.waiting.clear()
        queue.bytes = 0
        return taken
