"""The columnar form gives what the class gives."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.batching.rate.columns import NAMES, Described, described, described_columns, laid_out, received, run_class
from tests.batching.rate.scenario import FOLDER, Scenario
from tests.batching.rate.traffic import SECOND, T0, at, by_time, calls, frozen, message, options, pulses, uneven
from tests.support.kernel_forms import in_form, interpreting

from waterclock.batching.batch import Batch
from waterclock.batching.rate.by_column.columns import RateAwareColumns
from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.checksum import framed
from waterclock.errors import DamagedError, InvalidArgumentError, SchemaError
from waterclock.message import Message

# Calls drawn at random bring anything.
pytestmark = pytest.mark.filterwarnings("ignore::waterclock.errors.LongCallWarning")


@given(calls(), options)
def test_the_columnar_form_agrees_with_the_class(arrivals: list[list[Message]], chosen: dict[str, Any]) -> None:
    columns = RateAwareColumns(NAMES, **chosen)
    found = columns.add(*laid_out(arrivals, NAMES), flush=True)
    assert described_columns(found) == run_class(arrivals, chosen)
    assert columns.buffered == 0


@given(calls(), options, st.integers(1, 9))
def test_the_columnar_form_may_be_interrupted_and_restored(
    arrivals: list[list[Message]], chosen: dict[str, Any], pieces: int
) -> None:
    columns = RateAwareColumns(NAMES, **chosen)
    found: list[Described] = []
    for k in range(pieces):
        piece = arrivals[k * len(arrivals) // pieces : (k + 1) * len(arrivals) // pieces]
        found += described_columns(columns.add(*laid_out(piece, NAMES)))
        columns = RateAwareColumns.restore(columns.state())
    found += described_columns(columns.add(np.empty(0, np.int32), np.empty(0, np.int64), flush=True))
    assert found == run_class(arrivals, chosen)


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[list[list[Message]], list[int], str | None]]:
    """Draw calls in pieces, what a clock shows at each call (s), and the batch length set before a piece."""
    arrivals = draw(calls())
    for place in draw(st.lists(st.integers(0, len(arrivals)), max_size=3)):
        arrivals.insert(place, [])  # the clock is looked at
    steps = st.sampled_from([0, 0, 0, 0, 1, 4, 11, -3])
    clock = list(accumulate(draw(st.lists(steps, min_size=len(arrivals), max_size=len(arrivals)))))
    cuts = sorted(draw(st.lists(st.integers(0, len(arrivals)), max_size=4)))
    lengths = st.sampled_from([None, None, "1s", "2s", "300ms", SECOND - 1])
    bounds = pairwise([0, *cuts, len(arrivals)])
    return [(arrivals[first:stop], clock[first:stop], draw(lengths)) for first, stop in bounds]


@given(changes(), options, st.booleans())
def test_it_agrees_with_the_class_where_lengths_change_and_a_clock_runs(
    pieces: list[tuple[list[list[Message]], list[int], str | None]], chosen: dict[str, Any], restoring: bool
) -> None:
    now = passed = 0
    batcher = RateAwareBatcher(**chosen, clock=lambda: float(now))
    columns = RateAwareColumns(NAMES, **chosen)
    numbers = {id(m): number for number, m in enumerate(m for piece, _, _ in pieces for call in piece for m in call)}
    expected: list[Described] = []
    found: list[Described] = []
    for piece, clock, length in pieces:
        if length is not None:
            batcher.set_batch_length(length)
            columns.set_batch_length(length)
        if restoring and clock:  # between the two no time has passed
            passed = clock[0] - now
        for call, reading in zip(piece, clock, strict=True):
            now = reading - passed
            expected += described(batcher.add(call), numbers)
        readings = np.array(clock, np.int64) * SECOND
        found += described_columns(columns.add(*laid_out(piece, NAMES), readings))
        assert columns.batch_length == batcher.batch_length
        if restoring:
            columns = RateAwareColumns.restore(columns.state())
    expected += described(batcher.flush(), numbers)
    found += described_columns(columns.add(*laid_out([], NAMES), flush=True))
    assert found == expected


@given(calls(), options)
def test_streams_may_be_admitted_when_they_first_come(arrivals: list[list[Message]], chosen: dict[str, Any]) -> None:
    columns = RateAwareColumns([], **chosen)
    names: list[str] = []
    found: list[Described] = []
    for call in arrivals:
        new = [name for name in dict.fromkeys(m.stream for m in call) if name not in names]
        names += new
        columns.admit(new, chosen.get("gated", True))
        found += described_columns(columns.add(*laid_out([call], names)))
        assert len(columns.kept) == columns.buffered
    found += described_columns(columns.add(np.empty(0, np.int32), np.empty(0, np.int64), flush=True))
    assert found == run_class(arrivals, chosen)


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["a", "log"]), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=5),
        max_size=12,
    ),
    st.sampled_from([0, 3 * SECOND]),
    st.booleans(),
)
@example([[("a", 0)], *[[("a", -(2**62) + k * SECOND)] for k in range(9)]], 0, False)
@example([[("a", 2**63 - 1 - s * SECOND)] for s in (2000, 1500, 1100, 1001, 1000, 999, 500, 100, 50, 1, 0)], 0, True)
def test_times_from_all_over_int64_do_no_harm(
    drawn: list[list[tuple[str, int]]], disorder: int, compiled: bool
) -> None:
    arrivals = [[message(stream, event_time) for stream, event_time in call] for call in drawn]
    chosen: dict[str, Any] = {"gated": ("a",), "max_disorder": disorder}
    with in_form(compiled=compiled):
        found = RateAwareColumns(NAMES, **chosen).add(*laid_out(arrivals, NAMES), flush=True)
    assert described_columns(found) == run_class(arrivals, chosen)
    assert len(found.messages) == sum(map(len, arrivals))


def test_differences_of_decades_between_event_times_do_no_harm() -> None:
    half = 15 * 86_400 * SECOND
    arrivals = [[message("a", halves * half)] for halves in (4, -1470, 510, 512, 2422, 2423)]
    with interpreting():
        found = RateAwareColumns(NAMES, batch_length="30d").add(*laid_out(arrivals, NAMES), flush=True)
    assert described_columns(found) == run_class(arrivals, {"batch_length": "30d"})


def test_a_stream_that_is_out_of_order_at_first_is_learned_alike() -> None:
    times = [-45_176, -(2**63), -668_144, -489, -254, -33, 0]
    arrivals = [[message("a", event_time) for event_time in times[:4]], *([message("a", t)] for t in times[4:])]
    arrivals += [[message("log", 16 * SECOND)], [message("a", 0)]]
    found = RateAwareColumns(NAMES, gated=("a",)).add(*laid_out(arrivals, NAMES), flush=True)
    assert described_columns(found) == run_class(arrivals, {"gated": ("a",)})


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_a_scenario_gives_the_same_batches_in_columns(path: Any) -> None:
    scenario = Scenario.read(path)
    columns = RateAwareColumns(NAMES, **scenario.options)
    lengths = dict(scenario.set_batch_length)
    batches: list[Described] = []
    names: list[str] = []
    for arrival, messages in scenario.calls():
        for due in [key for key in lengths if float(key) <= arrival]:
            columns.set_batch_length(lengths.pop(due))
        names += [m.stream for m in messages]
        clock = np.array([round(arrival * SECOND)]) if scenario.wall_clock else None
        batches += described_columns(
            columns.add(*laid_out([messages], NAMES), clock, receive_times=received([messages]))
        )
    batches += described_columns(columns.add(*laid_out([], NAMES), flush=scenario.flush, receive_times=received([])))
    counts = [dict(sorted(Counter(names[number] for number in batch[4]).items())) for batch in batches]
    expected = [(batch["reason"], batch["messages"]) for batch in scenario.batches]
    assert [(batch[3], count) for batch, count in zip(batches, counts, strict=True)] == expected
    assert [(batch[0] - at(0)) / SECOND for batch in batches] == [batch["start"] for batch in scenario.batches]
    runs = [None if batch[5] is None else (batch[5] - at(0)) / SECOND for batch in batches]
    assert runs == [batch.get("run") for batch in scenario.batches]


def test_batches_can_be_turned_around() -> None:
    times = T0 + np.arange(40) * (SECOND // 14)
    batches = RateAwareColumns(["det"]).add(np.zeros(40, np.int32), times, np.arange(41), flush=True)
    batch_of = batches.batch_of(40)
    assert batch_of[0] == 0
    assert (np.diff(batch_of) >= 0).all()
    assert (batches.batch_of(10, first=30) == batch_of[30:]).all()


@pytest.mark.parametrize(
    ("streams", "times", "bounds", "said"),
    [
        ([0, 1], [0], None, "equal lengths, got 2 and 1"),
        ([0, 1], [0, 0], None, "integers ≥ 0 and < 1, got 0 to 1"),
        ([-1], [0], None, "integers ≥ 0 and < 1, got -1"),
        ([0], [0], [0], "calls must be ascending offsets from 0 to 1 "),
        ([0, 0], [0, 0], [0, 2, 1, 2], "calls must be ascending"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(streams: Any, times: Any, bounds: Any, said: str) -> None:
    columns = RateAwareColumns(["det"])
    with pytest.raises(InvalidArgumentError, match=said):
        columns.add(np.array(streams), np.array(times), None if bounds is None else np.array(bounds))
    assert columns.buffered == 0


def test_a_clock_that_was_not_read_once_a_call_is_refused() -> None:
    columns = RateAwareColumns(["det"])
    with pytest.raises(InvalidArgumentError, match="clock must hold a time for each of the 1 calls, got 2 times"):
        columns.add(np.array([0]), np.array([T0]), clock=np.array([0, 1]))


def test_a_clock_given_first_when_a_window_is_open_counts_from_then() -> None:
    columns = RateAwareColumns(["det"])
    columns.add(np.zeros(2, np.int32), T0 + np.array([0, 1]), np.arange(3))
    nothing = (np.empty(0, np.int32), np.empty(0, np.int64))
    assert columns.add(*nothing, clock=np.array([10**15])).reasons == ()
    assert columns.add(*nothing, clock=np.array([10**15 + 10 * SECOND - 1])).reasons == ()
    assert columns.add(*nothing, clock=np.array([10**15 + 10 * SECOND])).reasons == ("stall",)


@pytest.mark.parametrize(("ahead", "near"), [("a", "b"), ("b", "a")])
def test_the_newest_pulse_that_waits_says_how_far_ahead_is_held_whosever_it_is(ahead: str, near: str) -> None:
    start = by_time(pulses("a", 5, -1, 0), pulses("b", 5, -1, 0), [message("a", T0)])
    backlog = [*pulses(ahead, 5, 0, 2), message(ahead, at(9)), *pulses(near, 5, 0, 1)]
    backlog += [message(near, at(3)), message(near, at(4))]
    arrivals = [start, backlog, [message("log", at(10))]]
    chosen = {"gated": ("a", "b"), "timeout": math.inf}
    columns = RateAwareColumns(NAMES, **chosen)
    columns.add(*laid_out(arrivals, NAMES))
    found = described_columns(columns.add(*laid_out([], NAMES), flush=True))
    assert [batch[:2] for batch in found if len(start) + len(backlog) in batch[4]] == [(at(9), at(10))]
    assert found == run_class(arrivals, chosen)[-len(found) :]


@pytest.mark.parametrize("length", ["2s", "530ms"])
def test_a_new_length_measures_every_stream_again(length: str) -> None:
    start = by_time(pulses("a", 14, -1, 0), pulses("b", 5, -1, 0), [message("a", T0)])
    first = by_time(pulses("a", 14, 0, 1), pulses("b", 5, 0, 1))
    then = [[message("b", at(8.8))], *([m] for m in pulses("a", 14, 1, 5))]
    batcher = RateAwareBatcher(timeout=math.inf, clock=frozen)
    columns = RateAwareColumns(NAMES, timeout=math.inf)
    batcher.add(start)
    columns.add(*laid_out([start], NAMES))
    batcher.set_batch_length(length)
    columns.set_batch_length(length)
    expected = [b.reason for call in ([m] for m in first) for b in batcher.add(call)]
    assert columns.add(*laid_out([[m] for m in first], NAMES)).reasons == tuple(expected) == ("slots",)
    batches = [batch for call in then for batch in batcher.add(call)]
    found = columns.add(*laid_out(then, NAMES))
    assert [(b.start, b.reason, len(b.messages)) for b in batches] == list(
        zip(found.starts.tolist(), found.reasons, np.diff(found.offsets).tolist(), strict=True)
    )


def test_an_invalid_new_length_in_columns_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"batch_length must .*, got 0"):
        RateAwareColumns(["det"]).set_batch_length(0)


@pytest.mark.parametrize("stream", ["log", "a"])
def test_a_window_opened_after_catching_up_holds_no_longer_than_one_opened_in_time(stream: str) -> None:
    """What waited of a gating stream has moved the horizon; where it is let in, the horizon is the window's again."""
    backlog = [*pulses("a", 14, 0, 9), message(stream, at(4.5))]
    arrivals = [[*pulses("a", 14, -2, 0), message("a", T0)], backlog, [message("log", at(14.2))]]
    arrivals += [[m] for m in pulses("a", 14, 9, 10.1)]
    found = RateAwareColumns(NAMES, gated=("a",)).add(*laid_out(arrivals, NAMES), flush=True)
    assert described_columns(found) == run_class(arrivals, {"gated": ("a",)})
    holder = next(b for b in described_columns(found) if sum(map(len, arrivals[:2])) in b[4])
    assert holder[0] < at(10)  # let through, not held for its own window


