from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterclock.figures.scale import Scale, tick_label, tick_step
from waterclock.time import MAX_NS, MIN_NS

SECOND = 1_000_000_000
TIME = st.integers(MIN_NS, MAX_NS)


@given(TIME, TIME, TIME)
def test_a_time_lies_between_the_edges_in_the_order_of_times(first: int, second: int, time: int) -> None:
    start, end = min(first, second), max(first, second) + 1
    scale = Scale(start, end, 10, 110)
    assert scale.x(start) == 10
    assert scale.x(end) == 110
    assert 10 <= scale.x(time) <= 110
    assert scale.holds(time) == (start <= time <= end)


def test_neighbouring_nanoseconds_of_this_century_are_distinguished() -> None:
    now = 1_795_250_333_149_000_000
    scale = Scale(now, now + 4, 0, 100)
    assert [scale.x(now + i) for i in range(5)] == [0, 25, 50, 75, 100]


@given(st.integers(1, MAX_NS), st.integers(1, 100))
def test_a_step_divides_the_span_into_no_more_parts_than_asked(span: int, most: int) -> None:
    step = tick_step(span, most)
    assert step * most >= span
    # No two neighbouring steps are more than three times apart (2 h to 6 h would be).
    assert step == 1 or step * most <= 3 * (span + most)


@pytest.mark.parametrize(
    ("span", "most", "label"),
    [
        (10, 10, "1 ns"),
        (1_500, 4, "500 ns"),
        (SECOND, 4, "500 ms"),
        (10 * SECOND, 10, "1 s"),
        (60 * SECOND, 5, "15 s"),
        (3_600 * SECOND, 5, "15 min"),
        (86_400 * SECOND, 8, "3 h"),
        (100 * 86_400 * SECOND, 10, "10 d"),
    ],
)
def test_ticks_are_a_step_that_people_count_in(span: int, most: int, label: str) -> None:
    step = tick_step(span, most)
    assert tick_label(step, step) == label


def test_all_labels_of_an_axis_have_the_unit_of_its_step() -> None:
    assert [tick_label(i * 500_000_000, 500_000_000) for i in range(4)] == ["0 ms", "500 ms", "1000 ms", "1500 ms"]
    assert tick_label(120 * SECOND, 30 * SECOND) == "120 s"
