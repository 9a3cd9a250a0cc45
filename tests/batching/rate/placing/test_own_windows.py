"""The share of messages that are in their own window: delays, clocks that disagree and silences, and the remedies."""

from __future__ import annotations

from typing import Any

import pytest
from tests.batching.rate.placing.own_windows import (
    Arrivals,
    creeping,
    delayed,
    disordered,
    off,
    share,
    silent,
    sparse_log,
)

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


@pytest.mark.parametrize(
    ("arrivals", "options", "without", "with_"),
    [
        pytest.param(creeping(0.01), {"clocks": "align"}, 56.9, 100, id="a clock that gains 10 ms/s"),
        pytest.param(off(1), {"clocks": "align"}, 70.2, 99.6, id="a clock set by 1 s"),
        pytest.param(off(2.5), {"clocks": "align"}, 58.3, 99.6, id="a clock set by 2.5 s"),
        pytest.param(off(5), {"clocks": "align"}, 58.3, 99.6, id="a clock set by 5 s"),
        pytest.param(off(-30), {"clocks": "align"}, 58.3, 99.6, id="a clock set back by 30 s"),
        pytest.param(disordered(1), {"max_disorder": "1s"}, 77.3, 100, id="up to 1 s of disorder"),
        pytest.param(disordered(2), {"max_disorder": "2s"}, 45.2, 100, id="up to 2 s of disorder"),
        pytest.param(sparse_log(5), {"forget_after": "3s"}, 99.7, 100, id="a log every 5 s while all else is off"),
        pytest.param(sparse_log(60), {"forget_after": "3s"}, 99.6, 100, id="a log every 60 s while all else is off"),
    ],
)
def test_an_option_puts_messages_in_their_own_windows(
    arrivals: Arrivals, options: dict[str, Any], without: float, with_: float
) -> None:
    assert [round(share(arrivals), 1), round(share(arrivals, **options), 1)] == [without, with_]
