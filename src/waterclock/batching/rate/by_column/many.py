"""Batches the columns of many sources by rate, in one call of compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from waterclock.batching.rate.by_column import layout
from waterclock.batching.rate.by_column.columns import KERNEL, in_kernel
from waterclock.batching.rate.by_message.aligned import ALIGNMENT
from waterclock.batching.rate.period import KEPT_DIFFERENCES
from waterclock.batching.rate.rule import CUTS, RIDES, RateRule
from waterclock.batching.rate.runs import boundaries_by_batch, runs_of

Ints = npt.NDArray[np.int64]

LASTING_COLUMNS = 17
"""The number of a track's columns that are kept between calls of the rule; the others are working memory."""


class ManyBatches(NamedTuple):
    """The batches that some calls closed, source by source, in order of closing."""

    starts: Ints  # as of `waterclock.Batch`, ns, like the next two
    ends: Ints
    closed_at: Ints
    reasons: Ints  # numbers of the kernel's reasons
    bounds: Ints  # source s has the batches ``bounds[s]`` to ``bounds[s + 1]``
    offsets: Ints  # batch k holds ``messages[offsets[k]:offsets[k + 1]]``
    messages: Ints  # places of the passed messages that are in batches, in the order in which they joined their batch
    kept: Ints  # places of the passed messages that are in no batch; source by source, to be passed again
    runs: list[int | None]  # as of `waterclock.Batch`, ns

    def between(self, since: int, until: int) -> ManyBatches:
        """Take the batches that start at or after ``since`` and before ``until``, ns."""
        stays = (self.starts >= since) & (self.starts < until)
        counts = np.diff(self.offsets)
        return ManyBatches(
            self.starts[stays],
            self.ends[stays],
            self.closed_at[stays],
            self.reasons[stays],
            np.concatenate([[0], np.cumsum(stays)])[self.bounds],
            np.concatenate([[0], np.cumsum(counts[stays])]),
            self.messages[np.repeat(stays, counts)],
            self.kept,
            [run for run, within in zip(self.runs, stays, strict=True) if within],
        )


