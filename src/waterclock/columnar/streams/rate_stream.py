"""Batches many sources by rate, piece by piece or in a replay, and keeps the state from piece to piece."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from waterclock._support.quoting import quoted
from waterclock.batching.event_time.replay import ReplayRange
from waterclock.batching.facts import count, each, maybe, moment, read_as
from waterclock.batching.rate.by_column import layout
from waterclock.batching.rate.by_column.columns import long_calls
from waterclock.batching.rate.by_column.many import ManyBatches, RateAwareMany
from waterclock.batching.rate.by_column.many_state import from_arrays, to_arrays
from waterclock.batching.rate.by_column.outside import count_outside, latest_of_streams
from waterclock.batching.rate.by_message.outside_watch import AFTER_SILENCE
from waterclock.batching.rate.long_call import warn
from waterclock.batching.rate.rule import ERA, role_chooser
from waterclock.columnar.many_sources import ManySources, from_packed, joined, many_from_cell, nothing
from waterclock.columnar.packing import encoded, local_streams
from waterclock.columnar.records import POSITIONED, cells_of_records
from waterclock.columnar.streams.judged_rows import begins
from waterclock.columnar.streams.outcome_rows import OUTCOMES, REASONS, batch_structs, no_outcomes
from waterclock.columnar.streams.rate_options import RateOptions
from waterclock.columnar.streams.slices import slices
from waterclock.columnar.streams.source_sessions import SourceSessions
from waterclock.columnar.streams.state_encoding import StateEncoding, refuse_options
from waterclock.columnar.streams.watermarks import promised, watermark_after
from waterclock.errors import DamagedError, InvalidArgumentError, OutsideWindowWarning
from waterclock.time import MAX_NS, MIN_NS

Flags = npt.NDArray[np.bool_]

_ENCODING = StateEncoding(b"WCT1", "the state of batching by rate", version=1)
_NO_ENTRY = -1

# While it runs, the rule's state of a source takes 3 kB.
_SOURCES_AT_ONCE = 4096


class LengthFrom(NamedTuple):
    """A batch length, and the entry from which it holds."""

    ledger: int
    entry: int
    batch_length: int  # ns


class RateStream:
    """Batches many sources, each like `waterclock.RateAwareBatcher`, from their messages; an entry is one call.

    It remembers the rule's state of every source, the waiting messages, and the last entry of each. If sources are
    forgotten after a silence, it also remembers each one's greatest receive time.

    Parameters
    ----------
    options
        The checked options.
    span
        In a replay, the range in which its batches start; None: all.
    """

    __slots__ = ("_clocks", "_entries", "_kept", "_offsets", "_options", "_rule", "_rules", "_span", "open_batches")

    missing_ids = 0

    def __init__(self, options: RateOptions, span: ReplayRange | None = None) -> None:
        self._options = options
        self._span = span
        self._rule = options.rule
        self._rules = RateAwareMany(self._rule, aligns=options.aligns)
        self._kept = nothing(POSITIONED)  # in the rule's order, and all sources and streams
        self._offsets = np.empty(0, np.int64)  # ns that were added to their times
        self._entries = np.empty((0, 2), np.int64)  # ledger and entry of each source
        self._clocks = np.empty(0, np.int64)  # ns, of each source; used if sources are forgotten
        self.open_batches = 0  # how many windows with messages the last `take` left open

    def take(self, arrived: ManySources, watermark: int = 0, *, flush: bool = False) -> pa.RecordBatch:
        """Add messages in any order, whole entries only, and return the batches that close.

        Raises `InvalidArgumentError` if an earlier micro-batch began the same entry: its messages arrived together, and
        batches may have closed without some of them.

        Parameters
        ----------
        arrived
            Messages with positions.
        watermark
            A promise, ms since the epoch, that all messages received before it are among these or came earlier. 0: no
            promise. It only decides which sources are forgotten.
        flush
            Return everything at the end.

        Returns
        -------
        pyarrow.RecordBatch
            Rows of `waterclock.columnar.streams.outcome_rows.OUTCOMES`.
        """
        many = joined([self._kept, arrived.in_reading_order()], POSITIONED)
        if not len(many.source_names):
            return no_outcomes()
        self._number_streams(many.stream_names)
        order = np.argsort(many.sources, kind="stable")
        is_new = order >= len(self._kept.messages)
        ordered = many.take(order)
        calls = is_new & begins(is_new, ordered.sources, ordered.messages["ledger"], ordered.messages["entry"])
        self._note_entries(ordered, np.flatnonzero(is_new))
        lives = self._lives(ordered, is_new, calls, watermark)
        if len(lives.sources) > len(ordered.source_names):
            order = np.argsort(lives.of_message, kind="stable")
            ordered, is_new, calls = lives.name(ordered).take(order), is_new[order], calls[order]
        times = np.ascontiguousarray(ordered.messages["event_time"])
        self._warn_of_long_calls(ordered, times, is_new, calls)
        places = self._places(ordered)
        self._rules.adopt(np.flatnonzero(np.bincount(ordered.sources[calls])))
        offsets = self._aligned(ordered, places, times, is_new, calls)
        rows = self._rules.pairs[places, 2]
        found = self._rules.add(rows, times + offsets, _bounds(ordered), calls, lives.ends | flush)
        self._keep(ordered.take(found.kept), offsets[found.kept], lives)
        if self._span is not None:
            found = found.between(self._span.since, self._span.until)
        if not len(found.starts):
            return no_outcomes()
        self._warn_of_silences(ordered, found, times + offsets)
        return _outcome_rows(ordered, found, offsets if self._options.aligns else None)

    def set_batch_length(self, batch_length: int) -> None:
        """Change the length (ns) for each source's next call, from its next window on; the timeout stays in proportion.

        A source without a further call keeps its length: if a silence ends it, its batches do not depend on the time
        at which this is noticed.
        """
        self._rule = self._rules.rule = self._rule.with_length(batch_length)

    @property
    def wakes_at(self) -> int | None:
        """The watermark, ms, at which to `take` again without new messages; None if no source is forgotten."""
        if self._options.forget_after is None or not len(self._clocks):
            return None
        return watermark_after(int(self._clocks.min()) + self._options.forget_after)

    @property
    def is_empty(self) -> bool:
        """Whether no source is known."""
        return not len(self._entries)

    def state(self) -> bytes:
        """Encode the whole state, including options, for `restore`."""
        shapes, arrays = to_arrays(self._rules)
        known = self._entries if self._options.forget_after is None else np.c_[self._entries, self._clocks]
        entries = np.ascontiguousarray(known.T).tobytes()
        parts = [arrays, entries, *[self._offsets.tobytes()] * self._options.aligns]
        runs = self._rules.runs if self._options.boundaries else None
        facts = [self._options.facts(), shapes, runs, *map(len, parts)]
        return _ENCODING.encode(facts, *parts, self._kept.to_cell())

    @classmethod
    def restore(cls, state: bytes, options: RateOptions) -> RateStream:
        """Restore the stream from ``state``.

        Raises `DamagedError` if ``state`` is corrupt. Raises `SchemaError` if it is something else or of another
        version. Raises `InvalidArgumentError` if it was written with other options.
        """
        facts, rest = _ENCODING.decode(state)
        with read_as(_ENCODING.name):
            written, shapes, runs, *lengths = facts
            runs = maybe(runs, lambda runs: each(runs, lambda run: maybe(run, moment)))
            shapes, (arrays, entries, *offsets) = each(shapes, count), each(lengths, count)
        refuse_options(written, options.facts())
        restored = cls(options)
        cell = arrays + entries + sum(offsets)
        restored._kept = many_from_cell(rest[cell:], POSITIONED, _ENCODING.name)
        with read_as(_ENCODING.name):
            restored._offsets = np.frombuffer(rest[arrays + entries : cell], np.int64)
            known = np.frombuffer(rest[arrays : arrays + entries], np.int64)
            if options.forget_after is None:
                restored._entries = known.reshape(2, -1).T.copy()
            else:
                *places, restored._clocks = known.reshape(3, -1)
                restored._entries = np.stack(places, axis=1)
            from_arrays(restored._rules, shapes, rest[:arrays], restored._kept.sources)
        restored._rules.runs = [None] * len(restored._rules.facts) if runs is None else runs
        if {len(restored._entries), len(restored._rules.facts), len(restored._rules.runs)} != {
            len(restored._kept.source_names)
        }:
            raise DamagedError(f"{_ENCODING.name} is corrupt: its sources do not match its rules")
        if options.aligns and len(restored._offsets) != len(restored._kept.messages):
            raise DamagedError(f"{_ENCODING.name} is corrupt: its offsets do not match its messages")
        return restored

    def _places(self, ordered: ManySources) -> npt.NDArray[np.int64]:
        """Return the place of each message's stream among those of all sources."""
        streams = max(1, len(ordered.stream_names))
        role = role_chooser(self._options.gated, self._options.boundaries)
        return self._rules.admit(
            len(ordered.source_names),
            ordered.sources.astype(np.int64) * streams + ordered.streams,
            streams,
            lambda met: np.array(
                [role(name) for name in ordered.stream_names.take(pa.array(met)).to_pylist()], np.int64
            ),
        )

    def _aligned(
        self,
        ordered: ManySources,
        places: npt.NDArray[np.int64],
        times: npt.NDArray[np.int64],
        is_new: Flags,
        calls: Flags,
    ) -> npt.NDArray[np.int64]:
        """Return the ns by which each message is aligned; new messages follow the kept ones of their source."""
        offsets = np.zeros(len(times), np.int64)
        if self._options.aligns:
            offsets[~is_new] = self._offsets
            received = np.ascontiguousarray(ordered.messages["receive_time"][is_new])
            offsets[is_new] = self._rules.offsets_of(places[is_new], times[is_new], received, calls[is_new])
        return offsets

    def _lives(self, ordered: ManySources, is_new: Flags, calls: Flags, watermark: int) -> SourceSessions:
        """Find the silences after which sources begin again, and the sources from which no message can come in time."""
        after = self._options.forget_after
        if after is None:
            return SourceSessions.endless(ordered)
        clocks, known = np.full(len(ordered.source_names), MIN_NS), len(self._clocks)
        clocks[:known] = self._clocks
        self._clocks = clocks
        return SourceSessions.parted(ordered, is_new, calls, clocks, known, after, promised(watermark))

    def _keep(self, kept: ManySources, offsets: npt.NDArray[np.int64], lives: SourceSessions) -> None:
        """Remember open windows, and for each source the session that continues."""
        stays = lives.go_on
        if len(stays) < len(lives.sources):
            order = self._rules.take(lives.last[stays])
            offsets = offsets[order]
            self._entries, self._clocks = self._entries[stays], self._clocks[stays]
            kept = self._without_streams(kept.take(order))._replace(
                source_names=kept.source_names.take(pa.array(lives.last[stays])),
                sources=self._rules.kept_sources.astype(np.int32),
            )
        self._kept, self._offsets = kept, offsets
        self.open_batches = int(np.count_nonzero(np.bincount(kept.sources)))

    def _without_streams(self, kept: ManySources) -> ManySources:
        """Remove the names of streams that no source has sent."""
        pairs = self._rules.pairs
        met, pairs[:, 1] = np.unique(pairs[:, 1], return_inverse=True)
        number = np.zeros(len(kept.stream_names), np.int32)
        number[met] = np.arange(len(met), dtype=np.int32)
        return kept._replace(stream_names=kept.stream_names.take(pa.array(met)), streams=number[kept.streams])

    def _number_streams(self, names: pa.Array) -> None:
        """Change to stream numbers in ``names``, which contains the known streams in the same order."""
        if len(names) != len(self._kept.stream_names):
            numbers = pc.call_function("index_in", [self._kept.stream_names], pc.SetLookupOptions(names)).to_numpy()
            pairs = self._rules.pairs
            pairs[:, 1] = numbers[pairs[:, 1]]

    def _note_entries(self, ordered: ManySources, arrived: npt.NDArray[np.intp]) -> None:
        """Remember the last entry of each source, which must be later than the one before."""
        known = np.full((len(ordered.source_names), 2), _NO_ENTRY, np.int64)
        known[: len(self._entries)] = self._entries
        sources = ordered.sources[arrived]
        firsts = begins(sources) if len(arrived) else np.empty(0, np.bool_)
        of_source = sources[firsts]
        ledgers, entries = (ordered.messages[name][arrived] for name in ("ledger", "entry"))
        first, last = (np.stack([ledgers[place], entries[place]], axis=1) for place in (firsts, np.roll(firsts, -1)))
        before = known[of_source]
        again = (first[:, 0] < before[:, 0]) | ((first[:, 0] == before[:, 0]) & (first[:, 1] <= before[:, 1]))
        for number in np.flatnonzero(again).tolist():
            name = ordered.source_names[int(of_source[number])].as_py()
            raise InvalidArgumentError(
                f"entries of source {quoted(name)} must arrive complete and in order, got ledger:entry"
                f" {first[number][0]}:{first[number][1]} in a later micro-batch than"
                f" {before[number][0]}:{before[number][1]}. Read the topic with the format waterclock"
            )
        known[of_source] = last
        self._entries = known

    def _warn_of_long_calls(
        self,
        ordered: ManySources,
        times: npt.NDArray[np.int64],
        is_new: Flags,
        calls: Flags,
    ) -> None:
        arrived = np.flatnonzero(is_new)
        bounds = np.append(np.flatnonzero(calls[arrived]), len(arrived))
        length = self._rule.batch_length
        for _, stream in long_calls(ordered.streams[arrived], times[arrived], bounds, length):
            warn(f"stream {quoted(ordered.stream_names[stream].as_py())}", length)

    def _warn_of_silences(self, ordered: ManySources, found: ManyBatches, times: npt.NDArray[np.int64]) -> None:
        """Warn of stalled batches most of whose messages came after a silence, as the class does."""
        for batch in np.flatnonzero(found.reasons == layout.STALL).tolist():
            own = found.messages[found.offsets[batch] : found.offsets[batch + 1]]
            farthest = min(int(found.ends[batch]) + ERA * self._rule.batch_length, MAX_NS)
            if 2 * np.count_nonzero(times[own] > farthest) > len(own):
                source = quoted(ordered.source_names[int(ordered.sources[own[0]])].as_py())
                warnings.warn(f"source {source}{AFTER_SILENCE}", OutsideWindowWarning, stacklevel=3)


