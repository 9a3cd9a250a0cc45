"""What became of messages, in one shape, whether a batcher, packed rows or a DataFrame says so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from waterclock.arrow import POSITION_FIELDS, to_arrow
from waterclock.batching.batch import Batch, Rejection
from waterclock.batching.event_time.batcher import EventTimeBatcher
from waterclock.columnar.packing import unpack
from waterclock.columnar.records import records
from waterclock.message import Message, Position
from waterclock.spark import batches_of, rejected_of
from waterclock.time import MAX_NS

POSITION = [field.name for field in POSITION_FIELDS]
METADATA = ["source", "stream", "event_time", "receive_time", *POSITION]

_FACTS = ("start", "end", "closed_at", "reason", "run", "number")

Facts = tuple[Any, ...]
"""Stream, event time, receive time and, where there is one, the position of a message."""


class Results(NamedTuple):
    """By source: its batches in order of start, each with its messages; and its rejected messages with the reason."""

    batches: dict[str, list[tuple[int, int, int, str, int | None, int | None, list[Facts]]]]
    rejected: dict[str, list[tuple[str, Facts]]]


def results_one_by_one(messages: Iterable[Message], **rule: Any) -> Results:
    """Give each message to the batcher of its source, and let the clock run to its end."""
    batchers: dict[str, EventTimeBatcher] = {}
    batches: list[Batch] = []
    rejected: list[Rejection] = []
    for message in messages:
        batchers.setdefault(message.source, EventTimeBatcher(**rule))
        batches += batchers[message.source].add(message)
    for batcher in batchers.values():
        batches += batcher.advance(MAX_NS - 1)
        batches += batcher.flush()
        rejected += batcher.take_rejected()
    return results_of(batches, rejected)


def results_of(batches: Iterable[Batch], rejected: Iterable[Rejection]) -> Results:
    return _results(
        (
            (b.source, b.start, b.end, b.closed_at, b.reason, b.run, b.number, [facts(m) for m in b.messages])
            for b in batches
        ),
        ((r.message.source, r.reason, facts(r.message)) for r in rejected),
    )


def assert_same(found: Results, expected: Results) -> None:
    """Compare source by source, and say of one how it differs: pytest would compare all by text, for minutes."""
    for kind, ours, theirs in zip(Results._fields, found, expected, strict=True):
        assert sorted(ours) == sorted(theirs), f"{kind} of other sources"
        for source, wanted in theirs.items():
            if ours[source] != wanted:
                missing = [each for each in wanted if each not in ours[source]][:2]
                added = [each for each in ours[source] if each not in wanted][:2]
                pytest.fail(f"{kind} of {source!r}: missing {missing}, added {added}")


def facts(message: Message) -> Facts:
    return message.stream, message.event_time, message.receive_time, *(message.position or ())


def results_in_rows(outcomes: Iterable[pa.RecordBatch]) -> Results:
    """Read the rows of `waterclock.columnar.streams.judging.judge`."""
    batches: list[tuple[Any, ...]] = []
    rejected: list[tuple[Any, ...]] = []
    for rows in outcomes:
        for number, row in enumerate(rows.to_pylist()):
            messages = _unpacked(rows.slice(number, 1))
            if row["rejection"] is not None:
                assert row["batches"] == []
                rejected += [(row["source"], row["rejection"], message) for message in messages]
            for b in row["batches"]:
                some = messages[b["first"] : b["first"] + b["count"]]
                _check_outside(b, some)
                batches.append((row["source"], *(b[name] for name in _FACTS), some))
            assert row["rejection"] is not None or sum(b["count"] for b in row["batches"]) == row["count"]
    return _results(batches, rejected)


def results_in_frames(outcomes: DataFrame) -> Results:
    """Read what `event_time_outcomes` gives, as users do: judged once, batches and rejected messages taken out."""
    outcomes.persist()
    found: list[tuple[Any, ...]] = []
    for b in batches_of(outcomes).collect():
        assert b["id"] == f"{b['source']}@{b['start'] if b['number'] is None else b['number']}"
        messages = [(b["streams"][m["stream"]], *_numbers(m)) for m in records(bytes(b["messages"]), b["count"])]
        _check_outside(b, messages)
        found.append((b["source"], *(b[name] for name in _FACTS), messages))
    positioned = [
        (r["source"], r["reason"], tuple(r[name] for name in METADATA[1:] if r[name] is not None))
        for r in rejected_of(outcomes).collect()
    ]
    outcomes.unpersist()
    return _results(found, positioned)


def frame(spark: SparkSession, messages: Sequence[Message], *, positions: bool, partitions: int) -> DataFrame:
    """Make a DataFrame of messages, with those of a source spread over several partitions, in no order."""
    columns = METADATA if positions else METADATA[: -len(POSITION)]
    table = pa.Table.from_batches([to_arrow(messages, positions=positions)]).select(columns)
    return spark.createDataFrame(table).repartition(partitions)


def in_entries(messages: Iterable[Message], size: int) -> list[Message]:
    """Number messages as a topic would that received ``size`` of them at a time, ten entries a ledger."""
    numbered: list[Message] = []
    for number, message in enumerate(messages):
        ledger, entry = divmod(number // size, 10)
        numbered.append(message.replace(position=Position(ledger, entry, number % size)))
    return numbered


def _results(batches: Iterable[tuple[Any, ...]], rejected: Iterable[tuple[Any, ...]]) -> Results:
    results = Results({}, {})
    for source, *batch in batches:
        results.batches.setdefault(source, []).append(tuple(batch))
    for source, *rejection in rejected:
        results.rejected.setdefault(source, []).append(tuple(rejection))
    for of_source in (*results.batches.values(), *results.rejected.values()):
        of_source.sort()
    return results


def _check_outside(batch: Any, messages: list[Facts]) -> None:
    """Compare what a row says about messages outside their window with what the class says."""
    own = tuple(Message("s", stream, event_time) for stream, event_time, *_ in messages)
    outside = Batch("s", batch["start"], batch["end"], 0, batch["reason"], own).outside
    assert batch["outside"] == sum(counts.total for counts in outside.values())


def _unpacked(row: pa.RecordBatch) -> list[Facts]:
    _, columns = unpack(row)
    return [
        tuple(value for value in message if value is not None)
        for message in zip(*(column.to_pylist() for column in columns.values()), strict=True)
    ]


def _numbers(message: Any) -> Facts:
    return tuple(message[name].item() for name in message.dtype.names if name != "stream")


def without(source: str, results: Results) -> Results:
    """Leave a source's batches out."""
    return Results({s: b for s, b in results.batches.items() if s != source}, results.rejected)