class RateAwareMany:
    """Batches the messages of many sources, each like `RateAwareBatcher`; messages are kept by the caller.

    Parameters
    ----------
    rule
        The checked options.
    aligns
        Whether clocks are aligned.

    Attributes
    ----------
    clocks
        If clocks are aligned, a row of `clock_alignment` for each of `pairs`; else rows of no columns.
    facts
        A row per source, as the kernel lays it out.
    rule
        The rule of new sources; after a change of its length, known sources `adopt` that.
    runs
        The run after the last batch of each source, ns; None before the first.
    tracks, rings
        The rows of all sources in order: one for each stream that does not ride along, and one for all others.
    track_bounds
        Source s has the rows ``track_bounds[s]`` to ``track_bounds[s + 1]``.
    pairs
        A row for each known stream of a source: the source, the stream, and the row of its track among the source's; in
        order of source and stream.
    waits_for, kept_sources
        For each kept message, the row that it waits for among those of its source, or -1; and its source.
    """

    __slots__ = (
        "clocks",
        "facts",
        "kept_sources",
        "pairs",
        "rings",
        "rule",
        "runs",
        "track_bounds",
        "tracks",
        "waits_for",
    )

    def __init__(self, rule: RateRule, *, aligns: bool = False) -> None:
        self.rule = rule
        self.facts = np.empty((0, layout.ALL_FACTS), np.int64)
        self.runs: list[int | None] = []
        self.tracks = np.empty((0, layout.TRACK_COLUMNS), np.int64)
        self.rings = np.empty((0, KEPT_DIFFERENCES), np.int64)
        self.track_bounds = np.zeros(1, np.int64)
        self.pairs = np.empty((0, 3), np.int64)
        self.clocks = np.empty((0, ALIGNMENT.interpreted.COLUMNS if aligns else 0), np.int64)
        self.waits_for = np.empty(0, np.int32)
        self.kept_sources = np.empty(0, np.int64)

    def admit(self, sources: int, keys: Ints, streams: int, roles_of: Callable[[Ints], Ints]) -> Ints:
        """Add new sources and streams, and return the place of each message's stream in `pairs`.

        Parameters
        ----------
        sources
            Number of all sources; known ones keep their numbers.
        keys
            For each message, the number of its source times ``streams``, plus the number of its stream.
        streams
            Number of all streams. The numbers in `pairs` refer to these.
        roles_of
            Returns the roles of some streams.
        """
        added = sources - len(self.facts)
        if added:
            facts = np.zeros((added, layout.ALL_FACTS), np.int64)
            facts[:, [layout.LENGTH, layout.TIMEOUT_NS]] = in_kernel(self.rule)
            facts[:, [layout.AUTO, layout.DISORDER]] = self.rule.auto, self.rule.max_disorder
            self.facts = np.concatenate([self.facts, facts])
            self.runs += [None] * added
            self.track_bounds = np.append(self.track_bounds, self.track_bounds[-1] + 1 + np.arange(added))
            self.tracks = np.concatenate([self.tracks, np.zeros((added, layout.TRACK_COLUMNS), np.int64)])
            self.rings = np.concatenate([self.rings, np.zeros((added, KEPT_DIFFERENCES), np.int64)])
        known = self.pairs[:, 0] * streams + self.pairs[:, 1]
        place = np.searchsorted(known, keys)
        is_known = known[np.minimum(place, len(known) - 1)] == keys if len(known) else np.zeros(len(keys), np.bool_)
        if not is_known.all():
            self._admit(np.unique(keys[~is_known]), streams, roles_of)
            known = self.pairs[:, 0] * streams + self.pairs[:, 1]
            place = np.searchsorted(known, keys)
        return place

    def offsets_of(self, places: Ints, event_times: Ints, receive_times: Ints, begins: npt.NDArray[np.bool_]) -> Ints:
        """Return by how much (ns) to align new messages, which are in order of arrival.

        Parameters
        ----------
        places
            The result of `admit`.
        event_times, receive_times
            ns.
        begins
            Which messages are the first of a call.
        """
        offsets = np.zeros(len(places), np.int64)
        calls = np.append(np.flatnonzero(begins), len(places))
        source_of, aligned = np.ascontiguousarray(self.pairs[:, 0]), np.zeros(len(self.facts), np.int64)
        arrays = self.clocks, source_of, calls, places, event_times, receive_times, aligned, offsets
        ALIGNMENT.call("offsets_of", len(places), *arrays)
        return offsets

    def add(
        self, rows: Ints, times: Ints, bounds: Ints, begins: npt.NDArray[np.bool_], flush: npt.NDArray[np.bool_]
    ) -> ManyBatches:
        """Add the messages of many calls, and return the batches that they close.

        Parameters
        ----------
        rows
            The row of each message's track, which `pairs` has, source by source; for each source first the kept
            messages, in their order.
        times
            Event times, ns.
        bounds
            Source s has the messages ``bounds[s]`` to ``bounds[s + 1]``.
        begins
            Which messages are the first of a call; kept ones are not.
        flush
            Sources of which everything is returned at the end.
        """
        count, sources = len(times), len(bounds) - 1
        calls, call_bounds = _calls(bounds, begins)
        links = np.full((count, layout.LINK_COLUMNS), layout.NONE, np.int32)
        links[self._kept_places(bounds, begins), layout.WAITS_FOR] = self.waits_for
        table = np.empty((count + sources, layout.BATCH_COLUMNS), np.int64)
        joined, given, kept = (np.empty(count + sources, np.int64) for _ in range(3))
        batch_bounds = np.zeros(sources + 1, np.int64)
        keeps = KERNEL.call(
            "run", count,
            rows.astype(np.uint32), times, bounds, calls, call_bounds, np.empty(0, np.int64), self.track_bounds, flush,
            self.facts, self.tracks, self.rings, links, joined, table, batch_bounds, given, kept,
        )  # fmt: skip
        starts, ends, closed, reasons, until = table[: batch_bounds[-1]].T.copy()
        kept, leaving, offsets = kept[:keeps], given[: count - keeps], np.concatenate([[0], until])
        boundaries = {}
        cutting = self.tracks[:, layout.ROLE] == CUTS
        if cutting.any():
            row_of = np.repeat(self.track_bounds[:-1], np.diff(bounds)) + rows
            boundaries = boundaries_by_batch(offsets, times[leaving], cutting[row_of[leaving]])
        self.waits_for, self.kept_sources = (
            links[kept, layout.WAITS_FOR],
            np.searchsorted(bounds, kept, side="right") - 1,
        )
        return ManyBatches(
            starts,
            ends,
            closed,
            reasons,
            batch_bounds,
            offsets,
            leaving,
            kept,
            runs_of(self.runs, batch_bounds.tolist(), starts, ends, boundaries),
        )

    def adopt(self, sources: Ints) -> None:
        """Change some sources to the length of `rule`, from their next window on."""
        upcoming = np.array([layout.NEXT_LENGTH, layout.NEXT_TIMEOUT])
        differs = self.facts[sources, layout.LENGTH] != self.rule.batch_length
        self.facts[np.ix_(sources[differs], upcoming)] = in_kernel(self.rule)
        self.facts[np.ix_(sources[~differs], upcoming)] = 0

    def take(self, wanted: Ints) -> npt.NDArray[np.intp]:
        """Keep only some of the sources, in this order, and return the order of the kept messages.

        Parameters
        ----------
        wanted
            Their numbers, without repeats; the others must have no kept messages.
        """
        first, counts = self.track_bounds[wanted], np.diff(self.track_bounds)[wanted]
        self.track_bounds = np.concatenate([[0], np.cumsum(counts)])
        rows = np.arange(self.track_bounds[-1]) + np.repeat(first - self.track_bounds[:-1], counts)
        number = np.full(len(self.facts), -1)
        number[wanted] = np.arange(len(wanted))
        self.runs = [self.runs[source] for source in wanted.tolist()]
        self.facts, self.tracks, self.rings = self.facts[wanted], self.tracks[rows], self.rings[rows]
        known = number[self.pairs[:, 0]] >= 0
        pairs = self.pairs[known]
        pairs[:, 0] = number[pairs[:, 0]]
        by_source = np.lexsort((pairs[:, 1], pairs[:, 0]))
        self.pairs, self.clocks = pairs[by_source], self.clocks[known][by_source]
        order = np.argsort(number[self.kept_sources], kind="stable")
        self.kept_sources, self.waits_for = number[self.kept_sources][order], self.waits_for[order]
        return order

    def _kept_places(self, bounds: Ints, begins: npt.NDArray[np.bool_]) -> Ints:
        """Find the kept messages: those of a source before its first call."""
        calls_so_far = np.cumsum(begins)
        before = np.concatenate([[0], calls_so_far])[bounds[:-1]]
        return np.flatnonzero(calls_so_far == np.repeat(before, np.diff(bounds)))

    def _admit(self, keys: Ints, streams: int, roles_of: Callable[[Ints], Ints]) -> None:
        """Add rows for new streams, before the last one of their source if they do not ride along."""
        sources, numbers = np.divmod(keys, streams)
        met, place = np.unique(numbers, return_inverse=True)
        roles = roles_of(met)[place]
        apart = roles != RIDES
        count = len(self.facts)
        before = np.diff(self.track_bounds)
        added = np.bincount(sources[apart], minlength=count)
        bounds = np.concatenate([[0], np.cumsum(before + added)])
        rank = np.cumsum(apart) - 1
        first_rank = np.concatenate([[0], np.cumsum(added)])[sources]
        rows = np.where(apart, before[sources] - 1 + rank - first_rank, before[sources] + added[sources] - 1)
        # The last row of a source, which streams that ride along share, stays the last.
        moved = np.arange(len(self.tracks)) + np.repeat(bounds[:-1] - self.track_bounds[:-1], before)
        last = self.track_bounds[1:] - 1
        moved[last] = bounds[1:] - 1
        self.tracks, self.rings = (_moved(table, moved, int(bounds[-1])) for table in (self.tracks, self.rings))
        self.tracks[bounds[sources[apart]] + rows[apart], layout.ROLE] = roles[apart]
        known = self.pairs
        known[:, 2] = _behind(known[:, 2], before[known[:, 0]] - 1, added[known[:, 0]])
        pairs = np.concatenate([known, np.stack([sources, numbers, rows], axis=1)])
        clocks = np.concatenate([self.clocks, np.zeros((len(sources), self.clocks.shape[1]), np.int64)])
        by_key = np.argsort(pairs[:, 0] * streams + pairs[:, 1], kind="stable")
        self.pairs, self.clocks = pairs[by_key], clocks[by_key]
        self.track_bounds = bounds
        waiting = self.kept_sources
        self.waits_for = _behind(self.waits_for.astype(np.int64), before[waiting] - 1, added[waiting]).astype(np.int32)


def _calls(bounds: Ints, begins: npt.NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Return the first message of each call, counted from the first of its source, and the end of the last one."""
    firsts = np.flatnonzero(begins)
    of_source = np.searchsorted(bounds, firsts, side="right") - 1
    counts = np.bincount(of_source, minlength=len(bounds) - 1)
    call_bounds = np.concatenate([[0], np.cumsum(counts + 1)])
    calls = np.empty(call_bounds[-1], np.int64)
    calls[call_bounds[1:] - 1] = np.diff(bounds)
    calls[np.arange(len(firsts)) + of_source] = firsts - bounds[of_source]
    return calls, call_bounds


def _moved(table: Ints, places: Ints, count: int) -> Ints:
    wider = np.zeros((count, table.shape[1]), np.int64)
    wider[places] = table
    return wider


def _behind(rows: Ints, last: Ints, added: Ints) -> Ints:
    return np.where(rows == last, rows + added, rows)
