"""The share of messages that are in their own window: delays, clocks that disagree and silences, and the remedies."""

from __future__ import annotations

import pytest
from tests.batching.rate.placing.own_windows import Arrivals, delayed, disordered, off, share, silent

pytestmark = pytest.mark.filterwarnings("ignore::waterclock.errors.OutsideWindowWarning")


@pytest.mark.parametrize(
    ("arrivals", "default", "waiting", "auto"),
    [
        pytest.param(delayed(0), 100, 100, 100, id="on time"),
        pytest.param(delayed(0.5), 89, 100, 100, id="0.5 s of delay"),
        pytest.param(delayed(1), 65, 100, 99, id="1 s of delay"),
        pytest.param(delayed(1.5), 50, 100, 99, id="1.5 s of delay"),
        pytest.param(off(0, 0.01), 90, 100, 100, id="a clock that gains 10 ms/s"),
        pytest.param(off(0, -0.01), 89, 100, 100, id="a clock that loses 10 ms/s"),
        pytest.param(off(1), 70, 100, 100, id="a clock set by 1 s"),
        pytest.param(off(2.5), 58, 82, 59, id="a clock set by 2.5 s"),
        pytest.param(off(5), 58, 58, 58, id="a clock set by 5 s"),
        pytest.param(off(-30), 58, 58, 58, id="a clock set back by 30 s"),
        pytest.param(disordered(1), 77, 78, 78, id="up to 1 s of disorder"),
        pytest.param(disordered(2), 45, 48, 46, id="up to 2 s of disorder"),
        pytest.param(silent(1), 100, 100, 100, id="a silence of an hour"),
        pytest.param(silent(1000), 100, 100, 100, id="a silence of 1000 hours"),
    ],
)
def test_a_longer_timeout_puts_late_messages_in_their_own_windows(
    arrivals: Arrivals, default: int, waiting: int, auto: int
) -> None:
    shares = [share(arrivals), share(arrivals, timeout="3s"), share(arrivals, timeout="auto")]
    assert [round(percentage) for percentage in shares] == [default, waiting, auto]
