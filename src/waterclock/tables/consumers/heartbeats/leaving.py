"""Runs a consumer's last writes when it leaves a table, and limits how long these writes wait for locks."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from waterclock._support import moments
from waterclock.errors import UnavailableError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.messages.finishing import acking
from waterclock.tables.model.claims.claim import Leased

PATIENCE = 1.0
"""Seconds that a closing consumer waits for other writers, or for locks on its rows.

The lock may be the caller's own, in a transaction that ends only after the subscription is closed.
"""

_LOOK_EVERY = 0.02  # s

_log = logging.getLogger(__name__)


@contextmanager
def leaving(context: TableContext, consumer: str | None) -> Generator[None]:
    """Run the writes of a leaving consumer. If they fail, the end of its leases has the same effect."""
    if not context.sql.one_writer:
        yield
        return
    try:
        with context.backend.patience(PATIENCE):
            yield
    except UnavailableError as error:
        _log.warning(
            "consumer %s cannot give back its messages of table %r, which return when their leases end: %s",
            consumer,
            context.name,
            error,
        )


def leave_behind(
    context: TableContext, consumer: str | None, unstarted: Sequence[Leased], started: Sequence[Leased]
) -> None:
    """Return a consumer's messages to the table; those in handling count as failed.

    Messages that another transaction keeps locked return when their leases end.
    """
    give_up_at = moments.monotonic() + PATIENCE
    while True:
        kept = context.backend.transact(
            lambda own, first=unstarted, second=started: acking.leave_behind(context, own, first, second)
        )
        if not kept:
            return
        if moments.monotonic() >= give_up_at:
            _log.warning(
                "consumer %s cannot give back %d messages of table %r, which return when their leases end: another"
                " transaction has locked these or earlier messages of their groups",
                consumer,
                len(kept),
                context.name,
            )
            return
        unstarted = [one for one in unstarted if one in kept]
        started = [one for one in started if one in kept]
        moments.sleep(_LOOK_EVERY)
