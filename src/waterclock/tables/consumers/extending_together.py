"""Extends the leases of many deliveries at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.table_row import explaining
from waterclock.tables.consumers.delivery import Delivery
from waterclock.tables.consumers.undecided import decide
from waterclock.tables.databases.table_dialect import pieces
from waterclock.tables.messages.finishing.acking import run
from waterclock.tables.messages.finishing.extending import extend_all, extend_rows
from waterclock.tables.model.claims.leased_message import Held, Leased


def extend_together(context: TableContext, deliveries: Sequence[Delivery], duration: int) -> int:
    """Extend leases to ``duration`` ns from now; return how many are still leased. Mark the others as lost."""
    decide(context, deliveries, "extend")
    ours = list(dict.fromkeys(one for one in deliveries if not one.over))
    extend = extend_all if context.options.groups else extend_rows
    held: dict[tuple[int, int], Held] = {}
    for some in _of_one_claim(ours):
        with explaining(context):
            held |= run(context, lambda own, some=some: extend(context, own, some, duration))
    for one in ours:
        one.extended(held.get((one.leased.seq, one.leased.claim_id)))
    return sum(not one.lost for one in ours)


def _of_one_claim(deliveries: Sequence[Delivery]) -> Iterator[Sequence[Leased]]:
    claims: dict[int, list[Leased]] = {}
    for one in deliveries:
        claims.setdefault(one.leased.claim_id, []).append(one.leased)
    for leased in claims.values():
        yield from pieces(leased)
