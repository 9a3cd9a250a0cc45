"""What a claim asks for, what it takes, and from where on the next one looks for new messages of groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from waterclock._support import moments
from waterclock.tables.model.timing.backoff import Backoff

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
    claim_id
        The number of the claim that took it; None: of the one that gives it.
    """

    row: Any
    lease_until: int
    expired: bool = False
    claim_id: int | None = None


@dataclass(slots=True)
class Unanswered:
    """A consumer's claim, and those before it of which an answer was lost.

    Attributes
    ----------
    claim_id
        Its own number.
    since
        When the answer was lost, by the claim's number, in ns of the monotonic clock.
    known
        What the consumer knows that those claims took: seqs, each with the claim's number.
    """

    claim_id: int
    since: dict[int, int] = field(default_factory=dict[int, int])
    known: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])

    def doubt(self, now: int) -> None:
        """Note that the claim's own answer was lost."""
        self.since[self.claim_id] = now

    def note(self, claimed: Iterable[Claimed]) -> None:
        """Note what the consumer has got."""
        pairs = ((one.row.seq, self.claim_id if one.claim_id is None else one.claim_id) for one in claimed)
        self.known.update(pair for pair in pairs if pair[1] in self.since)

    def join(self, former: Unanswered) -> None:
        """Add what another claim had."""
        self.since |= former.since
        self.known |= former.known

    def forget(self, before: int) -> bool:
        """Forget the claims whose answer was lost before then; say whether some are left."""
        self.since = {claim: lost_at for claim, lost_at in self.since.items() if lost_at >= before}
        self.known = {pair for pair in self.known if pair[1] in self.since}
        return bool(self.since)


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
    unanswered
        The consumer's claims of which an answer was lost, in a table with exclusive groups.
    """

    limit: int
    consumer: str | None
    claim_id: int
    backoff: Backoff
    where: sa.ColumnElement[bool] | None = None
    order: tuple[sa.ColumnElement[Any], ...] = ()
    max_groups: int | None = None
    unanswered: Unanswered | None = None


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
