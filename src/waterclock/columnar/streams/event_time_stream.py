"""Batches many sources by event time, piece by piece, and keeps the state from piece to piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.batching.event_time.columns import Assignment, assign_judged, find_late_and_future, read_clocks
from waterclock.batching.event_time.replay import ReplayRange
from waterclock.batching.event_time.rule import ACCEPTED, LATE, UNDECIDED, EventTimeRule
from waterclock.batching.event_time.runs import RunColumns
from waterclock.batching.facts import count, each, flag, maybe, moment, read_as, whole
from waterclock.columnar.many_sources import ManySources, joined, many_from_cell, nothing
from waterclock.columnar.records import POSITIONED
from waterclock.columnar.streams import watermarks
from waterclock.columnar.streams.event_time_rows import outcome_rows
from waterclock.columnar.streams.judged_rows import begins
from waterclock.columnar.streams.outcome_rows import no_outcomes
from waterclock.columnar.streams.state_encoding import StateEncoding, refuse_options
from waterclock.columnar.streams.waiting_chunks import ChunkStore, WaitingChunks
from waterclock.errors import DamagedError
from waterclock.time import MAX_NS, MIN_NS

_ENCODING = StateEncoding(b"WCS1", "the state of batching by event time", version=3)
_CLOCK = np.dtype("<i8")


class EventTimeStream:
    """Batches many sources, each like `waterclock.EventTimeBatcher`, from their messages.

    It remembers each source's receive clock, its run, and its messages of open windows. The rule runs again over these
    and the new messages. Returned windows were complete, and later messages are late for them, so the open windows
    begin at the same times as before. Messages that wait for long are kept in chunks, and the rule runs over them when
    they are due; a duplicate of such a message is rejected only then.
    """

    __slots__ = (
        "_clocks",
        "_first_end",
        "_kept",
        "_record",
        "_rule",
        "_runs",
        "_span",
        "_store",
        "_waiting",
        "open_batches",
    )

    missing_ids = 0

    def __init__(
        self,
        rule: EventTimeRule,  # the checked options
        record: np.dtype[Any],  # `waterclock.columnar.records.PLAIN` or `POSITIONED`
        span: ReplayRange | None = None,  # the range of a replay; None: everything
        store: ChunkStore | None = None,  # holds the chunks of waiting messages; None: no chunks
    ) -> None:
        self._rule = rule
        self._record = record
        self._span = span
        self._kept = nothing(record)  # messages of open windows, in reading order, and all known sources
        self._clocks = np.empty(0, np.int64)  # of the sources, ns
        self._runs = RunColumns.unknown(0)  # of the sources: the newest boundary in a returned window
        self._first_end: int | None = None  # no window ends before this, according to the messages so far, ns
        self._store = store
        self._waiting = WaitingChunks(rule.max_delay)
        self.open_batches = 0  # how many windows the last `take` left open, according to the messages so far

    def take(self, arrived: ManySources, watermark: int) -> pa.RecordBatch:
        """Add messages, perhaps none, and return the outcomes.

        Parameters
        ----------
        arrived
            In any order; messages with positions are taken in the order of these, others in order of receive time.
        watermark
            A promise, ms since the epoch, that messages received before it have come already. If some are among these,
            they count as received then. 0: no promise.

        Returns
        -------
        pyarrow.RecordBatch
            Rows of `waterclock.columnar.streams.outcome_rows.OUTCOMES`.
        """
        promised = watermarks.promised(watermark)
        many = joined([self._kept, arrived.in_reading_order()], self._record)
        if not len(many.source_names) and not self._waiting:
            return no_outcomes()
        clocks = np.full(len(many.source_names), promised)
        clocks[: len(self._clocks)] = np.maximum(self._clocks, promised)
        kept = len(self._kept.messages)
        event_times = np.ascontiguousarray(many.messages["event_time"])
        verdicts = np.full(len(event_times), ACCEPTED, np.uint8)
        if kept < len(event_times):
            received = np.ascontiguousarray(many.messages["receive_time"][kept:])
            readings = read_clocks(many.sources[kept:], received, clocks)
            verdicts[kept:] = find_late_and_future(event_times[kept:], readings, self._rule)
            if self._span is not None and self._span.begin is not None:
                # They are late for all messages received within the range.
                verdicts[kept:][event_times[kept:] < self._span.begin] = LATE
        newest = int(clocks.max(initial=promised))
        horizon = newest if newest == MAX_NS else max(newest - self._rule.max_delay, MIN_NS)
        due = list(self._waiting.due(horizon, self._store, self._record))
        if due:
            many, verdicts, clocks = _with_due(many, verdicts, clocks, due, promised)
            event_times = np.ascontiguousarray(many.messages["event_time"])
        # A window that closes at a time may still get messages received at that time.
        nows = np.maximum(clocks, MIN_NS + 1) - 1
        if watermark >= watermarks.END:
            nows[:] = MAX_NS  # after all times, nothing more can come
        found = assign_judged(many.sources, many.streams, event_times, verdicts, self._rule, nows, many.stream_names)
        # At the smallest time no window has closed, and ``nows`` cannot be a step earlier.
        verdicts[(clocks == MIN_NS)[many.sources] & (verdicts == ACCEPTED)] = UNDECIDED
        open_ = found.order[verdicts[found.order] == UNDECIDED]
        begins_window = np.zeros(len(verdicts), np.bool_)
        if len(open_):
            begins_window[open_[begins(many.sources[open_], found.starts[open_])]] = True
        self.open_batches = int(np.count_nonzero(begins_window)) + self._waiting.windows
        if found.runs is not None:
            before = self._runs.extended(len(many.source_names))
            runs = found.runs.or_else(before.take(many.sources))
            found = found._replace(runs=runs)
            decided = verdicts == ACCEPTED
            self._runs = before.advanced(many.sources[decided], runs.take(decided))
        self._keep(many, found, clocks, promised, begins_window)
        if self._span is not None:
            found.verdicts[self._span.leaves_out(found, many.messages["receive_time"])] = UNDECIDED
        if (found.verdicts == UNDECIDED).all():
            return no_outcomes()
        return outcome_rows(many, found, self._rule)

    @property
    def wakes_at(self) -> int | None:
        """The watermark, ms, at which to `take` again without new messages; None if the state is empty."""
        if self.is_empty:
            return None
        if self._first_end is None:
            return -(-int(self._clocks.max()) // watermarks.NS_PER_MS)
        # A conflict may close the first window earlier; then it is returned later than possible, with the same
        # contents.
        return watermarks.watermark_after(self._first_end + self._rule.max_delay)

    @property
    def is_empty(self) -> bool:
        """Whether the state is empty."""
        return not len(self._clocks) and not self._waiting

    def state(self) -> bytes:
        """Encode the whole state, including options, for `restore`."""
        facts = [list(self._rule), self._record == POSITIONED, self._waiting.facts(), self._first_end]
        clocks = self._clocks.astype(_CLOCK).tobytes()
        runs = self._runs.to_list() if self._rule.boundaries else None
        return _ENCODING.encode([*facts, len(clocks), runs], clocks, self._kept.to_cell())

    @classmethod
    def restore(
        cls, state: bytes, rule: EventTimeRule, record: np.dtype[Any], store: ChunkStore | None = None
    ) -> EventTimeStream:
        """Restore the stream from ``state``.

        Raises `DamagedError` if ``state`` is corrupt. Raises `SchemaError` if it is something else or of another
        version. Raises `InvalidArgumentError` if it was written with other options: two rules would cut the open
        windows.
        """
        facts, rest = _ENCODING.decode(state)
        with read_as(_ENCODING.name):
            options, positioned, waiting, first_end, length, runs = facts
            first_end = maybe(first_end, whole)
            *lengths, boundaries = options
            written = EventTimeRule(*lengths, boundaries=tuple(boundaries))
            written, length = _named(written, flag(positioned)), count(length)
            runs = maybe(runs, lambda runs: each(runs, lambda run: maybe(run, moment)))
            waiting = WaitingChunks.of_facts(rule.max_delay, waiting)
        refuse_options(written, _named(rule, record == POSITIONED))
        restored = cls(rule, record, store=store)
        restored._waiting = waiting
        if length % _CLOCK.itemsize or length > len(rest):
            raise DamagedError(f"{_ENCODING.name} is corrupt: {length} bytes are not a valid length for its clocks")
        restored._clocks = np.frombuffer(rest[:length], _CLOCK)
        restored._kept = many_from_cell(rest[length:], record, _ENCODING.name)
        restored._runs = RunColumns.unknown(len(restored._clocks)) if runs is None else RunColumns.of_list(runs)
        if not len(restored._clocks) == len(restored._runs.known) == len(restored._kept.source_names):
            raise DamagedError(f"{_ENCODING.name} is corrupt: its sources do not match its clocks and runs")
        restored._first_end = first_end
        return restored

    def _keep(
        self,
        many: ManySources,
        found: Assignment,
        clocks: npt.NDArray[np.int64],
        promised: int,
        begins_window: npt.NDArray[np.bool_],
    ) -> None:
        """Remember undecided messages, the clocks that are later than the promise for all sources, and runs."""
        undecided = np.flatnonzero(found.verdicts == UNDECIDED)
        if self._store is not None:
            waiting = self._waiting.waiting(many.messages["event_time"][undecided])
            if len(waiting):
                wait = undecided[waiting]
                self._waiting.put(many.take(wait), begins_window[wait], self._store)
                undecided = np.delete(undecided, waiting)
        kept = many.take(undecided)
        self._find_first_end(kept, found.ends[undecided])
        self._runs = self._runs.extended(len(clocks))
        stays = (clocks > promised) | self._runs.known
        stays[kept.sources] = True
        sources = np.flatnonzero(stays)
        self._kept, self._clocks = kept.of_sources(sources), clocks[sources]
        self._runs = self._runs.take(sources)
        if self.is_empty:
            self._waiting = WaitingChunks(self._rule.max_delay)

    def _find_first_end(self, kept: ManySources, ends: npt.NDArray[np.int64]) -> None:
        rule = self._rule
        times = kept.messages["event_time"]
        if not len(times):
            first = None
        elif rule.gap is None and not rule.boundaries:
            first = int(times.min()) + rule.window
        else:
            first = int(ends.min())
        waiting = self._waiting.earliest
        ends_of_both = (first, None if waiting is None else waiting + rule.silence)
        self._first_end = min((end for end in ends_of_both if end is not None), default=None)


def _with_due(
    many: ManySources,
    verdicts: npt.NDArray[np.uint8],
    clocks: npt.NDArray[np.int64],
    due: Sequence[ManySources],
    promised: int,
) -> tuple[ManySources, npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Put waiting messages, which came earlier, before the others; known sources keep their numbers."""
    came = len(many.messages)
    many = joined([many, *due], many.messages.dtype)
    waited = len(many.messages) - came
    many = many.take(np.roll(np.arange(len(many.messages)), waited))
    verdicts = np.concatenate([np.full(waited, ACCEPTED, np.uint8), verdicts])
    # The others' clocks did not exceed the promise, or they would have been kept.
    return many, verdicts, np.concatenate([clocks, np.full(len(many.source_names) - len(clocks), promised)])


def _named(rule: EventTimeRule, positioned: bool) -> str:
    return f"{rule.text}, {'with' if positioned else 'without'} positions"
