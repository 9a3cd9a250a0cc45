"""A process that forks workers on demand, so that one can be started and killed in a few milliseconds.

Each line of its input is a command: ``{"start": role, "url": …, "ledgers": …, "log": …}`` answers with a process id,
``{"kill": pid}`` kills it and answers when it is gone. A worker appends to its log what its calls have returned.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg  # noqa: F401  # loaded once here, not in every worker
import pyarrow as pa
import pymysql  # noqa: F401  # likewise
import sqlalchemy.dialects.mysql.pymysql
import sqlalchemy.dialects.postgresql.psycopg
import sqlalchemy.dialects.sqlite.pysqlite  # noqa: F401  # likewise

from waterclock.database.backend import Backend
from waterclock.errors import UnavailableError
from waterclock.message import Message
from waterclock.topics.catalogue import pending_files
from waterclock.topics.topic import Topic
from waterclock.topics.upkeep import expiring, relocating, retention, sweeping
from waterclock.topics.writing.producers import read_producer

_PR_SET_PDEATHSIG = 1
TOPIC = "killed"
LEASE = 100_000_000  # ns
TOGETHER = 6  # threads
Note = Callable[[str], None]


def shorten_leases() -> None:
    """Let what the dead held come free soon."""
    pending_files.LEASE = expiring.LEASE = relocating.LEASE = sweeping.CLAIM = LEASE
    retention.GRACE = 0


def batch(first: int, count: int, now: int) -> list[Message]:
    """Make the messages numbered from ``first``; the old ones of the flow are those of publish time 1."""
    return [Message("press", str(first + i), first + i, b"x" * 40, publish_time=now) for i in range(count)]


def append(topic: Topic, note: Note, start: int) -> None:
    """Append numbered messages for ever, a few at a time; repeat from the last one that was acknowledged."""
    number = start
    while True:
        count = 1 + number % 7
        topic.append(batch(number, count, topic.storage.backend.now()), producer="p", sequence=number)
        number += count
        note(str(number))


def append_together(topic: Topic, note: Note, _: int) -> None:
    """Append by several threads for ever, each under its own name; begin with a repeat of what one stored last."""

    def work(thread: int) -> None:
        name = f"together {thread}"
        with topic.storage.backend.snapshot() as connection:
            known = read_producer(topic.storage, connection, name)
        number = known.recent[-1].first if known else 0
        while True:
            count = 1 + number % 3
            messages = [Message(name, "s", number + i, publish_time=1) for i in range(count)]
            topic.append(messages, producer=name, sequence=number)
            number += count
            note(f"{name}: {number}")

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(TOGETHER)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def seal(topic: Topic, note: Note, _: int) -> None:
    """Roll once, then seal for ever."""
    topic.roll()
    while True:
        with suppress(UnavailableError):  # its lease lapsed on a busy machine, and others swept its file
            note(f"sealed {topic.seal()}")


def compact(topic: Topic, note: Note, _: int) -> None:
    """Compact for ever, into files of some ledgers each."""
    while True:
        with suppress(UnavailableError):  # as above
            note(f"compacted {topic.compact(40_000)}")


def expire(topic: Topic, note: Note, _: int) -> None:
    """Expire for ever."""
    while True:
        with suppress(UnavailableError):  # one that was killed is still thought to run
            note(f"expired {topic.expire('1h').ledgers}")


def relocate(topic: Topic, note: Note, _: int) -> None:
    """Relocate to and fro, forever."""
    place = topic.storage.files.place.removesuffix("-new")
    while True:
        for root in (f"{place}-new", place):
            with suppress(UnavailableError):  # a sweep that was killed is still thought to run
                note(f"relocated {topic.relocate(root).copied}")


ROLES = {
    "append": append,
    "append_together": append_together,
    "seal": seal,
    "compact": compact,
    "expire": expire,
    "relocate": relocate,
}


def _work(command: dict[str, Any]) -> None:
    shorten_leases()
    log = os.open(command["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    ledgers = None if command["start"] == "relocate" else command["ledgers"]  # None: where they lie by now
    topic = Topic.open(Backend(command["url"]), ledgers, TOPIC)
    os.write(log, b"ready\n")
    ROLES[command["start"]](topic, lambda text: os.write(log, f"{text}\n".encode()), command["from"])


def _serve() -> None:
    pa.array([0])  # pyarrow imports pandas at the first list it meets: once here, not in every worker
    alive: set[int] = set()
    for line in sys.stdin:
        command = json.loads(line)
        if "kill" in command:
            alive.remove(command["kill"])
            print(json.dumps(_kill(command["kill"])), flush=True)
        elif child := os.fork():
            alive.add(child)
            print(json.dumps(child), flush=True)
        else:
            _work_until_killed(command)
    for child in alive:
        _kill(child)


def _kill(child: int) -> int:
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _work_until_killed(command: dict[str, Any]) -> None:
    # A process that is killed itself must not leave workers behind that run for ever.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        _work(command)
    except BaseException:  # noqa: BLE001  # nothing may lead the child back into the loop of its parent
        traceback.print_exc()
    finally:
        os._exit(1)


class KillableWorkers:
    """Starts such a process, and gives it its commands."""

    def __init__(self) -> None:
        root = Path(__file__).resolve().parents[3]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.topics.writing.killable_workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
        )

    def start(self, role: str, url: str, ledgers: Path, log: Path, number: int = 0) -> int:
        """Start a worker; give its process id."""
        return self._ask({"start": role, "url": url, "ledgers": str(ledgers), "log": str(log), "from": number})

    def kill(self, pid: int) -> None:
        """Kill a worker and wait until it is gone; it must not have ended by itself."""
        assert self._ask({"kill": pid}) == -signal.SIGKILL, "a worker ended by itself: its error is above"

    def _ask(self, command: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=30)


def lines(log: Path) -> Iterator[str]:
    """Read what a worker's calls have returned."""
    if log.exists():
        yield from log.read_text().splitlines()


if __name__ == "__main__":
    _serve()
