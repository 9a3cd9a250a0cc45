"""Batches packed messages by event time, source by source. Spark's tasks call it after the shuffle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from waterclock.batching.event_time.columns import assign_arrays, read_clocks
from waterclock.batching.event_time.replay import ReplayRange, synchronised
from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.columnar.many_sources import from_packed, nothing
from waterclock.columnar.packing import reading_order
from waterclock.columnar.records import PACKING, POSITIONED, words
from waterclock.columnar.streams.event_time_rows import outcome_rows
from waterclock.columnar.streams.event_time_stream import EventTimeStream
from waterclock.columnar.streams.slices import slices
from waterclock.columnar.streams.watermarks import END, watermark_of
from waterclock.time import MIN_NS


def judge(
    batches: Iterable[pa.RecordBatch],
    record: np.dtype[Any],
    rule: EventTimeRule,
    *,
    ended: bool = True,
    span: ReplayRange | None = None,
) -> Iterator[pa.RecordBatch]:
    """Find the batches of packed messages.

    If messages have positions, a source's messages are taken in that order. If a message's receive time is before that
    of an earlier message, it counts as received with that message, as for a batcher that reads the topic message by
    message.

    Parameters
    ----------
    batches
        Packed rows (see `waterclock.columnar.packing`), source by source. With positions, they are in order of their
        first messages, so that a source with very many messages is judged part by part, after all others.
    record
        `PLAIN` or `POSITIONED`, as they were packed.
    rule
        The checked options.
    ended
        Whether these messages are the last; otherwise windows that are open at a source's last receive time are left
        out.
    span
        The range of a replay; None: everything.

    Yields
    ------
    pyarrow.RecordBatch
        Rows of `waterclock.columnar.streams.outcome_rows.OUTCOMES_SCHEMA`.
    """
    large = EventTimeStream(rule, record, span)
    promised = 0 if span is None else watermark_of(span.promised)
    for rows, begun, ends in slices(batches, sliced=record == POSITIONED):
        if ends and not begun and ended and span is None:
            yield _judge(rows, record, rule)
            continue
        yield large.take(from_packed(rows, record), 0)
        if ends:
            if ended or promised:
                yield large.take(nothing(record), END if ended else promised)
            large = EventTimeStream(rule, record, span)


def unsynchronised(
    batches: Iterable[pa.RecordBatch], rule: EventTimeRule, span: ReplayRange
) -> Iterator[pa.RecordBatch]:
    """Find the sources whose windows in a range depend on messages before ``span.begin``.

    Parameters
    ----------
    batches
        Packed rows with positions, as `judge` takes them.
    rule
        The checked options.
    span
        The range that was read.

    Yields
    ------
    pyarrow.RecordBatch
        One row per such source.
    """
    for rows, _, _ in slices(batches, sliced=False):
        many = from_packed(rows, POSITIONED)
        many = many.take(reading_order(many.messages, many.sources))
        event_times, received = (np.ascontiguousarray(many.messages[name]) for name in ("event_time", "receive_time"))
        known = synchronised(many.sources, many.streams, event_times, received, rule, span, many.stream_names)
        yield pa.record_batch({"source": many.source_names.take(pa.array(np.flatnonzero(~known)))})


def without_run(batches: Iterable[pa.RecordBatch], rule: EventTimeRule, span: ReplayRange) -> Iterator[pa.RecordBatch]:
    """Find the sources that have a batch in a range whose run is unknown, for a rule with boundaries.

    `unsynchronised` finds most of them, from the messages before the range. It does not find a source whose first batch
    of the range follows a silence, nor one whose first batch is an isolated event time.

    Parameters
    ----------
    batches
        Packed rows with positions, as `judge` takes them, of the whole range.
    rule, span
        As of `unsynchronised`.

    Yields
    ------
    pyarrow.RecordBatch
        As `unsynchronised`.
    """
    for outcomes in judge(batches, POSITIONED, rule, span=span):
        found = outcomes.column("batches")
        places = found.value_parent_indices().filter(found.flatten().field("run").is_null())
        yield pa.record_batch({"source": outcomes.column("source").take(places.unique())})


def _judge(packed: pa.Table, record: np.dtype[Any], rule: EventTimeRule) -> pa.RecordBatch:
    many = from_packed(packed, record)
    sources = many.sources.astype(np.uint32)
    if record == POSITIONED and not PACKING.call("is_in_order", len(sources), sources, words(many.messages)):
        many = many.take(reading_order(many.messages, many.sources))
    event_times, received = (np.ascontiguousarray(many.messages[name]) for name in ("event_time", "receive_time"))
    if record == POSITIONED:
        received = read_clocks(many.sources, received, np.full(len(many.source_names), MIN_NS))
    found = assign_arrays(many.sources, many.streams, event_times, received, rule, stream_names=many.stream_names)
    return outcome_rows(many, found, rule)
