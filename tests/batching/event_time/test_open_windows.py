"""Any order of arrival: the same windows as a plain rule cuts, at a cost that grows like n log n."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.batching.event_time.definition import LARGEST, Rule, batches_of
from tests.batching.event_time.outcomes import batched, defined
from tests.batching.event_time.traffic import CONFLICT_OPTIONS

from waterclock.batching.event_time.batcher import EventTimeBatcher
from waterclock.batching.event_time.open_windows import LOOK_AHEAD, OpenWindows
from waterclock.batching.event_time.rule import EventTimeRule
from waterclock.batching.event_time.waiting_times import NEVER, WaitingTimes
from waterclock.message import Message

RULE = EventTimeRule(window=10, max_delay=100, max_lead=0, on_conflict="split")
COUNT = 500
STREAMS = 20


def message(stream: str, event_time: int) -> Message:
    return Message("device", stream, event_time)


def holding(*messages: Message, rule: EventTimeRule = RULE) -> OpenWindows:
    windows = OpenWindows(rule)
    for each in messages:
        assert windows.put(each)
    return windows


def spans(windows: OpenWindows) -> list[tuple[int, int]]:
    return [(window.start, window.end) for window in windows.windows()]


def test_a_conflict_in_the_first_window_moves_only_what_it_must() -> None:
    windows = holding(message("a", 0), message("a", 20), message("a", 40), message("a", 5))
    assert spans(windows) == [(0, 5), (5, 15), (20, 30), (40, 50)]


def test_a_message_before_all_others_may_move_every_window() -> None:
    windows = holding(message("a", 12), message("b", 18), message("a", 40), message("c", 4), message("d", 2))
    assert windows.first_end() == 12
    assert windows.put(message("d", 3))
    assert windows.first_end() == 3
    assert spans(windows) == [(2, 3), (3, 13), (18, 28), (40, 50)]


def test_looking_at_the_windows_takes_nothing() -> None:
    windows = holding(message("a", 12), message("a", 14), message("b", 3))
    assert windows.windows() == windows.windows() == windows.take_all()
    assert not windows
    assert windows.first_end() == NEVER


def test_the_first_window_takes_in_only_a_few_whose_time_has_not_come() -> None:
    windows = holding(message("z", 0), message("y", 20), *(message(f"s{k}", 30 - k) for k in range(10)))
    assert [window.start for window in windows.take_ended(12)] == [0]
    assert windows.ends_from <= windows.first_end() == 30


@given(st.lists(st.integers(0, 60) | st.none(), max_size=80))
def test_waiting_times_come_out_in_order(steps: list[int | None]) -> None:
    waiting, known = WaitingTimes(), set[int]()
    for step in steps:
        if step is None and known:
            assert waiting.pop() == min(known)
            known.remove(min(known))
        elif step is not None and step not in known:
            waiting.push(step)
            known.add(step)
        assert waiting.first == min(known, default=NEVER)


def newest_first(count: int) -> list[int]:
    return list(range(count, 0, -1))


def two_backlogs(count: int) -> list[int]:
    return [*range(0, count, 2), *range(1, count, 2)]


def shuffled(count: int) -> list[int]:
    times = list(range(count))
    Random(16).shuffle(times)  # noqa: S311  # a seed, not a secret
    return times


def inside_out(count: int) -> list[int]:
    return [count + (k if k % 2 else -k) for k in range(count)]


def in_order(count: int) -> list[int]:
    return list(range(count))


ORDERS: dict[str, Callable[[int], list[int]]] = {
    order.__name__: order for order in (newest_first, two_backlogs, shuffled, inside_out)
}


@given(
    st.sampled_from(sorted(ORDERS)),
    st.integers(1, 60),
    st.integers(1, 12),
    st.integers(0, 15),
    st.sampled_from(CONFLICT_OPTIONS),
    st.lists(st.integers(0, 80), max_size=3),
)
def test_a_backlog_in_any_order_falls_into_the_windows_of_the_plain_rule(
    order: str, count: int, streams: int, window: int, on_conflict: str, restarts: list[int]
) -> None:
    messages = [
        Message("x", f"s{number % streams}", event_time, str(number).encode(), receive_time=2 * count + number // 4)
        for number, event_time in enumerate(ORDERS[order](count))
    ]
    rule = Rule(window=window, max_delay=2 * count, on_conflict=on_conflict)
    batcher: EventTimeBatcher = EventTimeBatcher(**rule._asdict())
    batches: list[Any] = []
    for number, each in enumerate(messages):
        batches += batcher.add(each)
        if number in restarts:
            batcher = EventTimeBatcher.restore(batcher.state())
    batches += batcher.advance(LARGEST)
    assert batched(batches, batcher.take_rejected()) == defined(batches_of(messages, rule))


def calls_of(work: Callable[[], None]) -> int:
    """Count the calls of functions, C's included: the work that is done, regardless of what else the machine does."""
    calls = 0

    def count(_frame: object, event: str, _what: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def take_in(times: Sequence[int], streams: int, *, on_conflict: Any, asks: bool) -> None:
    batcher = EventTimeBatcher(60, 10 * COUNT, on_conflict=on_conflict)
    for number, event_time in enumerate(times):
        batcher.add(Message("x", f"s{(event_time + number // COUNT) % streams}", event_time), now=5 * COUNT)
        if asks:
            assert batcher.next_deadline is not None
    batcher.advance(LARGEST)


@cache  # which all orders are compared with
def calls_in_order(streams: int, on_conflict: str, asks: bool) -> int:
    return calls_of(lambda: take_in(in_order(COUNT), streams, on_conflict=on_conflict, asks=asks))


@pytest.mark.parametrize("asks", [False, True], ids=["", "and the deadline is asked for each time"])
@pytest.mark.parametrize("on_conflict", CONFLICT_OPTIONS)
@pytest.mark.parametrize("streams", [1, STREAMS, COUNT])
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_no_order_of_arrival_takes_much_more_work_than_order(
    order: Callable[[int], list[int]], streams: int, on_conflict: str, asks: bool
) -> None:
    ordered = calls_in_order(streams, on_conflict, asks)
    disordered = calls_of(lambda: take_in(order(COUNT), streams, on_conflict=on_conflict, asks=asks))
    assert disordered < 3 * ordered


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_four_times_the_backlog_takes_four_times_the_work(order: Callable[[int], list[int]]) -> None:
    few, many = (
        calls_of(lambda n=count: take_in(order(n), STREAMS, on_conflict="split", asks=True))
        for count in (COUNT // 4, COUNT)
    )
    assert many < 4.5 * few


def test_messages_that_squeeze_in_just_in_time_put_out_no_more_than_the_look_ahead() -> None:
    crowd = 400
    windows = holding(
        *(message(f"s{k}", 10_000 + k) for k in range(crowd)), message("x", 0), rule=RULE._replace(window=20_000)
    )
    pushes = calls_of(lambda: _squeeze_in(windows, 200))
    assert pushes < 200 * (LOOK_AHEAD * 10 + 60)


def _squeeze_in(windows: OpenWindows, count: int) -> None:
    for k in range(1, count + 1):
        windows.put(message("x", 10 * k))
        assert len(windows.take_ended(10 * k + 1)) == 1
