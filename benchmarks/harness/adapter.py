"""The adapter of Waterclock: only `put_many` and `Worker`, with their defaults."""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path
from typing import Any

import waterclock as wc
from benchmarks.harness.process import Adapter


class Waterclock(Adapter):
    unavailable = (wc.UnavailableError,)

    def __init__(self) -> None:
        super().__init__(Path(__file__).with_name("adapter.json"), wc.__version__)
        self._table = wc.connect(self.url).create_table("jobs", payload="json", exist_ok=True)

    def put(self, jobs: list[dict[str, Any]]) -> None:
        self._table.put_many([{"payload": job} for job in jobs])

    def depth(self) -> int:
        return self._table.stats().ready

    def run(self) -> None:
        """Produce and work until a signal comes."""

        async def handle(payload: dict[str, Any]) -> None:
            await self.handle(payload)

        worker = wc.Worker(self._table, handle, concurrency=self.concurrency, grace="2s")
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, lambda *_: (self.stopped.set(), worker.stop()))
        self.start()
        worker.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    Waterclock().run()
