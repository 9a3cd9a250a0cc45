"""Who is frozen with the lock of a topic holds up the others for a bounded time only."""

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

from waterclock.connection import Database
from waterclock.database.engines.engine_dialect import LONGEST_SILENCE
from waterclock.message import Message, Position
from waterclock.topics.storage import Storage
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
def frozen(topic: Topic, verb: str, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Have a verb under way in another thread, which has the topic's lock and says nothing more to the server."""
    locked, go_on = threading.Event(), threading.Event()
    present = Storage.present
    thread = threading.Thread(target=lambda: VERBS[verb](topic), name=verb)

    def freeze(storage: Storage, row: Any) -> Any:
        if threading.current_thread() is thread and not locked.is_set():
            locked.set()
            go_on.wait()
        return present(storage, row)

    monkeypatch.setattr(Storage, "present", freeze)
    thread.start()
    try:
        assert locked.wait(30)
        yield
    finally:
        go_on.set()
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("postgresql", "mariadb"):
        module = f"waterclock.database.engines.{name}"
        silence = getattr(sys.modules[module], "_SILENCE")  # noqa: B009  # of the module's own
        monkeypatch.setattr(f"{module}._SILENCE", silence.replace(str(LONGEST_SILENCE), "1"))


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
    with frozen(connect().topic("telemetry"), verb, monkeypatch):
        first = topic.append([Message("a", "b", 2)]).first
        assert first is not None
        assert first >= truncated
        assert topic.subscribe("s").read()
    monkeypatch.undo()  # what checks everything may be silent for longer
    assert connect().topic("telemetry").verify(deep=True).is_whole  # also once it has gone on


PROGRAM = """
import os, signal, sys
import waterclock as wc
from tests.topics.test_frozen_writers import VERBS
from waterclock.topics.storage import Storage

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
def test_appends_go_on_soon_after_a_process_was_stopped(
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
