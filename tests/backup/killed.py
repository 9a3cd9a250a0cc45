"""A process that forks backups and restores, each killed at a later one of its accesses to files than the one before.

It reads what to do from lines of JSON. It prints ``killed`` after each kill, and waits for a line, so that a test can
look at the remains; ``done`` after the first fork that ended by itself.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import waterclock as wc

_PR_SET_PDEATHSIG = 1
_EVENTS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "sqlite3.connect", "fcntl.flock"}


def backup(url: str, ledgers: str, folder: str) -> None:
    with wc.connect(url, ledgers) as database:
        database.backup(folder)


def restore(url: str, ledgers: str, folder: str) -> None:
    wc.restore(folder, url, ledgers)


def _import_all() -> None:
    """Back up and restore a database once: else every child imports it all anew, and is killed between imports."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with wc.connect(f"sqlite:///{folder}/source.db", folder / "ledgers") as database:
            topic = database.create_topic("t")
            for roll in (topic.roll, topic.seal):
                topic.append([wc.Message("a", "s", 1)])
                roll()
            database.backup(folder / "backup")
        wc.restore(folder / "backup", f"sqlite:///{folder}/copy.db", folder / "copy-ledgers")


def _run(work: Callable[[], None], kill_at: int) -> bool:
    """Do it in a process of its own, killed there; say whether it came to its end before."""
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        count = 0

        def look(event: str, _arguments: tuple[Any, ...]) -> None:
            nonlocal count
            if event in _EVENTS:
                count += 1
                if count == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(look)
        try:
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001  # nothing may lead the child back into the loop of its parent
            traceback.print_exc()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in {0, -signal.SIGKILL}, code
    return code == 0


def main() -> None:
    _import_all()
    while request := sys.stdin.readline():
        what, *places = json.loads(request)
        step = partial({"backup": backup, "restore": restore}[what], *places)
        kill_at = 1
        while not _run(step, kill_at):
            print("killed", flush=True)
            sys.stdin.readline()
            kill_at += 1
        print("done", flush=True)


if __name__ == "__main__":
    main()
