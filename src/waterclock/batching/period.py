"""How often a stream sends, estimated from the event times of its messages."""

from __future__ import annotations

from collections import deque

from waterclock.time import MAX_NS

KEPT_DIFFERENCES = 32
MIN_DIFFERENCES = 4
NEVER = MAX_NS + 1
"""Later than every event time."""

_SECOND = 1_000_000_000
_SNAP_RELATIVE = 0.1
_SNAP_ABSOLUTE_HZ = 0.1


class StreamPeriodEstimator:
    """Estimates a stream's rate from the differences between its event times.

    Keeps the last 32 differences. Splits (difference 0) and messages out of order (negative) leave none.

    Attributes
    ----------
    newest
        Newest event time observed, ns; `NEVER` before the first.
    differences
        The differences kept, ns, oldest first.

    Notes
    -----
    Source: *RateAwareMessageBatcher*, "StreamPeriodEstimator".
    """

    __slots__ = ("differences", "newest")

    def __init__(self, kept: int = KEPT_DIFFERENCES) -> None:
        self.newest = NEVER
        self.differences: deque[int] = deque(maxlen=kept)

    def observe(self, event_time: int, set_back: int = NEVER) -> None:
        """Take note of a message.

        Parameters
        ----------
        event_time
            Of the message, ns.
        set_back
            Where a message is further behind the newest than this (ns), the newest was wild or the stream's clock was
            set back, and differences count from this message on. Else one wild time would silence the estimator until
            the stream has caught up with it.
        """
        difference = event_time - self.newest
        if difference > 0:
            self.differences.append(difference)
            self.newest = event_time
        elif self.newest == NEVER or -difference > set_back:
            self.newest = event_time

    def forget(self) -> None:
        """Begin anew."""
        self.newest = NEVER
        self.differences.clear()

    @property
    def rate(self) -> int | None:
        """The rate in whole Hz, or None below 4 differences, below 1 Hz, or where it is not near a whole number.

        1. The median of the differences is a first guess at the period.
        2. Each difference is divided by the number of periods nearest to it, at least one: a missed pulse leaves a
           difference of two periods.
        3. The median of these is the period; its rate is rounded to whole Hz where that changes it by at most 10 % or
           0.1 Hz, whichever is more.
        """
        kept = sorted(self.differences)
        count = len(kept)
        if count < MIN_DIFFERENCES:
            return None
        # Twice the median, to stay in whole numbers: half a nanosecond matters at 10 kHz.
        double = kept[(count - 1) // 2] + kept[count // 2]
        one_pulse_each = 4 * kept[0] >= double and 4 * kept[-1] < 3 * double
        period = double / 2 if one_pulse_each else _median_per_pulse(kept, double)
        raw = _SECOND / period
        rate = int(raw + 0.5)
        if rate < 1 or abs(raw - rate) > max(_SNAP_RELATIVE * rate, _SNAP_ABSOLUTE_HZ):
            return None
        return rate


def _median_per_pulse(kept: list[int], double: int) -> float:
    pulses = ((difference, (4 * difference + double) // (2 * double)) for difference in kept)
    per_pulse = sorted(difference / periods for difference, periods in pulses if periods >= 1)
    count = len(per_pulse)
    return (per_pulse[(count - 1) // 2] + per_pulse[count // 2]) / 2
