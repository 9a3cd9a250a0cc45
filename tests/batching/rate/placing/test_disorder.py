"""Messages that are out of order within a stream, by at most `max_disorder`, are in their own windows."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.batching.rate.columns import NAMES, described_columns, laid_out, run_class
from tests.batching.rate.placing.own_windows import Arrivals, disordered, share
from tests.batching.rate.placing.silence import arriving, in_calls, on_time
from tests.batching.rate.traffic import SECOND, at, frozen, message, pulses

from waterclock.batching.batch import Batch
from waterclock.batching.rate.by_column.columns import RateAwareColumns
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.errors import InvalidArgumentError
from waterclock.message import Message

pytestmark = pytest.mark.filterwarnings("ignore::waterclock.errors.OutsideWindowWarning")


def run(arrivals: list[list[Message]], **chosen: Any) -> list[Batch]:
    batcher = RateAwareBatcher(**chosen, clock=frozen)
    return [batch for call in arrivals for batch in batcher.add(call)] + batcher.flush()


@pytest.mark.parametrize(("seconds", "least"), [(0.5, 100), (1, 100), (2, 100), (3, 99)])
def test_messages_out_of_order_are_in_their_own_windows(seconds: float, least: float) -> None:
    arrivals = disordered(seconds)
    assert share(arrivals) < 92
    assert share(arrivals, max_disorder=round(seconds * SECOND)) >= least


def test_a_stream_that_is_late_and_out_of_order_needs_both_options() -> None:
    both = [(arrival + (m.stream == "mon") * 3 * SECOND // 2, m) for arrival, m in disordered(1)]
    assert share(both, timeout="3s") < 90
    assert share(both, max_disorder="1s") < 90
    assert share(both, max_disorder="1s", timeout="3s") == 100
    assert share(both, max_disorder="1s", timeout="auto") >= 97


@given(
    st.lists(st.sampled_from([1, 2, 3, 5, 7, 14, 25]), min_size=1, max_size=3),
    st.integers(1, 3 * SECOND),
    st.integers(1, SECOND),
    st.integers(0, 2**32),
)
@settings(max_examples=30)
def test_no_message_within_the_disorder_misses_its_window(
    rates: list[int], disorder: int, poll: int, seed: int
) -> None:
    random = Random(seed)  # noqa: S311  # repeatable, nothing secret
    sent = [m for name, rate in zip("abc", rates, strict=False) for m in pulses(name, rate, 0, 30, random.random())]
    arrivals: Arrivals = [(m.event_time + random.randrange(disorder), m) for m in sent]
    batches = run(in_calls(arriving(arrivals), poll), max_disorder=disorder)
    assert sum(len(batch.messages) for batch in batches) == len(sent)
    assert not [batch.outside for batch in batches[2:] if batch.reason != "flush" and batch.outside]


@pytest.mark.parametrize("gated", [True, False])
def test_windows_are_skipped_only_when_no_message_for_them_can_come(gated: bool) -> None:
    backlog, before, after = pulses("det", 14, -1, 0), pulses("det", 14, 0, 10), pulses("det", 14, 13, 24)
    late = message("det", at(11.4))
    arrivals = [*on_time(before), *on_time(after), (at(13.3), late)]
    batches = run([backlog, *in_calls(arriving(arrivals), SECOND // 10)], max_disorder="2s", gated=gated)
    [own] = [batch for batch in batches if late in batch.messages]
    assert own.start <= late.event_time <= own.end
    assert own.messages == (late,)
    assert own.reason != "flush"


def test_a_stream_that_ends_does_not_keep_the_others() -> None:
    arrivals = [*on_time(pulses("det", 14, 0, 60)), *on_time(pulses("mon", 14, 0, 20, 0.01))]
    batcher = RateAwareBatcher(max_disorder="2s", clock=frozen)
    closed = [b for call in in_calls(arriving(arrivals), SECOND // 10) for b in batcher.add(call)]
    assert closed[-1].end >= at(55)
    assert batcher.gating_streams == {"det"}


def test_a_long_backlog_in_any_order_is_cut_alike_by_class_and_columns() -> None:
    random = Random(3)  # noqa: S311
    messages = [m for name, rate in (("a", 14), ("b", 5), ("log", 1)) for m in pulses(name, rate, 0, 300)]
    backlog = sorted(messages, key=lambda m: m.event_time + random.randrange(2 * SECOND))
    arrivals = [backlog[:30], backlog[30:]]
    chosen: dict[str, Any] = {"max_disorder": "2s", "gated": ("a", "b")}
    found = described_columns(RateAwareColumns(NAMES, **chosen).add(*laid_out(arrivals, NAMES), flush=True))
    assert found == run_class(arrivals, chosen)
    assert len(found) >= 298


def test_disorder_is_at_most_three_lengths_also_of_a_new_length() -> None:
    for make in (RateAwareBatcher, lambda **chosen: RateAwareColumns(["a"], **chosen)):
        with pytest.raises(
            InvalidArgumentError, match=r"max_disorder must be at most 3 batch lengths \(3s\), got '4s'"
        ):
            make(max_disorder="4s")
        with pytest.raises(InvalidArgumentError, match="max_disorder must be"):
            make(max_disorder=-1)
        batcher = make(max_disorder="3s")
        with pytest.raises(InvalidArgumentError, match=r"at most 3 batch lengths \(1500ms\), got '3s'"):
            batcher.set_batch_length("500ms")
        batcher.set_batch_length("2s")
        assert batcher.batch_length == 2 * SECOND


def test_without_disorder_batches_and_state_have_the_bytes_of_before() -> None:
    arrivals = in_calls(arriving(disordered(1)), SECOND // 10)
    one, other = RateAwareBatcher(clock=frozen), RateAwareBatcher(clock=frozen, max_disorder=0)
    assert [b.to_bytes() for c in arrivals for b in one.add(c)] == [
        b.to_bytes() for c in arrivals for b in other.add(c)
    ]
    assert one.state() == other.state()
