"""Claims messages for a consumer under the table's rules, and waits if none are due."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import sqlalchemy as sa

from waterclock._support import moments
from waterclock.database.sql_connection import SqlConnection
from waterclock.errors import InvalidArgumentError, LeaseLostError, RefusedError, WaterclockError
from waterclock.tables.catalogue.caller_connections import CallerConnections
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.catalogue.rate_limit import note_sent, rate_allows, rate_free_at
from waterclock.tables.catalogue.selection import Bound, Selection, select_on
from waterclock.tables.catalogue.table_row import LOOK_EVERY, TableRow
from waterclock.tables.consumers.delivery import Claim, Delivery
from waterclock.tables.consumers.idling import OwnDue
from waterclock.tables.databases.changes import Changes, Stop
from waterclock.tables.messages.claiming.claiming import claim, claim_within, is_idle, next_due
from waterclock.tables.messages.claiming.group_levels import own_groups_due
from waterclock.tables.messages.claiming.lost_claims import TakenBefore, numbered, trying
from waterclock.tables.messages.claiming.refused_claims import claim_past, claim_refused_again, excluding
from waterclock.tables.messages.finishing.dead_letters import bury_claimed, dies_when_given_back, is_exhausted
from waterclock.tables.messages.finishing.expiring import expire_claimed, expire_more
from waterclock.tables.messages.rows.process_heartbeat import process_heartbeat
from waterclock.tables.messages.upkeep.reconcile import heal
from waterclock.tables.model.claims.claim import Claimed, Unanswered, Wanted
from waterclock.tables.model.schema import user_column_names
from waterclock.tables.model.values.reading import Unreadable, unreadable

_log = logging.getLogger(__name__)

_SECOND = 1_000_000_000
_TOKENS_FOR = 0.01  # s
_FIRST_PAUSE = 0.005  # s
LONGEST_PAUSE = 0.1  # maximum seconds until a consumer claims again messages that are due but were not available

_ALL: Bound = (None, ())


@dataclass(frozen=True, slots=True)
class Request:
    """A consumer's request."""

    consumer: str | None  # name of the consumer, for operators
    selection: Selection | None = None  # which messages, and in which order; None: all, in the table's order
    max_groups: int | None = None  # maximum number of exclusive groups; None: any number

    @property
    def what(self) -> tuple[Hashable, ...]:
        """Return the key by which consumers that wait for the same messages are grouped."""
        return (None if self.selection is None else self.selection.what, self.max_groups)


@dataclass(frozen=True, slots=True)
class Watched:
    """What consumers wait for, for one thread that watches several tables."""

    row: TableRow
    request: Request

    @property
    def what(self) -> tuple[Hashable, ...]:
        """Equal for consumers that wait for the same messages of a database."""
        context = self.row.last_seen
        owner = self.request.consumer if context.options.groups == "exclusive" else None
        return (context.table_id, owner, *self.request.what)

    def changes(self) -> Changes:
        """Begin to watch the table for changes. The caller closes the result."""
        context = self.row.last_seen
        return context.sql.changes(context.backend, context.name)

    def due_in(self) -> float:
        """Return the seconds until a claim may find something; infinity if nothing is scheduled."""
        context = self.row.now()
        due, now, free_at = _when_due(context, _where(context, self.request), self.request)
        if due is None:
            return math.inf
        return max(0, max(due, context.paused_until or due, free_at or due) - now) / _SECOND


def receive(row: TableRow, callers: CallerConnections, limit: int | None, request: Request) -> list[Delivery]:
    """Claim up to ``limit`` due messages without waiting. None: the table's ``batch_size``."""
    context = row.now()
    try:
        found = _receive(context, callers, limit, request)
        if not found and heal(context, idle=True):
            return _receive(context, callers, limit, request)
    except RefusedError:
        # The SQL table may have been dropped or altered in the meantime.
        fresh = row.read()
        if fresh.rows.columns.keys() == context.rows.columns.keys() and (fresh.dead is None) == (context.dead is None):
            raise
        return _receive(fresh, callers, limit, request)
    return found


