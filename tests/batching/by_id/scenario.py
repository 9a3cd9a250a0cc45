"""Reads a scenario of batching by id: the number in a message's name is its id."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from tests.batching.event_time.scenario import FOLDER, Scenario

from waterclock.batching.batch import Batch
from waterclock.batching.by_id.batcher import IdBatcher
from waterclock.message import Message

TRAINS = FOLDER / "id" / "trains.toml"


class IdScenario(NamedTuple):
    """One drawing as data; ``batches`` as batch: names, number, time of closing and reason."""

    title: str
    options: dict[str, Any]
    messages: dict[str, Message]
    batches: list[tuple[tuple[str, ...], int, int, str]]
    rejected: dict[str, str]

    @classmethod
    def read(cls, path: Path = TRAINS) -> IdScenario:
        written = tomllib.loads(path.read_text("utf-8"))
        plain = Scenario.read_arrivals(written["arrivals"])
        numbers = {name: re.sub(r"\D", "", name) for name in plain}
        return cls(
            written["title"],
            {name: written[name] for name in ("max_delay", "streams")},
            {
                name: message if name in written["without_id"] else message.replace(headers={"train": numbers[name]})
                for name, message in plain.items()
            },
            [(tuple(b["messages"]), b["number"], b["closes_at"], b["reason"]) for b in written["batches"]],
            written["rejected"],
        )

    def run(self) -> tuple[IdBatcher, list[Batch]]:
        """Batch its messages, and let all time pass."""
        batcher = IdBatcher("train", **self.options)
        batches = [batch for message in self.messages.values() for batch in batcher.add(message)]
        return batcher, batches + batcher.advance(10_000)

    def name(self, message: Message) -> str:
        return next(name for name, known in self.messages.items() if known == message)
