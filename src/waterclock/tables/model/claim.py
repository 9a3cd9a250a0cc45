"""What a claim asks for, what it takes, and from where on the next one looks for new messages of groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from waterclock import moments
from waterclock.tables.model.backoff import Backoff

LOOK_BACK_EVERY = 1.0
"""Seconds after which a claim looks from the very first message again."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A message that was claimed.

    Attributes
    ----------
    row
        As it was before the claim: its columns as attributes.
    lease_until
        When it will be sent again, ns.
    expired
        Whether it had expired, so that it is removed instead of being handed out.
    """

    row: Any
    lease_until: int
    expired: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """A claim of messages; choice and order are for tables without groups, ``max_groups`` is for those with.

    Attributes
    ----------
    limit
        How many at the most.
    consumer
        Who claims.
    claim_id
        A number that no other claim has; it fences the acks.
    backoff
        How long the messages are not sent again.
    where
        Which messages; None: all.
    order
        What comes first, instead of the highest priority and then the oldest due.
    max_groups
        How many exclusive groups the consumer has at the most; None: any number.
    known
        What is known to be taken in an earlier try, whose answer was lost; None: there was none.
    """

    limit: int
    consumer: str | None
    claim_id: int
    backoff: Backoff
    where: sa.ColumnElement[bool] | None = None
    order: tuple[sa.ColumnElement[Any], ...] = ()
    max_groups: int | None = None
    known: frozenset[int] | None = None


class Reached:
    """Up to which seq a table with groups has been seen to have no message that must be routed.

    As with the marks of a claim: what was routed stays in a database's index for a while, and who looked for new
    messages from the very first one on would step over all of it at each claim.

    Safe to share between threads.

    Attributes
    ----------
    per_group
        How many messages a group gave in the last claim, or might have: so the next one knows how many it takes.
    """

    def __init__(self) -> None:
        self.per_group = 1
        self._seen: tuple[int, float] | None = None

    def now(self) -> int | None:
        """Give the seq; None once it is too old."""
        seen = self._seen
        return None if seen is None or moments.monotonic() - seen[1] >= LOOK_BACK_EVERY else seen[0]

    def note(self, seq: int) -> None:
        """Note that nothing must be routed up to ``seq``."""
        self._seen = (seq, moments.monotonic())

    def forget(self) -> None:
        """Begin at the very first message again."""
        self._seen = None
