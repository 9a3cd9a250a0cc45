"""Other queues, as the benchmarks of message tables use them: each through its own Python package, on the same server.

They are needed by these benchmarks only: ``uv pip install --group bench-peers``.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import time
from datetime import timedelta
from typing import Any, Protocol

import sqlalchemy as sa

PAYLOAD = "x" * 100
_NO_SYNC = "PRAGMA synchronous = OFF"
REDIS_URL = "WATERCLOCK_BENCH_REDIS_URL"


class MissingPeerError(Exception):
    """A peer that is not installed; the text says how to install it."""


class Queue(Protocol):
    """A queue in one process."""

    def enqueue(self, count: int) -> None:
        """Put messages in one call, durably."""

    def take(self, count: int) -> int:
        """Claim up to as many in one call, ack them in one call, and return how many there were."""

    def close(self) -> None:
        """Give the connections back."""


def package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingPeerError(
            f"{error.name} is not installed; run: uv pip install --group bench-peers (needs a network)"
        ) from None


def conninfo(url: str) -> dict[str, Any]:
    parsed = sa.make_url(url)
    return {
        "host": parsed.host,
        "port": parsed.port,
        "user": parsed.username,
        "password": parsed.password,
        "dbname": parsed.database,
    }


class Waterclock:
    """This project."""

    def __init__(self, url: str, folder: str) -> None:
        self._database = importlib.import_module("waterclock").connect(url, folder + "/ledgers")
        self._table = self._database.create_table("bench", payload="text", ack_wait="1h", exist_ok=True)

    def enqueue(self, count: int) -> None:
        if count == 1:
            self._table.put(PAYLOAD)
        else:
            self._table.put_many([{"payload": PAYLOAD}] * count)

    def take(self, count: int) -> int:
        deliveries = self._table.receive(count)
        return self._table.ack(deliveries)

    def hurry(self) -> None:
        """Sync no more, while the queue is filled; not needed here, where a call of a thousand syncs once."""

    def close(self) -> None:
        self._database.close()


class Pgmq:
    """pgmq's SQL, which its Python package brings, through psycopg: its own client takes more round trips."""

    def __init__(self, url: str, folder: str) -> None:
        del folder
        sql = package("pgmq.install").get_embedded_install_sql()
        self._connection = package("psycopg").connect(**conninfo(url), autocommit=True)
        if self._connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'pgmq'").fetchone() is None:
            self._connection.execute(sql)
            self._connection.execute("SELECT pgmq.create('bench')")
        self._message = json.dumps({"data": PAYLOAD})

    def enqueue(self, count: int) -> None:
        if count == 1:
            self._connection.execute("SELECT * FROM pgmq.send('bench', %s::jsonb)", (self._message,)).fetchall()
        else:
            messages = [self._message] * count
            self._connection.execute("SELECT * FROM pgmq.send_batch('bench', %s::jsonb[])", (messages,)).fetchall()

    def take(self, count: int) -> int:
        read = self._connection.execute("SELECT msg_id, message FROM pgmq.read('bench', 3600, %s)", (count,)).fetchall()
        ids = [row[0] for row in read]
        if ids:
            # Kept for those who look, as Waterclock keeps what was acked.
            self._connection.execute("SELECT * FROM pgmq.archive('bench', %s::bigint[])", (ids,)).fetchall()
        return len(ids)

    def close(self) -> None:
        self._connection.close()


class PgQueuer:
    """PgQueuer: its own queries, as its manager calls them."""

    def __init__(self, url: str, folder: str) -> None:
        del folder
        asyncpg, drivers = package("asyncpg"), package("pgqueuer.db")
        repository, self._uuid = package("pgqueuer.ports.repository"), package("uuid")
        self._loop = asyncio.new_event_loop()
        info = conninfo(url)
        info["database"] = info.pop("dbname")
        self._connection = self._loop.run_until_complete(asyncpg.connect(**info))
        self._queries = package("pgqueuer.queries").Queries(drivers.AsyncpgDriver(self._connection))
        if self._loop.run_until_complete(self._connection.fetchval("SELECT to_regclass('pgqueuer')")) is None:
            self._loop.run_until_complete(self._queries.install())
        self._entrypoints = {"bench": repository.EntrypointExecutionParameter(concurrency_limit=0)}
        self._manager = self._uuid.uuid4()
        self._payload = PAYLOAD.encode()

    def enqueue(self, count: int) -> None:
        self._loop.run_until_complete(self._queries.enqueue(["bench"] * count, [self._payload] * count, [0] * count))

    def take(self, count: int) -> int:
        return self._loop.run_until_complete(self._take(count))

    async def _take(self, count: int) -> int:
        jobs = await self._queries.dequeue(count, self._entrypoints, self._manager, None, timedelta(hours=1))
        if jobs:
            await self._queries.log_jobs([(job, "successful", None) for job in jobs])
        return len(jobs)

    def close(self) -> None:
        self._loop.run_until_complete(self._connection.close())
        self._loop.close()


