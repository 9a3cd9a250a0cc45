"""The workers that `benchmarks.work.workers` compares. Each runs a handler of theirs that calls a `Job`.

Every worker is a process of its own. oban needs Python 3.12, so it runs there: name an interpreter that has it and
psycopg in ``WATERCLOCK_BENCH_OBAN_PYTHON``. RQ and Dramatiq work on the Redis of ``WATERCLOCK_BENCH_REDIS_URL``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import waterclock as wc
from benchmarks.tables.peers import PAYLOAD, REDIS_URL, MissingPeerError, conninfo, make, package
from benchmarks.work.job import Job

OBAN_PYTHON = "WATERCLOCK_BENCH_OBAN_PYTHON"
OBAN_WORKER = Path(__file__).parent / "run_oban.py"


class Worker:
    """One way to work on a queue.

    Attributes
    ----------
    most
        How many messages it can handle at a time.
    """

    most = 1000

    def __init__(self, url: str, folder: str) -> None:
        self.url = url
        self.folder = folder

    def prepare(self) -> None:
        """Make the queue."""

    def fill(self, count: int) -> None:
        """Put messages."""
        raise NotImplementedError

    def run(self, concurrency: int, job: Job, ended: threading.Event) -> None:
        """Work until ``ended``."""
        raise NotImplementedError


class _Filled(Worker):
    """A worker on a queue that `benchmarks.tables.peers` knows."""

    kind = "waterclock"
    _queue: Any = None

    def prepare(self) -> None:
        self._queue = make((self.kind, self.url, self.folder))

    def fill(self, count: int) -> None:
        self._queue.enqueue(count)


class Threads(_Filled):
    def run(self, concurrency: int, job: Job, ended: threading.Event) -> None:
        self._run(concurrency, lambda _delivery: job.handle(), ended)

    def _run(self, concurrency: int, handle: Callable[..., Any], ended: threading.Event) -> None:
        with wc.connect(self.url, self.folder + "/ledgers") as database:
            worker = wc.Worker(database.table("bench"), handle, concurrency=concurrency)
            threading.Thread(target=lambda: (ended.wait(), worker.stop()), daemon=True).start()
            worker.run()


class Async(Threads):
    def run(self, concurrency: int, job: Job, ended: threading.Event) -> None:
        async def handle(_delivery: wc.Delivery) -> None:
            await job.handle_async()

        self._run(concurrency, handle, ended)


class Procrastinate(_Filled):
    kind = "procrastinate"

    def run(self, concurrency: int, job: Job, ended: threading.Event) -> None:
        theirs = package("procrastinate")
        connector = theirs.PsycopgConnector(kwargs=conninfo(self.url), min_size=1, max_size=concurrency + 2)
        app = theirs.App(connector=connector)

        @app.task(name="bench", queue="bench")
        async def bench(data: str) -> None:
            del data
            await job.handle_async()

        async def run() -> None:
            async with app.open_async():
                working = app.run_worker_async(concurrency=concurrency, install_signal_handlers=False)
                work = asyncio.create_task(working)
                await asyncio.to_thread(ended.wait)
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)

        asyncio.run(run())


class PgQueuerAsyncpg(_Filled):
    kind = "pgqueuer"

    async def _driver(self) -> Any:
        info = conninfo(self.url)
        info["database"] = info.pop("dbname")
        connection = await package("asyncpg").connect(**info)
        return package("pgqueuer.db").AsyncpgDriver(connection)

    def run(self, concurrency: int, job: Job, ended: threading.Event) -> None:
        async def run() -> None:
            queue = package("pgqueuer").PgQueuer(await self._driver())

            # Its own limit of concurrency takes one batch a round, and tens of milliseconds for it.
            @queue.entrypoint("bench")
            async def bench(_job: Any) -> None:
                await job.handle_async()

            work = asyncio.create_task(queue.run(batch_size=concurrency))
            await asyncio.to_thread(ended.wait)
            queue.shutdown.set()
            await asyncio.gather(work, return_exceptions=True)

        asyncio.run(run())


class PgQueuerPsycopg(PgQueuerAsyncpg):
    async def _driver(self) -> Any:
        connect = package("psycopg").AsyncConnection.connect
        return package("pgqueuer.db").PsycopgDriver(await connect(**conninfo(self.url), autocommit=True))


class Huey(Worker):
    """PostgresHuey: it deletes what it takes before the handler runs, so that what a killed worker had is lost."""

    def prepare(self) -> None:
        self._huey = package("huey").PostgresHuey("bench", results=False, **conninfo(self.url))
        self._job: Job | None = None

        @self._huey.task(name="bench")
        def bench(payload: str) -> None:
            del payload
            if self._job is not None:
                self._job.handle()

        self._bench = bench

    def fill(self, count: int) -> None:
        for _ in range(count):
            self._bench(PAYLOAD)

    def run(self, concurrency: int, job: Job, ended: threading.Event) -> None:
        self.prepare()
        self._job = job
        consumer = self._huey.create_consumer(workers=concurrency, worker_type="thread", periodic=False)
        ending = threading.Thread(target=lambda: (ended.wait(), consumer.stop(graceful=True)), daemon=True)
        ending.start()
        consumer.run()
        ending.join()


def _redis() -> str:
    where = os.environ.get(REDIS_URL)
    if where is None:
        raise MissingPeerError(f"set {REDIS_URL} to the URL of a Redis with appendfsync always")
    return where


_job_of_rq: Job | None = None


def rq_task(payload: str) -> None:
    del payload
    if _job_of_rq is not None:
        _job_of_rq.handle()


class Rq(Worker):
    """RQ's SimpleWorker, the fastest that it has: it handles one job at a time, in its own process."""

    most = 1

    def prepare(self) -> None:
        connection = package("redis").Redis.from_url(_redis())
        connection.flushdb()
        self._queue = package("rq").Queue("bench", connection=connection)

    def fill(self, count: int) -> None:
        prepare = package("rq").Queue.prepare_data
        self._queue.enqueue_many([prepare(rq_task, (PAYLOAD,), result_ttl=0) for _ in range(count)])

    def run(self, concurrency: int, job: Job, ended: threading.Event) -> None:
        global _job_of_rq  # noqa: PLW0603  # RQ imports what it calls
        _job_of_rq = job
        del concurrency
        theirs = package("rq")
        worker = theirs.SimpleWorker(["bench"], connection=package("redis").Redis.from_url(_redis()))
        threading.Thread(target=lambda: (ended.wait(), os.kill(os.getpid(), signal.SIGTERM)), daemon=True).start()
        worker.work(logging_level="ERROR")


