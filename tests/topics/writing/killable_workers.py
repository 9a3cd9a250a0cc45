"""Workers on a topic that are started and killed again and again. Each appends to its log what its calls returned."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from tests.support.forked import Forked

from waterclock.database.backend import Backend
from waterclock.errors import UnavailableError
from waterclock.message import Message
from waterclock.topics.catalogue import pending_files
from waterclock.topics.topic import Topic
from waterclock.topics.upkeep import expiring, relocating, retention, sweeping
from waterclock.topics.writing.producers import read_producer

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


def main(role: str, url: str, ledgers: str, log: str, number: str) -> None:
    """Work until this process is killed."""
    shorten_leases()
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    place = None if role == "relocate" else ledgers  # None: where they lie by now
    topic = Topic.open(Backend(url), place, TOPIC)
    os.write(file, b"ready\n")
    ROLES[role](topic, lambda text: os.write(file, f"{text}\n".encode()), int(number))


def start_worker(role: str, url: str, ledgers: Path, log: Path, number: int = 0) -> Forked:
    return Forked("tests.topics.writing.killable_workers", role, url, ledgers, log, number)


def kill(worker: Forked) -> None:
    """Kill a worker and wait until it is gone; it must not have ended by itself."""
    worker.kill()
    assert worker.wait() == -signal.SIGKILL, "a worker ended by itself: its error is above"


def lines(log: Path) -> Iterator[str]:
    """Read what a worker's calls have returned."""
    if log.exists():
        yield from log.read_text().splitlines()
