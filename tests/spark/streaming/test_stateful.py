"""The stateful operators, without a query: state, timers and watermark as Spark's own tester plays them."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import TwsTester
from tests.spark.results import METADATA, in_entries

from waterclock.arrow import to_arrow
from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.columnar.cells import from_cell
from waterclock.columnar.packing import pack
from waterclock.columnar.records import POSITIONED
from waterclock.columnar.streams import waiting_chunks
from waterclock.columnar.streams.outcome_rows import OUTCOMES
from waterclock.columnar.streams.rate_options import RateOptions
from waterclock.errors import InvalidArgumentError
from waterclock.message import Message
from waterclock.spark.buckets import to_buckets
from waterclock.spark.streaming.stateful import EventTimeProcessor, RateProcessor
from waterclock.time import MAX_NS

MS = 1_000_000
RATE = RateOptions.checked("1s", None, gated=True)
RULE = EventTimeRule.checked("50ms", "20ms", 0, "split")


def by_event_time() -> TwsTester:
    # The rows that reach the operator have no time of their own, so Spark finds none of them late.
    return TwsTester(EventTimeProcessor(RULE, POSITIONED, 4), timeMode="EventTime", eventTimeExtractor=lambda _: MAX_NS)


def row(*sent: tuple[str, int, int], entry: int = 0, source: str = "x") -> list[Row]:
    """Pack messages given as stream, event time and receive time, ms."""
    messages = [Message(source, stream, at * MS, receive_time=received * MS) for stream, at, received in sent]
    numbered = [m.replace(position=m.position._replace(entry=entry)) for m in in_entries(messages, 100)]
    packed = pack([to_arrow(numbered, positions=True).select(METADATA)], POSITIONED)
    return [
        Row(bucket=each["bucket"], rows=each["rows"])
        for b in to_buckets(packed, POSITIONED, 4)
        for each in b.to_pylist()
    ]


def given_out(rows: list[Row]) -> list[dict[str, Any]]:
    cells = [r["outcomes"] for r in rows if r["outcomes"] is not None]
    return [each for cell in cells for each in from_cell(cell, OUTCOMES).to_pylist()]


def starts(rows: list[Row]) -> list[int]:
    return [batch["start"] // MS for each in given_out(rows) for batch in each["batches"]]


def test_messages_close_the_windows_of_their_own_source():
    spark = by_event_time()
    assert spark.test(0, row(("a", 100, 100))) == [Row(bucket=0, open_batches=1, missing_ids=0, outcomes=None)]
    rows = spark.test(0, row(("a", 200, 200), entry=1))
    (found,) = given_out(rows)
    assert (found["source"], found["count"], found["rejection"]) == ("x", 1, None)
    assert starts(rows) == [100]


def test_a_silent_source_closes_when_the_watermark_has_passed_its_window_and_is_then_forgotten():
    spark = by_event_time()
    spark.test(0, row(("a", 100, 100)))
    spark.test(1, row(("a", 130, 130), source="y"))
    assert given_out(spark.setWatermark(170)) == []  # 100 + 50 + 20, but one received at 170 may still come
    assert [r["source"] for r in given_out(spark.setWatermark(171))] == ["x"]
    assert spark.peekValueState("batcher", 0) is None
    assert [r["source"] for r in given_out(spark.setWatermark(1_000))] == ["y"]
    assert list(spark.handle._timers.getAllKeysWithTimers()) == []


def test_a_source_that_is_read_ahead_of_the_watermark_is_remembered_until_it_has_caught_up():
    spark = by_event_time()
    spark.test(0, row(("a", 100, 100), ("a", 90, 500)))
    assert spark.peekValueState("batcher", 0) is not None
    assert given_out(spark.setWatermark(499)) == []
    assert spark.peekValueState("batcher", 0) is not None
    spark.setWatermark(500)
    assert spark.peekValueState("batcher", 0) is None


def test_messages_that_wait_long_are_in_a_state_of_their_own_until_they_are_due():
    rule = EventTimeRule.checked("50ms", "10s", 0, "split")
    processor = EventTimeProcessor(rule, POSITIONED, 4)
    spark = TwsTester(processor, timeMode="EventTime", eventTimeExtractor=lambda _: MAX_NS)
    with patch.object(waiting_chunks, "MOST_RECENT", 0):
        for entry in range(3):
            at = 100 * entry
            assert given_out(spark.test(0, row(("a", at, at), entry=entry))) == []
    assert len(spark.peekMapState("waiting", 0)) == 2
    assert starts(spark.setWatermark(10_051)) == [0]
    assert starts(spark.setWatermark(11_000)) == [100, 200]
    assert spark.peekMapState("waiting", 0) == {}
    assert spark.peekValueState("batcher", 0) is None


def test_a_timer_that_comes_too_early_is_set_again():
    spark = by_event_time()
    spark.test(0, row(("a", 100, 100)))
    spark.test(0, row(("a", 160, 170), ("a", 190, 195), entry=1))
    found = [batch for watermark in (171, 231, 261) for batch in starts(spark.setWatermark(watermark))]
    assert found == [160, 190]


def test_nothing_is_dropped_silently_behind_the_watermark():
    spark = by_event_time()
    spark.setWatermark(1_000)
    (late,) = given_out(spark.test(0, row(("a", 100, 100))))
    assert spark.peekValueState("batcher", 0) is None
    assert (late["rejection"], late["count"], late["batches"]) == ("late", 1, [])


def test_rejected_messages_come_with_their_reasons():
    spark = by_event_time()
    found = given_out(spark.test(0, row(("a", 100, 100), ("a", 100, 101), ("a", 10, 102), ("a", 500, 103))))
    assert {r["rejection"]: r["count"] for r in found} == {"late": 1, "future": 1, "duplicate": 1}


def test_a_rate_is_learned_over_micro_batches():
    spark = TwsTester(RateProcessor(RateOptions.checked("1s", None, gated=True), 4))
    found = [r for k in range(100) for r in spark.test(0, row(("det", 100 * k, 100 * k), entry=k))]
    # The first call is the first batch; then the stream must show its rate before it gates.
    assert starts(found)[:3] == [-1, 0, 1_000]
    assert sum(r["count"] for r in given_out(found)) + 10 >= 100


def test_new_messages_bring_the_batch_length_of_their_micro_batch():
    spark = TwsTester(RateProcessor(RATE, 4, adapts=True))
    found: list[Row] = []
    for k in range(100):
        length = (1_000 if k < 35 else 2_000) * MS
        arrived = row(("det", 100 * k, 100 * k), entry=k)
        found += spark.test(0, [Row(**each.asDict(), batch_length=length) for each in arrived])
    assert starts(found) == [-1, 0, 1_000, 2_000, 3_000, 4_000, 6_000, 8_000]


def test_a_silent_source_of_a_rate_is_forgotten_when_the_watermark_has_passed_its_silence():
    options = RateOptions.checked("1s", None, gated=True, forget_after="10s")
    spark = TwsTester(RateProcessor(options, 4), timeMode="EventTime", eventTimeExtractor=lambda _: MAX_NS)
    spark.test(0, row(("det", 0, 0)))
    assert starts(spark.test(0, row(("det", 100, 100), entry=1))) == []
    assert given_out(spark.setWatermark(10_100)) == []
    assert starts(spark.setWatermark(10_101)) == [0]
    assert spark.peekValueState("batcher", 0) is None
    assert list(spark.handle._timers.getAllKeysWithTimers()) == []


def test_an_entry_in_two_micro_batches_stops_the_query():
    spark = TwsTester(RateProcessor(RateOptions.checked("1s", None, gated=True), 4))
    spark.test(0, row(("det", 0, 0)))
    with pytest.raises(InvalidArgumentError, match="got ledger:entry 0:0 in a later micro-batch"):
        spark.test(0, row(("det", 1, 1)))


def test_a_bucket_closes_and_forgets_its_sources_each_at_its_time():
    spark = by_event_time()
    spark.test(0, row(("a", 100, 100)) + row(("a", 130, 130), source="y"))
    assert [r["source"] for r in given_out(spark.setWatermark(171))] == ["x"]
    assert [r["source"] for r in given_out(spark.setWatermark(201))] == ["y"]
    assert spark.peekValueState("batcher", 0) is None


@pytest.mark.parametrize("processor", [EventTimeProcessor(RULE, POSITIONED, 5), RateProcessor(RATE, 5)])
def test_a_checkpoint_of_another_number_of_buckets_is_refused_with_what_to_do(processor: Any):
    known = RateProcessor(RATE, 4) if isinstance(processor, RateProcessor) else EventTimeProcessor(RULE, POSITIONED, 4)
    mode = "None" if isinstance(processor, RateProcessor) else "EventTime"
    spark = TwsTester(known, timeMode=mode, eventTimeExtractor=lambda _: MAX_NS)
    spark.test(0, row(("a", 100, 100)))
    other = TwsTester(processor, timeMode=mode, eventTimeExtractor=lambda _: MAX_NS)
    other.updateValueState("batcher", 0, spark.peekValueState("batcher", 0))
    with pytest.raises(
        InvalidArgumentError,
        match=r"buckets must be 4, as in the checkpoint, got 5. Start the query",
    ):
        other.test(0, row(("a", 200, 200), entry=1))
