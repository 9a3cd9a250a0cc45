"""Lower bounds of index searches in a table whose keys take turns: for new messages, next turns and sleeping keys.

A search for new messages begins at a ``seq``, the number of a row: all messages with a lower number are routed. If a
later change may make a routed message due earlier, a trigger marks the message, and the index lists it after all
numbers. The bounds need a database that tells which transactions a snapshot sees (`TableDialect.seen_by`).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa

from waterclock.database.per_database_cache import built_once
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.postgresql.unrouted_keys import CHANGED_TOGETHER, TOGETHER_BITS
from waterclock.tables.keys.key_rows import is_unrouted, of_any_key
from waterclock.tables.keys.turn_levels import ASLEEP, PACED, first_of, firsts_of, unknown_level, values_of
from waterclock.tables.messages.claiming.bounded_levels import times_of
from waterclock.tables.messages.claiming.bounded_rows import begins_search
from waterclock.tables.model.claims.bounds import UNASSIGNED, Snapshot
from waterclock.tables.model.schema import PARTITIONED, not_acked


def advance_keys(context: TableContext) -> None:
    """Search from a table's bounds on, so that these advance, if the last search is old enough."""
    if not begins_search(context):
        return
    reached = context.reached
    bound, all_bounds = reached.routed, (reached.groups, reached.sleeping)
    search = bound.begin()
    turns, sleeping = (bounds.begin(UNASSIGNED) for bounds in all_bounds)
    marks = bound.needs_mark or any(bounds.needs_mark(UNASSIGNED) for bounds in all_bounds)
    values = {"start": search.low >> TOGETHER_BITS, "marks": marks, **values_of(turns, sleeping)}
    found = context.backend.alone(lambda own: own.execute(_looking(context), values).one(), durable=False)
    # Not beyond the last message. Without a message, all that made the bound advance were purged.
    last = search.known if found.newest is None else max(search.known, found.newest + 1)
    end = last >> TOGETHER_BITS if found.together is None else min(found.together, last >> TOGETHER_BITS)
    bound.found_nothing(search, end << TOGETHER_BITS, Snapshot(found.now, found.oldest, found.mark))
    reached.groups.note(turns, found)
    times = {ASLEEP: found.asleep, PACED: found.paced}
    facts = {"now": found.now, "oldest": found.oldest, "mark": found.mark, "of_unassigned": None}
    reached.sleeping.note(sleeping, SimpleNamespace(firsts=[times[one] for one in sleeping.priorities], **facts))


@built_once(maxsize=256)
def _looking(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    rows, together = context.rows, context.sql.seqs_together(context.rows)
    its = is_unrouted(context), of_any_key(context), together < sa.literal_column(str(CHANGED_TOGETHER))
    first = sa.select(together).where(*its).order_by(together).limit(1)
    newest = sa.select(rows.c.seq).order_by(rows.c.seq.desc()).limit(1)
    if rows.info.get(PARTITIONED):
        newest = newest.where(not_acked(rows))  # otherwise each day of acked messages is scanned
    oldest, mark = context.sql.seen_by(sa.bindparam("marks", type_=sa.Boolean), context.rows)
    return sa.select(
        context.backend.now_sql().label("now"),
        oldest.label("oldest"),
        mark.label("mark"),
        first.scalar_subquery().label("together"),
        newest.scalar_subquery().label("newest"),
        times_of(firsts_of(context)).label("firsts"),
        unknown_level(context).label("of_unassigned"),
        first_of(context, ASLEEP).label("asleep"),
        first_of(context, PACED).label("paced"),
    )
