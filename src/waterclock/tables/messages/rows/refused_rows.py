"""Runs statements on many rows, some of which the database may refuse because of a foreign key or a user's trigger."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from waterclock.errors import ForbiddenError, InvalidArgumentError, RefusedError, WaterclockError

MOST_TRIES = 200
"""Maximum transactions that one call tries: enough to skip ten refused rows of a thousand, with two per halving."""


_T = TypeVar("_T")


def pass_by_refused(
    items: Sequence[_T],
    work: Callable[[Sequence[_T]], int],
    tries: int = MOST_TRIES,
    *,
    last_first: bool = False,  # narrow the last part down to its last row first, instead of all parts equally
) -> tuple[int, WaterclockError | None, list[_T], list[_T]]:
    """Work on rows or groups together, and on halves of refused parts, so that one row blocks no other.

    Returns the sum of the results of ``work``, the last refusal, the rows refused alone, and the rows refused with
    others.
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
        except ForbiddenError:  # a missing privilege affects all rows
            raise
        except (RefusedError, InvalidArgumentError) as error:
            refusal = error
            middle = len(part) // 2
            if middle:
                left += [part[:middle], part[middle:]]
            else:
                refused += part
    return done, refusal, refused, [one for part in left for one in part]
