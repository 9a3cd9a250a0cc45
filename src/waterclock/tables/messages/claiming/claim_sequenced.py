"""Claims in a table with sequenced groups: leases a group's first messages; later ones wait until these are acked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from waterclock.database.driver_fast_path import execute_later
from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import groups
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.groups.group_state import settle, these_groups
from waterclock.tables.messages.claiming.claim_groups_in_steps import GroupClaim, leave_out
from waterclock.tables.model.claims.claim import Claimed, Wanted


def claim_sequenced(
    context: TableContext, connection: SqlConnection, wanted: Wanted, part: int | None
) -> tuple[list[Claimed], bool]:
    """Claim messages from the start of groups without leased messages.

    Returns the claimed messages, and whether there are new messages that were not examined. ``part`` numbers the
    transactions of a claim: while others have to route more new messages, it claims nothing.
    """
    claim = _SequencedClaim(context, connection, wanted, part)
    # Most claims find the groups that they lock in the first look.
    top = claim.route_new(locks=True)
    if not claim.only_routes:
        claim.take_all(top, is_known=not claim.is_changed)
    return claim.claimed, claim.more


class _SequencedClaim(GroupClaim):
    def _take_from(self, free: Iterable[Any], most: int, who: str) -> None:
        context, connection = self._context, self._connection
        chosen = self._choose(free, most)
        sent = self._due_first(self._first_messages(chosen, most, who), most)
        by_end: dict[int, tuple[list[str], list[Any]]] = {}
        for group_id, members in sent.items():
            until = self._lease_end(members)
            names, messages = by_end.setdefault(until, ([], []))
            names.append(group_id)
            messages += members
            for row in members:
                self.claimed.append(Claimed(row, until))
        for until, (names, messages) in by_end.items():
            values = {"groups": sorted(names), "seqs": [row.seq for row in messages], "until": until, **self._mine}
            execute_later(connection, *[(statement, values) for statement in _leave_out_and_note(context)])
        if len(sent) < len(chosen):
            # The first message of the other groups was deleted by plain SQL, or is exhausted.
            settle(context, connection, set(chosen).difference(sent))


@built_once(maxsize=256)
def _leave_out_and_note(context: TableContext) -> Sequence[sa.Update | sa.Delete]:
    noted = sa.update(groups).where(these_groups(context)).values(ready_at=sa.bindparam("until"))
    return context.sql.both(leave_out(context), noted)
