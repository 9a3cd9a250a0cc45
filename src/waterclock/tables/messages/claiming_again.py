"""Claims whose answer was lost: what they took is found by their number, and handed out before what lies behind it.

The groups of a consumer stay its own in a table with exclusive groups. So its next claim would go on behind messages
that it has without knowing. Where a try of a claim got no answer, the next try, or else the consumer's next claim,
looks for them first. It reads only, and so waits for no other transaction.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from types import SimpleNamespace
from typing import Any, TypeVar

import sqlalchemy as sa

from waterclock import moments
from waterclock.database.kept import Kept, built_once
from waterclock.database.sql_connection import SqlConnection
from waterclock.database.table_catalogue import groups
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.claiming_rows import columns_read
from waterclock.tables.groups.heads import UNASSIGNED, belongs_to
from waterclock.tables.model.claim import Claimed, Wanted

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ClaimNumber:
    """Under which number a consumer claims.

    Attributes
    ----------
    claim_id
        A number that no other claim has.
    begun
        When the claim was tried first, in ns of the monotonic clock; None: that is not known.
    known
        What is known to be taken under this number; None: nothing is, and no answer was lost.
    """

    claim_id: int
    begun: int | None
    known: frozenset[int] | None = None


_unanswered = Kept[dict[tuple[int, str | None], list[ClaimNumber]]](lambda _: {})
"""By the number of the table and the name of the consumer."""


@contextmanager
def numbered(context: TableContext, consumer: str | None) -> Generator[ClaimNumber]:
    """Give a claim of exclusive groups its number: a new one, or that of the consumer's last claim if it got no answer.

    Where the block fails, the claim has got none, as far as is known.
    """
    number = _take(context, consumer) or ClaimNumber(secrets.randbits(63), moments.monotonic_ns())
    try:
        yield number
    except BaseException:
        _keep(context, consumer, number, ())
        raise


def note_unanswered(context: TableContext, wanted: Wanted, claimed: Iterable[Claimed]) -> None:
    """Let the consumer's next claim look for what this one took, but for what is known of."""
    if context.options.groups == "exclusive":
        number = ClaimNumber(wanted.claim_id, None, wanted.known)  # so that what it took gets its heartbeat at once
        _keep(context, wanted.consumer, number, (one.row.seq for one in claimed))


def _take(context: TableContext, consumer: str | None) -> ClaimNumber | None:
    waiting = _unanswered.known.get(context.backend, {}).get((context.table_id, consumer))
    try:
        return waiting.pop() if waiting else None
    except IndexError:  # another thread has just taken it
        return None


def _keep(context: TableContext, consumer: str | None, number: ClaimNumber, seqs: Iterable[int]) -> None:
    known = (number.known or frozenset()).union(seqs)
    _unanswered.of(context.backend).setdefault((context.table_id, consumer), []).append(replace(number, known=known))


@dataclass(frozen=True, slots=True)
class TakenBefore:
    """What a claim took in a try whose answer was lost."""

    claimed: list[Claimed]


def trying(
    context: TableContext, wanted: Wanted, claimed: Sequence[Claimed], work: Callable[[SqlConnection], _T]
) -> Callable[[SqlConnection], _T | TakenBefore]:
    """Make a claim look first, when it is tried again, for what it took before; where that is nothing, it goes on.

    Parameters
    ----------
    claimed
        What earlier transactions of the claim took, and what is known of.
    """
    # An embedded database answers, or its process is gone; but the claim before may have been broken off.
    if context.sql.one_writer and wanted.known is None:
        return work
    tries = count(0 if wanted.known is None else 1)

    def run(own: SqlConnection) -> _T | TakenBefore:
        found = _taken(context, own, wanted, {one.row.seq for one in claimed}) if next(tries) else []
        return TakenBefore(found) if found else work(own)

    return run


def _taken(context: TableContext, connection: SqlConnection, wanted: Wanted, known: set[int]) -> list[Claimed]:
    """Find what a claim has taken and what is not known of, but for groups of which a lease has ended since."""
    now = context.backend.now(connection)
    found = connection.execute(_of_claim(context), {"by": wanted.claim_id, "who": wanted.consumer or UNASSIGNED}).all()
    lapsed = {row.group_id for row in found if row.time_next <= now}
    before = known | (wanted.known or frozenset())
    names = [column.name for column in columns_read(context.rows)]
    return [_as_before(names, row, now) for row in found if row.group_id not in lapsed and row.seq not in before]


def _as_before(names: Sequence[str], row: Any, now: int) -> Claimed:
    """Give a message as it was before it was claimed. When it was due is not known any more: not later than ``now``."""
    values = dict(zip(names, row, strict=True)) | {"epoch": row.epoch - 1, "time_next": now}
    return Claimed(SimpleNamespace(**values), row.time_next)


@built_once(maxsize=256)
def _of_claim(context: TableContext) -> sa.Select[*tuple[Any, ...]]:
    """Find the messages of a claim in the consumer's groups: they lie between the head and what comes next."""
    rows = context.rows
    return (
        sa.select(*columns_read(rows))
        .select_from(groups.join(rows, rows.c.group_id == groups.c.group_id))
        .where(
            groups.c.table_id == context.table_id,
            belongs_to(sa.bindparam("who")),
            rows.c.position >= groups.c.head,
            rows.c.position < sa.func.coalesce(groups.c.next_position, groups.c.tail + 1),
            rows.c.time_acked.is_(None),
            rows.c.claim_id == sa.bindparam("by", type_=sa.BigInteger),
        )
        .order_by(rows.c.group_id, rows.c.position)
    )
