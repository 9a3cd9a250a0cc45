"""Batching by rate piece by piece or in a replay, many sources at once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np
import pyarrow as pa

from waterclock.batching.facts import parsed, read_as
from waterclock.batching.state_bytes import refuse_version
from waterclock.checksum import framed
from waterclock.errors import InvalidArgumentError
from waterclock.spark.packing import PackedRow
from waterclock.spark.streaming.outcome_rows import BATCH, OUTCOMES, batch_structs
from waterclock.spark.streaming.rate_source import RateOptions, RateOutcome, RateSource
from waterclock.spark.streaming.slices import slices
from waterclock.spark.streaming.stream_state import REMEDY, from_cell, state_parts, to_cell

_VERSION = 1
_FORM = b"WCT2"
_NAME = "the state of batching by rate"

_KEPT = pa.schema([("source", pa.string()), ("state", pa.binary())])


class RateStream:
    """Batches many sources, each like `waterclock.RateAwareBatcher`, from packed rows; see `RateSource`."""

    __slots__ = ("_options", "_states")

    def __init__(self, options: RateOptions) -> None:
        self._options = options
        self._states: dict[str, bytes] = {}

    def take(self, rows: Iterable[pa.RecordBatch], *, flush: bool = False) -> pa.RecordBatch:
        """Take in packed rows in any order, all of each entry that occurs, and give out the batches that close.

        With ``flush``, give out everything in the end.
        """
        arrived: dict[str, list[PackedRow]] = {source: [] for source in self._states} if flush else {}
        for source, row in _each(rows):
            arrived.setdefault(source, []).append(row)
        found: list[tuple[str, RateOutcome]] = []
        for source, of_source in arrived.items():
            known = self._states.get(source)
            batcher = RateSource(self._options) if known is None else RateSource.restore(known, self._options)
            found += [(source, outcome) for outcome in batcher.take(of_source, flush=flush)]
            self._states[source] = batcher.state()
        return outcome_rows(found)

    @property
    def open_sources(self) -> int:
        """How many sources it knows, which keep what is in the window in progress."""
        return len(self._states)

    def state(self) -> bytes:
        """Write down everything that is known, options included, for `restore`."""
        kept = pa.RecordBatch.from_arrays([[*self._states], [*self._states.values()]], schema=_KEPT)
        return framed(_FORM, json.dumps([_VERSION, self._options.facts()]).encode(), b"\n", to_cell(kept))

    @classmethod
    def restore(cls, state: bytes, options: RateOptions) -> RateStream:
        """Go on where the one that wrote ``state`` stood.

        Raises
        ------
        DamagedError
            Where ``state`` is one, but not as it was written.
        SchemaError
            Where it is something else or of another version.
        InvalidArgumentError
            Where it was written with other options.
        """
        line, rest = state_parts(_FORM, state, _NAME)
        with read_as(_NAME):
            version, *facts = parsed(line)
            refuse_version(version, _VERSION, REMEDY)
            (written,) = facts
        if written != options.facts():
            raise InvalidArgumentError(
                f"the checkpoint was written with the options {written} and the query has {options.facts()}; {REMEDY}"
            )
        restored = cls(options)
        kept = from_cell(rest, _KEPT, _NAME)
        restored._states = dict(zip(*(column.to_pylist() for column in kept.columns), strict=True))
        return restored


def judge_by_rate(rows: Iterable[pa.RecordBatch], options: RateOptions) -> Iterator[pa.RecordBatch]:
    """Find the batches of packed messages, to the end: what is open there is given out as ``flush``.

    Parameters
    ----------
    rows
        Packed rows with positions, those of a source one after another, in order of their first messages.
    options
        The checked options.

    Yields
    ------
    pyarrow.RecordBatch
        Rows of `waterclock.spark.streaming.outcome_rows.OUTCOMES_SCHEMA`.
    """
    large = RateSource(options)
    for part, begun, ends in slices(rows, sliced=True, by_entry=True):
        for source, of_source in groupby(_each(part.to_batches()), itemgetter(0)):
            batcher = large if begun or not ends else RateSource(options)
            outcomes = batcher.take((row for _, row in of_source), flush=ends)
            yield outcome_rows([(source, outcome) for outcome in outcomes])
        if ends:
            large = RateSource(options)


def outcome_rows(found: Sequence[tuple[str, RateOutcome]]) -> pa.RecordBatch:
    """Lay outcomes of sources out as rows of `waterclock.spark.streaming.outcome_rows.OUTCOMES`."""
    facts = np.concatenate([np.empty(0, BATCH), *(outcome.batches for _, outcome in found)])
    offsets = np.cumsum([0, *(len(outcome.batches) for _, outcome in found)]).astype(np.int32)
    columns = [
        [source for source, _ in found],
        [outcome.streams for _, outcome in found],
        [len(outcome.messages) for _, outcome in found],
        [outcome.messages.tobytes() for _, outcome in found],
        [None] * len(found),
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, OUTCOMES, strict=False)]
    batches = pa.ListArray.from_arrays(offsets, batch_structs(facts))
    return pa.RecordBatch.from_arrays([*arrays, batches], schema=OUTCOMES)


def _each(rows: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, PackedRow]]:
    for batch in rows:
        for row in batch.to_pylist():
            yield row["source"], (row["streams"], row["count"], row["messages"])
