"""An ingest in a process of its own that kills itself in the middle of an append."""

from __future__ import annotations

import os
import signal
from itertools import count
from typing import Any

from tests.ingest.mqtt.places import Place

from waterclock import connect
from waterclock._support.small_process import keep_small
from waterclock.ingest.ingest import Ingest
from waterclock.topics.writing.appending import JointAppend


def main(database: str, ledgers: str, url: str, name: str, version: str, death: str, append: str) -> None:
    """Run until the append of that number, counted from 1, is about to commit, or has committed and is not acked."""
    keep_small()
    commit, numbers = JointAppend.commit, count(1)

    def die_at(*arguments: Any) -> object:
        is_last = next(numbers) == int(append)
        if is_last and death == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = commit(*arguments)
        if is_last and death == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    JointAppend.commit = die_at  # type: ignore[method-assign,assignment]
    with connect(database, ledgers) as opened:
        Ingest(opened, Place(url, name).plan(version=version), lambda _: None).run()
