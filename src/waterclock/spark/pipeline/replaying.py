"""Replays a range of a topic: finds the batches that start in it, as batching the whole topic would."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from waterclock._support.quoting import quoted
from waterclock.batching.event_time.replay import ReplayRange, windows_back
from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.connection import connect
from waterclock.errors import NotFoundError
from waterclock.message import Position
from waterclock.spark.pipeline.definition import Pipeline, PipelineSource, place_options
from waterclock.spark.pipeline.fencing import topic_in
from waterclock.spark.pipeline.lengths import recorded_lengths
from waterclock.spark.pipeline.rules import OUTCOMES_BY, named_rule
from waterclock.spark.reading.topic_read_options import TopicReadOptions
from waterclock.spark.streaming.batching import event_time_outcomes, sources_without_run, unsynchronised_sources
from waterclock.time import MIN_NS, format_time, to_duration
from waterclock.topics.finding.finding import find_start
from waterclock.topics.finding.positions import beginning
from waterclock.topics.reading.pruning import ReadFilter
from waterclock.topics.topic import Topic

_SILENT_NS = 3_600_000_000_000
"""A topic whose newest message was published longer ago than this counts as ended."""

_log = logging.getLogger(__name__)


class _Begin(NamedTuple):
    """The start of the pipeline's batching, and whether messages before it were deleted."""

    position: Position
    follows_deleted: bool


def replayed(spark: SparkSession, pipeline: Pipeline, since: int, until: int) -> DataFrame:
    """Find the outcomes of a range, as the functions of `OUTCOMES_BY` do.

    Parameters
    ----------
    since, until
        Batches that start at or after the first and before the second, and messages that were rejected when they were
        received then; ns.
    """
    source = pipeline.source
    with connect(source.url, source.ledgers) as database:
        topic = database.topic(source.topic)
        if topic_in(spark, pipeline.checkpoint) not in (None, topic.storage.origin):
            raise NotFoundError(
                f"cannot replay pipeline {quoted(pipeline.name)}: its checkpoint belongs to a topic other than"
                f" {quoted(source.topic)}, perhaps a removed topic of the same name or a topic in another"
                " database. Replay with a new checkpoint and other outputs, or connect to the original database"
            )
        begin = _begin(topic, source)
        ended = not topic.find(database.backend.now() - _SILENT_NS).found
        if pipeline.by != "event_time":
            # By rate, the open window and the start of the next one may depend on the first message. By id, an id may
            # have closed at any time.
            if begin.follows_deleted:
                _log.warning(
                    "replay of pipeline %r: messages before %s were deleted. Windows may depend on these messages, so a"
                    " live stream may have batched differently",
                    pipeline.name,
                    begin.position,
                )
            stop: Position | None = None
            lengths: dict[str, Any] = {}
            if pipeline.adaptive is not None:
                lengths["lengths"], end = recorded_lengths(spark, pipeline)
                stop = max(end.position, begin.position)
                if end.ordinal < topic.index(topic.head):
                    ended = False
                    _log.warning(
                        "replay of %r: the pipeline has read the topic up to %s. Later messages are left out, because"
                        " they have no batch length yet",
                        pipeline.name,
                        end.position,
                    )
            packed = _packed(spark, source, begin.position, stop, pipeline.rule.get("id_of"))
            find = OUTCOMES_BY[pipeline.by]
            return find(packed, **pipeline.rule, **lengths, ended=ended, span=ReplayRange(since, until))
        rule = _event_time_rule(pipeline)
        promised = _promised(topic, pipeline)
        start, span = _start(spark, topic, pipeline, rule, ReplayRange(since, until, promised=promised), begin)
        last = span.received_until(rule)
        if promised <= last and not ended:
            _log.warning(
                "replay of pipeline %r: the topic's clock stands at %s, before the end of the range. Batches that later"
                " messages may change are left out. Replay the range again after %s",
                pipeline.name,
                format_time(promised),
                format_time(last),
            )
        packed = _packed(spark, source, start, _stop(topic, source, start, last))
    return event_time_outcomes(packed, **pipeline.rule, ended=ended or promised > last, span=span)


def _start(
    spark: SparkSession, topic: Topic, pipeline: Pipeline, rule: EventTimeRule, whole: ReplayRange, begin: _Begin
) -> tuple[Position, ReplayRange]:
    """Find a position from which the range's windows are known, and describe the range from there."""
    source = pipeline.source
    unknown: str | None = None
    for windows in windows_back(rule):
        span = ReplayRange.reaching_back(rule, whole.since, whole.until, windows)._replace(promised=whole.promised)
        found = find_start(topic.storage, "receive_time", span.received_from(rule), source.on_damage)
        start = max(found.position, begin.position)
        if start == begin.position and not begin.follows_deleted:
            return begin.position, whole
        stop = _stop(topic, source, start, span._replace(until=span.since).received_until(rule))
        first = unsynchronised_sources(_packed(spark, source, start, stop), rule, span).head()
        if first is None and rule.boundaries:
            stop = _stop(topic, source, start, span.received_until(rule))
            first = sources_without_run(_packed(spark, source, start, stop), rule, span).head()
        if first is None:
            return start, span
        unknown = first[0]
    why = "; older messages were deleted, so a live stream may have batched differently"
    _log.warning(
        "replay of pipeline %r: the batches of source %s depend on messages more than %d windows before the range. The"
        " topic is read from %s on%s",
        pipeline.name,
        quoted(unknown),
        windows_back(rule)[-1],
        begin.position,
        why if begin.follows_deleted else "",
    )
    return begin.position, whole


def _begin(topic: Topic, source: PipelineSource) -> _Begin:
    """Find the start of a pipeline's stream: its ``start`` if that is fixed, otherwise the first remaining message."""
    first, ordinal = beginning(topic.storage)
    options = TopicReadOptions.checked({**place_options(source.url, None), "topic": source.topic, **source.start})
    start = None
    if isinstance(options.since, int):
        start = find_start(topic.storage, "publish_time", options.since, source.on_damage).position
    elif isinstance(options.start, Position):
        start = options.start
    if start is not None and start >= first:
        return _Begin(start, follows_deleted=False)
    return _Begin(first, follows_deleted=ordinal > 0)


def _stop(topic: Topic, source: PipelineSource, start: Position, last: int) -> Position:
    """Find the position after the last message that was received at ``last`` or before."""
    wanted = ReadFilter({"receive_time": (MIN_NS, last)})
    slices = topic.plan(start, wanted=wanted, on_damage=source.on_damage)
    return slices[-1].stop if slices else start


def _promised(topic: Topic, pipeline: Pipeline) -> int:
    """Read the topic's receive clock, less the disorder that a stream allows."""
    bounds = topic.bounds
    if bounds is None:
        return MIN_NS
    skew = to_duration(pipeline.rule.get("max_skew", "10s"), "max_skew")
    return max(bounds.end["receive_time"] - skew, MIN_NS)


def _event_time_rule(pipeline: Pipeline) -> EventTimeRule:
    named = named_rule(pipeline)
    return EventTimeRule.checked(**{name: named[name] for name in EventTimeRule._fields})


def _packed(
    spark: SparkSession, source: PipelineSource, start: Position, stop: Position | None, id_of: str | None = None
) -> DataFrame:
    options = {"topic": source.topic, "onDamage": source.on_damage, "packed": "true", "startingPosition": str(start)}
    if id_of is not None:
        options["idOf"] = id_of
    if stop is not None:
        options["endingPosition"] = str(stop)
    return spark.read.format("waterclock").options(**place_options(source.url, source.ledgers), **options).load()
