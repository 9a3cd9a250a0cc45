"""Checks that the main job accounts for every message. Reads the results themselves, not the reports of the steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from waterclock._support.quoting import counted
from waterclock.batching.batch import Batch
from waterclock.message import Message, Position
from waterclock.spark.writing.message_writer import POSITION_HEADER


@dataclass(frozen=True)
class Reconciliation:
    """The main job's books, in messages, or in batches as noted."""

    appended: int  # messages in the topic
    before_start: int  # in the topic before the position at which the pipeline started
    batched: int  # in batches that were acked
    rejected: Counter[str]  # in the topic of rejected messages, by reason
    astray: int  # positions that should be in exactly one batch or rejection, but are in none or several
    # Batches in the message table, and how many of them are acked.
    batches: int
    acked: int
    # Batches that the killed worker held, and deliveries that were not the first of their batch.
    held_when_killed: int
    delivered_again: int

    @property
    def balances(self) -> bool:
        """Whether every message is accounted for once, every batch was handled, and the kill was compensated."""
        accounted = self.before_start + self.batched + self.rejected.total()
        return (
            self.appended == accounted
            and self.astray == 0
            and self.batches == self.acked
            and self.delivered_again >= self.held_when_killed > 0
        )

    def facts(self) -> dict[str, object]:
        """Return the books for programs."""
        return {**asdict(self), "rejected": dict(self.rejected), "balances": self.balances}

    def lines(self) -> list[str]:
        """Write the books for people."""
        entries = [
            ("appended to topic telemetry", self.appended),
            ("before the start", self.before_start),
            ("in batches", self.batched),
            *((f"rejected, {reason}", self.rejected[reason]) for reason in ("late", "future", "duplicate")),
        ]
        width = max(len(name) for name, _ in entries)
        text = [f"{name:<{width}}  {count:>9,}" for name, count in entries]
        text.insert(1, "-" * (width + 11))
        text += [
            "",
            f"{counted(self.batches, 'batch', 'batches')}, {self.acked:,} acked; the killed worker held"
            f" {self.held_when_killed}, {self.delivered_again} were delivered again",
            "It balances to the message."
            if self.balances
            else f"IT DOES NOT BALANCE: {counted(self.astray, 'message')} astray",
        ]
        return text


def count_astray(expected: Iterable[Position], batches: Iterable[Batch], rejected: Iterable[Message]) -> int:
    """Count the positions that are not in exactly one batch or rejection."""
    seen: Counter[Position | None] = Counter(message.position for batch in batches for message in batch.messages)
    seen.update(Position.parse((message.headers or {})[POSITION_HEADER]) for message in rejected)
    wanted: Counter[Position | None] = Counter(expected)
    return (seen - wanted).total() + (wanted - seen).total()
