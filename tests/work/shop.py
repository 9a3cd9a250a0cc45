"""Handlers as a user writes them, for workers that run as processes."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import sqlalchemy as sa

from waterclock.connection import connect
from waterclock.errors import LeaseLostError
from waterclock.tables.consumers.delivery import Delivery
from waterclock.work.ground.outcomes import ACK
from waterclock.work.running.child import Ended


def handle(delivery: Delivery) -> None:
    print(f"handled {delivery.payload}\n", end="", flush=True)


def hold(delivery: Delivery) -> None:
    """Say that it began, and ignore all that it is asked."""
    print(f"began {delivery.payload}\n", end="", flush=True)
    threading.Event().wait()


async def _touch(delivery: Delivery) -> None:
    if delivery.payload == "for ever":
        await asyncio.sleep(3600)
    Path(delivery.payload).touch()


def decorated(delivery: Delivery) -> object:
    """Give the coroutine of an ``async def``, as decorators do that know of none."""
    return _touch(delivery)


async def hold_in_the_loop(delivery: Delivery) -> None:
    """Say that it began, and go on also where it is cancelled."""
    print(f"began {delivery.payload}\n", end="", flush=True)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue


async def hold_another_thread(delivery: Delivery) -> None:
    """Say that it began, in a thread that goes on when it is cancelled, and for which Python waits at its end."""
    await asyncio.to_thread(hold, delivery)


async def hold_the_loop(delivery: Delivery) -> None:
    """Say that it began, and let nothing else run in the loop."""
    hold(delivery)


def keep_the_interpreter(delivery: Delivery) -> None:
    """Say that it began, and let nothing else run in the process, as C does that does not let its interpreter go."""
    print(f"began {delivery.payload}\n", end="", flush=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.PyDLL(None).pause()


def ack_late(delivery: Delivery) -> None:
    """Go on until it sees that its message is not its own any more, and ack it all the same."""
    print(f"began {delivery.payload}\n", end="", flush=True)
    cancelled = threading.Event()
    delivery.when_cancelled(cancelled.set)
    assert cancelled.wait(60)
    try:
        delivery.ack()
    except LeaseLostError:
        print("is refused\n", end="", flush=True)


OF_CHILDREN = (
    "SELECT CASE WHEN query ~ 'LISTE[N]|advisor[y]' THEN 'listens' ELSE 'asks' END"
    " FROM pg_stat_activity WHERE application_name = 'a child'"
)
"""Asks PostgreSQL for the connections of `listen`."""


def listen(delivery: Delivery) -> None:
    """Wait for messages of another table, and write down which connections there are of processes that do."""
    os.environ["PGAPPNAME"] = "a child"
    backend = delivery.context.backend
    database = connect(backend.url.render_as_string(hide_password=False))
    found: list[str] = []
    while "listens" not in found:  # a connection is opened beside the first waits
        assert not database.table("others").receive(wait="20ms")
        with backend.engine.connect() as connection:
            found = list(connection.scalars(sa.text(OF_CHILDREN)))
    Path(delivery.payload, str(delivery.id)).write_text("\n".join(found))


def torture(delivery: Delivery) -> None:
    """Do what the payload says."""
    does, folder = delivery.payload["does"], Path(delivery.payload["folder"])
    (folder / f"{does}-{delivery.epoch}").write_text(str(os.getpid()))
    match does:
        case "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exits":
            os._exit(3)
        case "hangs":
            keep_the_interpreter(delivery)
        case "waits to be cancelled":
            while not delivery.cancelled:
                time.sleep(0.01)
            raise RuntimeError(does)
        case "acks by itself":
            with delivery.context.backend.engine.begin() as connection:
                delivery.ack(connection=connection)
        case _:
            pass


def fork(delivery: Delivery) -> None:
    """Fork, return from the handler in the copy, and fail in the original where the payload says so."""
    if (copy := os.fork()) == 0:
        return
    assert os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == 1
    if delivery.payload == "fails":
        raise RuntimeError("the original")


async def fork_in_the_loop(delivery: Delivery) -> None:
    fork(delivery)


def fail_and_stop(_: Delivery) -> None:
    """Fail, and have the worker stop."""
    os.kill(os.getpid(), signal.SIGTERM)
    raise KeyError("missing-key")


def answer_for_another(delivery: Delivery) -> None:
    """Ack another message through the pipe to the worker, as a copy of this process could, and fail."""
    [pipe] = [each for each in gc.get_objects() if isinstance(each, Connection) and each.writable]
    leased = delivery.leased
    pipe.send(Ended(os.getpid(), leased.claim_id, leased.seq + 1, ACK, False, False, 0))
    pipe.send(Ended(os.getpid() + 1, leased.claim_id, leased.seq, ACK, False, False, 0))
    raise RuntimeError("this one")


def start_processes(delivery: Delivery) -> None:
    """Compute in a pool of processes, and end a process that would not end by itself."""
    method = multiprocessing.get_context(delivery.payload)
    with method.Pool(1) as pool:
        assert pool.map(abs, [-1]) == [1]
    endless = method.Process(target=signal.pause)
    endless.start()
    endless.terminate()
    endless.join()
    assert endless.exitcode == -signal.SIGTERM


def leave_a_process(delivery: Delivery) -> None:
    """Start a process that does not end by itself, and do what the payload says."""
    does, folder = delivery.payload["does"], Path(delivery.payload["folder"])
    started = subprocess.Popen(["sleep", "3600"])
    (folder / does).write_text(str(started.pid))
    if does != "returns":
        torture(delivery)


@contextmanager
def factory() -> Iterator[dict[str, object]]:
    """Give handlers by kind; say in the folder of the last message that the process ends."""
    folders: list[Path] = []

    def write(delivery: Delivery) -> None:
        folders.append(Path(delivery.payload))
        (folders[-1] / f"{delivery.id}").write_text(str(os.getpid()))

    yield {"write": write}
    for folder in folders[-1:]:
        (folder / f"ended-{os.getpid()}").touch()


@contextmanager
def breaking() -> Iterator[object]:
    """Give no handlers."""
    raise RuntimeError("no model")
    yield


def broken_mark(worker: int) -> Path:
    """Where a worker's first process says that no other can begin."""
    return Path(tempfile.gettempdir(), f"waterclock-work-{worker}-breaks")


@contextmanager
def breaking_later() -> Iterator[object]:
    """Give a handler that ends its process, but no second time."""
    if broken_mark(os.getppid()).exists():
        raise RuntimeError("no model any more")

    def end(_: Delivery) -> None:
        broken_mark(os.getppid()).touch()
        os._exit(3)

    yield end


@contextmanager
def starting_for_ever() -> Iterator[object]:
    """Take for ever to give handlers."""
    print("starts", os.getpid(), flush=True)
    threading.Event().wait()
    yield


@asynccontextmanager
async def starting_in_the_loop() -> AsyncIterator[object]:
    """Take for ever to give handlers, and let others go on."""
    print("starts", os.getpid(), flush=True)
    await asyncio.sleep(3600)
    yield


def main(*words: str) -> None:
    """Run a command in a process of its own."""
    from waterclock.cli.app import run  # noqa: PLC0415  # processes of workers do not need it: a tenth of their start

    if code := run([*words]):
        sys.exit(code)
