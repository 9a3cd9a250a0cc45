"""Divides sources into sessions: a long silence ends a session, and the next message of the source begins a new one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from waterclock.batching.event_time.columns import read_clocks
from waterclock.batching.rate.by_message.silence import silences
from waterclock.columnar.many_sources import ManySources
from waterclock.columnar.streams.judged_rows import begins

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class SourceSessions(NamedTuple):
    """The sessions into which the messages of sources are split."""

    of_message: Ints  # for each message, its life; the first one of each source has the source's number
    sources: Ints  # for each life, its source
    last: Ints  # for each source, its last life
    ends: Flags  # which lives end; all of their batches must be returned

    @classmethod
    def endless(cls, many: ManySources) -> SourceSessions:
        """Return one open session for each source."""
        every = np.arange(len(many.source_names))
        return cls(many.sources.astype(np.int64), every, every, np.zeros(len(every), np.bool_))

    @classmethod
    def parted(
        cls, many: ManySources, is_new: Flags, calls: Flags, clocks: Ints, known: int, after: int, promised: int
    ) -> SourceSessions:
        """Split messages at silences of more than ``after`` ns.

        Parameters
        ----------
        many
            Messages source by source, known ones of each first.
        is_new, calls
            Which messages are new, and which of these begin a call.
        clocks
            The greatest receive time of each source so far, ns; updated with these messages.
        known
            How many sources had messages before; they are the first ones. For the others, ``clocks`` has the smallest
            possible time.
        after
            ns.
        promised
            All messages received before it, ns, are among these: sessions that no later message can continue end.
        """
        sources = many.sources[is_new]
        received = np.ascontiguousarray(many.messages["receive_time"][is_new])
        firsts = np.flatnonzero(calls[is_new])
        before = clocks[sources[firsts]]
        readings = read_clocks(sources, received, clocks)
        goes_on = np.flatnonzero(~begins(sources)[firsts]) if len(firsts) else firsts
        before[goes_on] = readings[firsts[goes_on] - 1]
        heard = sources[firsts] < known
        heard[goes_on] = True
        begun = np.zeros(len(many.sources), np.bool_)
        begun[np.flatnonzero(calls)[silences(received, firsts, before, heard, after)]] = True
        count = len(many.source_names)
        so_far = np.cumsum(begun)
        first = np.concatenate([[0], np.cumsum(np.bincount(many.sources, minlength=count))])[:-1]
        of_earlier = np.concatenate([[0], so_far])[first]
        is_first = so_far == of_earlier[many.sources]
        of_life = np.concatenate([np.arange(count), many.sources[begun]]).astype(np.int64)
        last = np.arange(count)
        last[of_life[count:]] = np.arange(count, len(of_life))
        ends = np.ones(len(of_life), np.bool_)
        # A source whose clock is later than the promise is not silent; the distances of others fit an unsigned number.
        apart = np.uint64(promised % 2**64) - clocks.view(np.uint64)
        ends[last] = (clocks < promised) & (apart > np.uint64(after))
        of_message = np.where(is_first, many.sources, count + so_far - 1).astype(np.int64)
        return cls(of_message, of_life, last, ends)

    @property
    def go_on(self) -> npt.NDArray[np.intp]:
        """The sources whose last session is open."""
        return np.flatnonzero(~self.ends[self.last])

    def name(self, many: ManySources) -> ManySources:
        """Turn each session into a source of its own, of the same name."""
        return many._replace(
            source_names=many.source_names.take(pa.array(self.sources)), sources=self.of_message.astype(np.int32)
        )
