"""Messages of declared streams cut windows, and batches name the run that they belong to."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.batching.rate.columns import NAMES, described_columns, laid_out, run_class
from tests.batching.rate.placing.own_windows import Arrivals
from tests.batching.rate.placing.silence import arriving, in_calls
from tests.batching.rate.traffic import SECOND, YEAR, at, by_time, frozen, message, pulses
from tests.support.kernel_forms import interpreting

from waterclock.batching.batch import Batch
from waterclock.batching.rate.by_column.columns import RateAwareColumns
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.batching.rate.runs import run_after
from waterclock.errors import InvalidArgumentError
from waterclock.message import Message


def run(arrivals: list[list[Message]], **chosen: Any) -> list[Batch]:
    batcher = RateAwareBatcher(**{"boundaries": {"run"}, **chosen}, clock=frozen)
    return [batch for call in arrivals for batch in batcher.add(call)] + batcher.flush()


def one_by_one(*streams: list[Message]) -> list[list[Message]]:
    """Let the streams arrive after a call that shows their rates."""
    sent = by_time(*streams)
    return [[m for m in sent if m.event_time <= at(0)], *([m] for m in sent if m.event_time > at(0))]


@given(
    st.lists(st.sampled_from([1, 2.5, 5, 7, 14, 25]), min_size=1, max_size=3),
    st.lists(st.integers(SECOND, 29 * SECOND), max_size=5),
    st.sampled_from([0, 0, 700_000_000]),
    st.booleans(),
    st.integers(0, 2**32),
)
@settings(max_examples=30)
def test_every_message_is_in_a_batch_of_its_own_run(
    rates: list[float], begins: list[int], disorder: int, gated: bool, seed: int
) -> None:
    random = Random(seed)  # noqa: S311  # repeatable, nothing secret
    delays = {name: random.randrange(SECOND // 5) for name in "abc"}
    arrivals: Arrivals = [(at(0) + begin, message("run", at(0) + begin)) for begin in begins]
    for name, rate in zip("abc", rates, strict=False):
        period, phase = int(SECOND / rate), random.randrange(SECOND)
        times = range(at(0) + phase, at(30), period)
        arrivals += [(time + delays[name] + random.randrange(disorder + 1), message(name, time)) for time in times]
    calls = in_calls(arriving(arrivals), SECOND // 10)
    batches = run(calls, max_disorder=disorder, gated=gated, timeout="2s")
    assert sum(len(batch.messages) for batch in batches) == len(arrivals)
    assert len({batch.start for batch in batches}) == len(batches)
    runs = sorted(at(0) + begin for begin in begins)
    for batch in batches[1:]:
        # Messages from before the first window join the window that is open.
        for each in (one for one in batch.messages if one.event_time >= batches[1].start):
            assert batch.run == max((begin for begin in runs if begin <= each.event_time), default=None)


def test_a_boundary_behind_the_window_only_names_the_run_of_later_batches() -> None:
    streams = pulses("a", 14, -1, 5), pulses("b", 5, -1, 5)
    calls = one_by_one(*streams)
    without = run(calls)
    late = [*calls[:40], [message("run", at(0.5))], *calls[40:]]
    found = run(late)
    assert [(b.start, b.end, b.reason) for b in found] == [(b.start, b.end, b.reason) for b in without]
    [holder] = [number for number, batch in enumerate(found) if batch.messages_outside()]
    assert [batch.run for batch in found] == [None] * holder + [at(0.5)] * (len(found) - holder)


@pytest.mark.parametrize("years", [-40, 40])
def test_a_boundary_of_another_era_cuts_nothing(years: int) -> None:
    calls = one_by_one(pulses("a", 14, -1, 5), pulses("b", 5, -1, 5))
    wild = [*calls[:40], [message("run", at(0) + years * YEAR)], *calls[40:]]
    assert [(b.start, b.end, b.reason) for b in run(wild)] == [(b.start, b.end, b.reason) for b in run(calls)]


@pytest.mark.parametrize("timeout", [None, math.inf])
@pytest.mark.parametrize("pause", [2.2, 40, 900])
def test_a_run_that_begins_after_a_pause_begins_with_its_boundary(pause: float, timeout: float | None) -> None:
    begin = 5 + pause
    calls = one_by_one(
        *(pulses(name, rate, start, stop) for name, rate in (("a", 14), ("b", 5)) for start, stop in ((-1, 5),)),
        [message("run", at(begin))],
        *(pulses(name, rate, begin + 0.3, begin + 9) for name, rate in (("a", 14), ("b", 5))),
    )
    found = run(calls, timeout=timeout)
    [first] = [batch for batch in found if batch.start == at(begin)]
    assert first.run == first.start == first.messages[0].event_time
    assert all(batch.run is None for batch in found if batch.start < at(begin))
    assert all(batch.run == at(begin) for batch in found if batch.start >= at(begin))
    assert next(batch.reason for batch in found if batch.start > at(begin)) == "slots"


def test_a_regular_stream_of_boundaries_does_not_gate() -> None:
    batcher = RateAwareBatcher(boundaries=["run"], gated=["a", "run"], clock=frozen)
    calls = one_by_one(pulses("a", 14, -1, 6), pulses("run", 2, -1, 6, 0.001))
    batches = [batch for call in calls for batch in batcher.add(call)]
    assert batcher.gating_streams == batcher.tracked_streams == {"a"}
    assert {(batch.end - batch.start, batch.reason) for batch in batches[2:]} == {(SECOND // 2, "boundary")}


def test_a_cut_window_waits_for_the_last_pulse_before_its_boundary() -> None:
    """The pulse at 1.5 s comes half a second after the boundary that follows it."""
    batcher = RateAwareBatcher(boundaries=["run"], clock=frozen)
    batcher.add(by_time(pulses("a", 2, -4, 0), [message("a", at(0))]))
    batcher.add([message("a", at(0.5))])
    assert [batch.end for batch in batcher.add([message("a", at(1))])] == []
    cut = [batch for sent in (message("run", at(1.6)), message("a", at(1.5))) for batch in batcher.add([sent])]
    assert [(b.end, b.reason, [m.event_time for m in b.messages]) for b in cut][-1] == (
        at(1.6), "boundary", [at(1), at(1.5)],
    )  # fmt: skip


@pytest.mark.parametrize("make", [RateAwareBatcher, lambda **chosen: RateAwareColumns(NAMES, **chosen)])
def test_boundaries_must_be_a_list_of_names(make: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"boundaries must be a list of names, got 'run'. Write boundaries="):
        make(boundaries="run")
    with pytest.raises(InvalidArgumentError, match="boundaries must hold non-empty strings, got ''"):
        make(boundaries=[""])


def test_a_thousand_boundaries_in_a_window_are_cut_alike_by_class_and_columns() -> None:
    chance = Random(5)  # noqa: S311
    begins = [message("run", at(1 + chance.random())) for _ in range(1000)]
    calls = one_by_one(pulses("a", 14, -1, 1.5), pulses("b", 5, -1, 1.5))
    arrivals = [*calls, *([m] for m in begins[:300]), begins[300:], *([m] for m in pulses("a", 14, 1.5, 4))]
    chosen = {"boundaries": ["run"], "gated": ("a", "b")}
    found = RateAwareColumns(NAMES, **chosen).add(*laid_out(arrivals, NAMES), flush=True)
    assert described_columns(found) == run_class(arrivals, chosen)
    assert found.reasons.count("boundary") > 100


def test_a_run_goes_on_once_a_window_that_a_stall_has_set_back_has_passed_its_boundary_again() -> None:
    batcher = RateAwareBatcher("1s", gated=(), boundaries={"run"}, clock=frozen)
    good = by_time([message("run", at(2))], pulses("a", 5, 0, 6), pulses("b", 5, 0, 6))
    wrong, later = pulses("a", 5, -5000, -4980), pulses("b", 5, 7, 40)
    batches = [batch for m in [*good, *wrong, *later] for batch in batcher.add([m])]
    starts_of_runs = {run: [b.start for b in batches if b.run == run] for run in (None, at(2))}
    assert any(start < at(-1000) for start in starts_of_runs[None])
    assert max(starts_of_runs[at(2)]) > at(10)
    assert all(b.run is None for b in batches if b.start < at(2))


@pytest.mark.parametrize(
    ("known", "boundaries", "own", "known_after"),
    [
        (5, [], 5, 5),
        (5, [8], 8, 8),
        (5, [12], 5, 12),
        (5, [21], 5, 5),  # of another era
        (30, [], None, 30),
        (30, [12], None, 12),  # the clock that sent 30 was wrong
    ],
)
def test_the_run_of_a_batch_from_10_to_20(known: int, boundaries: list[int], own: int | None, known_after: int) -> None:
    assert run_after(known, 10, 20, boundaries) == (own, known_after)


def test_a_boundary_at_the_end_of_a_window_is_what_ends_it() -> None:
    calls = [*([m] for m in pulses("a", 5, -1, 0)), [message("run", at(1))], *([m] for m in pulses("a", 5, 1, 3))]
    arrivals = [[message("a", at(0))], *calls]
    chosen = {"boundaries": ["run"], "gated": ()}
    with interpreting():
        found = RateAwareColumns(NAMES, **chosen).add(*laid_out(arrivals, NAMES), flush=True)
    batches = run(arrivals, **chosen)
    assert found.reasons == tuple(b.reason for b in batches)
    assert [(b.reason, b.start, b.end) for b in batches][1] == ("boundary", at(0), at(1))


def test_a_boundary_in_a_pause_of_the_gating_streams_begins_a_batch() -> None:
    calls = one_by_one(pulses("a", 14, -1, 2), [message("run", at(10))], pulses("a", 14, 20, 24))
    batches = run(calls, gated=("a",))
    assert [b.start for b in batches if any(m.stream == "run" for m in b.messages)] == [at(10)]
    assert all(b.run == at(10) for b in batches if b.start >= at(10))
