"""Working on many rows where the database may refuse some: a foreign key to one, or a user's trigger."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from waterclock.errors import ForbiddenError, InvalidArgumentError, RefusedError, WaterclockError

MOST_TRIES = 200
"""Transactions that one call tries: enough to pass by ten refused rows of a thousand, at two a halving."""


def pass_by_refused(seqs: Sequence[int], work: Callable[[Sequence[int]], int]) -> tuple[int, WaterclockError | None]:
    """Work on rows together, and on halves of those that are refused, so that one row keeps no other.

    Returns
    -------
    tuple
        The sum of what ``work`` returned, and the last refusal.
    """
    done, refused = 0, None
    left = deque([seqs])
    for _ in range(MOST_TRIES):
        if not left:
            break
        part = left.popleft()
        try:
            done += work(part)
        except ForbiddenError:  # a missing privilege concerns all rows
            raise
        except (RefusedError, InvalidArgumentError) as error:
            refused = error
            middle = len(part) // 2
            if middle:
                left += [part[:middle], part[middle:]]
    return done, refused
