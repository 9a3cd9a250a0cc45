"""The data of a claim: the request, the messages that it leases, and the start of the next search for groups."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock._support import moments
from waterclock.tables.model.claims.bounds import DrawnSeqs, GroupBounds, ProvenBound, SavedBounds
from waterclock.tables.model.claims.leased_bound import LeasedBound
from waterclock.tables.model.timing.lease_length import LeaseLength
from waterclock.time import MIN_NS, NS_PER

FIRST_SEQ, LAST_SEQ = -(2**63), 2**63 - 1  # plain SQL may set any seq
LOOK_BACK_EVERY = 1.0  # seconds after which a claim searches again from the first message


class Claimed(NamedTuple):
    """A message that was claimed."""

    # The row before the claim: its columns as attributes.
    row: Any
    lease_until: int  # when it will be sent again, ns
    expired: bool = False  # whether it had expired, and so must be removed and not handed out
    claim_id: int | None = None  # the id of the claim that took it; None: of the current claim
    is_first: bool = False  # whether it is the first message that the owner of its group gets of it


@dataclass(slots=True)
class Unanswered:
    """A consumer's claim, and its earlier claims whose answer was lost."""

    claim_id: int
    since: dict[int, int] = field(default_factory=dict[int, int])
    """When the answer was lost, by claim id, in ns of the monotonic clock."""
    known: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """The messages of those claims that the consumer knows of: seqs, each with the claim id."""

    def doubt(self, now: int) -> None:
        """Note that the claim's own answer was lost."""
        self.since[self.claim_id] = now

    def note(self, claimed: Iterable[Claimed]) -> None:
        """Note messages that the consumer has received."""
        pairs = ((one.row.seq, self.claim_id if one.claim_id is None else one.claim_id) for one in claimed)
        self.known.update(pair for pair in pairs if pair[1] in self.since)

    def join(self, former: Unanswered) -> None:
        """Add the data of another claim."""
        self.since |= former.since
        self.known |= former.known

    def forget(self, before: int) -> bool:
        """Forget the claims whose answer was lost before then; return whether some are left."""
        self.since = {claim: lost_at for claim, lost_at in self.since.items() if lost_at >= before}
        self.known = {pair for pair in self.known if pair[1] in self.since}
        return bool(self.since)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request for messages; selection and order are for tables without groups, ``max_groups`` for those with."""

    limit: int  # maximum count
    consumer: str | None  # name of the consumer
    claim_id: int  # a unique number, which fences the acks
    lease_length: LeaseLength  # how long the messages are leased
    where: sa.ColumnElement[bool] | None = None  # a selection; None: all
    order: tuple[sa.ColumnElement[Any], ...] = ()  # the order, instead of priority and due time
    max_groups: int | None = None  # maximum number of exclusive groups of the consumer; None: any number
    unanswered: Unanswered | None = None
    """The consumer's claims whose answer was lost, in a table with exclusive groups."""
    about: int | None = None  # about the current time of the server, ns; None: unknown


class Reached:
    """The cursor of routing: the seq up to which no message of a table with groups must be routed.

    As for the cursor of a claim: entries of routed messages stay in an index for a while, and looking for new messages
    from the first one would step over all of them at each claim.

    Thread-safe.
    """

    def __init__(self, bounds: str | None = None, now: int = 0) -> None:
        # How many messages a group had, or might have had, in the last claim, from which the next one computes how many
        # groups to lock.
        self.per_group = 1
        # When the last search began that advances bounds of messages, in seconds of the monotonic clock.
        self.advanced_at = -math.inf
        self.searches_left = 0  # how many such searches are to follow soon
        self.saved = SavedBounds(bounds)  # the bounds as the database has them
        routed, due, sleeping, checked = self.saved.read(now)
        self.routed = ProvenBound(FIRST_SEQ, routed, checked)  # the bound below which no message must be routed
        self.drawn = DrawnSeqs()  # the seqs drawn before its searches, on a database that hides the ids of transactions
        # The bounds of when groups are due. Without groups, those of messages; if keys take turns, those of turns.
        self.groups = GroupBounds()
        self.groups.start(due, checked)
        self.sleeping = GroupBounds()  # the bounds of until when rows of keys sleep, by their ``is_due``
        self.sleeping.start({0: MIN_NS, 2: MIN_NS, **sleeping}, checked)
        self.leased = LeasedBound()  # the bound of when messages of limited keys were leased
        self._seen: tuple[int, float] | None = None
        self._clock: tuple[float, int] | None = None  # as of `note_clock`

    def note_clock(self, began: float, now: int) -> None:
        """Note the server's time, ns, that a statement read which began at a time of the monotonic clock."""
        self._clock = began, now

    def about_now(self) -> int | None:
        """Return about the server's time, ns, or a little more; None: unknown."""
        if self._clock is None:
            return None
        began, now = self._clock
        return now + int((moments.monotonic() - began) * NS_PER["s"])

    def now(self) -> int | None:
        """Return the seq at which a search for new messages may begin; None once it is too old."""
        seen = self._seen
        return None if seen is None or moments.monotonic() - seen[1] >= LOOK_BACK_EVERY else seen[0]

    def note(self, seq: int) -> None:
        """Note that no message up to ``seq`` must be routed."""
        self._seen = (min(seq + 1, LAST_SEQ), moments.monotonic())

    def forget(self) -> None:
        """Start at the bound again."""
        self._seen = None

    def restart_routing(self) -> None:
        """Start at the first message again, because new messages may be below the bound."""
        self.routed.reset()
        self.drawn.clear()


class Leased(NamedTuple):
    """A message as its consumer sees it."""

    # Key of the row, and id of the message.
    seq: int
    id: Any
    claim_id: int  # the id of the claim that took it; any later operation of another consumer changes it in the row
    # Its group and its position; None if it is ungrouped.
    group_id: str | None
    position: int | None
    due: int  # when it was due before it was claimed, ns
    epoch: int  # how often it has been sent


class Held(NamedTuple):
    """The database's view of a leased message."""

    until: int  # when the lease ends now, ns
    cancelled: bool  # whether the message was cancelled meanwhile


class Acked(NamedTuple):
    """The exceptions of an ack of leased messages; all others were acked."""

    lost: frozenset[Leased]  # messages whose lease was lost, which are unchanged
    again: int  # how many were already acked by the same claim, or by a statement whose answer was lost
