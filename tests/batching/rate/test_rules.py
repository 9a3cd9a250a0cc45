"""The rules one by one, where a scenario would need too many messages to show them."""

from __future__ import annotations

import math

import pytest
from tests.batching.rate.traffic import SECOND, T0, YEAR, at, by_time, feed, frozen, message, pulses

from waterclock.batching.rate.by_message.batcher import RateAwareBatcher
from waterclock.batching.rate.by_message.gate import Gate
from waterclock.batching.rate.by_message.pile import Pile
from waterclock.batching.rate.by_message.stall import StallWatch
from waterclock.batching.rate.by_message.stream import Track
from waterclock.batching.rate.by_message.window import Assembly
from waterclock.batching.rate.pulse_grid import PulseGrid
from waterclock.batching.rate.rule import (
    GATES,
    MOST_ERAS,
    MOST_UNMOVED,
    RateRule,
    RateWindow,
    placed,
    plausible_range,
)
from waterclock.time import MAX_NS, MIN_NS

RULE = RateRule.checked("1s", None)


def learned(rate: int, count: int = 20, phase: int = 0) -> Track:
    track = Track(GATES)
    for k in range(count):
        track.observe(T0 + phase + k * SECOND // rate)
    return track


def test_of_groups_as_large_as_each_other_the_later_is_plausible() -> None:
    assert plausible_range([0, 1, 100 * SECOND, 101 * SECOND], SECOND) == (100 * SECOND, 101 * SECOND)
    assert plausible_range([0, 1, 2, 100 * SECOND, 101 * SECOND], SECOND) == (0, 2)


def test_a_gap_of_three_lengths_does_not_split_a_group_and_a_wider_one_does() -> None:
    assert plausible_range([0, 1, 3 * SECOND + 1], SECOND) == (0, 3 * SECOND + 1)
    assert plausible_range([0, 1, 3 * SECOND + 2], SECOND) == (0, 1)


def test_a_window_keeps_its_era_within_64_bits() -> None:
    for anchor in (MIN_NS, MAX_NS):
        window = RateWindow.at(placed(anchor, SECOND), RULE)
        assert MIN_NS < window.era_from < window.era_until < MAX_NS


def test_an_origin_is_kept_while_plausible_and_then_taken_from_the_window() -> None:
    track = learned(14)
    track.grid = PulseGrid(T0 - 999 * SECOND + 7, 14)
    track.regrid(T0, RULE)
    assert track.grid == PulseGrid(T0 - 999 * SECOND + 7, 14)
    track.grid = PulseGrid(T0 - 1000 * SECOND, 14)
    track.regrid(T0, RULE)
    assert track.grid == PulseGrid(T0 - 1000 * SECOND, 14)
    track.grid = PulseGrid(T0 - 1001 * SECOND, 14)
    track.present, track.first = True, T0 + 5
    track.regrid(T0, RULE)
    assert track.grid == PulseGrid(T0 + 5, 14)


def test_a_stream_in_another_era_gets_no_grid() -> None:
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


def test_a_stall_emits_messages_that_wait_implausibly_far_ahead() -> None:
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


def test_a_stream_silent_for_an_era_does_not_bring_its_old_times_back() -> None:
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


def stuck(watch: StallWatch, *times: int) -> bool:
    return watch.is_stuck([*times], len(times), 0, SECOND)


def test_each_era_moves_on_by_itself() -> None:
    watch = StallWatch(frozen)
    far = 43 * YEAR
    assert not any(stuck(watch, k * SECOND) or stuck(watch, far) for k in range(10))
    assert stuck(watch, 10 * SECOND)


def test_a_gap_counts_as_three_lengths_and_one_of_an_era_starts_again() -> None:
    watch = StallWatch(frozen)
    assert [stuck(watch, k * 900 * SECOND) for k in range(5)] == [False] * 4 + [True]
    watch = StallWatch(frozen)
    assert not any(stuck(watch, k * 1001 * SECOND) for k in range(30))


def test_a_backlog_in_one_call_is_not_a_stall_and_one_that_continues_is() -> None:
    watch = StallWatch(frozen)
    assert not stuck(watch, *(k * SECOND for k in range(100)))
    assert stuck(watch, 100 * SECOND)


def test_more_eras_than_are_distinguished_do_not_hide_the_one_that_continues() -> None:
    watch = StallWatch(frozen)
    for k in range(10):
        assert not stuck(watch, k * SECOND)
        assert not any(stuck(watch, (wild + 1) * YEAR + k * 2000 * SECOND) for wild in range(MOST_ERAS - 1))
    assert len(watch.elsewhere) == MOST_ERAS
    assert stuck(watch, 10 * SECOND)


def test_a_stalled_window_closes_when_it_holds_all_expected_messages() -> None:
    watch = StallWatch(frozen)
    assert not watch.is_stuck([], MOST_UNMOVED - 1, 0, SECOND)
    assert watch.is_stuck([], 1, 0, SECOND)


def test_when_a_window_is_moved_streams_that_move_come_before_numerous_ones() -> None:
    times = [0] * 100 + [(1000 + k) * SECOND for k in range(6)]
    assert plausible_range(times, SECOND) == (0, 0)
    assert plausible_range(times, SECOND, moving=True) == (1000 * SECOND, 1005 * SECOND)
    assert plausible_range(times[:-1], SECOND, moving=True) == (0, 0)


def test_a_plausible_call_between_implausible_ones_begins_the_count_again() -> None:
    batcher = RateAwareBatcher(clock=frozen)
    batcher.add(pulses("det", 14, -1, 0))
    for k in range(9):
        assert batcher.add([message("det", at(-60 + k))]) == []
    assert batcher.add([message("det", at(0))]) == []
    for k in range(9, 19):
        assert batcher.add([message("det", at(-60 + k))]) == []
    assert [batch.reason for batch in batcher.add([message("det", at(-41))])] == ["stall"]


@pytest.mark.parametrize(("nearest", "resets"), [(at(-3), True), (at(-3) - 1, False)])
def test_up_to_three_lengths_behind_the_window_is_plausible(nearest: int, *, resets: bool) -> None:
    batcher = RateAwareBatcher(gated=False, clock=frozen)
    batcher.add([message("log", at(0))])
    for k in range(10):
        assert batcher.add([message("log", at(-13.5 + k))]) == []
    batches = batcher.add([message("log", nearest)])
    assert (batches == []) == resets


@pytest.mark.parametrize(
    ("event_time", "strays"), [(at(-1000), 0), (at(-1000) - 1, 1), (at(1001), 0), (at(1001) + 1, 1)]
)
def test_another_era_begins_more_than_1000_lengths_from_the_window(event_time: int, strays: int) -> None:
    batcher = RateAwareBatcher(gated=("det",), timeout=math.inf, clock=frozen)
    batcher.add([*pulses("det", 14, -1, 0), message("det", T0)])
    batcher.add([message("log", event_time)])
    assembly = batcher._assembly
    assert assembly is not None
    assert assembly.strays == strays


def test_no_batch_is_empty_when_windows_are_skipped() -> None:
    batcher = RateAwareBatcher(gated=("det",), clock=frozen)
    batcher.add([*pulses("det", 14, -1, 0), message("det", T0)])
    assert batcher.add([message("log", at(2.9))]) == []
    assert batcher.window == (at(2), at(3))


def test_a_windows_start_for_a_stream_does_not_depend_on_earlier_windows() -> None:
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


def test_after_a_change_of_length_the_new_one_says_how_far_ahead_an_overflow_counts() -> None:
    batcher = RateAwareBatcher(timeout=math.inf, clock=frozen)
    batcher.add(by_time(pulses("det", 14, -1, 0), pulses("mon", 5, -1, 0), [message("det", T0)]))
    batcher.set_batch_length("2s")
    feed(batcher, by_time(pulses("det", 14, 0, 1), pulses("mon", 5, 0, 1)))
    assert batcher.window == (at(1), at(3))
    assert batcher.add([message("mon", at(8.8))]) == []
    assert [batch.reason for batch in feed(batcher, pulses("det", 14, 1, 3))] == ["slots"]


@pytest.mark.parametrize(("event_time", "waits"), [(at(4), True), (at(4) + 1, False)])
def test_up_to_three_lengths_after_the_end_a_log_message_is_held(event_time: int, *, waits: bool) -> None:
    batcher = RateAwareBatcher(gated=("det",), timeout=math.inf, clock=frozen)
    batcher.add([*pulses("det", 14, -1, 0), message("det", T0)])
    log = message("log", event_time)
    batcher.add([log])
    (batch,) = feed(batcher, pulses("det", 14, 0, 1))
    assert (log not in batch.messages) == waits


def test_no_window_placed_again_begins_where_one_began_before() -> None:
    assembly = Assembly("s", RULE, T0, Gate(False))
    starts: list[int] = []
    for anchor in (0, -5, -5, -4, 2, 2):
        assembly.place(message("log", at(anchor)))
        assembly.place_anew(at(anchor))
        starts.append(assembly.window.start - at(anchor))
    assert starts == [1, 2, 3, 4, 0, 5]


def test_messages_within_three_lengths_of_a_moved_window_stay_and_later_ones_go() -> None:
    assembly = Assembly("s", RULE, T0, Gate(False))
    stays, goes = message("log", at(-6)), message("log", at(-6) + 1)
    assembly.window = RateWindow.at(at(-30), RULE)
    assembly.riding.place(assembly.window, RULE, 0)
    assembly.take([stays, goes])
    assert assembly.piled == 2
    batch = assembly.place_anew(at(-10) - 1)  # begins a nanosecond later, where no window began
    assert batch.messages == (goes,)
    assert assembly.waiting_messages() == [stays]


@pytest.mark.parametrize(("off", "closes"), [(-1, True), (0, False)])
def test_an_overflow_counts_up_to_the_last_pulse_of_the_third_further_window(off: int, *, closes: bool) -> None:
    batcher = RateAwareBatcher(timeout=math.inf, clock=frozen)
    batcher.add(by_time(pulses("det", 14, -1, 0), pulses("mon", 5, -1, 0), [message("det", T0)]))
    feed(batcher, pulses("det", 14, 0, 1))
    # Mon's pulse at 4 s is the first of the fourth; what is nearer to it than to 3.8 s belongs to it.
    assert (batcher.add([message("mon", at(3.9) + off)]) != []) == closes


def test_a_silence_in_which_nothing_waited_is_not_a_stall() -> None:
    now = 0.0
    batcher = RateAwareBatcher(gated=("det",), clock=lambda: now)
    batcher.add(pulses("det", 14, -1, 0))
    assert batcher.buffered == 0
    now = 100.0
    assert batcher.add([message("det", at(0.5))]) == []
    now = 109.9
    assert batcher.add([]) == []
    now = 110.0
    assert [batch.reason for batch in batcher.add([])] == ["stall"]


def test_a_window_that_holds_another_era_alone_is_empty_where_no_stream_gates() -> None:
    batcher = RateAwareBatcher(gated=False, timeout=math.inf, clock=frozen)
    batcher.add([message("log", T0)])
    stray = message("log", at(5000))
    assert batcher.add([stray]) == []
    batcher = RateAwareBatcher.restore(batcher.state(), clock=frozen)
    (batch,) = batcher.add([message("log", at(20.5))])
    assert (batch.reason, batch.messages) == ("gap", (stray,))
    assert batcher.window == (at(20), at(21))


def test_a_stream_forgotten_with_a_message_that_waits_still_delivers_it() -> None:
    batcher = RateAwareBatcher(clock=frozen)
    batcher.add(by_time(pulses("det", 14, -1, 0), pulses("mon", 5, -1, 0), [message("det", T0)]))
    ahead = message("mon", at(20))
    batcher.add([ahead])
    feed(batcher, pulses("det", 14, 0, 9))
    assert batcher.gating_streams == {"det"}
    assert batcher.tracked_streams == {"det", "mon"}
    assert any(ahead in batch.messages for batch in feed(batcher, pulses("det", 14, 9, 22)))


def test_a_stream_with_less_than_a_pulse_in_a_new_length_gates_no_more_at_once() -> None:
    batcher = RateAwareBatcher(clock=frozen)
    batcher.add(by_time(pulses("det", 14, -1, 0), pulses("mon", 1, -6, 0), [message("det", T0), message("mon", T0)]))
    assert batcher.gating_streams == {"det", "mon"}
    batcher.set_batch_length("500ms")
    assert len(feed(batcher, by_time(pulses("det", 14, 0, 1), [message("mon", T0)]))) == 1
    assert batcher.window == (at(1), at(1.5))
    assert batcher.gating_streams == {"det"}


def test_an_overflow_still_too_far_ahead_of_the_next_window_tells_nothing_there_either() -> None:
    batcher = RateAwareBatcher(timeout=math.inf, clock=frozen)
    batcher.add(by_time(pulses("det", 14, -1, 0), pulses("mon", 5, -1, 0), [message("det", T0)]))
    batcher.add([*pulses("mon", 5, 0, 1), message("mon", at(6))])
    assert [batch.reason for batch in feed(batcher, pulses("det", 14, 0, 1))] == ["slots"]
    assert feed(batcher, pulses("det", 14, 1, 2)) == []
    assert batcher.window == (at(1), at(2))


def test_the_high_water_mark_follows_what_is_let_in_while_catching_up() -> None:
    batcher = RateAwareBatcher(gated=("det",), clock=frozen)
    batcher.add([*pulses("det", 14, -1, 0), message("det", T0)])
    batches = batcher.add(pulses("det", 14, 0, 10))
    assert len(batches) == 10
    assert all(batch.closed_at >= batch.messages[-1].event_time for batch in batches)


def test_a_batch_that_closed_begins_the_count_of_implausible_times_again() -> None:
    watch = StallWatch(frozen)
    assert not any(stuck(watch, k * SECOND) for k in range(10))
    watch.rearm()
    assert not stuck(watch, 10 * SECOND)


def test_implausible_times_out_of_order_count_from_the_newest() -> None:
    watch = StallWatch(frozen)
    times = [0, 3 * SECOND, SECOND // 2, 4 * SECOND, 7 * SECOND, 10 * SECOND]
    assert [stuck(watch, time) for time in times] == [False] * 5 + [True]


@pytest.mark.filterwarnings("ignore::waterclock.errors.LongCallWarning")
def test_of_a_call_that_is_all_implausible_its_own_era_says_where_the_traffic_is() -> None:
    batcher = RateAwareBatcher(gated=False, clock=frozen)
    batcher.add([message("log", T0)])
    for k in range(10):
        assert batcher.add([message("log", at(-60 + k)), message("log", at(5000))]) == []
    (batch,) = batcher.add([message("log", at(-50)), message("log", at(5000))])
    assert batch.reason == "stall"
    assert batcher.window == (at(-50) + 1, at(-49) + 1)


def test_a_stall_with_nothing_in_the_window_goes_to_what_waits() -> None:
    now = 0.0
    batcher = RateAwareBatcher(timeout=math.inf, clock=lambda: now)
    batcher.add(by_time(pulses("det", 14, -1, 0), pulses("mon", 5, -1, 0), [message("det", T0)]))
    batcher.add([message("mon", at(20.2))])
    now = 10.0
    assert batcher.add([]) == []
    assert batcher.window == (at(20), at(21))


def test_messages_taken_from_a_pile_take_no_memory() -> None:
    pile = Pile()
    pile.push(message("log", at(10_000)))
    for k in range(1000):
        pile.push(message("log", at(k)))
        assert len(pile.take_before(at(k) + 1)) == 1
    assert len(pile) == 1
    assert len(pile._messages) < 4


def test_of_equal_times_in_a_pile_the_first_to_arrive_comes_first() -> None:
    pile = Pile()
    for event_time, payload in ((5, b""), (3, b"1"), (3, b"2"), (3, b"3")):
        pile.push(message("log", at(event_time), payload))
    assert [m.payload for m in pile.take_before(at(4))] == [b"1", b"2", b"3"]
