"""Runs oban for `benchmarks.work.workers`, in a Python of its own: ``run_oban.py CONNINFO fill|run …``.

``fill`` makes the queue, and puts as many messages as each line of its stdin says.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import psycopg.conninfo
from job import Job
from oban import Oban, worker
from oban.schema import install
from psycopg_pool import AsyncConnectionPool

PAYLOAD = "x" * 100
job: Job | None = None


@worker(queue="bench")
class Bench:
    async def process(self, _job: object) -> None:
        if job is not None:
            await job.handle_async()


async def main(info: dict[str, str], concurrency: int | None) -> None:
    most = 2 + (concurrency or 0)
    pool = AsyncConnectionPool(psycopg.conninfo.make_conninfo(**info), min_size=1, max_size=most, open=False)
    async with pool:
        if concurrency is None:
            await install(pool)
            await fill(Oban(pool=pool))
        else:
            async with Oban(pool=pool, queues={"bench": concurrency}):
                await asyncio.to_thread(sys.stdin.buffer.read)


async def fill(client: Oban) -> None:
    print("ready", flush=True)
    while count := int(await asyncio.to_thread(sys.stdin.readline) or 0):
        await client.enqueue_many(*[Bench.new({"data": PAYLOAD}) for _ in range(count)])
        print("done", flush=True)


if __name__ == "__main__":
    works = sys.argv[2] == "run"
    if works:
        job = Job(Path(sys.argv[4]), float(sys.argv[5]))
    asyncio.run(main(json.loads(sys.argv[1]), int(sys.argv[3]) if works else None))
