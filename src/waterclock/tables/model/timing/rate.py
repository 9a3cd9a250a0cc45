"""Computes how many messages a rate limit allows at a given time, and the new state of the limit.

The rule is the generic cell rate algorithm (ITU-T I.371, annex A, "virtual scheduling"). Its whole state is one time,
at which the next message would be due at a steady rate. The rule allows as much as a token bucket of the same size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SECOND = 1_000_000_000
_BURST_SECONDS = 0.1

_TEXT = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)/([smhd])", re.ASCII)
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate limit."""

    per_second: float  # messages per second, greater than 0
    burst: int  # how many may go at once after a pause: over any period, no more than this plus the rate's share

    @classmethod
    def of(cls, per_second: float) -> Rate:
        """Return the limit of an option; its burst is the rate of a tenth of a second, at least one message.

        A burst of a whole second would allow twice the rate in the first second.
        """
        return cls(per_second, max(1, int(per_second * _BURST_SECONDS)))

    @classmethod
    def parse(cls, text: str) -> Rate | None:
        """Return the limit of a text such as ``"10/s"``, per second, minute, hour or day; None if it is invalid."""
        found = _TEXT.fullmatch(text)
        return None if found is None else cls.of(float(found[1]) / _UNITS[found[2]])

    def time_for(self, count: int) -> int:
        """Return how long ``count`` messages take at a steady rate, ns, rounded up so that it never sends more."""
        return -int(-count * _SECOND // self.per_second)

    def allowed(self, due: int, now: int, most: int) -> int:
        """Return how many of ``most`` messages may go at ``now``.

        ``due`` is the state: when the next message is due at a steady rate, ns; 0 for a new limit.
        """
        ahead = max(0, due - now)
        count = int(min(most, max(0, (self.time_for(self.burst) - ahead) * self.per_second // _SECOND)))
        # Rounding may have allowed one too many.
        while count and ahead + self.time_for(count) > self.time_for(self.burst):
            count -= 1
        return count

    def taken(self, due: int, now: int, count: int) -> int:
        """Return the state after ``count`` messages were sent at ``now``, ns."""
        return max(due, now) + self.time_for(count) if count else due

    def anchored(self, due: int, now: int) -> int:
        """Return the state, at most that after a full burst at ``now``; the caller stores it.

        A later state means that the clock was set back, or that the limit was raised. Nothing would go until then.
        """
        return min(due, now + self.time_for(self.burst))

    def free_at(self, due: int) -> int:
        """Return when the next message may go, ns; in the past if one may go now."""
        return due - (self.time_for(self.burst) - self.time_for(1))
