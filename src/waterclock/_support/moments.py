"""Moments: the seconds that pass, and every wait of ours. The one seam for a test that decides how time passes.

How long something took, and until when to wait, is asked here and nowhere else; *when* something happens is a question
to a database's clock. A test replaces the whole of it for the process (`replaced`), so that seconds pass only when it
says so, a wait returns when it says so, and threads of ours run only as steps that it chooses.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager

_SECOND = 1_000_000_000


class Moments:
    """The machine's own clock and waits. A test derives from it what stands in for them."""

    def monotonic_ns(self) -> int:
        """Read the ns that pass, from a clock that is never set back."""
        return time.monotonic_ns()

    def sleep(self, seconds: float) -> None:
        """Let so many seconds pass."""
        time.sleep(seconds)

    def wait(self, changed: threading.Condition | threading.Event, seconds: float | None) -> bool:
        """Wait until another thread notifies or sets it, at most so long; say whether it did."""
        return changed.wait(seconds)

    def acquire(self, lock: threading.Lock, seconds: float) -> bool:
        """Wait for a lock, at most so long, -1: however long; say whether this thread has it."""
        return lock.acquire(timeout=seconds)

    def poll(self, descriptors: Collection[int], seconds: float) -> set[int]:
        """Wait until one of the descriptors can be read, at most so long; return those that can."""
        poll = select.poll()  # unlike select(), it takes any descriptor
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        return {descriptor for descriptor, _ in poll.poll(max(0.0, seconds) * 1000)}

    def start(self, thread: threading.Thread) -> None:
        """Start a thread that works in the background."""
        thread.start()

    def join(self, thread: threading.Thread, seconds: float | None) -> None:
        """Wait until a thread has ended, at most so long."""
        thread.join(seconds)


_moments = Moments()


@contextmanager
def replaced(stand_in: Moments) -> Generator[None]:
    """Let another one give this process's moments until the block ends: for tests and simulations."""
    global _moments  # noqa: PLW0603  # a clock of one thread would be none
    before, _moments = _moments, stand_in
    try:
        yield
    finally:
        _moments = before


def monotonic_ns() -> int:
    """Read the ns that pass. Tells how long, never when."""
    return _moments.monotonic_ns()


def monotonic() -> float:
    """Read the seconds that pass. Tells how long, never when."""
    return _moments.monotonic_ns() / _SECOND


def sleep(seconds: float) -> None:
    """Let so many seconds pass."""
    _moments.sleep(seconds)


def wait(changed: threading.Condition | threading.Event, seconds: float | None = None) -> bool:
    """Wait until another thread notifies or sets it, at most so long; say whether it did."""
    return _moments.wait(changed, seconds)


def wait_for(changed: threading.Condition, comes_true: Callable[[], object]) -> None:
    """Wait, with the condition's lock, until something is true that other threads notify of."""
    while not comes_true():
        _moments.wait(changed, None)


def acquire(lock: threading.Lock, seconds: float = -1) -> bool:
    """Wait for a lock, at most so long, -1: however long; say whether this thread has it."""
    return _moments.acquire(lock, seconds)


@contextmanager
def holding(lock: threading.Lock) -> Generator[None]:
    """Hold a lock: one with which its holder asks a database, so that the wait for it may be long."""
    _moments.acquire(lock, -1)
    try:
        yield
    finally:
        lock.release()


def poll(descriptors: Collection[int], seconds: float) -> set[int]:
    """Wait until one of the descriptors can be read, at most so long; return those that can."""
    return _moments.poll(descriptors, seconds)


def start(thread: threading.Thread) -> None:
    """Start a thread that works in the background."""
    _moments.start(thread)


def join(thread: threading.Thread, seconds: float | None = None) -> None:
    """Wait until a thread has ended, at most so long."""
    _moments.join(thread, seconds)
