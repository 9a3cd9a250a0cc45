"""Computes how long a claim leases a message, from its number of deliveries.

A message that is not acked is sent again when its lease ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import sqlalchemy as sa

from waterclock.tables.model.timing.backoff import LONGEST, Backoff

LONGEST_GIVEN = 50 * LONGEST
"""Maximum ``ack_wait`` and ``min_backoff`` (ns), fifty years: their sum with jitter ends before 2262, the end of int64
time. Beyond it SQLite would store a fraction and the servers refuse the statement.
"""


def beat_after(lease: int) -> int:
    """Return how long after a lease of this length began it is extended, ns: when a third of it remains."""
    return lease * 2 // 3


@dataclass(frozen=True, slots=True)
class LeaseLength:
    """The length of a lease, which includes the back-off if the message is not acked.

    By default the first lease is as long as the table's ``ack_wait``, the second twice as long, and so on. With
    ``min_backoff``, each lease is ``ack_wait`` and then a back-off: ``min_backoff``, twice that, and so on.
    """

    wait: int  # ns before the back-off; 0 if ``ack_wait`` is itself the back-off's base
    backoff: Backoff
    shortest: int = field(init=False, compare=False)  # of a message that is sent for the first time, ns
    first_beat: int = field(init=False, compare=False)  # how long after such a lease began it is extended, ns

    def __post_init__(self) -> None:
        object.__setattr__(self, "shortest", self.of(0, 0.0))
        object.__setattr__(self, "first_beat", beat_after(self.shortest))

    @property
    def bounds(self) -> tuple[int, int]:
        """The shortest and the longest lease, ns."""
        return self.shortest, self.wait + self.backoff.limit

    def of(self, epoch: int, swing: float) -> int:
        """Return the lease of a message that was sent ``epoch`` times before, ns; ``swing`` is random, from -1 to 1."""
        return self.wait + self.backoff.delay(epoch, swing)

    def sql(self, epoch: sa.ColumnElement[int], swing: sa.ColumnElement[float]) -> sa.ColumnElement[int]:
        """Return `of` as an SQL expression. Clamp the result to `bounds`, which the jitter may exceed."""
        delay = self.backoff.delay_sql(epoch, swing)
        return self.wait + delay if self.wait else delay
