"""The adapter of awa-pg: COPY into its queue storage, and its asynchronous worker, with their defaults."""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import awa
from process import Adapter  # in awa's own environment, where this folder is the path


@dataclass
class Bench:
    put: float
    padding: str


class Awa(Adapter):
    unavailable = (Exception,)

    def __init__(self) -> None:
        super().__init__(Path(sys.argv[1]), version("awa-pg"))
        self._client = awa.Client(self.url)
        self._client.migrate()

    def put(self, jobs: list[dict[str, Any]]) -> None:
        self._client.enqueue_many_copy([Bench(**job) for job in jobs], queue="bench")

    def depth(self) -> int:
        return sum(each.available for each in self._client.queue_stats() if each.queue == "bench")

    async def run(self) -> None:
        """Produce and work until a signal comes."""
        async with awa.AsyncClient(self.url, max_connections=20) as client:

            @client.task(Bench, queue="bench")
            async def handle(job: Any) -> None:
                await self.handle({"put": job.args.put})

            ended = asyncio.Event()
            for each in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(each, ended.set)
            await client.start([("bench", self.concurrency)])
            self.start()
            await ended.wait()
            self.stopped.set()
            await client.shutdown()


if __name__ == "__main__":
    asyncio.run(Awa().run())
