"""What a claim asks for, what it takes, and where the next one may begin to look."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from waterclock import moments
from waterclock.tables.model.backoff import Backoff

LOOK_BACK_EVERY = 1.0
"""Seconds after which a claim looks from the very first message again."""

LOOK_BACK_SHARE = 20
"""Where such a look takes long, the next one comes no sooner than after so many times as long."""

LOOK_BACK_AT_LEAST = 30.0
"""Seconds after which it comes in any case."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A message that was claimed.

    Attributes
    ----------
    row
        As it was before the claim: its columns as attributes.
    lease_until
        When it will be sent again, ns.
    """

    row: Any
    lease_until: int


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
    """

    limit: int
    consumer: str | None
    claim_id: int
    backoff: Backoff
    where: sa.ColumnElement[bool] | None = None
    order: tuple[sa.ColumnElement[Any], ...] = ()
    max_groups: int | None = None


MOST_MARKS = 4
"""Priorities of which a mark is kept: each is asked by itself, so many would cost more than they spare."""


LONG_WALK = 0.002
"""Seconds that a claim takes which finds nothing, before the next one asks first whether anything is due."""

_FADES = 0.97
"""A way that took long by chance is tried again: each time, the duration kept of it is multiplied by this."""


class Walks:
    """Whether it is worth while to ask, before a claim, whether anything is due at all.

    A claim that finds nothing walks through all priorities, and with thousands of them that takes long. One look
    through the index says the same in a tenth of the time, unless few priorities have very many messages. So a claim
    asks where the last one walked for long in vain, as long as to ask takes less than half of that. Safe to share
    between threads.
    """

    def __init__(self) -> None:
        self._walk = 0.0
        self._asking = 0.0
        self._has_walked = False
        self._has_asked = False

    def should_ask(self) -> bool:
        """Say whether the next claim is to ask first."""
        return self._walk >= LONG_WALK and self._asking * 2 <= self._walk

    def walked(self, seconds: float) -> None:
        """Note how long a claim took that found nothing."""
        # The first one also builds its statements, which takes longer than running them.
        self._walk = seconds if self._has_walked else 0.0
        self._has_walked = True
        self._asking *= _FADES

    def found(self) -> None:
        """Note that a claim found something: the next one probably does, too."""
        self._walk = self._asking = 0.0

    def asked(self, seconds: float) -> None:
        """Note how long it took to ask."""
        self._asking = seconds if self._has_asked else 0.0
        self._has_asked = True
        self._walk *= _FADES


class Marks:
    """How far the claims of one consumer have come: for each priority, before which time_next nothing is due any more.

    What was claimed and acked stays in a database's index until no snapshot can see it, and a claim that begins at the
    very first key steps over all of it. With a snapshot held for minutes that made claims seven times as slow. So a
    claim begins where the last one stopped. What a transaction that was long under way commits behind the mark is
    found when a claim comes back short, and within `LOOK_BACK_EVERY` seconds in any case. Where the look itself
    takes long, because a million such entries lie there, it comes less often (`LOOK_BACK_SHARE`, `LOOK_BACK_AT_LEAST`).

    Safe to share between threads.

    Attributes
    ----------
    walks
        How long the claims took that found nothing.
    had_enough
        Whether the last claim got all that it wanted, not long ago.
    """

    def __init__(self) -> None:
        self.walks = Walks()
        self._lock = threading.Lock()
        self._marks: dict[int, int] = {}
        self.had_enough = False
        self._since = moments.monotonic()
        self._looking_since: float | None = None
        self._every = LOOK_BACK_EVERY

    def now(self) -> Mapping[int, int]:
        """Give the marks, ns by priority; none once they are too old."""
        with self._lock:
            now = moments.monotonic()
            if now - self._since >= self._every:
                self._marks = {}
                self.had_enough = False
            if not self._marks:
                self._since = self._looking_since = now
            return dict(self._marks)

    def advance(self, claimed: Sequence[Claimed]) -> None:
        """Note a claim that got as many messages as it wanted, in its order."""
        with self._lock:
            if self._looking_since is not None:
                took = moments.monotonic() - self._looking_since
                self._every = min(max(LOOK_BACK_EVERY, LOOK_BACK_SHARE * took), LOOK_BACK_AT_LEAST)
                self._looking_since = None
            self.had_enough = True
            for one in claimed:
                self._marks[one.row.priority] = one.row.time_next
            if len(self._marks) > MOST_MARKS:
                self._marks = {}

    def forget(self) -> None:
        """Begin at the very first message again."""
        with self._lock:
            self._marks = {}
            self.had_enough = False


class Reached:
    """Up to which seq a table with groups has been seen to have no message that must be routed.

    As with `Marks`: what was routed stays in a database's index for a while, and who looked for new messages from the
    very first one on would step over all of it at each claim.

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
