"""Provides the monotonic clock and all waits, so that a test can control time.

All durations and waits use this module; the times of events come from a database's clock. A test replaces the clock for
the whole process (`replaced`). The test then decides when time passes, when a wait returns, and which thread runs next.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Collection, Generator
from contextlib import AbstractContextManager, contextmanager

_SECOND = 1_000_000_000


class Moments:
    """The machine's own clock and waits. Tests subclass it."""

    def monotonic_ns(self) -> int:
        """Return the time of a clock that is never set back, ns."""
        return time.monotonic_ns()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, changed: threading.Condition | threading.Event, seconds: float | None) -> bool:
        """Wait until another thread notifies or sets it, at most so long; return whether it did."""
        return changed.wait(seconds)

    def acquire(self, lock: threading.Lock, seconds: float) -> bool:
        """Wait for a lock, at most so long, -1: forever; return whether this thread has it."""
        return lock.acquire(timeout=seconds)

    def holding(self, lock: threading.Lock | threading.RLock) -> AbstractContextManager[object]:
        """Return a context manager that holds a lock: the lock itself, because only it is safe from signal handlers.

        If a handler raises an exception between the calls of a longer one, the lock stays locked.
        """
        return lock

    def poll(self, descriptors: Collection[int], seconds: float) -> set[int]:
        """Wait until one of the descriptors is readable, at most so long; return the readable ones."""
        poll = select.poll()  # unlike select(), it takes any descriptor
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        return {descriptor for descriptor, _ in poll.poll(max(0.0, seconds) * 1000)}

    def start(self, thread: threading.Thread) -> None:
        thread.start()

    def join(self, thread: threading.Thread, seconds: float | None) -> None:
        thread.join(seconds)


_moments = Moments()
_read_ns = time.monotonic_ns  # that of `_moments`, without a call in between: a claim and an ack read it a dozen times


@contextmanager
def replaced(stand_in: Moments) -> Generator[None]:
    """Replace this process's clock and waits until the block ends: for tests and simulations."""
    global _moments, _read_ns  # the clock is that of the whole process
    before = _moments, _read_ns
    _moments, _read_ns = stand_in, stand_in.monotonic_ns
    try:
        yield
    finally:
        _moments, _read_ns = before


def monotonic_ns() -> int:
    """Return the monotonic time, ns: for durations, not dates."""
    return _read_ns()


def monotonic() -> float:
    """Return the monotonic time in seconds: for durations, not dates."""
    return _read_ns() / _SECOND


def sleep(seconds: float) -> None:
    _moments.sleep(seconds)


def wait(changed: threading.Condition | threading.Event, seconds: float | None = None) -> bool:
    """Wait until another thread notifies or sets it, at most so long; return whether it did."""
    return _moments.wait(changed, seconds)


def wait_for(changed: threading.Condition, comes_true: Callable[[], object]) -> None:
    """Wait, holding the condition's lock, until a predicate is true that other threads notify about."""
    while not comes_true():
        _moments.wait(changed, None)


def acquire(lock: threading.Lock, seconds: float = -1) -> bool:
    """Wait for a lock, at most so long, -1: forever; return whether this thread has it."""
    return _moments.acquire(lock, seconds)


def holding(lock: threading.Lock | threading.RLock) -> AbstractContextManager[object]:
    """Hold a lock whose holder may query a database, so that the wait for it may be long."""
    return _moments.holding(lock)


def poll(descriptors: Collection[int], seconds: float) -> set[int]:
    """Wait until one of the descriptors is readable, at most so long; return the readable ones."""
    return _moments.poll(descriptors, seconds)


def start(thread: threading.Thread) -> None:
    _moments.start(thread)


def join(thread: threading.Thread, seconds: float | None = None) -> None:
    _moments.join(thread, seconds)
