"""Counts messages outside their windows, and warns of streams that repeatedly send such messages."""

from __future__ import annotations

import warnings
from collections import Counter

from waterclock._support.quoting import quoted
from waterclock.batching.batch import Batch
from waterclock.batching.outside import OutsideCounts
from waterclock.batching.rate.rule import ERA
from waterclock.errors import OutsideWindowWarning

STEADY = 10
"""A stream gets a warning if most of its messages were outside in this many of its batches in a row: a pause of a few
seconds is over by then.
"""

AFTER_SILENCE = (
    f": the first messages after a silence of more than {ERA} batch lengths joined the batch before the silence. Pass"
    ' forget_after, for example "1h"'
)
"""The text of a warning about a source that sends seldom after a silence."""

MOST_STREAMS = 1_000
"""Maximum number of streams counted: senders choose the names of streams, and memory is bounded."""


class OutsideWatch:
    """Counts messages outside windows. It changes no batch, and is not part of a state."""

    __slots__ = ("_due", "_in_a_row", "_told", "counts")

    def __init__(self) -> None:
        self.counts: dict[str, OutsideCounts] = {}  # by stream, since the batcher was created or restored
        self._in_a_row: dict[str, int] = {}
        self._due: list[str] = []
        self._told: set[str] = set()

    def note(self, batch: Batch) -> None:
        """Count a batch that has closed."""
        found = batch.outside
        if not found and not self._in_a_row:
            return
        sizes = Counter(message.stream for message in batch.messages)
        for stream in self._in_a_row.keys() & sizes.keys() - found.keys():
            del self._in_a_row[stream]
        for stream, counts in found.items():
            if stream not in self.counts and len(self.counts) == MOST_STREAMS:
                continue
            self.counts[stream] = self.counts.get(stream, OutsideCounts()).plus(counts)
            self._watch(batch, stream, counts, sizes[stream])
        if batch.reason == "stall" and 2 * sum(counts.after[-1] for counts in found.values()) > len(batch.messages):
            self.tell(batch.source, AFTER_SILENCE)

    def warn(self) -> None:
        """Issue the warnings that are due. The batcher has not changed yet, so a warning may be raised as an error."""
        while self._due:
            warnings.warn(self._due.pop(), OutsideWindowWarning, stacklevel=4)

    def tell(self, source: str, text: str) -> None:
        """Warn of a source with the next call, if it was not told the same before."""
        told = f"source {quoted(source)}{text}"
        if told not in self._told:
            self._told.add(told)
            self._due.append(told)

    def _watch(self, batch: Batch, stream: str, counts: OutsideCounts, size: int) -> None:
        if 2 * counts.total <= size:
            self._in_a_row.pop(stream, None)
            return
        self._in_a_row[stream] = in_a_row = self._in_a_row.get(stream, 0) + 1
        if in_a_row < STEADY:
            return
        if sum(counts.before) >= sum(counts.after):
            what = (
                f"came after their windows had closed, in {STEADY} batches in a row. If they take long to arrive, pass"
                ' timeout="auto" or a longer timeout, up to three batch lengths. If they arrive out of order, pass'
                " max_disorder. If the stream's clock is behind, correct the clock"
            )
        else:
            what = f"were ahead of the windows that they came with, in {STEADY} batches in a row. Correct its clock"
        self.tell(batch.source, f", stream {quoted(stream)}: most messages {what}")
