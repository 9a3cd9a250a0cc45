"""Aligned clocks, a disorder and boundaries give equal bytes in the class, in a stream, and in a replay."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.batching.rate.estimating.clocks import creeping, good, received_late, run, stepping, traffic
from tests.batching.rate.traffic import SECOND, calls, options
from tests.spark.results import METADATA
from tests.spark.streaming.arrivals import SCHEMA, many, packed, write
from tests.support.kernel_forms import in_form

from waterclock.arrow import to_arrow
from waterclock.columnar.many_sources import nothing
from waterclock.columnar.records import POSITIONED
from waterclock.columnar.streams.rate_options import RateOptions
from waterclock.columnar.streams.rate_stream import RateStream, judge_by_rate
from waterclock.live.batch_rows import batch_rows
from waterclock.message import Message, Position
from waterclock.spark import rate_aware_batches
from waterclock.spark.streaming.batch_rows import encoded

pytestmark = [
    pytest.mark.filterwarnings("ignore::waterclock.errors.OutsideWindowWarning"),
    pytest.mark.filterwarnings("ignore::waterclock.errors.LongCallWarning"),
]


def positioned(arrivals: list[list[Message]], source: str = "s") -> list[list[Message]]:
    """Make an entry of each call, three entries a ledger."""
    return [
        [
            Message(source, m.stream, m.event_time, receive_time=m.receive_time, position=Position(*place, index))
            for index, m in enumerate(call)
        ]
        for place, call in ((divmod(number, 3), call) for number, call in enumerate(arrivals))
    ]


def written(outcomes: list[pa.RecordBatch]) -> list[bytes]:
    rows = iter([batch_rows(each) for each in outcomes if each.num_rows])
    return sorted(payload for _, payloads in encoded(rows, None) for payload in payloads.to_pylist())


def checked(chosen: dict[str, Any]) -> RateOptions:
    return RateOptions.checked(**{"batch_length": "1s", "timeout": None, "gated": True, **chosen})


@settings(max_examples=settings.default.max_examples * 3 // 10)  # of many calls each
@given(
    calls(),
    options,
    st.none() | st.integers(1, 3 * SECOND),
    st.lists(st.integers(0, 60), max_size=5),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_streams_and_replays_align_clocks_as_the_class_does(
    arrivals: list[list[Message]],
    chosen: dict[str, Any],
    forget_after: int | None,
    cuts: list[int],
    chance: random.Random,
    compiled: bool,
) -> None:
    arrivals = positioned(received_late([call for call in arrivals if call], chance.randrange(3 * SECOND)))
    chosen = chosen | {"forget_after": forget_after, "clocks": "align"}
    rule = checked(chosen)
    stream = RateStream(rule)
    outcomes: list[pa.RecordBatch] = []
    with in_form(compiled=compiled):
        for first, stop in pairwise([0, *sorted(cuts), len(arrivals)]):
            outcomes.append(stream.take(many([m for call in arrivals[first:stop] for m in call], chance)))
            stream = RateStream.restore(stream.state(), rule)
        outcomes.append(stream.take(nothing(POSITIONED), flush=True))
        messages = [m for call in arrivals for m in call]
        again = written(list(judge_by_rate(packed(messages, chance), rule)))
    expected = sorted(batch.to_bytes() for batch in run(arrivals, **chosen))
    same = written(outcomes) == expected  # pytest would spell out the difference of long bytes
    assert same
    same = again == expected
    assert same


def test_each_source_has_its_own_clocks() -> None:
    chance = random.Random(2)  # noqa: S311
    both = {
        "s": positioned(traffic([good, creeping(0.01), stepping(-5, 20)], 60)),
        "t": positioned(traffic([creeping(-0.01), stepping(30, 15), good], 60), "t"),
    }
    expected = sorted(batch.to_bytes() for each in both.values() for batch in run(each, clocks="align"))
    rule = checked({"clocks": "align"})
    stream = RateStream(rule)
    outcomes: list[pa.RecordBatch] = []
    for first in range(0, 600, 60):
        some = [m for each in both.values() for call in each[first : first + 60] for m in call]
        outcomes.append(stream.take(many(some, chance)))
        stream = RateStream.restore(stream.state(), rule)
    outcomes.append(stream.take(many([m for each in both.values() for c in each[600:] for m in c], chance), flush=True))
    same = written(outcomes) == expected
    assert same


def test_spark_aligns_clocks_waits_for_disorder_and_cuts_runs_in_a_replay_and_in_a_stream(
    spark: SparkSession, tmp_path: Path
) -> None:
    sent = traffic([good, creeping(0.01), stepping(-5, 10)], 30)
    for place in (70, 150):
        sent[place].append(sent[place][0].replace(stream="run"))
    arrivals = positioned(sent)
    messages = [m for call in arrivals for m in call]
    chosen: dict[str, Any] = {"clocks": "align", "max_disorder": "1s", "boundaries": ["run"]}
    batches = run(arrivals, **chosen)
    assert len({batch.run for batch in batches}) == 3
    assert [batch.reason for batch in batches].count("boundary") == 2
    expected = sorted(batch.to_bytes() for batch in batches)
    rows = spark.createDataFrame(pa.Table.from_batches([to_arrow(messages, positions=True)]).select(METADATA))
    replay = rate_aware_batches(rows.repartition(4), **chosen).toArrow()
    same = sorted(p for _, some in encoded(iter(replay.to_batches()), None) for p in some.to_pylist()) == expected
    assert same
    assert {row["id"]: dict(row["offsets"]) for row in replay.to_pylist()} == {b.id: b.offsets for b in batches}
    assert {row["id"]: row["run"] for row in replay.to_pylist()} == {b.id: b.run for b in batches}
    folder = tmp_path / "topic"
    folder.mkdir()
    for number, calls_ in enumerate((arrivals[:90], arrivals[90:])):
        write(folder, number, [m for call in calls_ for m in call])
    found: list[pa.RecordBatch] = []
    (
        rate_aware_batches(
            spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder)),
            **chosen,
        )
        .writeStream.foreachBatch(lambda some, _: found.extend(some.toArrow().to_batches()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    streamed = {payload for _, some in encoded(iter(found), None) for payload in some.to_pylist()}
    assert len(streamed) > 20
    assert streamed == {batch.to_bytes() for batch in batches if batch.reason != "flush"}
