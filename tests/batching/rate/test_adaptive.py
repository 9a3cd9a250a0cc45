"""The batch length follows what its consumer can bear."""

from __future__ import annotations

import pytest

from waterclock.batching.adaptive import AdaptiveBatchLength
from waterclock.errors import InvalidArgumentError

SECOND = 1_000_000_000


def test_two_slow_batches_running_double_the_length_up_to_eight_times() -> None:
    adaptive = AdaptiveBatchLength("1s", rate=14)
    lengths = [adaptive.processed("20s") for _ in range(10)]
    assert lengths[0] == SECOND
    assert lengths[1] == 2 * SECOND
    assert lengths[3] == 4 * SECOND
    assert lengths[5:] == [8 * SECOND] * 5


def test_one_slow_batch_between_others_changes_nothing() -> None:
    adaptive = AdaptiveBatchLength("1s", rate=14)
    for took in ("2s", "900ms", "2s", "900ms"):
        assert adaptive.processed(took) == SECOND


def test_three_fast_batches_shrink_the_length_by_root_two_to_whole_pulses() -> None:
    adaptive = AdaptiveBatchLength("1s", rate=14)
    for _ in range(2):
        adaptive.processed("9s")
    assert adaptive.pulses == 28
    for _ in range(3):
        adaptive.processed("100ms")
    assert adaptive.pulses == 20
    assert adaptive.batch_length == round(20 * SECOND / 14)
    for _ in range(9):
        adaptive.processed("100ms")
    assert adaptive.pulses == 14


def test_a_batch_that_takes_as_long_as_its_window_is_not_slow() -> None:
    adaptive = AdaptiveBatchLength("1s")
    assert [adaptive.processed("1s") for _ in range(4)] == [SECOND] * 4


def test_fast_batches_that_do_not_follow_each_other_change_nothing() -> None:
    adaptive = AdaptiveBatchLength("1s")
    for _ in range(2):
        adaptive.processed("3s")
    for took in ("100ms", "100ms", "1900ms", "100ms", "100ms"):
        assert adaptive.processed(took) == 2 * SECOND


def test_70_percent_of_the_window_is_not_fast() -> None:
    adaptive = AdaptiveBatchLength("1s")
    for _ in range(2):
        adaptive.processed("3s")
    for _ in range(5):
        assert adaptive.processed("1400ms") == 2 * SECOND


def test_three_windows_without_anything_shrink_the_length() -> None:
    adaptive = AdaptiveBatchLength("1s", rate=100)
    for _ in range(2):
        adaptive.processed("3s")
    adaptive.nothing_came()
    adaptive.nothing_came()
    adaptive.processed("1900ms")
    assert adaptive.nothing_came() == 2 * SECOND
    adaptive.nothing_came()
    adaptive.nothing_came()
    assert adaptive.pulses == 141


def test_a_batch_from_before_a_change_is_judged_by_its_own_window() -> None:
    adaptive = AdaptiveBatchLength("1s")
    adaptive.processed("1500ms", window="1s")
    adaptive.processed("1500ms", window="1s")
    adaptive.processed("1500ms", window="1s")
    assert adaptive.processed("1500ms", window="1s") == 4 * SECOND


@pytest.mark.parametrize(("length", "rate"), [("0s", 1), ("10ms", 14), ("1s", 0), (float("nan"), 1)])
def test_a_length_below_a_pulse_is_refused(length: str, rate: int) -> None:
    with pytest.raises(InvalidArgumentError, match=r"batch_length|rate"):
        AdaptiveBatchLength(length, rate)
