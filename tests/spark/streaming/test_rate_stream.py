"""One source by rate, without Spark: cut between entries and restored anywhere, it gives what the batcher gives."""

from __future__ import annotations

import random
import warnings
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.batching.rate.placing.silence import before_and_after_the_silence
from tests.batching.rate.traffic import SECOND, YEAR, calls, frozen, message, options, uneven
from tests.spark.results import Results, facts, results_in_rows, results_of
from tests.spark.streaming.arrivals import many, packed

from waterclock.batching.batch import Batch
from waterclock.batching.event_time.replay import ReplayRange
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.columnar.many_sources import nothing
from waterclock.columnar.records import POSITIONED, records
from waterclock.columnar.streams import slices
from waterclock.columnar.streams.rate_options import RateOptions
from waterclock.columnar.streams.rate_stream import LengthFrom, RateStream, judge_by_rate
from waterclock.errors import InvalidArgumentError, OutsideWindowWarning, SchemaError
from waterclock.message import Message, Position
from waterclock.time import MAX_NS, MIN_NS

# Calls drawn at random bring anything.
pytestmark = pytest.mark.filterwarnings("ignore::waterclock.errors.LongCallWarning")

PLAIN_OPTIONS = RateOptions.checked("1s", None, gated=True)


def numbered(arrivals: list[list[Message]]) -> list[list[Message]]:
    """Make an entry of each call, three entries a ledger."""
    return [
        [
            m.replace(receive_time=m.event_time, position=Position(*divmod(number, 3), index))
            for index, m in enumerate(call)
        ]
        for number, call in enumerate(arrivals)
    ]


def received_from(arrivals: list[list[Message]]) -> int:
    return min((m.receive_time or 0 for call in arrivals for m in call), default=0)


def one_by_one(arrivals: list[list[Message]], chosen: dict[str, Any]) -> Results:
    batcher = RateAwareBatcher(**chosen, clock=frozen)
    batches: list[Batch] = [batch for call in arrivals for batch in batcher.add(call)] + batcher.flush()
    return results_of(batches, [])


