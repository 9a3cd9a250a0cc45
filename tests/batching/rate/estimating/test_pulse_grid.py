"""The grid turns event times into pulses, and pulses into windows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.batching.rate.traffic import SECOND, T0

from waterclock.batching.rate.pulse_grid import PulseGrid

origins = st.integers(T0, T0 + SECOND)
grids = st.builds(PulseGrid, origins, st.integers(1, 10_000), st.just(SECOND)) | st.builds(
    PulseGrid, origins, st.just(1), st.integers(10, SECOND)
)


def nearest_pulse(grid: PulseGrid, event_time: int) -> int:
    """Give the number of the pulse that a message belongs to, from 0 at the origin; of two equally near the later."""
    return (2 * (event_time - grid.origin) * grid.rate + grid.per) // (2 * grid.per)


def slots(grid: PulseGrid, start: int, length: int) -> int:
    """Count the pulses of a window."""
    return grid.first_pulse(start + length) - grid.first_pulse(start)


@given(grids, st.integers(-(10**12), 10**12))
def test_a_message_belongs_to_the_nearest_pulse(grid: PulseGrid, after: int) -> None:
    event_time = grid.origin + after
    twice = 2 * (event_time * grid.rate - grid.origin * grid.rate - nearest_pulse(grid, event_time) * grid.per)
    assert -grid.per <= twice < grid.per


@given(grids, st.integers(-(10**9), 10**9))
def test_the_earliest_time_of_a_pulse_is_the_first_that_is_nearest_to_it(grid: PulseGrid, pulse: int) -> None:
    earliest = grid.earliest(pulse)
    assert nearest_pulse(grid, earliest) >= pulse
    assert nearest_pulse(grid, earliest - 1) < pulse


def test_a_window_that_begins_on_a_pulse_to_within_a_millisecond_holds_it() -> None:
    grid = PulseGrid(T0, 14)
    assert grid.first_pulse(T0) == 0
    assert grid.first_pulse(T0 + 1_000_000) == 0
    assert grid.first_pulse(T0 + 1_000_001) == 1
    assert grid.first_pulse(T0 - 1) == 0


def test_at_high_rates_the_tolerance_is_half_a_period() -> None:
    grid = PulseGrid(T0, 10_000)
    assert grid.first_pulse(T0 + 50_000) == 0
    assert grid.first_pulse(T0 + 50_001) == 1


def test_a_phase_offset_of_40_ms_leaves_all_slots() -> None:
    grid = PulseGrid(T0 + 40_000_000, 14)
    assert grid.first_pulse(T0) == 0
    assert slots(grid, T0, SECOND) == 14
    assert slots(grid, T0, 2 * SECOND) == 28


@given(grids, st.integers(0, 10**12), st.integers(1, 10**10))
def test_windows_that_follow_each_other_share_the_pulses_out(grid: PulseGrid, after: int, length: int) -> None:
    start = grid.origin + after
    together = slots(grid, start, length) + slots(grid, start + length, length)
    assert together == slots(grid, start, 2 * length)
    assert slots(grid, start, length) >= 0


def test_a_grid_does_not_drift_in_a_year() -> None:
    grid = PulseGrid(T0, 14)
    year = 365 * 86_400
    assert nearest_pulse(grid, T0 + year * SECOND) == year * 14
    assert grid.first_pulse(T0 + year * SECOND) == year * 14
