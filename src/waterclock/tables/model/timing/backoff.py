"""The wait before a message is sent again. Pure: takes the number of deliveries, returns ns."""

from __future__ import annotations

from dataclasses import dataclass, field

import sqlalchemy as sa

LONGEST = 365 * 86_400_000_000_000
"""Maximum wait, a year (ns), for any options, so that doubling never overflows."""

LONGEST_GIVEN = 50 * LONGEST
"""Maximum ``ack_wait`` and ``min_backoff`` (ns), fifty years: their sum with jitter ends before 2262, the end of int64
time. Beyond it SQLite would store a fraction and the servers refuse the statement.
"""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential back-off (message tables, "Exponential backoff").

    A message waits ``ack_wait`` for its first ack, twice that for the second, and so on. With ``min_backoff``, as in
    later message tables, each attempt waits ``ack_wait`` for its ack and then backs off for ``min_backoff``, twice
    that, and so on.

    Attributes
    ----------
    ack_wait, min_backoff, max_backoff
        In ns. ``max_backoff`` limits the growing part.
    jitter
        Fraction by which the growing part varies either way from the second attempt on, so that messages that failed
        together do not return together.
    first
        The shortest `wait`: that of a message sent for the first time, ns.
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
        """Return the back-off after the first attempt and ``failures`` more, ns.

        Parameters
        ----------
        swing
            The random part, from -1 to 1.
        """
        if failures <= 0:
            return self.base
        grown = self.limit if failures >= self.doublings else self.base << failures
        return min(max(self.base, int(grown * (1 + self.jitter * swing))), self.limit)

    def wait(self, epoch: int, swing: float) -> int:
        """Return how long to wait before sending a message again that was sent ``epoch`` times before, ns."""
        delay = self.delay(epoch, swing)
        return delay if self.min_backoff is None else self.ack_wait + delay

    def wait_sql(self, epoch: sa.ColumnElement[int], swing: sa.ColumnElement[float]) -> sa.ColumnElement[int]:
        """Return `wait` as an SQL expression, without the limits after the jitter, which depend on the database.

        The jitter may exceed the limits: clamp the result to `wait_bounds`.
        """
        base, limit = sa.literal(self.base, sa.BigInteger), sa.literal(self.limit, sa.BigInteger)
        # PostgreSQL shifts by 32-bit integers only, so limit the epoch before the cast.
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
