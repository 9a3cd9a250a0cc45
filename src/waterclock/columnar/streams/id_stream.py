"""Batches many sources by id, piece by piece or in a replay, and keeps the state from piece to piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.batching.by_id.judging import ACCEPTED, REASONS, JudgedIds, judge_ids
from waterclock.batching.by_id.rule import IdRule
from waterclock.batching.by_id.taken_ids import TakenIds
from waterclock.batching.event_time.columns import read_clocks
from waterclock.batching.event_time.replay import ReplayRange
from waterclock.batching.facts import count, each, read_as
from waterclock.columnar.many_sources import ManySources, from_packed, joined, many_from_cell, nothing
from waterclock.columnar.records import NUMBERED
from waterclock.columnar.streams import watermarks
from waterclock.columnar.streams.judged_rows import BatchFacts, begins, judged_rows
from waterclock.columnar.streams.outcome_rows import REASONS as CLOSE_REASONS
from waterclock.columnar.streams.outcome_rows import no_outcomes
from waterclock.columnar.streams.slices import slices
from waterclock.columnar.streams.state_encoding import StateEncoding, refuse_options
from waterclock.errors import DamagedError
from waterclock.time import MAX_NS, MIN_NS

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_ENCODING = StateEncoding(b"WCI1", "the state of batching by id", version=1)
_UNDECIDED = len(REASONS) + 1


class IdStream:
    """Batches many sources, each like `waterclock.IdBatcher`, from their messages.

    It remembers each source's receive clock and closed ids, and the messages of open ids. Messages of an id that was
    returned because it was complete stay until it closes, so that their duplicates are found.

    Parameters
    ----------
    rule
        The checked options.
    span
        The range of a replay: batches that start in it, and messages rejected when they were received in it; None:
        everything.
    """

    __slots__ = ("_clocks", "_closes", "_kept", "_returned", "_rule", "_span", "_taken", "open_batches")

    def __init__(self, rule: IdRule, span: ReplayRange | None = None) -> None:
        self._rule = rule
        self._span = span
        self._kept = nothing(NUMBERED)  # messages of ids that have not closed, in reading order, and all known sources
        self._closes = np.empty(0, np.int64)  # when their ids close, ns
        self._returned = np.empty(0, np.bool_)  # whether their batches were returned
        self._clocks = np.empty(0, np.int64)  # of the sources, ns
        self._taken: list[TakenIds] = []  # of the sources
        self.open_batches = 0  # how many batches the last `take` left open

    def take(self, arrived: ManySources, watermark: int) -> pa.RecordBatch:
        """Add messages, perhaps none, and return the outcomes.

        Parameters
        ----------
        arrived
            `NUMBERED` messages in any order; they are taken in order of their positions.
        watermark
            A promise, ms since the epoch, that messages received before it have come already. If some are among these,
            they count as received then. 0: no promise.

        Returns
        -------
        pyarrow.RecordBatch
            Rows of `waterclock.columnar.streams.outcome_rows.OUTCOMES`.
        """
        many = joined([self._kept, arrived.in_reading_order()], NUMBERED)
        if not len(many.source_names):
            return no_outcomes()
        promised = watermarks.promised(watermark)
        sources, kept = len(many.source_names), len(self._kept.messages)
        clocks = np.full(sources, promised)
        clocks[: len(self._clocks)] = np.maximum(self._clocks, promised)
        self._taken += [TakenIds() for _ in range(sources - len(self._taken))]
        readings = many.messages["receive_time"].copy()
        readings[kept:] = read_clocks(many.sources[kept:], readings[kept:], clocks)
        # A batch that closes at a time may still get messages received at that time.
        nows = np.full(sources, MAX_NS) if watermark >= watermarks.END else np.maximum(clocks, MIN_NS + 1) - 1
        numbers = np.ascontiguousarray(many.messages["number"])
        undeclared = self._rule.undeclared(many.stream_names)
        found = judge_ids(
            many.sources,
            many.streams,
            numbers,
            readings,
            undeclared,
            self._rule.max_delay,
            self._taken,
            nows,
            self._closes,
        )
        accepted = found.verdicts == ACCEPTED
        stays = accepted & (found.closes > nows[many.sources])
        complete = accepted & (found.streams == len(self._rule.streams or ()))
        returned = np.zeros(len(readings), np.bool_)
        returned[:kept] = self._returned
        outcomes = self._outcomes(many, found, complete, accepted & (returned | (stays & ~complete)))
        self._keep(many, found.closes, returned | complete, np.flatnonzero(stays), clocks, promised)
        return outcomes

    @property
    def wakes_at(self) -> int | None:
        """The watermark, ms, at which to `take` again without new messages; None if no batch is open."""
        first = self._closes[~self._returned].min(initial=MAX_NS)
        return watermarks.watermark_after(int(first)) if self.open_batches else None

    @property
    def missing_ids(self) -> int:
        """How many ids lie between the closed ids of their source, and were in no batch; at most 2⁶³-1."""
        return min(sum(taken.missing for taken in self._taken), MAX_NS)

    @property
    def is_empty(self) -> bool:
        """Whether no source is known."""
        return not len(self._clocks)

    def state(self) -> bytes:
        """Encode the whole state, including options, for `restore`."""
        runs = [len(taken.firsts) for taken in self._taken]
        numbers = [
            self._clocks,
            self._closes,
            *(
                np.array([number for taken in self._taken for number in getattr(taken, name)], np.int64)
                for name in ("firsts", "lasts")
            ),
        ]
        facts = [self._rule.text, len(self._clocks), len(self._closes), runs]
        parts = [np.concatenate(numbers).tobytes(), self._returned.tobytes(), self._kept.to_cell()]
        return _ENCODING.encode(facts, *parts)

    @classmethod
    def restore(cls, state: bytes, rule: IdRule) -> IdStream:
        """Restore the stream from ``state``.

        Raises `DamagedError` if ``state`` is corrupt. Raises `SchemaError` if it is something else or of another
        version. Raises `InvalidArgumentError` if it was written with other options.
        """
        facts, rest = _ENCODING.decode(state)
        with read_as(_ENCODING.name):
            written, sources, kept, runs = facts
            sources, kept, runs = count(sources), count(kept), each(runs, count)
        refuse_options(written, rule.text)
        restored = cls(rule)
        with read_as(_ENCODING.name):
            bounds = np.cumsum([sources, kept, sum(runs), sum(runs)])
            end = int(bounds[-1]) * 8
            numbers = np.frombuffer(rest[:end], np.int64)
            restored._clocks, restored._closes, firsts, lasts, _ = np.split(numbers, bounds)
            restored._returned = np.frombuffer(rest[end : end + kept], np.bool_)
            restored._kept = many_from_cell(rest[end + kept :], NUMBERED, _ENCODING.name)
            for first, stop in zip(np.cumsum(runs) - runs, np.cumsum(runs), strict=True):
                taken = TakenIds()
                taken.firsts, taken.lasts = firsts[first:stop].tolist(), lasts[first:stop].tolist()
                restored._taken.append(taken)
        lengths = [len(restored._clocks), len(restored._taken), len(restored._closes), len(restored._returned)]
        names, messages = len(restored._kept.source_names), len(restored._kept.messages)
        if lengths != [names, names, messages, messages]:
            raise DamagedError(f"{_ENCODING.name} is corrupt: its sources and messages do not match its clocks and ids")
        restored._count_open()
        return restored

    def _outcomes(self, many: ManySources, found: JudgedIds, complete: Flags, undecided: Flags) -> pa.RecordBatch:
        verdicts = np.where(undecided, np.uint8(_UNDECIDED), found.verdicts)
        sources, numbers = many.sources, np.ascontiguousarray(many.messages["number"])
        times = np.ascontiguousarray(many.messages["event_time"])
        order = np.flatnonzero(verdicts == ACCEPTED)
        order = order[np.lexsort([each[order] for each in (many.streams, times, numbers, found.closes, sources)])]
        batches = np.flatnonzero(begins(sources[order], numbers[order]))
        sizes = np.diff(batches, append=len(order))
        if self._span is not None:
            inside = self._covers(times[order[batches]])
            order, batches = order[np.repeat(inside, sizes)], np.cumsum(sizes[inside]) - sizes[inside]
            sizes = sizes[inside]
        rejected = np.flatnonzero((verdicts != ACCEPTED) & (verdicts != _UNDECIDED))
        if self._span is not None:
            rejected = rejected[self._covers(many.messages["receive_time"][rejected])]
        rejected = rejected[np.lexsort((sources[rejected], verdicts[rejected]))]
        leaving = np.concatenate([order, rejected])
        if not len(leaving):
            return no_outcomes()
        firsts = order[batches]
        facts = BatchFacts(
            np.where(complete[firsts], CLOSE_REASONS.index("complete"), CLOSE_REASONS.index("timeout")),
            times[firsts],
            times[order[batches + sizes - 1]],
            found.closes[firsts],
            numbers=numbers[firsts],
        )
        return judged_rows(many.take(leaving), verdicts[leaving], batches, facts, _rejections())

    def _covers(self, times: Ints) -> Flags:
        assert self._span is not None  # noqa: S101  # asked by its callers
        return (times >= self._span.since) & (times < self._span.until)

    def _keep(
        self,
        many: ManySources,
        closes: Ints,
        returned: Flags,
        stays: npt.NDArray[np.intp],
        clocks: Ints,
        promised: int,
    ) -> None:
        """Remember messages of ids that have not closed, the closed ids, and clocks that are later than the promise."""
        kept = many.take(stays)
        known = clocks > promised
        known[kept.sources] = True
        known |= [bool(taken.firsts) for taken in self._taken]
        sources = np.flatnonzero(known)
        self._kept, self._clocks = kept.of_sources(sources), clocks[sources]
        self._taken = [self._taken[source] for source in sources]
        self._closes, self._returned = closes[stays], returned[stays]
        self._count_open()

    def _count_open(self) -> None:
        waits = np.flatnonzero(~self._returned)
        numbers, sources = self._kept.messages["number"][waits], self._kept.sources[waits]
        order = np.lexsort((numbers, sources))
        self.open_batches = int(np.count_nonzero(begins(sources[order], numbers[order])))


def judge_by_id(
    rows: Iterable[pa.RecordBatch], rule: IdRule, *, ended: bool = True, span: ReplayRange | None = None
) -> Iterator[pa.RecordBatch]:
    """Find the batches of packed messages.

    Parameters
    ----------
    rows
        Packed rows of `NUMBERED` messages, source by source, in order of their first messages.
    rule
        The checked options.
    ended
        Whether these messages are the last; otherwise batches that are open at a source's last receive time, and not
        complete, are left out.
    span
        As of `IdStream`.

    Yields
    ------
    pyarrow.RecordBatch
        Rows of `waterclock.columnar.streams.outcome_rows.OUTCOMES_SCHEMA`.
    """
    stream = IdStream(rule, span)
    for part, _, ends in slices(rows, sliced=True, record=NUMBERED):
        yield stream.take(from_packed(part, NUMBERED), 0)
        if ends:
            if ended:
                yield stream.take(nothing(NUMBERED), watermarks.END)
            stream = IdStream(rule, span)


@cache
def _rejections() -> pa.StringArray:
    """Return the reason of each verdict."""
    return pa.array([None, *REASONS])
