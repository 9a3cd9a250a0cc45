"""The adapters of PgQueuer, oban, dbos and pgmq: each with its defaults, and an asynchronous handler.

``peer_adapters.py NAME MANIFEST`` runs in an environment that has only that system's packages.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from abc import abstractmethod
from collections.abc import Coroutine
from importlib.metadata import version
from pathlib import Path
from typing import Any

from process import Adapter  # where this folder is the path


class Peer(Adapter):
    """A system whose calls run in the event loop of its worker."""

    unavailable = (Exception,)

    def __init__(self, name: str) -> None:
        super().__init__(Path(sys.argv[2]), version(name))

    def put(self, jobs: list[dict[str, Any]]) -> None:
        self._call(self.put_async(jobs))

    def depth(self) -> int:
        return self._call(self.depth_async())

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def main(self) -> None:
        """Produce and work until a signal comes."""
        self._loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        for each in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(each, ended.set)
        await self.run(ended)

    @abstractmethod
    async def put_async(self, jobs: list[dict[str, Any]]) -> None: ...

    @abstractmethod
    async def depth_async(self) -> int: ...

    @abstractmethod
    async def run(self, ended: asyncio.Event) -> None:
        """Call `start` once the system can take jobs, and work until ``ended``."""


class PgQueuerPeer(Peer):
    def __init__(self) -> None:
        super().__init__("pgqueuer")

    async def put_async(self, jobs: list[dict[str, Any]]) -> None:
        payloads = [f"{job['put']} {job['padding']}".encode() for job in jobs]
        await self._queries.enqueue(["bench"] * len(jobs), payloads, [0] * len(jobs))

    async def depth_async(self) -> int:
        return sum(each.count for each in await self._queries.queue_size() if each.status == "queued")

    async def run(self, ended: asyncio.Event) -> None:
        import asyncpg
        from pgqueuer import PgQueuer
        from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
        from pgqueuer.queries import Queries

        async with asyncpg.create_pool(self.url, min_size=1, max_size=4) as pool:
            self._queries = Queries(AsyncpgPoolDriver(pool))
            if not await self._queries.schema_is_installed():
                await self._queries.install()
            connection = await asyncpg.connect(self.url)
            queue = PgQueuer(AsyncpgDriver(connection))

            @queue.entrypoint("bench")
            async def bench(job: Any) -> None:
                await self.handle({"put": float(job.payload.split()[0])})

            work = asyncio.create_task(queue.run(batch_size=self.concurrency))
            self.start()
            await asyncio.wait([work, asyncio.create_task(ended.wait())], return_when=asyncio.FIRST_COMPLETED)
            self.stopped.set()
            queue.shutdown.set()
            await asyncio.gather(work, return_exceptions=True)


class ObanPeer(Peer):
    def __init__(self) -> None:
        super().__init__("oban")

    async def put_async(self, jobs: list[dict[str, Any]]) -> None:
        await self._oban.enqueue_many(*[self._bench.new(job) for job in jobs])

    async def depth_async(self) -> int:
        async with self._pool.connection() as connection:
            found = await connection.execute("SELECT count(*) FROM oban_jobs WHERE state = 'available'")
            return (await found.fetchone())[0]

    async def run(self, ended: asyncio.Event) -> None:
        from oban import Oban, worker
        from oban.schema import install
        from psycopg_pool import AsyncConnectionPool

        @worker(queue="bench")
        class Bench:
            async def process(_self, job: Any) -> None:  # noqa: N805  # ours is the outer one
                await self.handle(job.args)

        self._bench = Bench
        async with AsyncConnectionPool(self.url, min_size=1, max_size=20, open=False) as self._pool:
            await install(self._pool)
            async with Oban(pool=self._pool, queues={"bench": self.concurrency}) as self._oban:
                self.start()
                await ended.wait()
                self.stopped.set()


class DbosPeer(Peer):
    def __init__(self) -> None:
        super().__init__("dbos")

    async def put_async(self, jobs: list[dict[str, Any]]) -> None:
        for job in jobs:
            await self._dbos.enqueue_workflow_async("bench", self._bench, job)

    async def depth_async(self) -> int:
        return len(await self._dbos.list_queued_workflows_async(queue_name="bench", load_input=False))

    async def run(self, ended: asyncio.Event) -> None:
        from dbos import DBOS

        self._dbos = DBOS
        DBOS(config={"name": "bench", "system_database_url": self.url, "log_level": "WARNING"})

        @DBOS.workflow()
        async def bench(job: dict[str, Any]) -> None:
            await self.handle(job)

        self._bench = bench
        DBOS.launch()
        await DBOS.register_queue_async("bench", worker_concurrency=self.concurrency)
        self.start()
        await ended.wait()
        self.stopped.set()
        DBOS.destroy()


class PgmqPeer(Peer):
    """pgmq has no worker: each of as many tasks as there are workers reads, handles and archives a few messages."""

    def __init__(self) -> None:
        super().__init__("pgmq")

    async def put_async(self, jobs: list[dict[str, Any]]) -> None:
        await self._ask("SELECT * FROM pgmq.send_batch('bench', %s::jsonb[])", [json.dumps(job) for job in jobs])

    async def depth_async(self) -> int:
        return (await self._ask("SELECT count(*) FROM pgmq.q_bench WHERE vt <= now()"))[0][0]

    async def _ask(self, text: str, *values: Any) -> Any:
        async with self._pool.connection() as connection:
            return await (await connection.execute(text, values)).fetchall()

    async def run(self, ended: asyncio.Event) -> None:
        from pgmq.install import get_embedded_install_sql
        from psycopg_pool import AsyncConnectionPool

        settings = {"autocommit": True}
        async with AsyncConnectionPool(self.url, min_size=1, max_size=20, kwargs=settings, open=False) as self._pool:
            async with self._pool.connection() as connection:
                await connection.execute(get_embedded_install_sql())
                await connection.execute("SELECT pgmq.create('bench')")
            self.start()
            tasks = [asyncio.create_task(self._consume(ended)) for _ in range(min(self.concurrency, 16))]
            await asyncio.gather(*tasks)
            self.stopped.set()

    async def _consume(self, ended: asyncio.Event) -> None:
        each = -(-self.concurrency // 16)
        read = "SELECT msg_id, message FROM pgmq.read_with_poll('bench', 30, %s, 1, 20)"
        while not ended.is_set():
            try:
                found = await self._ask(read, each)
                await asyncio.gather(*(self.handle(message) for _, message in found))
                await self._ask("SELECT * FROM pgmq.archive('bench', %s::bigint[])", [one for one, _ in found])
            except Exception as error:  # noqa: BLE001  # as the producer does
                print(f"read failed: {error}", file=sys.stderr)
                await asyncio.sleep(0.2)


PEERS: dict[str, type[Peer]] = {"pgqueuer": PgQueuerPeer, "oban": ObanPeer, "dbos": DbosPeer, "pgmq": PgmqPeer}

if __name__ == "__main__":
    asyncio.run(PEERS[sys.argv[1]]().main())
