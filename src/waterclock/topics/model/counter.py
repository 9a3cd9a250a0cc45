"""Counts the ledgers, entries and messages of a topic, without I/O. Every append advances the counter.

The caller writes the results to the catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from waterclock.database.schema.topic_catalogue import BOUNDED, TIMES
from waterclock.message import Position
from waterclock.topics.model.bounds import Bounds, peak_columns, raised

COUNTER_COLUMNS = (
    *("ledger", "entries", "messages", "bytes", "ordinal", "opened_at"),
    *(f"begin_{time}" for time in TIMES),
    *(f"end_{time}" for time in BOUNDED),
    *(f"peak_{time}" for time in BOUNDED),
    *("roll_after", "roll_size"),
)
"""The columns of a topic's row that make its counter."""

_BOUNDS = 6  # the number of columns before the bounds
_PEAK = _BOUNDS + len(TIMES) + len(BOUNDED)
_ROLL = _PEAK + len(BOUNDED)

_NO_BOUNDS = dict.fromkeys(COUNTER_COLUMNS[_BOUNDS:_PEAK])


@dataclass(frozen=True, slots=True)
class Counter:
    """The current end of a topic."""

    ledger: int  # the open ledger
    # How many the open ledger has.
    entries: int
    messages: int
    bytes: int
    ordinal: int  # number of the next message in the topic
    opened_at: int | None  # when the open ledger got its first entry, ns; None while it is empty
    bounds: Bounds | None  # the open ledger's; None while it is empty
    peak: Mapping[str, int] | None  # running maximum over all closed ledgers; None before the first is closed
    # When the open ledger is due to be closed: ns, bytes.
    roll_after: int | None
    roll_size: int

    @classmethod
    def of_row(cls, row: Mapping[Any, Any]) -> Self:
        """Read a topic's row."""
        return cls.of_values([row[name] for name in COUNTER_COLUMNS])

    @classmethod
    def of_values(cls, values: Sequence[Any]) -> Self:
        """Take the values of `COUNTER_COLUMNS`, in their order."""
        peak = values[_PEAK:_ROLL]
        return cls(
            *values[:_BOUNDS],
            bounds=Bounds.of_values(values[_BOUNDS:_PEAK]),
            peak=None if None in peak else dict(zip(BOUNDED, peak, strict=True)),
            roll_after=values[_ROLL],
            roll_size=values[_ROLL + 1],
        )

    @property
    def position(self) -> Position:
        """The position of the next message, unless the ledger rolls first."""
        return Position(self.ledger, self.entries, 0)

    def is_due(self, now: int) -> bool:
        """Return whether the open ledger must be closed before the next append."""
        if self.opened_at is None:
            return False
        return self.bytes >= self.roll_size or (self.roll_after is not None and now - self.opened_at >= self.roll_after)

    def appended(self, messages: int, size: int, bounds: Bounds, now: int) -> Counter:
        """Count one more entry."""
        return replace(
            self,
            entries=self.entries + 1,
            messages=self.messages + messages,
            bytes=self.bytes + size,
            ordinal=self.ordinal + messages,
            opened_at=now if self.opened_at is None else self.opened_at,
            bounds=bounds.joined(self.bounds),
        )

    def rolled(self) -> Counter:
        """Open the next ledger."""
        peak = self.peak if self.bounds is None else raised(self.peak, self.bounds.end)
        return replace(
            self, ledger=self.ledger + 1, entries=0, messages=0, bytes=0, opened_at=None, bounds=None, peak=peak
        )

    def columns(self) -> dict[str, int | None]:
        """Name the values as the topic's row does."""
        return {
            "ledger": self.ledger,
            "entries": self.entries,
            "messages": self.messages,
            "bytes": self.bytes,
            "ordinal": self.ordinal,
            "opened_at": self.opened_at,
            **(_NO_BOUNDS if self.bounds is None else self.bounds.columns()),
            **peak_columns(self.peak),
        }

    def closed_ledger(self, now: int) -> dict[str, int | str | None]:
        """Return the row of the ledger that `rolled` closes."""
        columns = replace(self, peak=self.rolled().peak).columns()
        del columns["ordinal"]
        return {**columns, "state": "closed", "first_ordinal": self.ordinal - self.messages, "closed_at": now}
