"""A writer that is frozen while it holds a topic's lock delays the others only for a bounded time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.frozen import frozen

from waterclock.connection import Database
from waterclock.message import Message, Position
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.topic import Topic

VERBS: dict[str, Callable[[Topic], object]] = {
    "append": lambda topic: topic.append([Message("a", "b", 1)]),
    "producer": lambda topic: topic.append([Message("a", "b", 1)], producer="p", sequence=0),
    "seal": lambda topic: topic.seal(),
    "expire": lambda topic: topic.expire("1h"),
    "truncate": lambda topic: topic.truncate(Position(99, 0, 0)),
}

with_a_server = pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)


@contextmanager
def frozen_writer(topic: Topic, verb: str, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Have a verb under way in another thread, which has the topic's lock and says nothing more to the server."""
    present = Storage.present

    def write(freeze: Callable[[], None]) -> None:
        writer = threading.current_thread()

        def freeze_first(storage: Storage, row: Any) -> Any:
            if threading.current_thread() is writer:
                freeze()
            return present(storage, row)

        monkeypatch.setattr(Storage, "present", freeze_first)
        VERBS[verb](topic)

    with frozen(write):
        yield


@with_a_server
@pytest.mark.usefixtures("short_silence")
@pytest.mark.parametrize("verb", VERBS)
def test_the_server_ends_the_lock_of_a_client_that_says_nothing(
    connect: Callable[..., Database], verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = connect().create_topic("telemetry", roll_size=1)
    for _ in range(2):
        topic.append([Message("a", "b", 1)])
    truncated = topic.head
    with frozen_writer(connect().topic("telemetry"), verb, monkeypatch):
        first = topic.append([Message("a", "b", 2)]).first
        assert first is not None
        assert first >= truncated
        assert topic.subscribe("s").read()
    monkeypatch.undo()  # what checks everything may be silent for longer
    assert connect().topic("telemetry").verify(deep=True).is_whole  # also once it has gone on


PROGRAM = """
import os, signal, sys
import waterclock as wc
from tests.topics.writing.test_frozen_writers import VERBS
from waterclock.topics.catalogue.storage import Storage

topic = wc.connect(sys.argv[1], sys.argv[2]).topic(sys.argv[3])
present = Storage.present
def freeze(storage, row):
    os.kill(os.getpid(), signal.SIGSTOP)
    return present(storage, row)
Storage.present = freeze
VERBS[sys.argv[3]](topic)
"""


@pytest.mark.slow
@with_a_server
def test_appends_continue_soon_after_a_process_was_stopped(
    connect: Callable[..., Database], database_url: str, tmp_path: Path
) -> None:
    ledgers = str(tmp_path / "ledgers")  # as `connect` has them
    database = connect()
    topics = {verb: database.create_topic(verb, roll_size=1) for verb in VERBS}
    stopped: list[subprocess.Popen[bytes]] = []
    try:
        for verb, topic in topics.items():
            topic.append([Message("a", "b", 1)])
            stopped.append(subprocess.Popen([sys.executable, "-c", PROGRAM, database_url, ledgers, verb]))
            assert os.WIFSTOPPED(os.waitpid(stopped[-1].pid, os.WUNTRACED)[1])
            began = time.monotonic()
            topic.append([Message("a", "b", 2)])
            print(f"{verb}: {time.monotonic() - began:.1f} s")  # the measure
    finally:
        for each in stopped:
            os.kill(each.pid, signal.SIGKILL)
            each.wait()
