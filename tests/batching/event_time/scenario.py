"""Reads a scenario of batching by event time: what arrives when, and the batches that are expected.

An arrival is written as in *Message Batching*: ``a1:t110@T120`` is message a1 of stream a, which happened at 110
and was received at 120. A message that arrives again has an apostrophe: ``c1'``.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from waterclock.batching.batch import Batch, Rejection
from waterclock.message import Message

FOLDER = Path(__file__).parents[2] / "scenarios"
SOURCE = "device"

_ARRIVAL = re.compile(r"(?P<name>(?P<stream>[a-z]+)\d+'?):t(?P<event_time>-?\d+)@T(?P<receive_time>-?\d+)")


class Closing(NamedTuple):
    """A batch in a drawing, by the names of its messages."""

    messages: tuple[str, ...]
    start: int
    end: int
    closed_at: int
    reason: str
    run: int | None


class Place(NamedTuple):
    """Where a message ends up: the window of its batch, or the reason of its rejection."""

    start: int | None
    end: int | None
    rejected: str | None


@dataclass(frozen=True)
class Scenario:
    """One drawing as data; ``messages`` by name, in order of arrival, and the options by name."""

    title: str
    rule: dict[str, Any]
    messages: dict[str, Message]
    batches: list[Closing]
    rejected: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> Scenario:
        written = tomllib.loads(path.read_text("utf-8"))
        closings = [
            Closing(tuple(b["messages"]), *b["window"], b["closes_at"], b["reason"], b.get("run"))
            for b in written["batches"]
        ]
        messages = cls.read_arrivals(written["arrivals"])
        rule = {name: written[name] for name in ("window", "max_delay", "gap", "boundaries") if name in written}
        return cls(written["title"], rule, messages, closings, written.get("rejected", {}))

    @staticmethod
    def read_arrivals(written: list[str]) -> dict[str, Message]:
        """Read messages, by name."""
        return dict(map(_arrival, written))

    def places(self) -> dict[str, Place]:
        """Tell of every message where it must end up."""
        batched = {name: Place(batch.start, batch.end, None) for batch in self.batches for name in batch.messages}
        rejected = {name: Place(None, None, reason) for name, reason in self.rejected.items()}
        return {name: (batched | rejected)[name] for name in self.messages}

    def closing(self, batch: Batch) -> Closing:
        """Describe a batch as the drawing does."""
        names = tuple(self.name(message) for message in batch.messages)
        return Closing(names, batch.start, batch.end, batch.closed_at, batch.reason, batch.run)

    def rejection(self, rejection: Rejection) -> tuple[str, str]:
        return self.name(rejection.message), rejection.reason

    def name(self, message: Message) -> str:
        return next(name for name, known in self.messages.items() if known == message)


def scenario_files() -> list[Path]:
    """Find the use cases of *Message Batching*, and those beyond it."""
    return sorted(FOLDER.glob("*.toml"))


def _arrival(text: str) -> tuple[str, Message]:
    match = _ARRIVAL.fullmatch(text)
    assert match is not None, f"{text!r} is not written like a1:t110@T120"
    event_time, receive_time = int(match["event_time"]), int(match["receive_time"])
    return match["name"], Message(SOURCE, match["stream"], event_time, receive_time=receive_time)