def receive_waiting(
    row: TableRow, callers: CallerConnections, limit: int | None, request: Request, wait: int
) -> list[Delivery]:
    """Claim up to ``limit`` due messages; if none are due, wait at most ``wait`` ns for some."""
    until = moments.monotonic() + wait / _SECOND
    context = row.now()
    changes = context.sql.changes(context.backend, context.name)
    stop = Stop()
    in_vain = 0
    try:
        while not (found := receive(row, callers, limit, request)):
            left = until - moments.monotonic()
            if left <= 0:
                break
            in_vain, _ = pause(row, changes, stop, min(left, LOOK_EVERY), request, in_vain)
    finally:
        changes.close()
    return found


def _receive(context: TableContext, callers: CallerConnections, limit: int | None, request: Request) -> list[Delivery]:
    if context.paused_until is not None and context.backend.now() < context.paused_until:
        return []
    most = context.options.batch_size if limit is None else limit
    if context.refused_seqs.some:
        again = _take(context, callers, most, request, select_on(context, request.selection), _claim_again)
        if again:
            return again
    is_any = request.selection is None and not context.refused_seqs.some
    bound = _ALL if is_any else _choose(context, request.selection)
    started = moments.monotonic()
    # After a full claim, another claim is the quickest way to look for more.
    if not context.marks.had_enough:
        if not context.marks.is_set and is_idle(context):
            return []
        if _finds_none(context, bound[0], request):
            _note_walk(context, bound[0], started)
            return []
    way = claim if context.options.rate_limit is None else _claim_at_rate
    found = _take(context, callers, most, request, bound, way)
    if not found:
        _note_walk(context, bound[0], started)
    elif context.options.groups is None:
        context.marks.walks.found()
    return found


def _take(
    context: TableContext,
    callers: CallerConnections,
    most: int,
    request: Request,
    bound: Bound,
    way: Callable[[TableContext, Wanted], list[Claimed]],
) -> list[Delivery]:
    """Claim until a message can be handed out, or none is claimed."""
    where, order = bound
    while True:
        of = request.consumer
        fresh = nullcontext(Unanswered(secrets.randbits(63)))
        with numbered(context, of) if context.options.groups == "exclusive" else fresh as unanswered:
            by, began = unanswered.claim_id, moments.monotonic_ns()
            wanted = Wanted(most, of, by, context.lease_length, where, order, request.max_groups, unanswered)
            if context.sql.keeps_ended or moments.monotonic_ns() >= context.sweeps.due_at:
                heal(context)  # even if there are always messages to claim
            try:
                claimed = way(context, wanted)
            except (RefusedError, InvalidArgumentError) as error:
                claimed = claim_past(context, wanted, error, way)
            if not claimed:
                return []
            may_die = context.options.max_attempts is not None or any(one.expired for one in claimed)
            living = _living(context, claimed, by) if may_die else claimed
            if living:
                process_heartbeat(context).note_sent(len(living))
            deliveries = hand_over(context, callers, living, Claim(by, of, began))
            if unanswered.since:
                unanswered.note(claimed)
        if deliveries:
            return deliveries
        if len(claimed) == most and all(one.expired for one in claimed):
            expire_more(context)


