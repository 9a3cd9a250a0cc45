"""Handlers as a user writes them, for workers that run as processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waterclock.cli.app import run
from waterclock.tables.consumers.delivery import Delivery


def handle(delivery: Delivery) -> None:
    print(f"handled {delivery.payload}\n", end="", flush=True)


def hold(delivery: Delivery) -> None:
    """Say that it began, and ignore all that it is asked."""
    print(f"began {delivery.payload}\n", end="", flush=True)
    threading.Event().wait()


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
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            threading.Event().wait()
        case "waits to be cancelled":
            while not delivery.cancelled:
                time.sleep(0.01)
            raise RuntimeError(does)
        case "acks by itself":
            with delivery.context.backend.engine.begin() as connection:
                delivery.ack(connection=connection)
        case _:
            pass


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


@contextmanager
def starting_for_ever() -> Iterator[object]:
    """Take for ever to give handlers."""
    print("starts", os.getpid(), flush=True)
    threading.Event().wait()
    yield


def main(*words: str) -> None:
    """Run a command in a process of its own."""
    if code := run([*words]):
        sys.exit(code)
