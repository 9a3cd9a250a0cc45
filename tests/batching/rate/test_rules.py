"""The rules one by one, where a scenario would need too many messages to show them."""

from __future__ import annotations

import math

from tests.batching.rate.traffic import SECOND, T0, at, by_time, feed, frozen, message, pulses

from waterclock.batching.pulse_grid import PulseGrid
from waterclock.batching.rate_aware import RateAwareBatcher
from waterclock.batching.rate_rule import RateRule, RateWindow, placed, plausible_range
from waterclock.batching.stall import StallWatch
from waterclock.batching.track import Track
from waterclock.time import MAX_NS, MIN_NS

RULE = RateRule.checked("1s", None)


def learned(rate: int, count: int = 20, phase: int = 0) -> Track:
    track = Track(may_gate=True)
    for k in range(count):
        track.observe(T0 + phase + k * SECOND // rate)
    return track


def test_of_groups_as_large_as_each_other_the_later_is_plausible() -> None:
    assert plausible_range([0, 1, 100 * SECOND, 101 * SECOND], SECOND) == (100 * SECOND, 101 * SECOND)
    assert plausible_range([0, 1, 2, 100 * SECOND, 101 * SECOND], SECOND) == (0, 2)


def test_a_gap_of_three_lengths_does_not_split_a_group_and_a_wider_one_does() -> None:
    assert plausible_range([0, 1, 3 * SECOND + 1], SECOND) == (0, 3 * SECOND + 1)
    assert plausible_range([0, 1, 3 * SECOND + 2], SECOND) == (0, 1)


def test_a_window_keeps_its_epoch_within_64_bits() -> None:
    for anchor in (MIN_NS, MAX_NS):
        window = RateWindow.at(placed(anchor, SECOND), RULE)
        assert MIN_NS < window.epoch_from < window.epoch_until < MAX_NS


def test_an_origin_is_kept_while_plausible_and_then_taken_from_the_window() -> None:
    track = learned(14)
    track.grid = PulseGrid(T0 - 999 * SECOND + 7, 14)
    track.regrid(T0, RULE)
    assert track.grid == PulseGrid(T0 - 999 * SECOND + 7, 14)
    track.grid = PulseGrid(T0 - 1001 * SECOND, 14)
    track.present, track.first = True, T0 + 5
    track.regrid(T0, RULE)
    assert track.grid == PulseGrid(T0 + 5, 14)


def test_a_stream_in_another_epoch_gets_no_grid() -> None:
    track = learned(14)
    track.regrid(T0 + 1100 * SECOND, RULE)
    assert track.grid is None


def test_a_stream_below_one_pulse_a_batch_gets_no_grid() -> None:
    track = learned(1)
    track.regrid(T0, RateRule.checked("999ms", None))
    assert track.grid is None
    track.regrid(T0, RULE)
    assert track.grid is not None


def test_a_pulse_that_comes_early_belongs_to_the_window_in_which_it_is_due() -> None:
    track = learned(14)
    track.grid = PulseGrid(T0, 14)
    window = RateWindow.at(T0, RULE)
    assert track.windows_to(T0 + 5 * SECOND - 30_000_000, window) == 5
    assert track.windows_to(T0 + 5 * SECOND - 40_000_000, window) == 4


def test_a_stream_that_is_only_slow_is_waited_for_before_a_gap_is_seen() -> None:
    batcher = RateAwareBatcher(timeout=math.inf, clock=frozen)
    batcher.add(by_time(pulses("det", 14, -1, 0), pulses("mon", 5, -1, 0), [message("det", T0)]))
    assert batcher.add([message("mon", at(6.0))]) == []
    assert batcher.window == (at(0), at(1))
    batches = feed(batcher, pulses("det", 14, 6, 6.1))
    assert batches == []
    assert batcher.window == (at(6), at(7))


def test_what_waits_implausibly_far_ahead_is_given_out_by_a_stall() -> None:
    now = 0.0
    batcher = RateAwareBatcher(timeout=math.inf, clock=lambda: now)
    batcher.add(by_time(pulses("det", 14, -1, 0), pulses("mon", 5, -1, 0), [message("det", T0)]))
    far, near = message("mon", at(900)), message("mon", at(-18))
    batcher.add([far])
    batcher.add([*pulses("det", 14, -22, -20), near])
    now = 10.0
    (batch,) = batcher.add([])
    assert batch.reason == "stall"
    assert far in batch.messages
    assert batcher.buffered == 0
    assert batcher.window == (at(-18) + 1, at(-17) + 1)


def test_a_stream_silent_for_an_epoch_does_not_bring_its_old_times_back() -> None:
    batcher = RateAwareBatcher(clock=frozen)
    batcher.add([message("a", at(0))])
    for seconds in (900, 1800):
        batcher.add([message("b", at(seconds))])
    assert batcher.add([message("a", at(1))]) == []
    assembly = batcher._assembly
    assert assembly is not None
    assert assembly.strays == 1


def test_a_clock_that_jumped_back_counts_from_there() -> None:
    now = 100.0
    batcher = RateAwareBatcher(clock=lambda: now)
    batcher.add(pulses("det", 14, -1, 0))
    batcher.add([message("det", at(0))])
    now = 0.0
    assert batcher.add([]) == []
    now = 9.9
    assert batcher.add([]) == []
    now = 10.0
    assert [batch.reason for batch in batcher.add([])] == ["stall"]


def test_implausible_times_from_here_and_there_do_not_add_up() -> None:
    watch = StallWatch(frozen)
    for k in range(30):
        assert not watch.is_astray(k * SECOND + (k % 2) * 100 * SECOND, SECOND)
    assert [watch.is_astray(k * SECOND, SECOND) for k in range(200, 211)] == [False] * 10 + [True]


def test_a_plausible_call_between_implausible_ones_begins_the_count_anew() -> None:
    batcher = RateAwareBatcher(clock=frozen)
    batcher.add(pulses("det", 14, -1, 0))
    for k in range(9):
        assert batcher.add([message("det", at(-60 + k))]) == []
    assert batcher.add([message("det", at(0))]) == []
    for k in range(9, 19):
        assert batcher.add([message("det", at(-60 + k))]) == []
    assert [batch.reason for batch in batcher.add([message("det", at(-41))])] == ["stall"]


def test_no_batch_is_empty_when_windows_are_passed_over() -> None:
    batcher = RateAwareBatcher(gated=("det",), clock=frozen)
    batcher.add([*pulses("det", 14, -1, 0), message("det", T0)])
    assert batcher.add([message("log", at(2.9))]) == []
    assert batcher.window == (at(2), at(3))


def test_where_a_window_begins_for_a_stream_does_not_depend_on_the_windows_before() -> None:
    for rule in (RULE, RateRule.checked("530ms", None), RateRule.checked("500ms", None)):
        stepped, fresh = learned(14), learned(14)
        stepped.grid = fresh.grid = PulseGrid(T0 + 11, 14)
        stepped.place(RateWindow.at(T0, rule), rule, 0)
        start = T0
        for steps in (1, 1, 3):
            start += steps * rule.batch_length
            stepped.place(RateWindow.at(start, rule), rule, steps)
            fresh.place(RateWindow.at(start, rule), rule, 0)
            assert (stepped.over_from, stepped.last_from) == (fresh.over_from, fresh.last_from)
            assert stepped.far_from == fresh.far_from
