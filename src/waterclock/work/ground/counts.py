"""The counters of a worker, for logs and metrics."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from waterclock.tables.consumers.delivery import Delivery


@dataclass
class Counts:
    """The number of messages by outcome. A running worker's are changed under the lock of its `WorkCounts`.

    Attributes
    ----------
    done
        Handled and acked.
    failed
        Given back with their back-off, or dead, because their handler raised.
    snoozed
        Given back for later without counting an attempt, because their handler raised `Snooze`.
    dead
        Moved to the dead-letter table because their handler raised `DeadLetter`.
    discarded
        Acked unhandled, because their handler raised `Discard`.
    timed_out
        Failed because their handler took too long; included in ``failed``.
    lost
        Handled, but the lease was lost: another consumer has them, or they were acked elsewhere.
    given_back
        Given back unhandled or unfinished when the worker stopped, without counting an attempt.
    stuck
        Handlers that still ran after their time limit, and whose slot was replaced.
    replaced
        Processes that died or were killed, and were replaced.
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


class Observer(Protocol):
    """Measures a worker, message by message. Called from any of its threads."""

    def note_outcome(self, delivery: Delivery, outcome: str) -> None:
        """Note the outcome of a message, by its name in `Counts`."""
        ...

    def note_handled(self, delivery: Delivery, seconds: float) -> None:
        """Note how long a handler took."""
        ...

    def note_claim(self, table: str, seconds: float, count: int) -> None:
        """Note how long a claim took, and how many messages it returned."""
        ...


class WorkCounts:
    """Counters of one worker. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counts()
        self.observer: Observer | None = None  # measures each message, too; None: nothing is measured

    def note(self, what: str, *deliveries: Delivery) -> None:
        """Count messages with an outcome."""
        self.add(what, len(deliveries))
        if self.observer is not None:
            for delivery in deliveries:
                self.observer.note_outcome(delivery, what)

    def add(self, what: str, count: int = 1) -> None:
        """Count events other than outcomes of messages, and those that are included in another count."""
        with self._lock:
            setattr(self._counts, what, getattr(self._counts, what) + count)

    def now(self) -> Counts:
        with self._lock:
            return Counts(**{each.name: getattr(self._counts, each.name) for each in fields(Counts)})
