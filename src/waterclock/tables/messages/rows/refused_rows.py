"""Working on many rows where the database may refuse some: a foreign key to one, or a user's trigger."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from waterclock.errors import ForbiddenError, InvalidArgumentError, RefusedError, WaterclockError

MOST_TRIES = 200
"""Transactions that one call tries: enough to pass by ten refused rows of a thousand, at two a halving."""


_T = TypeVar("_T")


def pass_by_refused(
    items: Sequence[_T],
    work: Callable[[Sequence[_T]], int],
    tries: int = MOST_TRIES,
    *,
    last_first: bool = False,
) -> tuple[int, WaterclockError | None, list[_T], list[_T]]:
    """Work on rows or groups together, and on halves of those that are refused, so that one row keeps no other.

    Parameters
    ----------
    last_first
        Narrow the last part down to its last row first, instead of all parts alike.

    Returns
    -------
    tuple
        The sum of what ``work`` returned, the last refusal, what was refused on its own, and what was refused with
        others and is left.
    """
    done, refusal = 0, None
    refused: list[_T] = []
    left = deque([items] if items else [])
    for _ in range(tries):
        if not left:
            break
        part = left.pop() if last_first else left.popleft()
        try:
            done += work(part)
        except ForbiddenError:  # a missing privilege concerns all rows
            raise
        except (RefusedError, InvalidArgumentError) as error:
            refusal = error
            middle = len(part) // 2
            if middle:
                left += [part[:middle], part[middle:]]
            else:
                refused += part
    return done, refusal, refused, [one for part in left for one in part]
