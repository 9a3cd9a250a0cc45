"""The rules by which a topic is batched live, and the streams that apply them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from waterclock.batching.event_time.rule import EventTimeRule, OnConflict
from waterclock.batching.rate.rule import Gated
from waterclock.spark.many_sources import ManySources
from waterclock.spark.records import POSITIONED
from waterclock.spark.streaming.event_time_stream import EventTimeStream
from waterclock.spark.streaming.rate_options import RateOptions
from waterclock.spark.streaming.rate_stream import RateStream
from waterclock.time import Duration, format_duration


class LiveStream(Protocol):
    """Batches the messages of many sources; see `EventTimeStream` and `RateStream`."""

    @property
    def open_batches(self) -> int:
        """How many windows with messages the last `take` has left open."""
        ...

    @property
    def wakes_at(self) -> int | None:
        """When, ms since the epoch, to `take` again without new messages; None: never."""
        ...

    def take(self, arrived: ManySources, promised: int, /) -> pa.RecordBatch:
        """Add messages, perhaps none, and return the outcomes."""
        ...

    def state(self) -> bytes:
        """Write down everything that is known."""
        ...


class LiveRule(Protocol):
    """A rule that a topic can be batched by."""

    @property
    def text(self) -> str:
        """The options as a user reads them; equal texts are equal rules."""
        ...

    def stream(self, state: bytes | None) -> LiveStream:
        """Begin, or continue from a stored state."""
        ...


@dataclass(frozen=True)
class ByEventTime:
    """Batching by event time, as `waterclock.EventTimeBatcher` does it.

    Attributes
    ----------
    rule
        The checked options.
    """

    rule: EventTimeRule

    @classmethod
    def checked(
        cls, window: Duration, max_delay: Duration, max_lead: Duration = 0, on_conflict: OnConflict = "split"
    ) -> ByEventTime:
        """Check the user's options."""
        return cls(EventTimeRule.checked(window, max_delay, max_lead, on_conflict))

    @property
    def text(self) -> str:
        """The options: ``window = 500ms, max_delay = 2s, …``."""
        *lengths, on_conflict = self.rule
        named = [f"{name} = {format_duration(ns)}" for name, ns in zip(EventTimeRule._fields, lengths, strict=False)]
        return ", ".join([*named, f"on_conflict = {on_conflict}"])

    def stream(self, state: bytes | None) -> LiveStream:
        """Begin, or continue from a stored state."""
        if state is None:
            return EventTimeStream(self.rule, POSITIONED)
        return EventTimeStream.restore(state, self.rule, POSITIONED)


@dataclass(frozen=True)
class ByRate:
    """Batching by the streams' own rates, as `waterclock.RateAwareBatcher` does it.

    Attributes
    ----------
    options
        The checked options.
    """

    options: RateOptions

    @classmethod
    def checked(cls, batch_length: Duration, timeout: Duration | float | None = None, gated: Gated = True) -> ByRate:
        """Check the user's options."""
        return cls(RateOptions.checked(batch_length, timeout, gated))

    @property
    def text(self) -> str:
        """The options, as numbers of nanoseconds."""
        length, ratio, gated, _ = self.options.facts()
        return f"batch_length = {format_duration(length)}, timeout = {json.dumps(ratio)}, gated = {json.dumps(gated)}"

    def stream(self, state: bytes | None) -> LiveStream:
        """Begin, or continue from a stored state."""
        return RateStream(self.options) if state is None else RateStream.restore(state, self.options)
