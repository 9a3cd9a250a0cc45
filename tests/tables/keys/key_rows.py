"""Compares the rows of keys, in tables whose keys take turns, with the messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from waterclock.database.schema.table_catalogue import message_keys
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.keys.turn_tiers import ASLEEP, ENDED, FOLLOWS, HAS_TURN, PACED
from waterclock.tables.model.schema import MESSAGE_KEY

_COLUMNS = "seq", "time_next", "priority", "claim_id", MESSAGE_KEY


def contradictions(contexts: Sequence[TableContext], now: int) -> list[str]:
    """Return what is wrong in the rows of a table's keys; ``contexts`` are those of the processes that claim."""
    context = contexts[0]
    routed = sa.select(*(context.rows.c[name] for name in _COLUMNS))
    routed = routed.where(context.rows.c.time_acked.is_(None), context.rows.c.routed == 1)
    with context.backend.snapshot() as connection:
        keys = connection.execute(sa.select(message_keys).where(message_keys.c.table_id == context.table_id)).all()
        messages = connection.execute(routed).all()
    places = {(row.message_key, row.level): row for row in keys}
    counts = Counter((row.message_key, row.level) for row in keys)
    found = [f"{place} has {count} rows" for place, count in counts.items() if count > 1]
    awaited = {row.message_key for row in keys if row.is_due in (HAS_TURN, PACED)}
    found += [f"follows no row: {row}" for row in keys if row.is_due == FOLLOWS and row.message_key not in awaited]
    for one in messages:
        row = places.get((one.message_key, -one.priority))
        found += [f"message {one} {what}: {row}" for what in _contradicted_by(one, row, now)]
    return [*found, *(line for each in contexts for line in _behind_bounds(each, keys))]


def _contradicted_by(one: Any, row: Any, now: int) -> Iterator[str]:
    if row is None:
        yield "has no row"
        return
    if one.time_next < row.first_at:
        yield "is due before first_at"
    if row.gap_from < one.time_next < row.gap_to:
        yield "is due in the gap"
    if one.claim_id is not None and one.time_next < row.gap_to:
        yield "is leased before the gap ends"
    if one.claim_id is not None and one.time_next < row.leased_from:
        yield "is leased until before leased_from"
    if one.claim_id is not None and one.seq < row.leased_seq:
        yield "is leased below leased_seq"
    if row.is_due == ASLEEP and row.due_at > max(one.time_next, now):
        yield "is due while its key sleeps"
    if row.is_due == ENDED:
        yield "is of a key that has ended"


def _behind_bounds(context: TableContext, keys: Sequence[Any]) -> Iterator[str]:
    """Yield the rows that searches of this process do not find."""
    if not context.sql.is_bounded:
        return
    turns = {tier: bound.value for tier, bound in context.reached.groups.of_unassigned().items()}
    ends = {state: bound.value for state, bound in context.reached.sleeping.of_unassigned().items()}
    for row in keys:
        if row.is_due == HAS_TURN and row.turn < turns.get(row.tier, row.turn):
            yield f"a turn is behind the bound {turns[row.tier]}: {row}"
        if row.is_due in (ASLEEP, PACED) and row.due_at < ends[row.is_due]:
            yield f"a key wakes behind the bound {ends[row.is_due]}: {row}"
