"""Other queues, as the benchmarks of message tables use them: each through its own Python package, on the same server.

They are needed by these benchmarks only: ``uv pip install --group bench-peers``.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import cycle
from typing import Any, Protocol

import sqlalchemy as sa

PAYLOAD = "x" * 100
GROUPS = 2000
BESIDE = "INSERT INTO beside (data) VALUES (%s)"
"""What a caller does in the transaction in which it puts a message."""
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


class Verbs(ABC):
    """A queue in one process whose verbs can be measured one by one."""

    @abstractmethod
    def enqueue(self, count: int) -> None:
        """Put messages in one call, durably."""

    @abstractmethod
    def claim(self, count: int) -> Sequence[Any]:
        """Claim up to as many, in as few calls as there can be."""

    @abstractmethod
    def ack(self, held: Sequence[Any]) -> None:
        """Ack what was claimed, in as few calls as there can be."""

    @abstractmethod
    def nack(self, held: Sequence[Any]) -> None:
        """Give back what was claimed, to be sent again at once."""

    @abstractmethod
    def extend(self, held: Sequence[Any]) -> None:
        """Hold what was claimed for longer."""

    @abstractmethod
    def put_beside(self) -> None:
        """Insert a row of the caller's and put a message, in one transaction of the caller's."""

    def take(self, count: int) -> int:
        """Claim up to as many, ack them, and return how many there were."""
        held = self.claim(count)
        if held:
            self.ack(held)
        return len(held)

    @abstractmethod
    def close(self) -> None:
        """Give the connections back."""


class Waterclock(Verbs):
    """This project."""

    policy: str | None = None

    def __init__(self, url: str, folder: str) -> None:
        self._database = importlib.import_module("waterclock").connect(url, folder + "/ledgers")
        self._table = self._database.create_table(
            "bench", payload="text", ack_wait="1h", groups=self.policy, exist_ok=True
        )
        self._groups = _groups()
        self._url = url
        self._theirs: Any = None

    def enqueue(self, count: int) -> None:
        if self.policy is not None:
            self._table.put_many([{"payload": PAYLOAD, "group": next(self._groups)} for _ in range(count)])
        elif count == 1:
            self._table.put(PAYLOAD)
        else:
            self._table.put_many([{"payload": PAYLOAD}] * count)

    def claim(self, count: int) -> Sequence[Any]:
        return self._table.receive(count)

    def ack(self, held: Sequence[Any]) -> None:
        self._table.ack(held)

    def nack(self, held: Sequence[Any]) -> None:
        self._table.nack(held, 0)

    def extend(self, held: Sequence[Any]) -> None:
        self._table.extend(held, "1h")

    def put_beside(self) -> None:
        if self._theirs is None:
            self._theirs = package("psycopg").connect(**conninfo(self._url))
        self._theirs.execute(BESIDE, (PAYLOAD,))
        self._table.put(PAYLOAD, connection=self._theirs)
        self._theirs.commit()

    def hurry(self) -> None:
        """Sync no more, while the queue is filled; not needed here, where a call of a thousand syncs once."""

    def close(self) -> None:
        if self._theirs is not None:
            self._theirs.close()
        self._database.close()


class WaterclockSequenced(Waterclock):
    """This project, with sequenced groups."""

    policy = "sequenced"


class WaterclockExclusive(Waterclock):
    """This project, with exclusive groups."""

    policy = "exclusive"


class Pgmq(Verbs):
    """pgmq's SQL, which its Python package brings, through psycopg: its own client takes more round trips."""

    _read = "SELECT msg_id, message FROM pgmq.read('bench', 3600, %s)"

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

    def claim(self, count: int) -> Sequence[Any]:
        read = self._connection.execute(self._read, (count,)).fetchall()
        return [row[0] for row in read]

    def ack(self, held: Sequence[Any]) -> None:
        # Kept for those who look, as Waterclock keeps what was acked.
        self._connection.execute("SELECT * FROM pgmq.archive('bench', %s::bigint[])", (held,)).fetchall()

    def nack(self, held: Sequence[Any]) -> None:
        self._hold(held, 0)

    def extend(self, held: Sequence[Any]) -> None:
        self._hold(held, 3600)

    def _hold(self, held: Sequence[Any], seconds: int) -> None:
        statement = "SELECT msg_id FROM pgmq.set_vt('bench', %s::bigint[], %s::integer)"
        self._connection.execute(statement, (held, seconds)).fetchall()

    def put_beside(self) -> None:
        with self._connection.transaction():
            self._connection.execute(BESIDE, (PAYLOAD,))
            self.enqueue(1)

    def close(self) -> None:
        self._connection.close()


class PgmqGrouped(Pgmq):
    """pgmq's groups, by a header; a claim looks through the whole queue for them."""

    _read = "SELECT msg_id, message FROM pgmq.read_grouped('bench', 3600, %s)"

    def __init__(self, url: str, folder: str) -> None:
        super().__init__(url, folder)
        self._connection.execute("SELECT pgmq.create_fifo_index('bench')")
        self._groups = _groups()

    def enqueue(self, count: int) -> None:
        headers = [json.dumps({"x-pgmq-group": next(self._groups)}) for _ in range(count)]
        statement = "SELECT * FROM pgmq.send_batch('bench', %s::jsonb[], %s::jsonb[])"
        self._connection.execute(statement, ([self._message] * count, headers)).fetchall()


