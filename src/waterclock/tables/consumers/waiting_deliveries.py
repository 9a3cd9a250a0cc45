"""The messages that a subscription has claimed and not handed out yet."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

from waterclock._support import moments
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.consumers.discarding import give_back_groups, replace_first_for_consumer
from waterclock.tables.messages.finishing.expiring import expire_unstarted
from waterclock.tables.model.claims.claim import Leased

_DROP_EVERY = 0.05
"""Seconds between attempts to drop messages that another transaction has locked, while others are handed out: each
attempt takes two transactions."""


class WaitingDeliveries(deque[Delivery]):
    """Deliveries in the order of their claims. ``when_expired`` is called with how many have expired."""

    def __init__(self, when_expired: Callable[[int], object]) -> None:
        super().__init__()
        self._when_expired = when_expired
        self._drop_at = -math.inf  # when to drop messages again, in seconds of the monotonic clock

    def take(self, context: TableContext, now: int) -> Delivery | None:
        """Remove and return the next delivery that is still ours, of a group whose earlier messages do not wait.

        If the first one expired or was lost, drop all such ones.
        """
        if self and _may_begin(self[0], now):
            return self.popleft()
        if moments.monotonic() < self._drop_at and (following := self._take_behind(set(), now)) is not None:
            return following
        over = [one for one in self if not _may_begin(one, now)]
        held = self._drop(context, over, now) if over else set[str | None]()
        if self and not _may_begin(self[0], now):
            self._drop_at = moments.monotonic() + _DROP_EVERY
        return self._take_behind(held, now)

    def _take_behind(self, held: set[str | None], now: int) -> Delivery | None:
        """Remove and return the first delivery that is still ours, and in none of the groups that are held."""
        for one in self:
            in_group = one.leased.position is not None
            if in_group and one.group in held:
                continue
            if _may_begin(one, now):
                self.remove(one)
                return one
            if in_group:
                held.add(one.group)
        return None

    def _drop(self, context: TableContext, over: Sequence[Delivery], now: int) -> set[str | None]:
        """Drop messages that expired or were lost. If one was lost unacked, those behind it go back, too.

        Messages that another transaction has locked stay, and so do those behind them. Returns their groups.
        """
        expired = [one.leased for one in over if _is_ours(one, now)]
        locked: set[Leased] = set()
        if expired:
            locked.update(context.backend.transact(lambda own: expire_unstarted(context, own, expired), indexed=True))
            self._when_expired(len(expired) - len(locked))
        gone = [one for one in over if one.leased not in locked]
        returned, kept = give_back_groups(gone, self)
        locked |= kept
        returned.update(gone)
        removed = [one for one in self if one in returned and one.leased not in locked]
        for one in removed:
            self.remove(one)
        replace_first_for_consumer(removed, self)
        return {one.group for one in self if one.leased in locked and one.leased.position is not None}


def _is_ours(delivery: Delivery, now: int) -> bool:
    return delivery.lease_until > now and not delivery.lost


def _may_begin(delivery: Delivery, now: int) -> bool:
    return _is_ours(delivery, now) and (delivery.expires_at is None or delivery.expires_at > now)