def hand_over(
    context: TableContext, callers: CallerConnections, claimed: Sequence[Claimed], claim: Claim
) -> list[Delivery]:
    """Build the deliveries of claimed messages.

    A message that cannot be read fails as if its handler had failed: no other consumer could read it either. If it
    cannot go back to the table, it stays leased, and so do those behind it in its group. If the group is exclusive, the
    error is raised instead: the next claim finds all messages of this one.
    """
    deliveries: list[Delivery] = []
    failed: set[str | None] = set()
    further = user_column_names(context.rows)
    beat_at = claim.began + context.lease_length.first_beat
    for one in claimed:
        row = one.row
        in_group = context.options.groups is not None and row.position is not None
        if in_group and row.group_id in failed:
            continue  # it went back with an earlier message of its group
        # Leases of an earlier claim are extended at once, because their start is unknown.
        if one.claim_id is None:
            delivery = Delivery(context, callers, one, claim, beat_at)
        else:
            now = moments.monotonic_ns()
            delivery = Delivery(context, callers, one, Claim(one.claim_id, claim.consumer, now), now)
        # Most are plain, and the call takes a tenth of the time for a message.
        is_plain = row.headers is None and not further and Unreadable not in (type(row.id), type(row.message))
        problem = None if is_plain else unreadable(row, further)
        if problem is None:
            deliveries.append(delivery)
            continue
        if in_group and not dies_when_given_back(context, delivery.leased):
            failed.add(row.group_id)
        try:
            delivery.nack(error=problem)
        except LeaseLostError:
            continue
        except WaterclockError as error:
            if context.options.groups == "exclusive":
                raise
            if in_group:
                failed.add(row.group_id)
            _log.warning("cannot return unreadable message %r to table %s: %s", row.id, context.name, error)
    return deliveries


def _choose(context: TableContext, selection: Selection | None) -> Bound:
    where, order = select_on(context, selection)
    return excluding(context, where), order


def _note_walk(context: TableContext, where: sa.ColumnElement[bool] | None, started: float) -> None:
    walks = context.marks.walks
    if where is None:  # a selection's cost does not predict that of the walk
        walks.walked(moments.monotonic() - started)


def _finds_none(context: TableContext, where: sa.ColumnElement[bool] | None, request: Request) -> bool:
    """Return whether nothing is due, on databases with one writer, where claims of empty tables would block writers."""
    if not context.sql.one_writer or context.reached.now() is not None:
        return False
    with context.backend.snapshot(indexed=True) as connection:
        due, now = next_due(context, connection, where, request.consumer, request.max_groups)
    return due is None or due > now


def _claim_again(context: TableContext, wanted: Wanted) -> list[Claimed]:
    return claim_refused_again(context, wanted, claim if context.options.rate_limit is None else _claim_at_rate)


def _claim_at_rate(context: TableContext, wanted: Wanted) -> list[Claimed]:
    def claim_allowed(own: SqlConnection) -> list[Claimed]:
        return _claim_allowed(context, own, wanted)

    may_lose = context.options.groups == "exclusive"
    found = context.backend.transact(
        trying(context, wanted, (), claim_allowed) if may_lose else claim_allowed, indexed=True
    )
    return found.claimed if isinstance(found, TakenBefore) else found


def _claim_allowed(context: TableContext, connection: SqlConnection, wanted: Wanted) -> list[Claimed]:
    allowed = rate_allows(context, connection, wanted.limit)
    if not allowed:
        return []
    claimed = claim_within(context, connection, replace(wanted, limit=allowed))
    note_sent(context, connection, sum(_lives(context, one) for one in claimed))
    return claimed


def _lives(context: TableContext, one: Claimed) -> bool:
    return not one.expired and not is_exhausted(context, one.row.epoch or 0)


def _living(context: TableContext, claimed: list[Claimed], claim_id: int) -> list[Claimed]:
    """Remove messages that have expired or used up their attempts; return the others."""
    living = [one for one in claimed if _lives(context, one)]
    if len(living) < len(claimed):
        expired = [one.row.seq for one in claimed if one.expired]
        if expired:
            _remove(context, lambda own: expire_claimed(context, own, sorted(expired), claim_id))
        exhausted = [one.row.seq for one in claimed if not one.expired and not _lives(context, one)]
        if exhausted:
            _remove(context, lambda own: bury_claimed(context, own, sorted(exhausted), claim_id))
    return living


def _remove(context: TableContext, remove: Callable[[SqlConnection], None]) -> None:
    """Remove messages that a claim has just found; if that fails, they stay until their lease ends."""
    try:
        context.backend.transact(remove)
    except WaterclockError as error:  # the consumer already has the other messages
        _log.warning("cannot remove expired and cancelled messages from table %s: %s", context.name, error)


