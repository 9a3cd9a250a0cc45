"""Signals that stop a worker."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Protocol

_STOPPING = (signal.SIGINT, signal.SIGTERM)


class Stops(Protocol):
    """A function that stops a worker; ``again`` if it was called before."""

    def __call__(self, *, again: bool) -> None:
        """Stop."""
        ...


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
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