def judge_by_rate(
    rows: Iterable[pa.RecordBatch],  # packed rows with positions, source by source, in order of their first messages
    options: RateOptions,  # the checked options
    *,
    ended: bool = True,  # whether these messages are the last; otherwise open windows are left out
    span: ReplayRange | None = None,  # as of `RateStream`
    lengths: Sequence[LengthFrom] = (),  # in order of their places; none: the length is that of the options
) -> Iterator[pa.RecordBatch]:
    """Find the batches of packed messages, to the end: windows open there are closed as by ``flush``.

    Yields
    ------
    pyarrow.RecordBatch
        Rows of `waterclock.columnar.streams.outcome_rows.OUTCOMES_SCHEMA`.
    """
    large = RateStream(options, span)
    for part, begun, ends in slices(rows, sliced=True, by_entry=True):
        if begun or not ends:
            yield from _taken(large, from_packed(part, POSITIONED), lengths, flush=ends and ended)
            if ends:
                large = RateStream(options, span)
            continue
        cuts = np.flatnonzero(begins(encoded(part.column("source"))[1]))[::_SOURCES_AT_ONCE].tolist()
        for first, stop in pairwise([*cuts, len(part)]):
            some = from_packed(part.slice(first, stop - first), POSITIONED)
            yield from _taken(RateStream(options, span), some, lengths, flush=ended)


