"""Limits how far ahead of our clock a message's times may be, and handles messages beyond the limit."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, get_args

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from waterclock.errors import InvalidArgumentError
from waterclock.time import MAX_NS, format_duration, format_time
from waterclock.topics.model.literals import OnAhead

_log = logging.getLogger(__name__)


class Rejected(NamedTuple):
    """A message of an append that was not written.

    Attributes
    ----------
    index
        Its place among the passed messages, from 0.
    reason
        Why it was rejected, with the value.
    """

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # the word of the interface; tuple.index is not used
    reason: str


class ClockTimes(NamedTuple):
    """The times that the caller gave for the messages of an append; null if our clock fills them in."""

    publish_time: pa.Array
    receive_time: pa.Array

    @property
    def any_given(self) -> bool:
        """Whether one of them is not null."""
        return any(times.null_count < len(times) for times in self)


LOOK_EVERY = 1.0
"""Seconds until an open topic notices a change of its limit, as in message tables."""


@dataclass(frozen=True)
class AheadLimit:
    """A topic's limit."""

    topic: str  # the topic's name
    max_ahead: int  # how far ahead of the clock a publish_time or receive_time may be, ns; inclusive
    on_ahead: OnAhead  # what happens to a message beyond the limit

    @classmethod
    def of_row(cls, row: sa.RowMapping) -> AheadLimit | None:
        """Read a topic's row; None without a limit."""
        if row["max_ahead"] is None:
            return None
        return cls(row["name"], row["max_ahead"], row["on_ahead"] or "reject")

    def rejected(self, times: ClockTimes, now: Callable[[], int]) -> tuple[Rejected, ...]:
        """Return the messages of an append that must not be written; if they are kept anyway, log a warning."""
        rejected = self.too_far(times, now())
        if rejected and self.on_ahead == "keep":
            _log.warning(
                "topic %r: an append keeps %d messages with times too far ahead, the first: %s",
                self.topic,
                len(rejected),
                rejected[0].reason,
            )
            return ()
        return rejected

    def too_far(self, times: ClockTimes, now: int) -> tuple[Rejected, ...]:
        """Return the messages with a time that is too far ahead; one that is null is filled in, and never ahead."""
        limit = pa.scalar(min(now + self.max_ahead, MAX_NS), pa.int64())
        found: dict[int, Rejected] = {}
        for name, column in reversed(times._asdict().items()):  # if both are, publish_time is named
            rows = pc.call_function("indices_nonzero", [pc.call_function("greater", [column, limit])])
            found |= {row: Rejected(row, self._reason(name, column[row].as_py(), now)) for row in rows.to_pylist()}
        return tuple(found[row] for row in sorted(found))

    def _reason(self, name: str, time: int, now: int) -> str:
        return (
            f"{name} {format_time(time)} is {format_duration(time - now)} ahead of the clock, and topic"
            f" {self.topic!r} takes at most {format_duration(self.max_ahead)} (max_ahead)"
        )


@dataclass(slots=True)
class KnownLimit:
    """A topic's limit as last read, shared by all objects of one open topic."""

    limit: AheadLimit | None = None  # None: no limit
    read_at: float = -math.inf  # when it was read, on the monotonic clock


def check_on_ahead(on_ahead: str) -> OnAhead:
    """Check the choice for messages that are too far ahead."""
    if on_ahead not in get_args(OnAhead):
        raise InvalidArgumentError(f"on_ahead must be one of {', '.join(get_args(OnAhead))}, got {on_ahead!r}")
    return "keep" if on_ahead == "keep" else "reject"
