"""Discards claimed messages that another operation changed before a handler got them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from waterclock.tables.catalogue.table_row import LOOK_EVERY
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.groups.consumers import replace_first
from waterclock.tables.groups.group_state import UNGROUPED
from waterclock.tables.messages.finishing import acking
from waterclock.tables.model.claims.claim import Leased

LOOK_AGAIN_AFTER = int(LOOK_EVERY * 1_000_000_000)
"""For how long a waiting message is trusted without another check, ns."""


def replace_first_for_consumer(dropped: Iterable[Delivery], waiting: Iterable[Delivery]) -> None:
    """Mark the next message of a group as the first one for the consumer, instead of one that is dropped."""
    first = {one.group: one.context for one in dropped if one.first_for_consumer}
    if not first:
        return
    heirs: dict[str | None, Delivery] = {}
    for one in waiting:
        if one.group in first:
            heirs.setdefault(one.group, one)
    for heir in heirs.values():
        heir.first_for_consumer = True
    positions = {name or UNGROUPED: heirs[name].leased.position if name in heirs else None for name in first}
    context = next(iter(first.values()))
    context.backend.transact(lambda own: replace_first(context, own, positions))


def blocks_group(dropped: Delivery) -> bool:
    """Return whether a message that is not handled is unacked, so that those behind it in its group must wait."""
    return dropped.leased.position is not None and bool(_unacked([dropped]))


def return_lost(delivery: Delivery) -> None:
    """Return a lost message and those behind it in its group to the table, if its claim still has it.

    Plain SQL may have shortened its lease. Until the lease ends, the owner of an exclusive group would get the messages
    behind it. As after the end of a lease, its attempt counts.
    """
    context = delivery.context
    acking.run(context, lambda own: acking.back_off(context, own, delivery.leased, 0, None))


def give_back_groups(dropped: Iterable[Delivery], waiting: Iterable[Delivery]) -> tuple[set[Delivery], set[Leased]]:
    """Return dropped messages of groups to the table, in their order, unless they are acked, and those behind them.

    Otherwise those behind would overtake them. The lease of a dropped message may still last: the process's estimate
    of the database's clock is ahead by up to a round trip, and a heartbeat may have extended the lease in the meantime.
    As after the end of a lease, the attempt of the first message of each group counts.

    Returns all of these messages. Those that another transaction has locked stay leased; they are the second set.
    """
    placed = [one for one in dropped if one.leased.position is not None]
    if not placed:
        return set(), set()
    context, names = placed[0].context, {one.group for one in placed}
    behind = [one for one in waiting if one.leased.position is not None and one.group in names]
    rows = _unacked([*placed, *behind])
    firsts: dict[str | None, Delivery] = {}
    for one in placed:
        if one.leased.seq in rows:
            firsts.setdefault(one.group, one)
    returned = {one for one in (*placed, *behind) if one.group in firsts}
    ours = {one for one in returned if rows.get(one.leased.seq) == one.leased.claim_id}
    if not ours:
        return returned, set()
    started = [one.leased for one in firsts.values() if one in ours]
    unstarted = [one.leased for one in ours.difference(firsts.values())]
    return returned, context.backend.transact(lambda own: acking.leave_behind(context, own, unstarted, started))


def _unacked(deliveries: Sequence[Delivery]) -> dict[int, int | None]:
    """Return the claims that have the unacked ones of these messages, by seq."""
    context = deliveries[0].context
    with context.backend.snapshot() as connection:
        rows = acking.unacked(context, connection, [one.leased.seq for one in deliveries])
    return {seq: row.claim_id for seq, row in rows.items()}


def discard(waiting: Iterable[Delivery], *, extended: bool) -> None:
    """Mark deliveries as lost whose messages were acked, redelivered, rescheduled or removed since they were claimed.

    ``extended`` says whether heartbeats may be extending their leases; a lease that ends later than recorded is then
    still ours.
    """
    known = {delivery: delivery.lease_until for delivery in waiting}
    if not known:
        return
    context = next(iter(known)).context
    with context.backend.snapshot() as connection:
        rows = acking.unacked(context, connection, [delivery.leased.seq for delivery in known])
    # In a group, extending one lease extends those of all messages of the same claim.
    may_last_longer = extended or context.options.groups is not None
    for delivery, until in known.items():
        row = rows.get(delivery.leased.seq)
        ends = 0 if row is None else row.time_next or 0
        if row is not None:
            delivery.expires_at = row.expires_at
        if row is None or (row.claim_id, row.epoch) != (delivery.leased.claim_id, delivery.epoch) or ends < until:
            delivery.lost = True
        elif ends > until:
            delivery.lost |= not may_last_longer
            delivery.lease_until = max(delivery.lease_until, ends)