def pause(
    row: TableRow, changes: Changes, stop: Stop, longest: float, request: Request, in_vain: int
) -> tuple[int, bool]:
    """Wait until something changes or is due, or a poll interval is over, at most ``longest`` seconds.

    ``in_vain`` is how many claims in a row, before the last, found nothing although something was due. Returns the same
    count including the last claim, and whether a claim may find something: False if the time is over and nothing
    changed.
    """
    context = row.last_seen
    try:
        return _pause(context, changes, stop, longest, request, in_vain)
    except RefusedError:
        # As in `receive`. The next claim notices a change of the table.
        fresh = row.read()
        if fresh.table_id == context.table_id and fresh.rows.columns.keys() == context.rows.columns.keys():
            raise
        return 0, True


def seconds_until_due(context: TableContext, request: Request) -> float:
    """Return the seconds until a claim may get something; infinity if never."""
    due, now, _ = _when_due(context, _where(context, request), request)
    if due is None:
        return math.inf
    return max(0, max(due, context.paused_until or due) - now) / _SECOND


def seconds_until_own_due(context: TableContext, names: Sequence[str], request: Request) -> dict[str, OwnDue]:
    """Return when each of these consumers, which all make the same request, has to claim its own groups."""
    limited = request.max_groups is not None
    found, now = context.backend.look(lambda own: own_groups_due(context, own, names, limited=limited))
    until = context.paused_until or 0
    due_in: dict[str, OwnDue] = {}
    for name, (due, has_room) in found.items():
        if due is None:
            seconds = seconds_until_due(context, replace(request, consumer=name))
        else:
            seconds = max(0, max(due, until) - now) / _SECOND
        due_in[name] = OwnDue(seconds, has_room)
    return due_in


def _where(context: TableContext, request: Request) -> sa.ColumnElement[bool] | None:
    where, _ = select_on(context, request.selection)
    return excluding(context, where) if context.refused_seqs.some else where


def pause_after(in_vain: int) -> float:
    """Return the pause after so many claims in a row that failed to get due messages, in seconds.

    Others have locked these messages, or they wait for something that no claim can do. After the first claim there is
    no pause, because they may just have become due. Then pauses double up to `LONGEST_PAUSE`.
    """
    return 0.0 if in_vain <= 1 else min(_FIRST_PAUSE * 2 ** min(in_vain - 2, 10), LONGEST_PAUSE)


def _when_due(
    context: TableContext, where: sa.ColumnElement[bool] | None, request: Request
) -> tuple[int | None, int, int | None]:
    """Return when something may be due, the time, and when the rate limit allows a claim; None: never."""
    if context.options.groups is None and context.options.rate_limit is None:  # one statement needs no snapshot
        return *context.backend.look(lambda own: next_due(context, own, where)), None
    with context.backend.snapshot(indexed=True) as connection:
        due, now = next_due(context, connection, where, request.consumer, request.max_groups)
        return due, now, rate_free_at(context, connection)


def _pause(
    context: TableContext, changes: Changes, stop: Stop, longest: float, request: Request, in_vain: int
) -> tuple[int, bool]:
    where = _where(context, request)
    changes.arm()
    due, now, free_at = _when_due(context, where, request)
    if due is not None and due <= now and free_at is not None and free_at > now:
        # Due times are known, so notifications add nothing. Claims of single messages are expensive: wait for several.
        seconds = max((free_at - now) / _SECOND, _TOKENS_FOR)
        stop.wait(min(seconds, LOOK_EVERY, longest))
        return 0, True
    if context.paused_until is not None and due is not None:
        due = max(due, context.paused_until)
    in_vain = in_vain + 1 if due is not None and due <= now else 0
    due_in = math.inf if due is None else pause_after(in_vain) if in_vain else (due - now) / _SECOND
    seconds = min(context.options.poll_interval / _SECOND, due_in, longest)
    due_at = moments.monotonic() + due_in
    # Without notifications by writers, checking more often would mean claiming more often.
    ended = stop.wait(seconds) if in_vain and not changes.tells else changes.wait(seconds, stop)
    return in_vain, ended or moments.monotonic() >= due_at
