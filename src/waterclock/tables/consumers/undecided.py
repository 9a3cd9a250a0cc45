"""Tracks acks in callers' transactions until they are committed or rolled back.

Waterclock does not see when a caller's transaction ends. Also, a caller may roll back a savepoint with the ack and
commit the rest. So an ack counts only when the database shows it as committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from waterclock.errors import UnavailableError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.messages.finishing import acking
from waterclock.tables.messages.rows import locking
from waterclock.tables.model.claims.claim import Leased

_PATIENCE = 0.5  # seconds for which a database with one writer is asked whether the caller's transaction has ended


class Undecided(Protocol):
    """A delivery that a caller's transaction may have acked."""

    leased: Leased

    @property
    def undecided(self) -> bool:
        """Return whether it was acked and the transaction may not have ended."""
        ...

    def end(self, verb: Literal["ack"]) -> None: ...

    def take_back(self) -> None: ...

    def lose(self) -> None: ...


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
    """Note which of the acks were committed and which were rolled back. Waits for no open transaction."""
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
    """Note the outcome of acks before another operation.

    Raises `UnavailableError` if a transaction is still open. Waiting for it could deadlock, because this thread may
    have to end it.
    """
    asked = [one for one in deliveries if one.undecided]
    if asked:
        find_out(context, asked)
    for one in asked:
        if one.undecided:
            raise UnavailableError(
                f"cannot {verb} message {one.leased.id!r} of table {context.name!r}: the transaction that acked the"
                " message has not ended. Commit or roll back that transaction, then try again"
            )