def _taken(
    stream: RateStream, arrived: ManySources, lengths: Sequence[LengthFrom], *, flush: bool
) -> Iterator[pa.RecordBatch]:
    """Add messages to a stream, each with the length that holds at its place."""
    ledgers, entries = arrived.messages["ledger"], arrived.messages["entry"]
    begun = np.zeros(len(ledgers), np.int64)
    for each_length in lengths:
        begun += (ledgers > each_length.ledger) | ((ledgers == each_length.ledger) & (entries >= each_length.entry))
    numbers = np.flatnonzero(np.bincount(begun)).tolist() or [0]
    for number in numbers:
        if number:
            stream.set_batch_length(lengths[number - 1].batch_length)
        part = arrived
        if len(numbers) > 1:
            part = arrived.take(np.flatnonzero(begun == number))
            part = part.of_sources(np.flatnonzero(np.bincount(part.sources)))
        yield stream.take(part, flush=flush and number == numbers[-1])


def _bounds(ordered: ManySources) -> npt.NDArray[np.int64]:
    """Return the first message of each source, in messages sorted by source, and the end of the last."""
    return np.concatenate([[0], np.cumsum(np.bincount(ordered.sources, minlength=len(ordered.source_names)))])


def _outcome_rows(ordered: ManySources, found: ManyBatches, offsets: npt.NDArray[np.int64] | None) -> pa.RecordBatch:
    """Convert batches to rows of `waterclock.columnar.streams.outcome_rows.OUTCOMES`.

    If clocks are aligned, ``offsets`` are the ns that were added to the time of each message.
    """
    sizes, per_source = np.diff(found.offsets), np.diff(found.bounds)
    batch_of = np.repeat(np.arange(len(sizes)), sizes)
    sources = np.flatnonzero(per_source)
    row_bounds = np.append(found.bounds[sources], found.bounds[-1])
    firsts = found.offsets[row_bounds]
    rows = np.repeat(np.arange(len(sources)), np.diff(firsts))
    numbers = found.messages[_leaving_order(ordered, found.messages, batch_of)]
    leaving = ordered.take(numbers)
    windows = found.reasons != layout.START
    times, maps = leaving.messages["event_time"], None
    if offsets is not None:
        own = offsets[numbers]
        latest, pair = latest_of_streams(batch_of, leaving.streams, times + own, own)
        times = times + own[latest][pair]
        bounds = np.searchsorted(batch_of[latest], np.arange(len(sizes) + 1)).astype(np.int32)
        names = ordered.stream_names.take(pa.array(leaving.streams[latest]))
        maps = pa.MapArray.from_arrays(bounds, names, own[latest])
    outside = count_outside(found.starts, found.ends, windows, found.offsets, leaving.streams, times)
    streams, leaving.messages["stream"] = local_streams(rows, len(sources), leaving.streams, ordered.stream_names)
    batches = batch_structs(
        np.array([REASONS.index(reason) for reason in layout.REASONS])[found.reasons],
        start=found.starts,
        end=found.ends,
        closed_at=found.closed_at,
        first=found.offsets[:-1] - np.repeat(firsts[:-1], per_source[sources]),
        count=sizes,
        outside=outside,
        runs=pa.array(found.runs, pa.int64()),
        offsets=maps,
    )
    columns = [
        ordered.source_names.take(pa.array(sources)),
        streams,
        pa.array(np.diff(firsts), pa.int32()),
        cells_of_records(leaving.messages, firsts),
        pa.nulls(len(sources), pa.string()),
        pa.ListArray.from_arrays(row_bounds.astype(np.int32), batches),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=OUTCOMES)


def _leaving_order(
    ordered: ManySources, numbers: npt.NDArray[np.int64], batch_of: npt.NDArray[np.intp]
) -> npt.NDArray[np.intp]:
    """Order messages by batch, event time and stream, equal ones in order of arrival, like the in-process batcher."""
    times = ordered.messages["event_time"][numbers]
    order = np.lexsort((times, batch_of))
    tied = np.flatnonzero(~begins(times[order], batch_of[order]))
    tied = np.union1d(tied, tied - 1)
    some = order[tied]
    of_some = ordered.messages.take(numbers[some])
    keys = (of_some["index"], of_some["entry"], of_some["ledger"], ordered.streams[numbers[some]], times[some])
    order[tied] = some[np.lexsort((*keys, batch_of[some]))]
    return order
