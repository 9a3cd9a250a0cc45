"""When the pulses of a stream are due: turns an event time into a pulse, and a pulse into a window."""

from __future__ import annotations

from typing import NamedTuple

DRIFT_TOLERANCE = 1_000_000
"""A window that begins at most this long after a pulse (ns) begins on it: what rounding can amount to."""

_SECOND = 1_000_000_000


class PulseGrid(NamedTuple):
    """The pulses of one stream, equally far apart forever.

    A message belongs to the pulse nearest to it, so that it may be half a period early or late. A pulse belongs to the
    window in which it is due. Every pulse thus belongs to exactly one of the windows that follow each other.

    Attributes
    ----------
    origin
        When one of the pulses is due, ns.
    rate
        Pulses a second, whole. The period 1/rate is never rounded, so that the grid does not drift.

    Notes
    -----
    Source: *RateAwareMessageBatcher*, "PulseGrid" and "Jitter tolerance". If a batch length is not a multiple of the
    period, its windows hold one pulse more or less by turns; its ``slots_per_batch`` is then their mean.
    """

    origin: int
    rate: int

    def first_pulse(self, start: int) -> int:
        """Return the number of the first pulse of a window that begins at ``start`` (ns)."""
        number, past = divmod((start - self.origin) * self.rate, _SECOND)
        on_a_pulse = past <= min(DRIFT_TOLERANCE * self.rate, _SECOND // 2)
        return number if on_a_pulse else number + 1

    def earliest(self, pulse: int) -> int:
        """Find the least event time (ns) that is nearest to the pulse of this number or a later one."""
        return self.origin - (1 - 2 * pulse) * _SECOND // (2 * self.rate)