class Procrastinate:
    """Procrastinate: its job manager, as its worker calls it. It fetches and finishes jobs one by one."""

    def __init__(self, url: str, folder: str) -> None:
        del folder
        procrastinate = package("procrastinate")
        self._jobs = package("procrastinate.jobs")
        self._loop = asyncio.new_event_loop()
        connector = procrastinate.PsycopgConnector(kwargs=conninfo(url), min_size=1, max_size=1)
        self._app = procrastinate.App(connector=connector)
        self._run(self._app.open_async())
        if not self._run(self._app.check_connection_async()):
            self._run(self._app.schema_manager.apply_schema_async())
        self._manager = self._app.job_manager
        self._worker = self._run(self._manager.register_worker())
        job = self._jobs.Job
        self._job = job(
            id=None, queue="bench", lock=None, queueing_lock=None, task_name="bench", task_kwargs={"data": PAYLOAD}
        )

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    def enqueue(self, count: int) -> None:
        self._run(self._manager.batch_defer_jobs_async([self._job] * count))

    def take(self, count: int) -> int:
        return self._run(self._take(count))

    async def _take(self, count: int) -> int:
        for taken in range(count):
            job = await self._manager.fetch_job(["bench"], self._worker)
            if job is None:
                return taken
            await self._manager.finish_job(job, self._jobs.Status.SUCCEEDED, delete_job=False)
        return count

    def close(self) -> None:
        self._run(self._app.close_async())
        self._loop.close()


class Huey:
    """huey's SQLite storage, syncing. A message that is taken is gone: it has no acks."""

    def __init__(self, url: str, folder: str) -> None:
        del url
        storage = package("huey.storage").SqliteStorage
        self._storage = storage(name="bench", filename=f"{folder}/huey.db", fsync=True, timeout=60)
        self._payload = PAYLOAD.encode()

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self._storage.enqueue(self._payload)

    def take(self, count: int) -> int:
        for taken in range(count):
            if self._storage.dequeue() is None:
                return taken
        return count

    def hurry(self) -> None:
        self._storage.conn.execute(_NO_SYNC)

    def close(self) -> None:
        self._storage.close()


class LiteQueue:
    """litequeue, made to sync as the others do."""

    def __init__(self, url: str, folder: str) -> None:
        del url
        self._queue = package("litequeue").LiteQueue(f"{folder}/litequeue.db", timeout=60)
        self._queue.conn.execute("PRAGMA synchronous = FULL")

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self._queue.put(PAYLOAD)

    def take(self, count: int) -> int:
        for taken in range(count):
            message = self._queue.pop()
            if message is None:
                return taken
            self._queue.done(message.message_id)
        return count

    def hurry(self) -> None:
        self._queue.conn.execute(_NO_SYNC)

    def close(self) -> None:
        self._queue.close()


class PersistQueue:
    """persist-queue's queue with acks, which keeps what was acked."""

    def __init__(self, url: str, folder: str) -> None:
        del url
        module = package("persistqueue")
        self._empty = package("persistqueue.exceptions").Empty
        self._queue = module.SQLiteAckQueue(f"{folder}/persist", auto_commit=True, multithreading=True)

    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self._queue.put(PAYLOAD)

    def take(self, count: int) -> int:
        for taken in range(count):
            try:
                self._queue.ack(self._queue.get(block=False))
            except self._empty:
                return taken
        return count

    def hurry(self) -> None:
        self._queue._putter.execute(_NO_SYNC)  # noqa: SLF001  # it has no setting for this

    def close(self) -> None:
        self._queue.close()


class RedisStream:
    """A stream of a Redis whose every write is synced (``appendfsync always``), with a consumer group."""

    def __init__(self, url: str, folder: str) -> None:
        del url, folder
        redis = package("redis")
        where = os.environ.get(REDIS_URL)
        if where is None:
            raise MissingPeerError(f"redis: set {REDIS_URL} to the URL of a Redis with appendfsync always")
        self._redis = redis.Redis.from_url(where)
        if self._redis.config_get("appendfsync") != {"appendfsync": "always"}:
            raise MissingPeerError(f"redis: the one at {REDIS_URL} does not have appendfsync always")
        self._name = f"consumer-{os.getpid()}"
        try:
            self._redis.xgroup_create("bench", "workers", id="0", mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    def enqueue(self, count: int) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for _ in range(count):
            pipeline.xadd("bench", {"data": PAYLOAD})
        pipeline.execute()

    def take(self, count: int) -> int:
        read = self._redis.xreadgroup("workers", self._name, {"bench": ">"}, count=count)
        ids = [entry[0] for entry in read[0][1]] if read else []
        if ids:
            self._redis.xack("bench", "workers", *ids)
        return len(ids)

    def close(self) -> None:
        self._redis.close()


ON_POSTGRESQL: dict[str, Any] = {
    "waterclock": Waterclock,
    "pgmq": Pgmq,
    "pgqueuer": PgQueuer,
    "procrastinate": Procrastinate,
}
ON_SQLITE: dict[str, Any] = {
    "waterclock": Waterclock,
    "huey": Huey,
    "litequeue": LiteQueue,
    "persist-queue": PersistQueue,
}
ELSEWHERE: dict[str, Any] = {"redis streams": RedisStream}

Place = tuple[str, str, str]
"""A kind of queue, the URL of its server, and a folder of its own."""


def make(place: Place) -> Any:
    kind, url, folder = place
    return {**ON_SQLITE, **ON_POSTGRESQL, **ELSEWHERE}[kind](url, folder)


def work(place: Place, verb: str, count: int, seconds: float, start: Any, result: Any) -> None:
    """Call a queue again and again for some seconds, in a process of its own; report messages and the time it took."""
    queue = make(place)
    start.wait()
    began = time.perf_counter()
    done = 0
    while (taken := time.perf_counter() - began) < seconds:
        if verb == "enqueue":
            queue.enqueue(count)
            done += count
        else:
            got = queue.take(count)
            done += got
            if not got:
                break
    taken = time.perf_counter() - began
    queue.close()
    result.put((done, taken))
