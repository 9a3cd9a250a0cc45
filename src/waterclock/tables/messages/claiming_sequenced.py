"""Claiming in a table with sequenced groups: only a group's first messages are out, to one consumer, until acked."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from waterclock.database.sql_connection import SqlConnection
from waterclock.database.table_catalogue import groups
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.groups.heads import settle, these_groups
from waterclock.tables.messages.claiming_groups import GroupClaim, count_of, leave_out
from waterclock.tables.model.claim import Claimed, Wanted


def claim_sequenced(context: TableContext, connection: SqlConnection, wanted: Wanted) -> tuple[list[Claimed], bool]:
    """Take messages from the start of groups of which nothing is out.

    Returns
    -------
    tuple
        What was taken, and whether there are new messages that were not looked at.
    """
    claim = _SequencedClaim(context, connection, wanted)
    claim.take()
    return claim.claimed, claim.more


class _SequencedClaim(GroupClaim):
    def take(self) -> None:
        """Take what is due; most claims find the groups that they lock in the first look already."""
        top = self._route_new(count_of(self._wanted.limit, self._context.reached.per_group))
        self._take_all(top, is_known=not top.unrouted)

    def _take_from(self, free: Iterable[Any], most: int, who: str) -> None:
        context, connection = self._context, self._connection
        chosen = self._choose(free, most)
        sent = self._due_first(self._first_messages(chosen, most, who), most)
        by_end: dict[int, list[str]] = {}
        for group_id, members in sent.items():
            until = self._lease_end(members)
            by_end.setdefault(until, []).append(group_id)
            self.claimed += [Claimed(row, until) for row in members]
        for until, together in by_end.items():
            values = self._out_values((row for name in together for row in sent[name]), until)
            context.sql.run_both(
                connection, leave_out(context), _note_out(context), {**values, "groups": sorted(together)}
            )
        # Those of which nothing was taken: their first message was deleted by plain SQL, or is exhausted.
        settle(context, connection, [name for name in chosen if name not in sent])


@lru_cache(maxsize=256)
def _note_out(context: TableContext) -> sa.Update:
    return sa.update(groups).where(these_groups(context)).values(ready_at=sa.bindparam("until"))
