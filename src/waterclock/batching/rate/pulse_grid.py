"""The pulses of a stream and the times at which they are due. Maps event times to pulses, and pulses to windows."""

from __future__ import annotations

from typing import NamedTuple

DRIFT_TOLERANCE = 1_000_000
"""A window that begins at most this long after a pulse (ns) begins on it: the maximum rounding error."""

_SECOND = 1_000_000_000


class PulseGrid(NamedTuple):
    """The pulses of one stream, at equal distances without end.

    A message belongs to the pulse nearest to it, so it may be half a period early or late. A pulse belongs to the
    window in which it is due. Each pulse thus belongs to exactly one of consecutive windows.

    Notes
    -----
    Source: *RateAwareMessageBatcher*, "PulseGrid" and "Jitter tolerance". If a batch length is not a multiple of the
    period, its windows alternate between two numbers of pulses; its ``slots_per_batch`` is their mean.
    """

    origin: int  # the time of one of the pulses, ns
    rate: int  # Pulses in each ``per``, whole. The period is never rounded, so that the grid does not drift.
    per: int = _SECOND  # a second, ns; or, of a stream without a whole rate, its period

    def first_pulse(self, start: int) -> int:
        """Return the number of the first pulse of a window that begins at ``start`` (ns)."""
        number, past = divmod((start - self.origin) * self.rate, self.per)
        on_a_pulse = past <= min(DRIFT_TOLERANCE * self.rate, self.per // 2)
        return number if on_a_pulse else number + 1

    def earliest(self, pulse: int) -> int:
        """Find the least event time (ns) that is nearest to the pulse of this number or a later one."""
        return self.origin - (1 - 2 * pulse) * self.per // (2 * self.rate)
