"""Finds messages that a claim took although its answer was lost, and hands them out before later messages.

An exclusive group stays with its consumer. If the consumer does not know that it holds messages of the group, its next
claim would hand out later messages. So if a claim got no answer, the next claim first looks for the messages of the
lost claim. For a while, all later claims of the consumer look for these messages, too, because the server may still
execute the lost claim. A claim that looks for messages holds the lock of the consumer's row, which every claim needs,
so no other claim can intervene. The search waits only for claims and heartbeats of this consumer.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import Any, TypeVar

import sqlalchemy as sa

from waterclock._support import moments
from waterclock.database.per_database_cache import PerDatabaseCache, built_once
from waterclock.database.schema.table_catalogue import groups
from waterclock.database.sql_connection import SqlConnection
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.claiming_rows import columns_read
from waterclock.tables.groups import consumers
from waterclock.tables.groups.group_state import belongs_to
from waterclock.tables.model.claims.bounds import UNASSIGNED
from waterclock.tables.model.claims.claim import Claimed, Unanswered, Wanted
from waterclock.tables.model.claims.epochs import before_claim

_T = TypeVar("_T")

LOOKED_FOR = 900_000_000_000
"""For how long messages of a lost claim are looked for, ns. The server works for less than a minute without the client,
but a network that was down may deliver packets for as long as TCP repeats them, a quarter of an hour.
"""

_unanswered = PerDatabaseCache[dict[tuple[int, str | None], list[Unanswered]]](lambda _: {})
"""By table id and name of the consumer."""


@contextmanager
def numbered(context: TableContext, consumer: str | None) -> Generator[Unanswered]:
    """Yield a claim's id, with those of the consumer's earlier claims that got no answer.

    If the block fails, this claim counts as unanswered, too.
    """
    unanswered = Unanswered(secrets.randbits(63))
    key = context.table_id, consumer
    waiting = _unanswered.known.get(context.backend, {}).get(key)
    if waiting:
        with suppress(IndexError):  # another thread may take some
            while True:
                unanswered.join(waiting.pop())
    try:
        yield unanswered
    except BaseException:
        unanswered.doubt(moments.monotonic_ns())
        raise
    finally:
        if unanswered.forget(moments.monotonic_ns() - LOOKED_FOR):
            _unanswered.of(context.backend).setdefault(key, []).append(unanswered)


@dataclass(frozen=True, slots=True)
class TakenBefore:
    """The messages that earlier claims, or an earlier try, took without an answer."""

    claimed: list[Claimed]


def trying(
    context: TableContext, wanted: Wanted, claimed: Sequence[Claimed], work: Callable[[SqlConnection], _T]
) -> Callable[[SqlConnection], _T | TakenBefore]:
    """Wrap a claim to look first for messages that an earlier try or claim took.

    ``claimed`` are the known messages of earlier transactions of the claim.
    """
    tries = count()
    unanswered = wanted.unanswered or Unanswered(wanted.claim_id)

    def run(own: SqlConnection) -> _T | TakenBefore:
        # An embedded database always answers while its process lives; but an earlier claim may have been interrupted.
        if next(tries) and not context.sql.one_writer:
            unanswered.doubt(moments.monotonic_ns())
        if not unanswered.since:
            return work(own)
        found = _taken(context, own, wanted, unanswered, claimed)
        return TakenBefore(found) if found else work(own)

    return run


def _taken(
    context: TableContext, connection: SqlConnection, wanted: Wanted, unanswered: Unanswered, claimed: Iterable[Claimed]
) -> list[Claimed]:
    """Find unknown messages that claims have taken, except in groups with a lease that has ended since."""
    me = wanted.consumer or UNASSIGNED
    connection.execute(*consumers.locking(context, me))
    now = context.backend.now(connection)
    found = connection.execute(_of_claims(context), {"numbers": sorted(unanswered.since), "who": me}).all()
    lapsed = {row.group_id for row in found if row.time_next <= now}
    known = unanswered.known | {(one.row.seq, wanted.claim_id) for one in claimed}
    names = [column.name for column in columns_read(context.rows)]
    new = [row for row in found if (row.seq, row.claim_id) not in known and row.group_id not in lapsed]
    return [_as_before(names, row, now) for row in new]


def _as_before(names: list[str], row: Any, now: int) -> Claimed:
    """Return a message as it was before it was claimed. Its due time is no longer known: at most ``now``."""
    before = {"epoch": before_claim(row.epoch), "time_next": now, "claim_id": None}
    values = dict(zip(names, row, strict=False)) | before
    return Claimed(
        SimpleNamespace(**values), row.time_next, claim_id=row.claim_id, is_first=row.position == row.had_first
    )


@built_once(maxsize=256)
def _of_claims(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    """Find the messages of claims in the consumer's groups: they lie between the head and the next position."""
    rows = context.rows
    return (
        sa.select(*columns_read(rows), groups.c.had_first)
        .select_from(groups.join(rows, rows.c.group_id == groups.c.group_id))
        .where(
            groups.c.table_id == context.table_id,
            belongs_to(sa.bindparam("who")),
            rows.c.position >= groups.c.head,
            rows.c.position < sa.func.coalesce(groups.c.next_position, groups.c.tail + 1),
            rows.c.time_acked.is_(None),
            context.sql.any_of(rows.c.claim_id, "numbers"),
        )
        .order_by(rows.c.group_id, rows.c.position)
    )
