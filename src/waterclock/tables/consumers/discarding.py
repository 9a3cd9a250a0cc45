"""Drop claimed messages that another operation changed before the consumer handed them to its caller."""

from __future__ import annotations

from collections.abc import Iterable

from waterclock.tables.catalogue.table_row import LOOK_EVERY
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.messages.finishing import acking

LOOK_AGAIN_AFTER = int(LOOK_EVERY * 1_000_000_000)
"""For how long what is known of a message that waits is taken for granted, ns."""


def discard(waiting: Iterable[Delivery], *, extended: bool) -> None:
    """Note as lost those deliveries that were acked, given away, rescheduled or removed since they were claimed.

    Parameters
    ----------
    extended
        Whether heartbeats may be extending their leases; then one that ends later than we know is ours.
    """
    known = {delivery: delivery.lease_until for delivery in waiting}
    if not known:
        return
    context = next(iter(known)).context
    with context.backend.snapshot() as connection:
        rows = acking.unacked(context, connection, [delivery.leased.seq for delivery in known])
    # In a group, extending the lease of one delivery extends those of all that one claim gave with it.
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
