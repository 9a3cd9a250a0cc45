"""Batches by rate with an adaptive length, which follows the processing time per window."""

from __future__ import annotations

import json

import pyarrow as pa

from waterclock.batching.adaptive import AdaptiveBatchLength
from waterclock.batching.facts import parsed, read_as
from waterclock.columnar.many_sources import ManySources
from waterclock.columnar.streams.outcome_rows import OUTCOMES
from waterclock.columnar.streams.rate_options import RateOptions
from waterclock.columnar.streams.rate_stream import RateStream

_BATCHES = OUTCOMES.names[-1]
_NAME = "the state of batching by rate with an adaptive length"


class AdaptiveRateStream:
    """A `RateStream` whose length changes between two steps, for all sources at once.

    The follower's steps read, batch and write. The time of these steps, divided by the windows that the busiest source
    closed in them, is the time of a batch.

    Parameters
    ----------
    stream
        Applies the rule.
    length
        The rule of the length.
    """

    def __init__(self, stream: RateStream, length: AdaptiveBatchLength) -> None:
        self._stream = stream
        self._length = length
        self._spent = 0  # ns since a window closed
        self._windows = 0
        self._rests_since: int | None = None

    @classmethod
    def of(cls, options: RateOptions, length: AdaptiveBatchLength, state: bytes | None) -> AdaptiveRateStream:
        """Begin, or continue from the output of `state`."""
        if state is None:
            return cls(RateStream(options), AdaptiveBatchLength.from_facts(length.facts()))
        written, _, rest = state.partition(b"\n")
        with read_as(_NAME):
            length = AdaptiveBatchLength.from_facts(parsed(written))
        stream = RateStream.restore(rest, options)
        stream.set_batch_length(length.batch_length)
        return cls(stream, length)

    @property
    def batch_length(self) -> int:
        """The length from the next window on, ns."""
        return self._length.batch_length

    @property
    def open_batches(self) -> int:
        """As of `RateStream`."""
        return self._stream.open_batches

    @property
    def wakes_at(self) -> int | None:
        """As of `RateStream`."""
        return self._stream.wakes_at

    def take(self, arrived: ManySources, promised: int = 0) -> pa.RecordBatch:
        """Add messages, and return the outcomes, as `RateStream` does."""
        outcomes = self._stream.take(arrived, promised)
        if outcomes.num_rows:
            self._windows += max(len(batches) for batches in outcomes.column(_BATCHES))
        return outcomes

    def state(self) -> bytes:
        """Encode the whole state."""
        return json.dumps(self._length.facts()).encode() + b"\n" + self._stream.state()

    def worked(self, began: int, ended: int, messages: int) -> None:
        """Report a step: when it began and ended, ns of a monotonic clock, and how many messages it read.

        The length follows the time of a batch, or the time without new messages.
        """
        before = self.batch_length
        if messages or self._windows:
            self._rests_since = None
            self._spent += ended - began
            if self._windows:
                self._length.processed(self._spent // self._windows)
                self._spent = self._windows = 0
        elif self._rests_since is None:
            self._rests_since = ended
        elif ended - self._rests_since >= before:
            self._rests_since = ended
            self._length.nothing_came()
        if self.batch_length != before:
            self._stream.set_batch_length(self.batch_length)