def test_a_float_event_time_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"event_times must be an array of integers .* got float64"):
        RateAwareColumns(["det"]).add(np.array([0]), np.array([1.5]))


@pytest.mark.parametrize("dtype", ["bool", "datetime64[ns]", "timedelta64[ns]", "object"])
def test_an_array_of_no_whole_numbers_is_refused_by_name(dtype: str) -> None:
    with pytest.raises(InvalidArgumentError, match="event_times must be an array of integers"):
        RateAwareColumns(["det"]).add(np.array([0]), np.array([1]).astype(dtype))
    with pytest.raises(InvalidArgumentError, match="must fit in 64 bits, got 18446744073709551615"):
        RateAwareColumns(["det"]).add(np.array([0]), np.array([2**64 - 1], np.uint64))


@pytest.mark.parametrize("state", [b"", b"something", b'waterclock rate-aware columns {"version": 99}\n'])
def test_a_strange_state_is_refused(state: bytes) -> None:
    with pytest.raises(SchemaError):
        RateAwareColumns.restore(state)


def test_compressed_zeros_do_not_fill_the_memory() -> None:
    head = b'{"version": 1, "factor": null, "count": 0, "boundaries": [], "run": null,'
    head += b'"shapes": [[1],[27],[0,20],[0,32],[0],[0],[0],[0],[0,0],[0],[0,5],[0,3]]}\n'
    bomb = zlib.compress(bytes(10**6), 9) * 20
    with pytest.raises(DamagedError, match="must have 220 bytes in total"):
        RateAwareColumns.restore(framed(b"WCC1", head, bomb))