@settings(max_examples=settings.default.max_examples * 3 // 10)  # of many calls each
@given(
    calls(),
    options,
    st.none() | st.integers(1, 3 * SECOND),
    st.lists(st.integers(0, 60), max_size=5),
    st.randoms(use_true_random=False),
)
def test_a_stream_returns_the_batchers_results_wherever_it_is_cut_and_restored(
    arrivals: list[list[Message]],
    chosen: dict[str, Any],
    forget_after: int | None,
    cuts: list[int],
    chance: random.Random,
) -> None:
    arrivals = numbered([call for call in arrivals if call])
    chosen = chosen | {"forget_after": forget_after}
    checked = RateOptions.checked(**{"batch_length": "1s", "timeout": None, "gated": True, **chosen})
    stream = RateStream(checked)
    outcomes: list[pa.RecordBatch] = []
    for first, stop in pairwise([0, *sorted(cuts), len(arrivals)]):
        promised = received_from(arrivals[stop:]) // 10**6 if chance.random() < 0.5 else 0
        outcomes.append(stream.take(many([m for call in arrivals[first:stop] for m in call], chance), promised))
        stream = RateStream.restore(stream.state(), checked)
    outcomes.append(stream.take(nothing(POSITIONED), flush=True))
    expected = one_by_one(arrivals, chosen)
    assert results_in_rows(outcomes) == expected
    messages = [m for call in arrivals for m in call]
    assert results_in_rows(judge_by_rate(packed(messages, chance), checked)) == expected
    one_each = [row for m in messages for row in packed([m], chance)]
    with patch.object(slices, "_MOST_OF_A_SOURCE", 5):
        assert results_in_rows(judge_by_rate(one_each, checked)) == expected


@settings(max_examples=settings.default.max_examples * 3 // 10)  # of many calls each
@given(calls(), options, st.lists(st.floats(0, 1), min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_adjoining_ranges_of_a_replay_give_each_batch_once_and_wider_ones_the_same(
    arrivals: list[list[Message]], chosen: dict[str, Any], shares: list[float], chance: random.Random
) -> None:
    arrivals = numbered([call for call in arrivals if call])
    rows = packed([m for call in arrivals for m in call], chance)
    checked = RateOptions.checked(**{"batch_length": "1s", "timeout": None, "gated": True, **chosen})
    whole = one_by_one(arrivals, chosen).batches.get("s", [])
    starts = sorted({batch[0] for batch in whole}) or [0]
    cuts = sorted(starts[int(share * (len(starts) - 1))] + chance.randrange(2) for share in shares)
    for since, until in [*pairwise(cuts), (cuts[0], cuts[-1])]:
        found = results_in_rows(judge_by_rate(rows, checked, span=ReplayRange(since, until))).batches
        assert found.get("s", []) == [batch for batch in whole if since <= batch[0] < until]


@settings(max_examples=settings.default.max_examples * 3 // 10)  # of many calls each
@given(
    calls(),
    options,
    st.none() | st.integers(1, 3 * SECOND),
    st.dictionaries(st.integers(0, 60), st.integers(2, 5), max_size=5),
    st.randoms(use_true_random=False),
)
def test_a_replay_with_the_lengths_of_a_stream_returns_its_batches_whole_and_by_range(
    arrivals: list[list[Message]],
    chosen: dict[str, Any],
    forget_after: int | None,
    changes: dict[int, int],
    chance: random.Random,
) -> None:
    arrivals = numbered([call for call in arrivals if call])
    checked = RateOptions.checked(
        **{"batch_length": "1s", "timeout": None, "gated": True, **chosen, "forget_after": forget_after}
    )
    lengths = {place: checked.rule.batch_length * times // 2 for place, times in changes.items()}
    stream, batcher = RateStream(checked), RateAwareBatcher(**chosen, clock=frozen)
    outcomes: list[pa.RecordBatch] = []
    batches: list[Batch] = []
    for first, stop in pairwise(sorted({0, len(arrivals), *(place for place in lengths if place < len(arrivals))})):
        if first in lengths:
            stream.set_batch_length(lengths[first])
            batcher.set_batch_length(lengths[first])
        promised = received_from(arrivals[stop:]) // 10**6 if chance.random() < 0.5 else 0
        outcomes.append(stream.take(many([m for call in arrivals[first:stop] for m in call], chance), promised))
        stream = RateStream.restore(stream.state(), checked)
        batches += [batch for call in arrivals[first:stop] for batch in batcher.add(call)]
    outcomes.append(stream.take(nothing(POSITIONED), flush=True))
    expected = results_in_rows(outcomes)
    if forget_after is None:
        assert expected == results_of(batches + batcher.flush(), [])
    recorded = [LengthFrom(*divmod(place, 3), length) for place, length in sorted(lengths.items())]
    messages = [m for call in arrivals for m in call]
    one_each = [row for m in messages for row in packed([m], chance)]
    whole = expected.batches.get("s", [])
    middle = whole[len(whole) // 2][0] if whole else 0
    with patch.object(slices, "_MOST_OF_A_SOURCE", chance.choice([5, 2**20])):
        assert results_in_rows(judge_by_rate(one_each, checked, lengths=recorded)) == expected
        for since, until in ((MIN_NS, middle), (middle, MAX_NS)):
            found = judge_by_rate(one_each, checked, span=ReplayRange(since, until), lengths=recorded)
            assert results_in_rows(found).batches.get("s", []) == [b for b in whole if since <= b[0] < until]


@pytest.mark.parametrize("offset", [43 * YEAR, -43 * YEAR], ids=["ahead", "behind"])
@pytest.mark.parametrize("length", [None, SECOND], ids=["each alone", "entries of a second"])
def test_a_stream_recovers_from_a_silence_next_to_a_broken_clock_wherever_it_is_restored(
    offset: int, length: int | None
) -> None:
    chance = random.Random(1)  # noqa: S311
    arrivals = numbered(before_and_after_the_silence(offset, length))
    stream = RateStream(PLAIN_OPTIONS)
    outcomes: list[pa.RecordBatch] = []
    step = len(arrivals) // 25
    for first in range(0, len(arrivals), step):
        outcomes.append(stream.take(many([m for call in arrivals[first : first + step] for m in call], chance)))
        stream = RateStream.restore(stream.state(), PLAIN_OPTIONS)
    outcomes.append(stream.take(nothing(POSITIONED), flush=True))
    found = results_in_rows(outcomes)
    assert found == one_by_one(arrivals, {})
    reasons = [batch[3] for batch in found.batches["s"]]
    assert reasons.count("stall") == 1


def test_rare_messages_after_a_silence_longer_than_an_era_name_the_remedy() -> None:
    rare = [[message("a", (3600 + 5 * number) * SECOND)] for number in range(6)]
    calls = numbered([*([message("a", number * SECOND // 5)] for number in range(25)), *rare])
    sent = many([m for call in calls for m in call], random.Random(1))  # noqa: S311
    with pytest.warns(OutsideWindowWarning, match="source 's': the first messages after a silence .* forget_after"):
        RateStream(PLAIN_OPTIONS).take(sent)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RateStream(RateOptions.checked("1s", None, gated=True, forget_after="10min")).take(sent)


def test_sources_are_judged_apart_in_a_replay() -> None:
    arrivals = numbered([[message("det", at * 10**8)] for at in range(40)])
    by_source = {name: [[m.replace(source=name) for m in call] for call in arrivals] for name in "ab"}
    rows = [p for calls in by_source.values() for p in packed([m for c in calls for m in c], random.Random(1))]  # noqa: S311
    found = results_in_rows(judge_by_rate(rows, PLAIN_OPTIONS))
    assert {s: found.batches[s] for s in "ab"} == {s: one_by_one(by_source[s], {}).batches[s] for s in "ab"}


def test_a_source_that_a_promise_forgets_leaves_nothing_in_the_state() -> None:
    options = RateOptions.checked("1s", None, gated=True, forget_after="10s")
    empty = RateStream(options).state()
    stream = RateStream(options)
    calls = numbered([[message("det", at * 10**8)] for at in range(38)])
    others = [[m.replace(source="other", stream="log") for m in call] for call in calls]
    first = stream.take(many([m for call in calls + others[:1] for m in call], random.Random(1)))  # noqa: S311
    assert (stream.wakes_at, stream.open_batches) == (10_001, 1)
    assert {row["source"] for row in stream.take(nothing(POSITIONED), 10_001).to_pylist()} == set()
    assert (stream.wakes_at, stream.open_batches) == (13_701, 1)
    stream = RateStream.restore(stream.state(), options)
    last = stream.take(nothing(POSITIONED), 13_701)
    assert results_in_rows([first, last]).batches["s"] == one_by_one(calls, {}).batches["s"]
    assert (stream.wakes_at, stream.is_empty, stream.state()) == (None, True, empty)


def test_a_silence_ends_a_source_with_the_length_of_its_last_call() -> None:
    options = RateOptions.checked("1s", None, gated=True, forget_after="10s")
    # The second stream ends before the first: a window is open, and messages wait for the next one.
    calls = numbered([[message(stream, at * 10**8) for stream in "ab"[: 1 + (at < 38)]] for at in range(52)])
    stream = RateStream(options)
    outcomes = [stream.take(many([m for call in calls for m in call], random.Random(1)))]  # noqa: S311
    stream.set_batch_length(3 * SECOND)  # between two micro-batches, before the silence is noticed
    outcomes.append(stream.take(nothing(POSITIONED), 15_101))
    assert stream.is_empty
    assert results_in_rows(outcomes) == one_by_one(calls, {"batch_length": "1s"})


def test_a_source_that_is_silent_after_the_least_time_of_all_is_forgotten_too() -> None:
    calls = numbered([[message("det", MIN_NS)], [message("det", MIN_NS + 5 * SECOND)]])
    chosen = {"batch_length": "1s", "forget_after": "1s"}
    expected = one_by_one(calls, chosen)
    assert len(expected.batches["s"]) == 2
    options = RateOptions.checked(timeout=None, gated=True, **chosen)
    chance = random.Random(1)  # noqa: S311
    assert results_in_rows(judge_by_rate(packed([m for call in calls for m in call], chance), options)) == expected
    first = RateStream(options)
    outcomes = [first.take(many(calls[0], chance))]
    second = RateStream.restore(first.state(), options)
    outcomes.append(second.take(many(calls[1], chance), flush=True))
    assert results_in_rows(outcomes) == expected


def test_an_entry_in_two_micro_batches_is_refused_with_what_to_do() -> None:
    (call,) = numbered([[message("det", 0), message("det", 1)]])
    stream = RateStream(PLAIN_OPTIONS)
    stream.take(many(call[:1], random.Random(1)))  # noqa: S311
    stream = RateStream.restore(stream.state(), PLAIN_OPTIONS)
    with pytest.raises(
        InvalidArgumentError,
        match=r"must arrive complete and in order, got ledger:entry 0:0 in a later micro-batch",
    ):
        stream.take(many(call[1:], random.Random(1)))  # noqa: S311


def test_a_state_of_other_options_is_refused_with_what_to_do() -> None:
    state = RateStream(PLAIN_OPTIONS).state()
    with pytest.raises(InvalidArgumentError, match=r"1000000000.*2000000000.*new checkpoint"):
        RateStream.restore(state, RateOptions.checked("2s", None, gated=True))
    with pytest.raises(InvalidArgumentError, match="'det'"):
        RateStream.restore(state, RateOptions.checked("1s", None, gated=["det"]))


@pytest.mark.parametrize("state", [b"", b"something", b"waterclock rate stream [2, [], [], 0, null, 0]\n"])
def test_a_strange_state_is_refused(state: bytes) -> None:
    with pytest.raises(SchemaError):
        RateStream.restore(state, PLAIN_OPTIONS)


def test_numbers_of_messages_do_not_matter_to_what_is_kept() -> None:
    late_stream = numbered([[message("det", at * 10**8)] for at in range(5)])
    stream = RateStream(PLAIN_OPTIONS)
    for call in late_stream:
        stream.take(many(call, random.Random(1)))  # noqa: S311
    last = stream.take(nothing(POSITIONED), flush=True)
    times = [facts(m)[1] for call in late_stream[1:] for m in call]
    assert np.array_equal(records(last["messages"][0].as_py(), last["count"][0].as_py())["event_time"], times)


def test_setting_the_length_in_use_changes_no_batch() -> None:
    arrivals = numbered(uneven(3))
    plain, told = RateStream(PLAIN_OPTIONS), RateStream(PLAIN_OPTIONS)
    for call in arrivals:
        told.set_batch_length(SECOND)
        arrived = many(call, random.Random(1))  # noqa: S311
        told.take(arrived)
        plain.take(arrived)
        assert told.state() == plain.state()
