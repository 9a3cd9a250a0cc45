"""What a worker has done so far, counted for logs and metrics."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields


@dataclass
class Counts:
    """How many messages a worker has done what with. Those of one worker are changed under its `WorkCounts`'s lock.

    Attributes
    ----------
    done
        Handled and acked.
    failed
        Given back with their back-off, or dead, because of their handler.
    snoozed
        Given back for later, uncounted, because their handler wished it.
    dead
        Moved to the dead-letter table because their handler wished it.
    discarded
        Acked unhandled, because their handler wished it.
    timed_out
        Of those that failed, whose handler took too long.
    lost
        Handled in vain: another consumer has them, or they were acked elsewhere.
    given_back
        Given back unhandled, or unfinished as the worker stopped; uncounted.
    stuck
        Handlers that went on after their time was up, and whose slot was replaced.
    replaced
        Processes that died, or were ended, and were replaced.
    """

    done: int = 0
    failed: int = 0
    snoozed: int = 0
    dead: int = 0
    discarded: int = 0
    timed_out: int = 0
    lost: int = 0
    given_back: int = 0
    stuck: int = 0
    replaced: int = 0


class WorkCounts:
    """Counts for one worker. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counts()

    def note(self, what: str, count: int = 1) -> None:
        """Count so many more."""
        with self._lock:
            setattr(self._counts, what, getattr(self._counts, what) + count)

    def now(self) -> Counts:
        """Give the counts as they are."""
        with self._lock:
            return Counts(**{each.name: getattr(self._counts, each.name) for each in fields(Counts)})
