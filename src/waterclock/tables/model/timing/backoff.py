"""Computes how long, in ns, a failed message waits for its retry. The delay depends on its number of failures."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

LONGEST = 365 * 86_400_000_000_000  # maximum delay, a year (ns), for any options, so that doubling never overflows


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential back-off (message tables, "Exponential backoff")."""

    base: int  # the shortest delay, ns
    longest: int | None  # the longest delay, ns; None: `LONGEST`
    # Fraction by which the delay varies either way from the second failure on, so that messages that failed together do
    # not return together.
    jitter: float

    @property
    def limit(self) -> int:
        """The longest delay, ns."""
        return max(self.base, LONGEST if self.longest is None else min(self.longest, LONGEST))

    @property
    def doublings(self) -> int:
        """How often the base can double before it reaches the limit."""
        return max(0, (self.limit - 1) // max(self.base, 1)).bit_length()

    def delay(self, failures: int, swing: float) -> int:
        """Return the delay after the first failure and ``failures`` more, ns; ``swing`` is random, from -1 to 1."""
        if failures <= 0:
            return self.base
        grown = self.limit if failures >= self.doublings else self.base << failures
        return min(max(self.base, int(grown * (1 + self.jitter * swing))), self.limit)

    def delay_sql(self, failures: sa.ColumnElement[int], swing: sa.ColumnElement[float]) -> sa.ColumnElement[int]:
        """Return `delay` as an SQL expression, which may exceed the base and the limit by the jitter."""
        base, limit = sa.literal(self.base, sa.BigInteger), sa.literal(self.limit, sa.BigInteger)
        # PostgreSQL shifts by 32-bit integers only, so limit the number before the cast.
        shift = sa.cast(sa.case((failures >= self.doublings, 0), else_=failures), sa.Integer)
        grown = sa.case((failures >= self.doublings, limit), else_=base.bitwise_lshift(shift))
        jittered = sa.cast(grown * (1 + self.jitter * swing), sa.BigInteger)
        return sa.case((failures <= 0, base), else_=jittered)
