"""Batching by event time piece by piece, many sources at once: the columnar rule with something to remember."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.batching.event_time.columns import assign_judged, judge_arrivals, read_clocks
from waterclock.batching.event_time.rule import ACCEPTED, UNDECIDED, EventTimeRule
from waterclock.batching.facts import flag, parsed, read_as
from waterclock.batching.state_bytes import refuse_version
from waterclock.checksum import framed
from waterclock.errors import InvalidArgumentError
from waterclock.spark.packing import POSITIONED, cells, local_streams, reading_order, renumbered
from waterclock.spark.streaming.event_time_rows import Gathered, gather, outcome_rows
from waterclock.spark.streaming.outcome_rows import OUTCOMES, ROWS
from waterclock.spark.streaming.stream_state import REMEDY, from_cell, state_parts, to_cell
from waterclock.time import MAX_NS, MIN_NS

_VERSION = 2
_FORM = b"WCS2"
_NAME = "the state of batching by event time"
_NS_PER_MS = 1_000_000

_KEPT = ROWS.append(pa.field("clock", pa.int64()))
"""A row a source that is remembered: its messages of open windows, in reading order, and its receive clock, ns."""

_NOTHING = pa.RecordBatch.from_pylist([], OUTCOMES)


class EventTimeStream:
    """Batches many sources, each like `waterclock.EventTimeBatcher`, from packed rows.

    What it remembers is each source's receive clock and its messages of open windows. The rule is run anew over them
    and what has come: windows given out were whole, and what comes later is late for them, so the open ones begin where
    they did.

    Parameters
    ----------
    rule
        The checked options.
    record
        `waterclock.spark.packing.PLAIN` or `POSITIONED`.
    """

    __slots__ = ("_earliest", "_kept", "_record", "_rule")

    def __init__(self, rule: EventTimeRule, record: np.dtype[Any]) -> None:
        self._rule = rule
        self._record = record
        self._kept = pa.RecordBatch.from_pylist([], _KEPT)
        self._earliest: int | None = None  # event time of what is open

    def take(self, rows: Iterable[pa.RecordBatch], watermark: int) -> pa.RecordBatch:
        """Take in packed rows, perhaps none, and give out what is decided.

        Parameters
        ----------
        rows
            In any order, with the columns `waterclock.spark.streaming.outcome_rows.ROWS`. A source's messages with
            positions are taken in that order, others in order of receive time.
        watermark
            A promise, ms since the epoch: what any source receives before it is in these rows or came earlier.
            0 promises nothing.

        Returns
        -------
        pyarrow.RecordBatch
            Rows of `waterclock.spark.streaming.outcome_rows.OUTCOMES`.
        """
        promised = min(watermark * _NS_PER_MS, MAX_NS) if watermark > 0 else MIN_NS
        known = self._kept.num_rows
        packed = pa.Table.from_batches([self._kept.select(ROWS.names), *rows], ROWS)
        if not packed.num_rows:
            return _NOTHING
        gathered = gather(packed, self._record)
        clocks = np.full(len(gathered.source_names), promised)
        clocks[:known] = np.maximum(self._kept.column("clock").to_numpy(), promised)
        kept = sum(self._kept.column("count").to_pylist())
        gathered = gathered.take(np.concatenate([np.arange(kept), kept + _reading_order(gathered, kept)]))
        event_times = np.ascontiguousarray(gathered.messages["event_time"])
        verdicts = np.full(len(event_times), ACCEPTED, np.uint8)
        if kept < len(event_times):
            received = np.ascontiguousarray(gathered.messages["receive_time"][kept:])
            readings = read_clocks(gathered.sources[kept:], received, clocks)
            verdicts[kept:] = judge_arrivals(event_times[kept:], readings, self._rule)
        # What closes at a time may still get messages that are received then.
        nows = np.maximum(clocks, MIN_NS + 1) - 1
        found = assign_judged(gathered.sources, gathered.streams, event_times, verdicts, self._rule, nows)
        self._keep(gathered, verdicts, clocks, promised)
        if (found.verdicts == UNDECIDED).all():
            return _NOTHING
        return outcome_rows(gathered, found, self._rule)

    @property
    def wakes_at(self) -> int | None:
        """The watermark, ms, at which to `take` again though nothing has come; None where nothing is remembered."""
        if not self._kept.num_rows:
            return None
        if self._earliest is None:
            return -(-int(self._kept.column("clock").to_numpy().max()) // _NS_PER_MS)
        # A conflict may let the first window close sooner; then it is given out later than it could be, no different.
        latest = self._earliest + self._rule.window + self._rule.max_delay
        return min(latest, MAX_NS - 1) // _NS_PER_MS + 1

    @property
    def open_sources(self) -> int:
        """How many sources have messages whose batch is not closed."""
        return int(np.count_nonzero(self._kept.column("count").to_numpy()))

    def state(self) -> bytes:
        """Write down everything that is known, options included, for `restore`."""
        facts = [_VERSION, list(self._rule), self._record == POSITIONED]
        return framed(_FORM, json.dumps(facts).encode(), b"\n", to_cell(self._kept))

    @classmethod
    def restore(cls, state: bytes, rule: EventTimeRule, record: np.dtype[Any]) -> EventTimeStream:
        """Go on where the one that wrote ``state`` stood.

        Raises
        ------
        DamagedError
            Where ``state`` is one, but not as it was written.
        SchemaError
            Where it is something else or of another version.
        InvalidArgumentError
            Where it was written with other options: windows that are open would be cut by two rules.
        """
        line, rest = state_parts(_FORM, state, _NAME)
        with read_as(_NAME):
            version, *facts = parsed(line)
            refuse_version(version, _VERSION, REMEDY)
            options, positioned = facts
            known = tuple(options), flag(positioned)
        if known != (rule, record == POSITIONED):
            raise InvalidArgumentError(
                f"the checkpoint was written with the options {options}, positions {positioned}, and the query has"
                f" {list(rule)}, positions {record == POSITIONED}; {REMEDY}"
            )
        restored = cls(rule, record)
        restored._kept = from_cell(rest, _KEPT)
        if restored._kept.num_rows:
            messages = gather(pa.Table.from_batches([restored._kept]), record).messages
            restored._earliest = int(messages["event_time"].min()) if len(messages) else None
        return restored

    def _keep(
        self, gathered: Gathered, verdicts: npt.NDArray[np.uint8], clocks: npt.NDArray[np.int64], promised: int
    ) -> None:
        """Remember what is undecided, and clocks that say more than what is promised of all sources."""
        undecided = np.flatnonzero(verdicts == UNDECIDED)
        kept = gathered.take(undecided[np.argsort(gathered.sources[undecided], kind="stable")])
        stays = clocks > promised
        stays[kept.sources] = True
        rows = np.flatnonzero(stays)
        row_of = (np.cumsum(stays) - 1)[kept.sources]
        counts = np.bincount(row_of, minlength=len(rows))
        streams, numbers = local_streams(row_of, len(rows), kept.streams, gathered.stream_names)
        columns = [
            gathered.source_names.take(pa.array(rows)),
            streams,
            pa.array(counts, pa.int32()),
            cells(renumbered(kept.messages, numbers), np.concatenate([[0], np.cumsum(counts)])),
            pa.array(clocks[rows]),
        ]
        self._kept = pa.RecordBatch.from_arrays(columns, schema=_KEPT)
        self._earliest = int(kept.messages["event_time"].min()) if len(kept.messages) else None


def _reading_order(gathered: Gathered, first: int) -> npt.NDArray[np.intp]:
    """Order the messages from ``first`` on, source by source, as they were read; from 0 on."""
    messages, sources = gathered.messages[first:], gathered.sources[first:]
    if not len(messages):
        return np.empty(0, np.intp)
    if messages.dtype == POSITIONED:
        return reading_order(messages, sources)
    return np.lexsort((messages["receive_time"], sources))
