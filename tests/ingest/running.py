"""Ingests that run in a thread of the test's own process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from waterclock.ingest.progress import Event

PATIENCE = 30.0


def until(comes_true: Callable[[], object]) -> None:
    """Wait until something is true that other threads and processes bring about."""
    end = time.monotonic() + PATIENCE
    while not comes_true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.002)


@dataclass
class Running:
    """An ingest, the events that it has reported, and its thread."""

    ingest: Any
    events: list[Event]
    failure: Exception | None = None
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.ingest.run()
        except Exception as error:  # noqa: BLE001  # for the test to look at
            self.failure = error

    @property
    def counts(self) -> Any:
        return self.ingest.progress

    def names(self) -> list[str]:
        return [event.name for event in self.events]

    def text(self, name: str) -> str:
        """Return the text of the last event of a name."""
        return [event.text for event in self.events if event.name == name][-1]

    def end(self) -> None:
        """Wait for its end, and raise what it raised."""
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        if self.failure is not None:
            raise self.failure
