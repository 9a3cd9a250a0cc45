"""Acks in transactions of the caller's: what became of them.

Nothing tells us when such a transaction ends, and a savepoint in it may be undone while the rest is committed. So an
ack in it decides nothing here until the database shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from waterclock.errors import UnavailableError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.messages.finishing import acking
from waterclock.tables.messages.rows import locking
from waterclock.tables.model.claims.leased import Leased

_PATIENCE = 0.5
"""Seconds for which a database where writers take turns is asked whether the caller's transaction has ended."""


class Undecided(Protocol):
    """A delivery that may have been acked in a transaction of the caller's."""

    leased: Leased

    @property
    def undecided(self) -> bool:
        """Whether it was, and it is not known whether that transaction has ended."""
        ...

    def end(self, verb: Literal["ack"]) -> None:
        """Note that it was committed."""
        ...

    def take_back(self) -> None:
        """Note that it was rolled back."""
        ...

    def lose(self) -> None:
        """Note that the message is not ours any more."""
        ...


def see_committed(context: TableContext, deliveries: Iterable[Undecided]) -> None:
    """Note which of the acks were committed. Reads only."""
    asked = [one for one in deliveries if one.undecided]
    if not asked:
        return
    with context.backend.snapshot() as connection:
        acked = acking.acked_by(context, connection, [one.leased for one in asked])
        rows = acking.unacked(context, connection, [one.leased.seq for one in asked])
    for one in asked:
        row = rows.get(one.leased.seq)
        if one.leased in acked:
            one.end("ack")
        elif row is None or row.claim_id != one.leased.claim_id:
            one.lose()


def find_out(context: TableContext, deliveries: Iterable[Undecided]) -> None:
    """Note which of the acks were committed and which were rolled back. Waits for no transaction that is under way."""
    asked = list(deliveries)
    see_committed(context, asked)
    still = [one for one in asked if one.undecided]
    if not still:
        return
    seqs = [one.leased.seq for one in still]
    try:
        with context.backend.patience(_PATIENCE):
            rows = context.backend.transact(lambda own: locking.lock_free_rows(context, own, seqs))
    except UnavailableError:
        return
    free = {(row.seq, row.claim_id) for row in rows}
    for one in still:
        if (one.leased.seq, one.leased.claim_id) in free:
            one.take_back()


def decide(context: TableContext, deliveries: Sequence[Undecided], verb: str) -> None:
    """Note what became of the acks before something else is done.

    Raises
    ------
    UnavailableError
        Where a transaction is under way, which would be waited for, perhaps by the one who is to end it.
    """
    find_out(context, deliveries)
    for one in deliveries:
        if one.undecided:
            raise UnavailableError(
                f"{verb}: message {one.leased.id!r} of {context.name!r} was acked in a transaction that has not ended;"
                " commit it or roll it back, then try again"
            )
