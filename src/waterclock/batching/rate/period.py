"""Estimates the rate of a stream from the event times of its messages."""

from __future__ import annotations

from collections import deque

from waterclock.time import MAX_NS

KEPT_DIFFERENCES = 32
MIN_DIFFERENCES = 4
STABLE_DIFFERENCES = 16
"""Beyond *RateAwareMessageBatcher*: a stream without a whole rate needs so many differences for a period of its own."""

LONGEST_DIFFERENCE = 2**57
"""Longer differences (ns) count as this one, so that 32 of them fit 64 bits, and no stream has a period with one."""

NEVER = MAX_NS + 1
"""Later than every event time."""

_SECOND = 1_000_000_000
_SNAP_RELATIVE = 0.1
_SNAP_ABSOLUTE_HZ = 0.1
_NEAR = 8  # a difference is near a multiple of the period if it is off by at most an eighth of the period


class StreamPeriodEstimator:
    """Estimates a stream's rate from the differences between its event times.

    Keeps the last 32 differences. Splits (difference 0) and messages out of order (negative) do not count.

    Notes
    -----
    Source: *RateAwareMessageBatcher*, "StreamPeriodEstimator".
    """

    __slots__ = ("differences", "newest")

    def __init__(self, kept: int = KEPT_DIFFERENCES) -> None:
        self.newest = NEVER  # newest event time observed, ns; `NEVER` before the first
        self.differences: deque[int] = deque(maxlen=kept)  # the differences kept, ns, oldest first

    def observe(self, event_time: int, set_back: int = NEVER) -> None:
        """Record a message.

        Parameters
        ----------
        event_time
            Of the message, ns.
        set_back
            If a message is further behind the newest than this (ns), the newest was wrong or the stream's clock was set
            back, and differences count from this message on. Otherwise one wrong time would stop the estimator until
            the stream catches up with it.
        """
        difference = event_time - self.newest
        if difference > 0:
            self.differences.append(difference)
            self.newest = event_time
        elif self.newest == NEVER or -difference > set_back:
            self.newest = event_time

    def forget(self) -> None:
        """Begin again."""
        self.newest = NEVER
        self.differences.clear()

    @property
    def rate(self) -> int | None:
        """The rate in whole Hz, or None; see `rate_after`."""
        return self.rate_after(None)

    def rate_after(self, current: int | None) -> int | None:
        """Estimate the rate in whole Hz; None below 4 differences, below 1 Hz, or if it is not near a whole number.

        1. The median of the differences is a first guess at the period.
        2. Each difference is divided by the number of periods nearest to it, at least one: a missed pulse leaves a
           difference of two periods.
        3. The median of these is the period; its rate is rounded to whole Hz if that changes it by at most 10 % or
           0.1 Hz, whichever is more.

        Beyond *RateAwareMessageBatcher*: if less than half of the differences are near multiples of that period, and
        three in four are near multiples of the period that follows from the lower quartile, the latter is used.

        Parameters
        ----------
        current
            The rate in use, Hz. It is kept while the estimate differs from it by no more than rounding, and jitter
            makes the new one uncertain: the median of 32 differences at 14 Hz with 10 ms of jitter is 15 Hz at times.
        """
        kept = self._sorted()
        count = len(kept)
        if count < MIN_DIFFERENCES:
            return None
        # Twice the median, to keep whole numbers: half a nanosecond matters at 10 kHz.
        double = kept[(count - 1) // 2] + kept[count // 2]
        period, fitting = double / 2, count
        if _NEAR * (double - 2 * kept[0]) > double or _NEAR * (2 * kept[-1] - double) > double:
            period, fitting = _period(kept, double)
            if 2 * fitting < count:
                other, other_fitting = _period(kept, 2 * kept[count // 4])
                if 4 * other_fitting >= 3 * count:
                    period, fitting = other, other_fitting
        raw = _SECOND / period
        if current is not None and 4 * fitting < 3 * count and _is_near(raw, current):
            return current
        rate = int(raw + 0.5)
        return rate if rate >= 1 and _is_near(raw, rate) else None

    def own_period(self) -> int | None:
        """Estimate the period, ns, of a stream without a whole rate; None unless it is stable, and at most a second.

        It is stable if seven in eight of at least 16 differences are near multiples of the period. As no rounding
        corrects it, it is the mean over all differences, which is more exact than their median.
        """
        kept = self._sorted()
        count = len(kept)
        if count < STABLE_DIFFERENCES or kept[-1] == LONGEST_DIFFERENCE:
            return None
        guess, _ = _period(kept, kept[(count - 1) // 2] + kept[count // 2])
        pulses = [max(1, int(difference / guess + 0.5)) for difference in kept]
        period = sum(kept) // sum(pulses)
        off = (abs(difference - period * number) for difference, number in zip(kept, pulses, strict=True))
        fitting = sum(_NEAR * distance <= period for distance in off)
        return period if 0 < period <= _SECOND and 8 * fitting >= 7 * count else None

    def _sorted(self) -> list[int]:
        kept = sorted(self.differences)
        if kept and kept[-1] > LONGEST_DIFFERENCE:
            kept = [min(difference, LONGEST_DIFFERENCE) for difference in kept]
        return kept


def _is_near(raw: float, rate: int) -> bool:
    return abs(raw - rate) <= max(_SNAP_RELATIVE * rate, _SNAP_ABSOLUTE_HZ)


def _period(kept: list[int], double: int) -> tuple[float, int]:
    """Find the period from twice a first guess, and how many differences are near multiples of it."""
    pulses = ((difference, (4 * difference + double) // (2 * double)) for difference in kept)
    per_pulse = sorted(difference / periods for difference, periods in pulses if periods >= 1)
    count = len(per_pulse)
    period = (per_pulse[(count - 1) // 2] + per_pulse[count // 2]) / 2
    off = (abs(difference - period * max(1, int(difference / period + 0.5))) for difference in kept)
    return period, sum(_NEAR * distance <= period for distance in off)
