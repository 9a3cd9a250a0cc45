"""How long to wait before a message is sent again. Pure: takes how often it was sent, returns nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass, field

import sqlalchemy as sa

LONGEST = 365 * 86_400_000_000_000
"""No wait grows beyond a year (ns), for any options, so that doubling never overflows."""

LONGEST_GIVEN = 50 * LONGEST
"""The longest ``ack_wait`` and ``min_backoff`` that a table can have (ns), fifty years: both together, with jitter, end
before the end of time, 2262, beyond which SQLite stores a fraction and the servers refuse the statement."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential back-off (message tables, "Exponential backoff").

    A message waits ``ack_wait`` for its first ack, twice that for the second, and so on. With ``min_backoff`` the
    rule is that of later message tables: each attempt waits ``ack_wait`` for its ack and then backs off for
    ``min_backoff``, twice that, and so on.

    Attributes
    ----------
    ack_wait, min_backoff, max_backoff
        ns. ``max_backoff`` bounds the growing part.
    jitter
        Fraction by which the growing part may vary either way from the second attempt on, so that messages that
        failed together do not return together.
    first
        The shortest `wait`: that of a message that is sent for the first time, ns.
    """

    ack_wait: int
    min_backoff: int | None
    max_backoff: int | None
    jitter: float
    first: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", self.wait(0, 0.0))

    @property
    def base(self) -> int:
        """The shortest back-off, ns."""
        return self.ack_wait if self.min_backoff is None else self.min_backoff

    @property
    def limit(self) -> int:
        """The longest back-off, ns."""
        return max(self.base, LONGEST if self.max_backoff is None else min(self.max_backoff, LONGEST))

    @property
    def doublings(self) -> int:
        """How often the base can double before it reaches the limit."""
        return max(0, (self.limit - 1) // max(self.base, 1)).bit_length()

    def delay(self, failures: int, swing: float) -> int:
        """Back-off after the first attempt and ``failures`` more, ns.

        Parameters
        ----------
        swing
            The chance in it, from -1 to 1.
        """
        if failures <= 0:
            return self.base
        grown = self.limit if failures >= self.doublings else self.base << failures
        return min(max(self.base, int(grown * (1 + self.jitter * swing))), self.limit)

    def wait(self, epoch: int, swing: float) -> int:
        """How long a message that was sent ``epoch`` times before is out until it is sent again, ns."""
        delay = self.delay(epoch, swing)
        return delay if self.min_backoff is None else self.ack_wait + delay

    def wait_sql(self, epoch: sa.ColumnElement[int], swing: sa.ColumnElement[float]) -> sa.ColumnElement[int]:
        """Write `wait` as an SQL expression, but for the bounds after the jitter, which each database spells its way.

        The result may lie beyond the bounds by the jitter: clamp it to `wait_bounds`.
        """
        base, limit = sa.literal(self.base, sa.BigInteger), sa.literal(self.limit, sa.BigInteger)
        # PostgreSQL shifts by 32-bit integers only, so the epoch must be small before it becomes one.
        shift = sa.cast(sa.case((epoch >= self.doublings, 0), else_=epoch), sa.Integer)
        grown = sa.case((epoch >= self.doublings, limit), else_=base.bitwise_lshift(shift))
        jittered = sa.cast(grown * (1 + self.jitter * swing), sa.BigInteger)
        delay = sa.case((epoch <= 0, base), else_=jittered)
        return delay if self.min_backoff is None else self.ack_wait + delay

    @property
    def wait_bounds(self) -> tuple[int, int]:
        """The shortest and the longest `wait`, ns."""
        more = 0 if self.min_backoff is None else self.ack_wait
        return self.first, self.limit + more
