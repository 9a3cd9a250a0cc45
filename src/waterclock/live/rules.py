"""The rules by which a topic can be batched live, and the streams that apply these rules."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, cast

import pyarrow as pa

from waterclock.batching.adaptive import Adaptive, AdaptiveBatchLength
from waterclock.batching.by_id.rule import IdRule
from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.batching.rate.by_message.aligned import Clocks
from waterclock.batching.rate.rule import Gated
from waterclock.columnar.many_sources import ManySources
from waterclock.columnar.records import POSITIONED
from waterclock.columnar.streams.event_time_stream import EventTimeStream
from waterclock.columnar.streams.id_stream import IdStream
from waterclock.columnar.streams.rate_options import RateOptions
from waterclock.columnar.streams.rate_stream import RateStream
from waterclock.live.adaptive_stream import AdaptiveRateStream
from waterclock.time import Duration, format_duration


class LiveStream(Protocol):
    """Batches the messages of many sources; see `EventTimeStream` and `RateStream`."""

    @property
    def open_batches(self) -> int:
        """How many windows with messages the last `take` left open."""
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
    """A rule for batching a topic."""

    @property
    def text(self) -> str:
        """The options as a user reads them; equal texts are equal rules."""
        ...

    @property
    def id_header(self) -> str | None:
        """The header that holds the ids of messages; None for a rule without ids."""
        ...

    def stream(self, state: bytes | None) -> LiveStream:
        """Begin, or continue from a stored state."""
        ...


@dataclass(frozen=True)
class ByEventTime:
    """Batching by event time, like `waterclock.EventTimeBatcher`."""

    rule: EventTimeRule  # the checked options
    id_header = None

    @property
    def text(self) -> str:
        """The options: ``window = 500ms, max_delay = 2s, …``."""
        return self.rule.text

    def stream(self, state: bytes | None) -> LiveStream:
        """Begin, or continue from a stored state."""
        if state is None:
            return EventTimeStream(self.rule, POSITIONED)
        return EventTimeStream.restore(state, self.rule, POSITIONED)


@dataclass(frozen=True)
class ByRate:
    """Batching by the streams' own rates, like `waterclock.RateAwareBatcher`."""

    options: RateOptions  # the checked options
    adaptive: AdaptiveBatchLength | None = None
    """The adaptive length, which follows the time of a batch; None if the length is fixed."""
    id_header = None

    @classmethod
    def checked(
        cls,
        batch_length: Duration | Adaptive | AdaptiveBatchLength,
        timeout: Duration | float | None = None,
        gated: Gated = True,
        clocks: Clocks = "as_sent",
        max_disorder: Duration = 0,
        boundaries: Iterable[str] | None = None,
        forget_after: Duration | None = None,
    ) -> ByRate:
        """Check the user's options."""
        adaptive = AdaptiveBatchLength.chosen(batch_length)
        length = cast("Duration", batch_length) if adaptive is None else adaptive.batch_length
        options = RateOptions.checked(length, timeout, gated, forget_after, clocks, max_disorder, boundaries)
        if adaptive is not None:
            options.rule.with_length(adaptive.bounds[1])  # checks the longest length, too
        return cls(options, adaptive)

    @property
    def text(self) -> str:
        """The options: ``batch_length = 1s, timeout = 1200ms, …``."""
        length, ratio, gated, *_ = self.options.facts()
        lengths = format_duration(length)
        timeout = "inf" if ratio is None else ratio
        if isinstance(timeout, list):
            lengths_waited, of = cast("list[int]", timeout)
            timeout = format_duration(length * lengths_waited // of)
        if self.adaptive is not None:
            lengths = self.adaptive.text
        written = [f"batch_length = {lengths}, timeout = {timeout}, gated = {json.dumps(gated)}"]
        written += ["clocks = align"] * self.options.aligns
        for name in ("max_disorder", "forget_after"):
            if value := getattr(self.options, name):
                written.append(f"{name} = {format_duration(value)}")
        if self.options.boundaries:
            written.append(f"boundaries = {list(self.options.boundaries)}")
        return ", ".join(written)

    def stream(self, state: bytes | None) -> LiveStream:
        """Begin, or continue from a stored state."""
        if self.adaptive is not None:
            return AdaptiveRateStream.of(self.options, self.adaptive, state)
        return RateStream(self.options) if state is None else RateStream.restore(state, self.options)


@dataclass(frozen=True)
class ById:
    """Batching by id, like `waterclock.IdBatcher`."""

    rule: IdRule  # the checked options

    @property
    def text(self) -> str:
        """The options: ``id_of = 'train', max_delay = 2s, …``."""
        return self.rule.text

    @property
    def id_header(self) -> str:
        """The header that holds the ids of messages."""
        return cast("str", self.rule.id_of)

    def stream(self, state: bytes | None) -> LiveStream:
        """Begin, or continue from a stored state."""
        return IdStream(self.rule) if state is None else IdStream.restore(state, self.rule)
