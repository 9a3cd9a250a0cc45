"""The columnar form gives what the class gives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.batching.rate.scenario import FOLDER, Scenario
from tests.batching.rate.traffic import SECOND, T0, calls, frozen, message, options

from waterclock.batching.batch import Batch
from waterclock.batching.rate_aware import RateAwareBatcher
from waterclock.batching.rate_columnar import RateAwareColumns, RateBatches
from waterclock.errors import InvalidArgumentError, SchemaError
from waterclock.message import Message

Described = tuple[int, int, int, str, list[int]]


def described(batches: list[Batch], numbers: dict[int, int]) -> list[Described]:
    return [(b.start, b.end, b.closed_at, b.reason, sorted(numbers[id(m)] for m in b.messages)) for b in batches]


def described_columns(batches: RateBatches) -> list[Described]:
    return [
        (
            int(batches.starts[k]),
            int(batches.ends[k]),
            int(batches.closed_at[k]),
            batches.reasons[k],
            sorted(batches.messages[batches.offsets[k] : batches.offsets[k + 1]].tolist()),
        )
        for k in range(len(batches.starts))
    ]


def run_class(arrivals: list[list[Message]], chosen: dict[str, Any], *, flush: bool = True) -> list[Described]:
    batcher = RateAwareBatcher(**chosen, clock=frozen)
    numbers = {id(m): number for number, m in enumerate(m for call in arrivals for m in call)}
    batches = [batch for call in arrivals for batch in batcher.add(call)]
    return described(batches + (batcher.flush() if flush else []), numbers)


def laid_out(arrivals: list[list[Message]], names: list[str]) -> tuple[Any, Any, Any]:
    messages = [m for call in arrivals for m in call]
    codes = np.array([names.index(m.stream) for m in messages], np.int32)
    times = np.array([m.event_time for m in messages], np.int64)
    return codes, times, np.cumsum([0, *map(len, arrivals)])


NAMES = ["log", "a", "b", "c", "late", "det", "mon", "cpu", "disk"]


@settings(max_examples=200, deadline=None)
@given(calls(), options)
def test_the_columnar_form_agrees_with_the_class(arrivals: list[list[Message]], chosen: dict[str, Any]) -> None:
    columns = RateAwareColumns(NAMES, **chosen)
    found = columns.add(*laid_out(arrivals, NAMES), flush=True)
    assert described_columns(found) == run_class(arrivals, chosen)
    assert columns.buffered == 0


@settings(max_examples=60, deadline=None)
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


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["a", "log"]), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=5),
        max_size=12,
    )
)
def test_times_from_all_over_int64_do_no_harm(drawn: list[list[tuple[str, int]]]) -> None:
    arrivals = [[message(stream, event_time) for stream, event_time in call] for call in drawn]
    chosen = {"gated": ("a",)}
    found = RateAwareColumns(NAMES, gated=("a",)).add(*laid_out(arrivals, NAMES), flush=True)
    assert described_columns(found) == run_class(arrivals, chosen)
    assert len(found.messages) == sum(map(len, arrivals))


def test_a_stream_that_is_out_of_order_at_first_is_learned_alike() -> None:
    times = [-45_176, -(2**63), -668_144, -489, -254, -33, 0]
    arrivals = [[message("a", event_time) for event_time in times[:4]], *([message("a", t)] for t in times[4:])]
    arrivals += [[message("log", 16 * SECOND)], [message("a", 0)]]
    found = RateAwareColumns(NAMES, gated=("a",)).add(*laid_out(arrivals, NAMES), flush=True)
    assert described_columns(found) == run_class(arrivals, {"gated": ("a",)})


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_a_scenario_gives_the_same_batches_in_columns(path: Any) -> None:
    scenario = Scenario.read(path)
    if scenario.wall_clock or scenario.set_batch_length:
        scenario = Scenario(scenario.title, scenario.document, scenario.bursts, [], scenario.options)
    arrivals = [messages for _, messages in scenario.calls() if messages]
    columns = RateAwareColumns(NAMES, **scenario.options)
    found = columns.add(*laid_out(arrivals, NAMES), flush=scenario.flush)
    assert described_columns(found) == run_class(arrivals, scenario.options, flush=scenario.flush)


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
        ([0, 1], [0], None, "lengths 2 and 1 differ"),
        ([0, 1], [0, 0], None, "numbers 0 to 1 of 1 streams"),
        ([-1], [0], None, "numbers -1"),
        ([0], [0], [0], "does not lead from 0 to 1"),
        ([0, 0], [0, 0], [0, 2, 1, 2], "without descending"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(streams: Any, times: Any, bounds: Any, said: str) -> None:
    columns = RateAwareColumns(["det"])
    with pytest.raises(InvalidArgumentError, match=said):
        columns.add(np.array(streams), np.array(times), None if bounds is None else np.array(bounds))
    assert columns.buffered == 0


def test_a_float_event_time_is_refused() -> None:
    with pytest.raises(TypeError):
        RateAwareColumns(["det"]).add(np.array([0]), np.array([1.5]))


@pytest.mark.parametrize("state", [b"", b"something", b'waterclock rate-aware columns {"version": 99}\n'])
def test_a_strange_state_is_refused(state: bytes) -> None:
    with pytest.raises(SchemaError):
        RateAwareColumns.restore(state)


def test_an_infinite_timeout_survives_the_state() -> None:
    columns = RateAwareColumns(["det"], timeout=math.inf)
    assert RateAwareColumns.restore(columns.state())._rule == columns._rule
