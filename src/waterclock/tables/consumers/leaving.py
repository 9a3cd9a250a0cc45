"""Leaving a table: what a consumer that closes writes, and for how long it waits to write it."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from waterclock._support import moments
from waterclock.errors import UnavailableError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.messages.finishing import acking
from waterclock.tables.model.claims.leased import Leased

PATIENCE = 1.0
"""Seconds for which a consumer that leaves waits for others who write, or have locked what it has.

Such a one may be the caller itself, in a transaction that it ends only after its subscription is closed.
"""

_LOOK_EVERY = 0.02  # s

_log = logging.getLogger(__name__)


@contextmanager
def leaving(context: TableContext, consumer: str | None) -> Generator[None]:
    """Write what a consumer leaves behind; where another one writes for long, the end of its leases does it instead."""
    if not context.sql.one_writer:
        yield
        return
    try:
        with context.backend.patience(PATIENCE):
            yield
    except UnavailableError as error:
        _log.warning("%s leaves what it has of %r to the end of its lease: %s", consumer, context.name, error)


def leave_behind(
    context: TableContext, consumer: str | None, unstarted: Sequence[Leased], started: Sequence[Leased]
) -> None:
    """Give back what a consumer has, those that it has begun to handle as if that had failed.

    What another transaction keeps for long returns when its lease ends.
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
                "%s leaves %d messages of %r to the end of their lease, because another transaction has locked them"
                " or earlier ones of their groups",
                consumer,
                len(kept),
                context.name,
            )
            return
        unstarted = [one for one in unstarted if one in kept]
        started = [one for one in started if one in kept]
        moments.sleep(_LOOK_EVERY)
