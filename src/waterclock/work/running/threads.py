"""Runs handlers in threads, one thread for each slot of a worker."""

from __future__ import annotations

import threading
from collections.abc import Callable

from waterclock._support import moments
from waterclock.work.flow.dispatch_queue import DispatchQueue, Handling


class HandlerThreads:
    """Call handlers in threads, one per slot.

    They end with the process even if a handler never returns, so they cannot keep the process alive.

    ``handle`` handles one message, and returns whether the thread keeps its slot.
    """

    def __init__(self, queue: DispatchQueue, slots: int, handle: Callable[[Handling], bool]) -> None:
        self._queue = queue
        self._slots = slots
        self._handle = handle

    def start(self) -> None:
        """Start handling."""
        for _ in range(self._slots):
            self._start_one()

    def replace(self) -> None:
        """Replace a stuck thread in its slot."""
        self._start_one()

    def _start_one(self) -> None:
        moments.start(threading.Thread(target=self._run, name="waterclock-work-handler", daemon=True))

    def _run(self) -> None:
        while (handling := self._queue.next()) is not None:
            if not self._handle(handling):
                return  # another thread has the slot now
            del handling  # do not hold a reference while waiting