def test_a_state_that_was_cut_short_is_refused() -> None:
    state = RateAwareColumns(["det"]).state()
    for size in (len(state) - 1, len(state) - 100, len(state) // 2):
        with pytest.raises(DamagedError, match="do not match their checksum"):
            RateAwareColumns.restore(state[:size])


def test_an_infinite_timeout_survives_the_state() -> None:
    columns = RateAwareColumns.restore(RateAwareColumns(["det"], timeout=math.inf).state())
    found = columns.add(np.zeros(3, np.int32), T0 + np.array([0, 1, 5 * SECOND]), np.arange(4))
    assert found.reasons == ("start",)


@pytest.mark.parametrize("seed", [13, 20, 58])
def test_setting_the_length_in_use_changes_no_batch(seed: int) -> None:
    arrivals = uneven(seed)
    batcher, columns = RateAwareBatcher(timeout="3s", clock=frozen), RateAwareColumns(NAMES, timeout="3s")
    batches: list[Batch] = []
    found: list[Described] = []
    for call in arrivals:
        batcher.set_batch_length("1s")
        columns.set_batch_length("1s")
        batches += batcher.add(call)
        found += described_columns(columns.add(*laid_out([call], NAMES)))
    found += described_columns(columns.add(*laid_out([], NAMES), flush=True))
    expected = run_class(arrivals, {"timeout": "3s"})
    numbers = {id(m): number for number, m in enumerate(m for call in arrivals for m in call)}
    assert described([*batches, *batcher.flush()], numbers) == expected
    assert found == expected
