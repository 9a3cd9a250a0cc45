"""Handles the signals that stop a worker or another long-running command."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Protocol

from waterclock._support import moments

_LOOK_EVERY = 0.2  # seconds within which a wait notices a stop

_STOPPING = (signal.SIGINT, signal.SIGTERM)

_interrupts: list[int] = []


def remember_interrupts() -> None:
    """Raise a KeyboardInterrupt at SIGINT as Python does, and remember it for `raise_if_interrupted`.

    Python drops an exception that comes in a callback of its garbage collector or of an import. Of a hundred workers
    that got SIGINT in their first three seconds, three went on for that reason.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, _frame: object) -> None:
    _interrupts.append(number)
    raise KeyboardInterrupt


def raise_if_interrupted() -> None:
    """Raise a KeyboardInterrupt that was dropped. Call it after setting another handler of SIGINT."""
    if _interrupts:
        raise KeyboardInterrupt


class Stops(Protocol):
    """A function that stops a worker; ``again`` if it was called before."""

    def __call__(self, *, again: bool) -> None:
        """Stop."""
        ...


class StopFlag:
    """A flag that a signal sets: an exception could come between any two statements, and an `Event` could deadlock.

    A signal handler that sets an event can interrupt a wait that holds the event's lock.
    """

    def __init__(self) -> None:
        self.is_wished = False

    def wish(self, *, again: bool) -> None:
        """Stop after the step under way; at once on a second call."""
        self.is_wished = True
        if again:
            raise KeyboardInterrupt

    def wait(self, seconds: float) -> None:
        """Wait for a stop, at most this long."""
        end = moments.monotonic() + seconds
        while not self.is_wished and (left := end - moments.monotonic()) > 0:
            moments.sleep(min(left, _LOOK_EVERY))


@contextmanager
def stopping_at_signals(stop: Stops) -> Generator[None]:
    """Call ``stop`` at SIGINT and SIGTERM until the block ends; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = 0

    def note(_number: int, _frame: object) -> None:
        nonlocal seen
        seen += 1
        stop(again=seen > 1)

    before: dict[int, Any] = {number: signal.signal(number, note) for number in _STOPPING}
    try:
        raise_if_interrupted()
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
