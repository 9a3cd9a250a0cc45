"""Skips messages that the database refuses to claim, for example because a user's trigger raises an error.

A refused claim is tried again with fewer and fewer messages, down to its first message or its first group. If this last
claim is refused, too, the next tries skip more and more of the first messages. If later messages can then be claimed,
the messages before them are skipped for `PASSED_BY_FOR`. Those of them that were never refused alone are tried soon
afterwards, a few at a time. If no later message can be claimed, the cause is not a single message, and nothing is
skipped. For a while after such a failed search, refused claims are not tried with fewer messages (`Narrowing`).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from waterclock._support import moments
from waterclock._support.log_events import event
from waterclock._support.quoting import in_a_line
from waterclock.database.per_database_cache import built_once
from waterclock.database.schema.table_catalogue import groups
from waterclock.errors import ForbiddenError, InvalidArgumentError, RefusedError, WaterclockError
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.groups.group_state import lock_free_groups, settle
from waterclock.tables.groups.routing import route_these, unrouted_groups
from waterclock.tables.messages.rows.process_heartbeat import process_heartbeat
from waterclock.tables.messages.rows.refused_rows import pass_by_refused
from waterclock.tables.model.claims.bounds import UNASSIGNED
from waterclock.tables.model.claims.claim import Claimed, Wanted
from waterclock.tables.model.claims.passed_by import MOST_PASSED_BY, PASSED_BY_FOR, REST
from waterclock.tables.model.row_conditions import is_waiting

MOST_TRIES = 24
"""Maximum claims, or routings, that one call tries: 21 find one refused message of a thousand, and skip thousands of
refused ones at the head.
"""

TRIED_ONE_BY_ONE = 4  # refused messages after which one call also skips others with them

FIRST_TRIES = 12
"""Routings, down to one of two thousand groups, after which a call assumes that all messages are refused."""

UNTRIED_FOR = 1_000_000_000
"""How long groups that were refused only together with others are skipped at least, ns: meanwhile, routed messages are
claimed without another refusal.
"""

MOST_GROUP_TRIES = 32  # claims that one call tries before it assumes that all groups are refused, and stops postponing
MOST_POSTPONED = 4_096  # maximum groups that one call postpones
NAMED_IN_A_REPORT = 10  # maximum refused messages or groups that one report names

_Claim = Callable[[TableContext, Wanted], list[Claimed]]

_log = logging.getLogger(__name__)


def excluding(context: TableContext, where: sa.ColumnElement[bool] | None) -> sa.ColumnElement[bool] | None:
    """Exclude skipped messages from a selection."""
    passed = context.refused_seqs.all()
    return _excluding(context.rows, where, passed) if passed else where


def claim_past(context: TableContext, wanted: Wanted, error: WaterclockError, claim: _Claim) -> list[Claimed]:
    """Claim again after the database refused with ``error``, skipping the messages that it refuses.

    Raises `RefusedError` or `InvalidArgumentError` if no later message can be claimed either.
    """
    if isinstance(error, ForbiddenError):  # a missing privilege affects all messages
        raise error
    if context.dead is not None:
        with context.backend.snapshot() as connection:
            if not context.sql.column_names(connection, context.dead.name):  # the caller reloads the table
                raise error
    if not context.narrowing.may_begin():
        raise error
    past = _past_rows if context.options.groups is None else _past_groups
    with context.narrowing.timed():
        return past(context, wanted, claim, error)


def claim_refused_again(context: TableContext, wanted: Wanted, claim: _Claim) -> list[Claimed]:
    """Retry some messages that were skipped for long enough, once and in at most a tenth of the time.

    The selection of ``wanted`` does not exclude skipped messages.
    """
    passed = context.refused_seqs
    some = passed.due(wanted.limit) if context.probing.may_begin() else []
    if not some:
        return []
    chosen = _these(context.rows.c.seq, some)
    where = chosen if wanted.where is None else wanted.where & chosen
    try:
        with context.probing.timed():
            claimed = claim(context, replace(wanted, where=where))
    except ForbiddenError:
        raise
    except (RefusedError, InvalidArgumentError) as error:
        passed.at_once = max(1, len(some) // 2)
        if len(some) == 1:
            passed.note(some)
            process_heartbeat(context).note_passed_by(_reason(_messages(passed.all()), error))
        return []
    passed.at_once *= 2
    taken = {one.row.seq for one in claimed}
    passed.forget(some if wanted.where is None else taken)
    passed.note(taken.symmetric_difference(some) if wanted.where is not None else ())
    return claimed


def _past_rows(context: TableContext, wanted: Wanted, claim: _Claim, error: WaterclockError) -> list[Claimed]:
    refused: list[int] = []
    most, skip = wanted.limit, 0
    room = MOST_PASSED_BY - len(context.refused_seqs.all())
    for _ in range(MOST_TRIES if room > 0 else 0):
        with context.backend.snapshot(indexed=True) as connection:
            found = list(connection.scalars(_due(context, wanted, refused).limit(min(skip + most, room))))
        due = found[skip:] or found[-1:]
        if not due:
            break
        chosen = _these(context.rows.c.seq, due)
        try:
            claimed = claim(context, replace(wanted, where=chosen if wanted.where is None else wanted.where & chosen))
        except ForbiddenError:
            raise
        except (RefusedError, InvalidArgumentError) as another:
            error = another
            if len(due) == 1:
                refused += due
                if skip >= len(found):
                    break
                # Random, so that no message is left out each time.
                skip = 2 * skip + random.randint(0, skip) + (len(refused) >= TRIED_ONE_BY_ONE)  # noqa: S311  # no secret
            most = max(1, len(due) // 2)
            continue
        if claimed and refused:
            context.refused_seqs.note(refused)
            left_out = found[: found.index(due[0])]
            context.refused_seqs.note(left_out, passed_by_for=0)
            behind = f" and {len(left_out)} behind them" if left_out else ""
            _report(context, _messages(refused) + behind, error)
        return claimed
    raise error


def _due(context: TableContext, wanted: Wanted, refused: Sequence[int]) -> sa.Select[Any]:
    rows = context.rows
    order = wanted.order or (rows.c.priority.desc(), rows.c.time_next, rows.c.seq)
    chosen = sa.select(rows.c.seq).where(is_waiting(rows), rows.c.time_next <= context.backend.now_sql())
    if wanted.where is not None:
        chosen = chosen.where(wanted.where)
    if refused:
        chosen = chosen.where(~_these(rows.c.seq, refused))
    return chosen.order_by(*order)


def _these(seq: sa.ColumnElement[int], seqs: Sequence[int]) -> sa.ColumnElement[bool]:
    # As literals: claims bind their own values only.
    return seq.in_([sa.literal_column(f"{one:d}", sa.BigInteger) for one in seqs])


@built_once(maxsize=64)
def _excluding(rows: sa.Table, where: sa.ColumnElement[bool] | None, seqs: frozenset[int]) -> sa.ColumnElement[bool]:
    # As one text, which needs no compilation: there may be thousands.
    listed = sa.literal_column(f"({', '.join(map(str, sorted(seqs)))})")
    others = rows.c.seq.op("NOT IN", is_comparison=True, return_type=sa.Boolean())(listed)
    return others if where is None else where & others


def _past_groups(context: TableContext, wanted: Wanted, claim: _Claim, error: WaterclockError) -> list[Claimed]:
    _pass_by_unrouted(context)
    postponed = _Postponed(context, wanted.consumer or UNASSIGNED)
    for _ in range(MOST_GROUP_TRIES):
        try:
            claimed = claim(context, replace(wanted, limit=1))
        except ForbiddenError:
            raise
        except (RefusedError, InvalidArgumentError) as another:
            error = another
            if not postponed.add():
                break
            continue
        new = postponed.refused - context.refused_groups.now()
        if claimed or not new:
            if new:
                context.refused_groups.note(new)
                _report(context, f"the first messages of groups {_some(sorted(new))}", error)
            return claimed
        if not postponed.halve():
            break
    postponed.undo()
    raise error


class _Postponed:
    """The first due groups, postponed because the database refused to claim them: more with each refusal."""

    def __init__(self, context: TableContext, me: str) -> None:
        self._context = context
        self._me = me
        self._names: list[str] = []
        self._last: list[str] = []  # the groups added last, without those given back
        self._count = 1
        self._grows = True
        self.refused: set[str] = set()  # those with which a refused claim began

    def add(self) -> bool:
        """Postpone the first groups; return False if no groups are left, or too many were postponed."""
        if len(self._names) >= MOST_POSTPONED:
            return False
        # Looked up now, because a claim that repairs groups may have changed which are first.
        with self._context.backend.snapshot(indexed=True) as connection:
            first = list(connection.scalars(_first_groups(self._context, self._me).limit(self._count)))
        if not first:
            return False
        self._context.backend.transact(lambda own: own.execute(*_postponing(self._context, first)))
        self.refused.add(first[0])
        self._last = [name for name in first if name not in self._names]
        self._names += self._last
        if not self._grows:
            self._count = max(1, self._count // 2)
        elif len(self.refused) >= TRIED_ONE_BY_ONE:
            self._count *= 2
        return True

    def halve(self) -> bool:
        """Restore half of the groups added last. Return False if that was only one, which was refused."""
        half = len(self._last) // 2
        if not half:
            return False
        self._grows, self._count = False, max(1, half // 2)
        self._last = self._names[-half:]
        del self._names[-half:]
        self._settle(self._last)
        return True

    def undo(self) -> None:
        """Restore all of them."""
        if self._names:
            self._settle(self._names)

    def _settle(self, names: Sequence[str]) -> None:
        self._context.backend.transact(
            lambda own: settle(self._context, own, lock_free_groups(self._context, own, names))
        )


def _pass_by_unrouted(context: TableContext) -> None:
    """Route new messages, except those of groups for which the database refuses it."""
    began = moments.monotonic_ns()
    with context.backend.snapshot(indexed=True) as connection:
        names = unrouted_groups(context, connection)

    def route_some(some: Sequence[str]) -> int:
        context.backend.transact(lambda own: route_these(context, own, some), indexed=True)
        return len(some)

    # If many are refused, the groups added last are least likely to be.
    routed, refusal, *_ = pass_by_refused(names, route_some, FIRST_TRIES, last_first=True)
    if refusal is None:
        return
    if not routed:
        routed, *_ = pass_by_refused(_turned(names), route_some, FIRST_TRIES, last_first=True)
    if not routed:
        return
    with context.backend.snapshot(indexed=True) as connection:
        names = unrouted_groups(context, connection)
    _, refusal, refused, untried = pass_by_refused(_turned(names), route_some, MOST_TRIES)
    if refusal is not None:
        took = moments.monotonic_ns() - began
        context.refused_groups.note(untried, passed_by_for=min(max(UNTRIED_FOR, REST * took), PASSED_BY_FOR))
        context.refused_groups.note(refused)
        others = f" and some of {len(untried)} more" if refused and untried else ""
        _report(context, f"new messages of groups {_some(refused or untried)}{others}", refusal)


def _turned(names: Sequence[str]) -> list[str]:
    """Begin at a random group, so that the same one is not left out each time."""
    begin = random.randrange(len(names)) if names else 0  # noqa: S311  # no secret
    return [*names[begin:], *names[:begin]]


def _first_groups(context: TableContext, me: str) -> sa.Select[Any]:
    """Return the groups with which a claim begins."""
    return (
        sa.select(groups.c.group_id)
        .where(
            groups.c.table_id == context.table_id,
            groups.c.assigned.in_([UNASSIGNED, me]),
            groups.c.ready_at <= context.backend.now_sql(),
        )
        .order_by(groups.c.priority.desc(), groups.c.assigned.desc(), groups.c.ready_at, groups.c.first_seq)
    )


def _postponing(context: TableContext, names: Sequence[str]) -> tuple[sa.Update, list[dict[str, Any]]]:
    # A change of the group, or a check that finds a contradiction with its messages, makes it due earlier. Groups
    # become due one by one at random times, so that an accepted one does not always follow refused ones.
    now, wait = context.backend.now_sql(), sa.bindparam("wait", type_=sa.BigInteger)
    its = context.sql.of_table(groups.c.table_id, context.table_id) & (groups.c.group_id == sa.bindparam("name"))
    statement = sa.update(groups).where(its, groups.c.ready_at <= now).values(ready_at=now + wait)
    if len(names) == 1:
        return statement, [{"name": names[0], "wait": PASSED_BY_FOR}]
    return statement, [{"name": name, "wait": random.randint(1, PASSED_BY_FOR)} for name in names]  # noqa: S311  # no secret


def _messages(seqs: Collection[int]) -> str:
    return f"messages with seq {_some(sorted(seqs))}"


def _some(refused: Sequence[object]) -> str:
    named = ", ".join(map(repr, refused[:NAMED_IN_A_REPORT]))
    return named if len(refused) <= NAMED_IN_A_REPORT else f"{named} and {len(refused) - NAMED_IN_A_REPORT} more"


def _reason(what: str, error: WaterclockError) -> str:
    return f"{what} are skipped for up to {PASSED_BY_FOR // 1_000_000_000} s: {error}"


def _report(context: TableContext, what: str, error: WaterclockError) -> None:
    reason = _reason(what, error)
    process_heartbeat(context).note_passed_by(reason)
    _log.warning(
        "cannot claim from table %r: %s",
        context.name,
        in_a_line(reason),
        extra=event("claim_refused", table=context.name),
    )
