"""Drop claimed messages that another operation changed before they were handed out."""

from __future__ import annotations

from collections.abc import Iterable

from waterclock.tables.catalogue.table_row import LOOK_EVERY
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.messages.finishing import acking

LOOK_AGAIN_AFTER = int(LOOK_EVERY * 1_000_000_000)
"""For how long a waiting message is trusted without another check, ns."""


def discard(waiting: Iterable[Delivery], *, extended: bool) -> None:
    """Mark deliveries as lost whose messages were acked, redelivered, rescheduled or removed since they were claimed.

    Parameters
    ----------
    extended
        Whether heartbeats may be extending their leases; a lease that ends later than recorded is then still ours.
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