class Dramatiq(Worker):
    def prepare(self) -> None:
        self._make(None)
        self._broker.flush_all()

    def _make(self, job: Job | None) -> None:
        theirs, brokers = package("dramatiq"), package("dramatiq.brokers.redis")
        self._broker = brokers.RedisBroker(url=_redis())
        self._bench = theirs.actor(
            lambda _payload: job.handle() if job else None, actor_name="bench", queue_name="bench", broker=self._broker
        )

    def fill(self, count: int) -> None:
        for _ in range(count):
            self._bench.send(PAYLOAD)

    def run(self, concurrency: int, job: Job, ended: threading.Event) -> None:
        self._make(job)
        worker = package("dramatiq").Worker(self._broker, worker_threads=concurrency)
        worker.start()
        ended.wait()
        worker.stop()


class Oban(Worker):
    def prepare(self) -> None:
        command = self._command("fill")
        self._filling = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answered()

    def fill(self, count: int) -> None:
        print(count, file=self._filling.stdin, flush=True)
        self._answered()

    def _answered(self) -> None:
        if self._filling.stdout is None or not self._filling.stdout.readline():
            raise RuntimeError("oban does not answer")

    def _command(self, verb: str) -> list[str]:
        python = os.environ.get(OBAN_PYTHON)
        if python is None:
            raise MissingPeerError(f"set {OBAN_PYTHON} to a Python of 3.12 or later that has oban and psycopg")
        return [python, str(OBAN_WORKER), json.dumps(conninfo(self.url)), verb]

    def run(self, concurrency: int, job: Job, ended: threading.Event) -> None:
        command = [*self._command("run"), str(concurrency), *job.arguments()]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as theirs:
            while not ended.wait(0.02) and theirs.poll() is None:
                pass
            if theirs.stdin is not None:
                theirs.stdin.close()
            theirs.wait()


WORKERS: dict[str, type[Worker]] = {
    "waterclock, threads": Threads,
    "waterclock, async": Async,
    "procrastinate": Procrastinate,
    "pgqueuer, asyncpg": PgQueuerAsyncpg,
    "pgqueuer, psycopg": PgQueuerPsycopg,
    "oban": Oban,
    "huey, postgresql": Huey,
    "rq, redis": Rq,
    "dramatiq, redis": Dramatiq,
}
