"""Threads in which a worker calls handlers, one for each slot."""

from __future__ import annotations

import threading
from collections.abc import Callable

from waterclock._support import moments
from waterclock.work.flow.dispatch_queue import Handling, Lanes


class Threads:
    """Call handlers in threads, as many at a time as there are slots.

    They end with the process, also where a handler never ends: no process stays for its sake.

    Parameters
    ----------
    handle
        Handles one message; says whether the thread keeps its slot.
    """

    def __init__(self, lanes: Lanes, slots: int, handle: Callable[[Handling], bool]) -> None:
        self._lanes = lanes
        self._slots = slots
        self._handle = handle

    def start(self) -> None:
        """Begin to handle."""
        for _ in range(self._slots):
            self._start_one()

    def replace(self) -> None:
        """Give the slot of a thread that is stuck in a handler to a new one."""
        self._start_one()

    def _start_one(self) -> None:
        moments.start(threading.Thread(target=self._run, name="waterclock-work-handler", daemon=True))

    def _run(self) -> None:
        while (handling := self._lanes.next()) is not None:
            if not self._handle(handling):
                return  # another thread has the slot meanwhile
            del handling  # so that it is not kept while this waits