class PgQueuer(Verbs):
    """PgQueuer: its own queries, as its manager calls them."""

    def __init__(self, url: str, folder: str) -> None:
        del folder
        asyncpg, drivers = package("asyncpg"), package("pgqueuer.db")
        repository, self._uuid = package("pgqueuer.ports.repository"), package("uuid")
        self._loop = asyncio.new_event_loop()
        info = conninfo(url)
        info["database"] = info.pop("dbname")
        self._connection = self._run(asyncpg.connect(**info))
        self._queries = package("pgqueuer.queries").Queries(drivers.AsyncpgDriver(self._connection))
        if self._run(self._connection.fetchval("SELECT to_regclass('pgqueuer')")) is None:
            self._run(self._queries.install())
        self._entrypoints = {"bench": repository.EntrypointExecutionParameter(concurrency_limit=0)}
        self._manager = self._uuid.uuid4()
        self._payload = PAYLOAD.encode()

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    def enqueue(self, count: int) -> None:
        self._run(self._queries.enqueue(["bench"] * count, [self._payload] * count, [0] * count))

    def claim(self, count: int) -> Sequence[Any]:
        return self._run(self._queries.dequeue(count, self._entrypoints, self._manager, None, timedelta(hours=1)))

    def ack(self, held: Sequence[Any]) -> None:
        self._run(self._queries.log_jobs([(job, "successful", None) for job in held]))

    def nack(self, held: Sequence[Any]) -> None:
        for job in held:
            self._run(self._queries.retry_job(job, timedelta(0), None))

    def extend(self, held: Sequence[Any]) -> None:
        self._run(self._queries.update_heartbeat([job.id for job in held]))

    def put_beside(self) -> None:
        self._run(self._put_beside())

    async def _put_beside(self) -> None:
        async with self._connection.transaction():
            await self._connection.execute(BESIDE.replace("%s", "$1"), PAYLOAD)
            await self._queries.enqueue(["bench"], [self._payload], [0])

    def close(self) -> None:
        self._run(self._connection.close())
        self._loop.close()


class Procrastinate(Verbs):
    """Procrastinate: its job manager, as its worker calls it. It fetches and finishes jobs one by one.

    It is given a pool of autocommitting connections, because its own begins and commits around each of its statements
    and asks before each whether the connection still is.
    """

    def __init__(self, url: str, folder: str) -> None:
        del folder
        procrastinate, pools = package("procrastinate"), package("psycopg_pool")
        self._jobs = package("procrastinate.jobs")
        self._loop = asyncio.new_event_loop()
        self._url, self._theirs = url, None
        settings = {**conninfo(url), "autocommit": True}
        self._pool = pools.AsyncConnectionPool(kwargs=settings, min_size=1, max_size=1, open=False)
        self._run(self._pool.open(wait=True))
        self._app = procrastinate.App(connector=procrastinate.PsycopgConnector())
        self._run(self._app.open_async(self._pool))
        if not self._run(self._app.check_connection_async()):
            self._run(self._app.schema_manager.apply_schema_async())
        self._manager = self._app.job_manager
        self._worker = self._run(self._manager.register_worker())

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    def _job(self) -> Any:
        return self._jobs.Job(
            id=None, queue="bench", lock=None, queueing_lock=None, task_name="bench", task_kwargs={"data": PAYLOAD}
        )

    def enqueue(self, count: int) -> None:
        self._run(self._manager.batch_defer_jobs_async([self._job() for _ in range(count)]))

    def claim(self, count: int) -> Sequence[Any]:
        return self._run(self._claim(count))

    async def _claim(self, count: int) -> Sequence[Any]:
        held: list[Any] = []
        while len(held) < count and (job := await self._manager.fetch_job(["bench"], self._worker)) is not None:
            held.append(job)
        return held

    def ack(self, held: Sequence[Any]) -> None:
        for job in held:
            self._run(self._manager.finish_job(job, self._jobs.Status.SUCCEEDED, delete_job=False))

    def nack(self, held: Sequence[Any]) -> None:
        for job in held:
            self._run(self._manager.retry_job(job))

    def extend(self, held: Sequence[Any]) -> None:
        del held  # it is the worker that lives, with all that it has
        self._run(self._manager.update_heartbeat(self._worker))

    def put_beside(self) -> None:
        self._run(self._put_beside())

    async def _put_beside(self) -> None:
        if self._theirs is None:
            self._theirs = await package("psycopg").AsyncConnection.connect(**conninfo(self._url))
        await self._theirs.execute(BESIDE, (PAYLOAD,))
        await self._manager.defer_job_async(self._job(), connection=self._theirs)
        await self._theirs.commit()

    def close(self) -> None:
        if self._theirs is not None:
            self._run(self._theirs.close())
        self._run(self._app.close_async())
        self._run(self._pool.close())
        self._loop.close()


class ProcrastinateLocks(Procrastinate):
    """Procrastinate's locks: of the jobs with one, one at a time is out, in order."""

    def __init__(self, url: str, folder: str) -> None:
        super().__init__(url, folder)
        self._groups = _groups()

    def _job(self) -> Any:
        return super()._job().evolve(lock=next(self._groups))


def _groups() -> Iterator[str]:
    """Name the groups of messages one after the other."""
    return (f"g{number}" for number in cycle(range(GROUPS)))


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
WITH_GROUPS: dict[str, Any] = {
    "waterclock, sequenced": WaterclockSequenced,
    "waterclock, exclusive": WaterclockExclusive,
    "pgmq": PgmqGrouped,
    "procrastinate": ProcrastinateLocks,
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
