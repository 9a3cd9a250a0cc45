"""Runs the two worker processes of the demo's main job. One of them is killed on purpose."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

from waterclock.errors import UnavailableError


@dataclass(frozen=True)
class CrewReport:
    """The results of the crew, in messages: acked, held by the killed worker, and redelivered."""

    acked: int
    held_when_killed: int
    delivered_again: int


@dataclass(frozen=True)
class _CrewMember:
    name: str
    process: subprocess.Popen[str]

    @property
    def ears(self) -> IO[str]:
        if self.process.stdin is None:  # always true: it was started with a pipe
            raise UnavailableError(f"cannot communicate with {self.name}")
        return self.process.stdin


def run_crew(url: str, table: str, total: int, progress: Callable[[int], None]) -> CrewReport:
    """Run two workers until the table is empty; SIGKILL the first midway, while it holds messages that are not acked.

    Raises `UnavailableError` if a worker that was not killed ends with an error, or none could be killed midway.

    Parameters
    ----------
    url, table
        The database and the message table.
    total
        How many messages there are; the kill comes when half of them are acked.
    progress
        Called with the number of messages acked so far.
    """
    said: queue.SimpleQueue[tuple[_CrewMember, dict[str, int] | None]] = queue.SimpleQueue()
    crew = [_start(url, table, name, said) for name in ("worker-1", "worker-2")]
    victim = crew[0]
    acked = held = again = 0
    talking = len(crew)
    try:
        while talking:
            worker, fact = said.get()
            if fact is None:
                talking -= 1
                continue
            acked += fact.get("acked", 0)
            again += fact.get("again", 0)
            progress(acked)
            if "taken" not in fact:
                continue
            if worker is victim and not held and acked * 2 >= total:
                held = fact["taken"]
                victim.process.kill()
            else:
                worker.ears.write("go\n")
                worker.ears.flush()
    finally:
        for worker in crew:
            if talking:
                worker.process.kill()
            worker.process.wait()
    if not held:
        raise UnavailableError(
            "the first worker took no messages in the second half of the demo, so it could not be killed while it held"
            " messages"
        )
    if crew[1].process.returncode != 0:
        raise UnavailableError("the second worker failed; its error is above")
    return CrewReport(acked, held, again)


def _start(
    url: str, table: str, name: str, said: queue.SimpleQueue[tuple[_CrewMember, dict[str, int] | None]]
) -> _CrewMember:
    process = subprocess.Popen(
        [sys.executable, "-m", "waterclock.demo.worker", url, table, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    worker = _CrewMember(name, process)
    threading.Thread(target=_listen, args=(worker, said), daemon=True).start()
    return worker


def _listen(worker: _CrewMember, said: queue.SimpleQueue[tuple[_CrewMember, dict[str, int] | None]]) -> None:
    for line in worker.process.stdout or ():
        said.put((worker, json.loads(line)))
    said.put((worker, None))
