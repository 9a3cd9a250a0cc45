"""Counts a message table's messages by state, and computes the rates at which they come and go."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from waterclock.database.schema.table_catalogue import totals
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.groups.blocking import GOES_ON, IS_BLOCKED, IS_EXHAUSTED, exhausted_places, standing
from waterclock.tables.groups.routing import group_of
from waterclock.tables.messages.rows.process_heartbeat import RATE_SECONDS, everywhere
from waterclock.tables.model.claims.epochs import times_sent_sql
from waterclock.tables.model.row_conditions import EXPIRED, is_cancelled, is_expired
from waterclock.tables.model.schema import SOURCE

_FIRST_LOOK = 1000
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class TableStats:
    """The number of messages of a table by state. Each message counts once, in one snapshot."""

    ready: int  # Due, and not leased. In a group they may have to wait for earlier messages, which will be sent.
    scheduled: int  # never sent, and due later
    in_flight: int  # delivered to a consumer whose lease has not ended
    delayed: int  # sent before, given back, and due later
    acked: int  # handled, and not purged yet
    oldest_age: int | None  # how long the earliest scheduled unacked message has been due, ns; None if none is due
    dead: int = 0  # in the dead-letter table, and not acked there
    sent: int = 0
    """Total deliveries, including those of purged messages. Messages that a closed consumer returns unstarted do not
    count. An ``UPDATE`` in plain SQL that sets ``epoch`` changes it.
    """
    purged: int = 0  # total messages that were acked or dropped, and purged
    put_rate: float = 0.0  # messages per second put in the last minute, without those that are already purged
    ack_rate: float = 0.0
    """Messages per second acked in the last minute; with a ``purge_after`` below a minute, without purged ones."""
    held: int = 0  # handled, but acked only after those before them in their group (``ack_order="hold"``)
    sent_rate: float = 0.0
    """Deliveries per second in the last minute, without those that a closed consumer returns unstarted. Processes
    report theirs every ten seconds. Those of a process that has ended count for at most half a minute, or not at all if
    it lived less than ten seconds.
    """
    subscribers: int = 0
    """Open subscriptions, in all processes. If a process dies, its subscriptions count for up to half a minute more."""
    expired: int = 0  # expired before a consumer took them, and neither purged yet nor in the dead-letter table
    cancelled: int = 0  # cancelled before a consumer handled them, and not purged yet
    failing: int = 0  # Subscriptions whose claims fail. Processes report theirs every ten seconds.
    failure: str | None = None
    """Why the claims of one of them fail, or which messages claims skip because the database refuses them; None:
    neither.
    """
    exhausted: int = 0
    """Messages that have used up their attempts and block their group, one per group (``on_exhausted="block"``)."""
    blocked: int = 0
    """Messages behind an exhausted one in its group, due or not: none is sent until that one is skipped or rescheduled.
    """


def table_stats(context: TableContext, connection: sa.Connection) -> TableStats:
    """Count the messages in the connection's snapshot."""
    rows = context.rows
    now = context.backend.now(connection)
    due = sa.func.coalesce(rows.c.time_next, rows.c.time_scheduled, 0) <= now
    out = ~due & rows.c.claim_id.is_not(None)
    later = ~due & rows.c.claim_id.is_(None)
    expired = is_expired(rows, now)
    waits = rows.c.ack_held_at.is_(None) & ~expired
    most = context.options.blocking_attempts
    source: sa.FromClause = rows
    goes_on, exhausted, blocked = waits, sa.literal_column("0"), sa.literal_column("0")
    if most is not None:
        stuck = exhausted_places(rows.alias("waiting"), most, now).subquery("stuck")
        source = rows.outerjoin(stuck, group_of(rows) == stuck.c.name)
        stands = standing(rows.c.position, stuck.c.place)
        goes_on = waits & (stands == GOES_ON)
        exhausted, blocked = (_count(~out & waits & (stands == one)) for one in (IS_EXHAUSTED, IS_BLOCKED))
    counts = connection.execute(
        sa.select(
            _count(due & goes_on).label("ready"),
            _count(later & goes_on & (rows.c.epoch == 0)).label("scheduled"),
            _count(out).label("in_flight"),
            _count(later & goes_on & (rows.c.epoch > 0)).label("delayed"),
            exhausted.label("exhausted"),
            blocked.label("blocked"),
            sa.func.min(sa.case((~expired, rows.c.time_scheduled))).label("earliest"),
            times_sent_sql(rows.c.epoch).label("sent"),
            _count(rows.c.ack_held_at.is_not(None)).label("held"),
            _count(expired).label("not_removed"),
            _count(expired & is_cancelled(rows)).label("not_dropped"),
        )
        .select_from(source)
        .where(rows.c.time_acked.is_(None))
    ).one()
    earliest = counts.earliest
    since = now - RATE_SECONDS * _NS
    acked, acked_lately, sent_acked = connection.execute(
        # The index on acked rows also holds the epoch, so that no acked row is read.
        sa.select(
            sa.func.count(rows.c.time_acked), _count(rows.c.time_acked > since), times_sent_sql(rows.c.epoch)
        ).where(rows.c.time_acked.is_not(None))
    ).one()
    dropped, dropped_lately, cancelled = connection.execute(
        sa.select(sa.func.count(), _count(rows.c.time_acked > since), _count(is_cancelled(rows))).where(
            rows.c.time_acked.is_not(None), rows.c.expires_at.is_not(None), rows.c.acked_by == EXPIRED
        )
    ).one()
    counted = connection.execute(
        sa.select(totals.c.purged, totals.c.sent).where(totals.c.table_id == context.table_id)
    ).one()
    active = everywhere(context, connection, now)
    return TableStats(
        ready=counts.ready,
        scheduled=counts.scheduled,
        in_flight=counts.in_flight,
        delayed=counts.delayed,
        acked=acked - dropped,
        oldest_age=now - earliest if earliest is not None and earliest <= now else None,
        dead=_dead(context, connection),
        sent=int(counts.sent or 0) + int(sent_acked or 0) + counted.sent,
        purged=counted.purged,
        put_rate=_put_since(context, connection, since) / RATE_SECONDS,
        ack_rate=(acked_lately - dropped_lately) / RATE_SECONDS,
        held=counts.held,
        sent_rate=active.sent / RATE_SECONDS,
        subscribers=active.subscribers,
        failing=active.failing,
        failure=active.failure,
        expired=counts.not_removed - counts.not_dropped + dropped - cancelled,
        cancelled=counts.not_dropped + cancelled,
        exhausted=counts.exhausted,
        blocked=counts.blocked,
    )


def _dead(context: TableContext, connection: sa.Connection) -> int:
    if context.dead is None:
        return 0
    dead_rows = context.dead.rows
    mine = (dead_rows.c[SOURCE] == context.name) & dead_rows.c.time_acked.is_(None)
    return connection.execute(sa.select(sa.func.count()).select_from(dead_rows).where(mine)).scalar_one()


def _put_since(context: TableContext, connection: sa.Connection, since: int) -> int:
    """Count rows from the newest back, until a whole chunk is older: time_created has no index."""
    rows = context.rows
    total, below, look = 0, None, _FIRST_LOOK
    while True:
        newest = sa.select(rows.c.seq, rows.c.time_created).order_by(rows.c.seq.desc()).limit(look)
        if below is not None:
            newest = newest.where(rows.c.seq < below)
        piece = newest.subquery()
        looked, lately, below = connection.execute(
            sa.select(sa.func.count(), _count(piece.c.time_created > since), sa.func.min(piece.c.seq))
        ).one()
        total += lately
        if looked < look or not lately:
            return total
        look = min(look * 4, 256_000)


def _count(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sa.func.count(sa.case((condition, 1)))
