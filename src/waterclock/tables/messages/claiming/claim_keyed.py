"""Claims in a table whose keys take turns. A key may limit how many of its messages are leased, and their rate."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock._support import moments
from waterclock.database.driver_fast_path import execute_later
from waterclock.database.per_database_cache import built_once
from waterclock.database.sql_connection import SqlConnection, SqlRows
from waterclock.tables.catalogue.context import TableContext
from waterclock.tables.databases.claiming_rows import columns_read
from waterclock.tables.databases.mariadb import leased_keys
from waterclock.tables.databases.table_dialect import adapted
from waterclock.tables.keys.execute_together import Search, execute_together
from waterclock.tables.keys.key_limits import NO_KEY, InFlight, counting, free_places, is_leased, leased_from, trusted
from waterclock.tables.keys.key_rates import KeyRates
from waterclock.tables.keys.key_routing import look_on, route_keys
from waterclock.tables.keys.key_rows import (
    KeyState,
    Place,
    first_unacked,
    follow,
    give_turns,
    is_from_low,
    last_turns,
    move_tiers,
    of_messages,
    of_place,
    owned,
    place_all,
    put_off,
    set_times,
    some_slept,
    some_unrouted,
    state_of,
    wake,
)
from waterclock.tables.keys.turn_search import next_turns
from waterclock.tables.keys.turn_tiers import FOLLOWS, HAS_TURN, PACED, learn_tiers, lows_of, others_in_turn, tier_of
from waterclock.tables.messages.finishing.dead_letters import is_exhausted
from waterclock.tables.model.claims.claim import Claimed, Wanted
from waterclock.tables.model.claims.epochs import after_claim_sql
from waterclock.tables.model.claims.turns import Dealt, deal
from waterclock.tables.model.row_conditions import not_acked
from waterclock.tables.model.schema import MESSAGE_KEY

_KEYS_AT_ONCE = 100
LOWEST_TIER = -(2**31)
_PRIORITIES_AT_ONCE = 20  # in one turn of a key: many may have no message, and each takes a search
_LOOK_AT_TIERS_EVERY = 1.0  # seconds between two looks for rows that wait in the tier of a priority
_ROUNDS = 20  # rounds of turns in one transaction, so that none lasts long because of keys without claimable messages


@dataclass(frozen=True, slots=True)
class Examined:
    """The keys that a claim has examined in vain."""

    passed: frozenset[Place]  # keys with no more messages for this claim
    left: frozenset[Place]  # keys that keep their turns: they are full, or other claims own them
    tier: int  # the first tier that may have other keys


class _KeyTurn(NamedTuple):
    """The turn of a row; in a table with ``fair_by``, of a key. Rows are in order of priority, the highest first."""

    found: Sequence[Place]  # the rows that the search found
    due: Sequence[Place]  # all rows that wait for a turn, or follow one that does
    following: frozenset[Place]
    served: Sequence[Place]  # the rows whose messages the claim may take
    is_settled: bool  # whether no other row of the key would follow these if they slept

    @property
    def waiting(self) -> list[Place]:
        """Return the rows that wait for a turn."""
        return [place for place in self.due if place not in self.following]


class _Served(NamedTuple):
    """What a claim found in turns that end."""

    found: Mapping[Place, Sequence[Any]]  # the messages
    shares: Mapping[Place, int]  # for how many messages of each row the claim looked
    dealt: Dealt[Place]
    turns: Mapping[Place, _KeyTurn]  # by the row that was served first
    states: Mapping[Place, KeyState]
    rates: KeyRates
    paused: dict[Place, int]  # until when their rates let no message go, ns
    last: int | None  # the last turn of their tiers


def claim_keyed(
    context: TableContext, connection: SqlConnection, wanted: Wanted, examined: Examined | None = None
) -> tuple[list[Claimed], Examined | None]:
    """Claim messages of the keys whose turn it is.

    Returns the claimed messages, and the keys that the next transaction need not examine; None if all were examined.

    ``examined`` is what earlier transactions of the claim have examined.
    """
    claim = _KeyedClaim(context, connection, wanted, examined or Examined(frozenset(), frozenset(), LOWEST_TIER))
    more = claim.take()
    return claim.claimed, claim.examined if more else None


class _KeyedClaim:
    def __init__(self, context: TableContext, connection: SqlConnection, wanted: Wanted, examined: Examined) -> None:
        self._context = context
        self._connection = connection
        self._wanted = wanted
        self._now = 0
        self._passed, self._left = set(examined.passed), set(examined.left)
        self._tier = examined.tier
        self._is_fair = context.options.fair_by is not None
        self._others = True  # whether tiers without a bound may have turns
        self.claimed: list[Claimed] = []

    def take(self) -> bool:
        """Claim due messages while there is room; return whether there are keys that were not examined."""
        context, connection = self._context, self._connection
        lows = lows_of(context)
        self._now, unrouted, slept, *others = connection.execute(_look(context, lows.known), lows.values).one()
        tiers = {tier for tier in others if tier is not None}
        learn_tiers(context, tiers)
        self._others = bool(slept) or not tiers <= context.reached.groups.lows().keys()
        if unrouted:
            route_keys(context, connection, self._now, self._room)
        if slept:
            wake(context, connection, self._now)
        # Other processes may not know yet that the table has become fair.
        if self._is_fair and context.turns.looks_at_tiers(moments.monotonic(), _LOOK_AT_TIERS_EVERY):
            context.turns.has_other_tiers = move_tiers(context, connection)
        may_follow = all(self._room and self._take_turns() for _ in range(_ROUNDS))
        if unrouted and not may_follow and not self.claimed:
            look_on(context, connection, self._now)
        return may_follow

    @property
    def examined(self) -> Examined:
        return Examined(frozenset(self._passed), frozenset(self._left), self._tier)

    @property
    def _room(self) -> int:
        return self._wanted.limit - len(self.claimed)

    def _take_turns(self) -> bool:
        """Serve the next keys; return whether others may follow."""
        context, connection, wanted = self._context, self._connection, self._wanted
        # The search passes keys that are left, so behind many of them it looks for as many others.
        count = min(max(self._room, len(self._left)), _KEYS_AT_ONCE) + len(self._left)
        begun = next_turns(context, connection, count, self._tier, wanted.where, others=self._others)
        may_follow = len(begun) == count  # other keys, behind these
        places = [place for place in begun if place not in self._left and place not in self._passed]
        if not places:
            # The tier has no other keys, because skipped keys have the last turns of a tier.
            self._tier = (
                max((row.tier for place, row in begun.items() if place not in self._left), default=self._tier) + 1
            )
            return may_follow
        counted: list[SqlRows] = []
        limits = context.options.limit is not None or context.options.rate is not None
        keys = {place[0] for place in places if limits or begun[place].has_others}
        ours: dict[str, list[Any]] = {}
        if keys:
            asked = [*counting(context, keys), *([] if context.options.rate is None else [(_time(context), {})])]
            ours, counted = owned(context, connection, keys, asked)
            if context.options.rate is not None:
                self._now = counted.pop().scalar()
            self._left.update(place for place in places if place[0] in keys - ours.keys())
            places = [place for place in places if place not in self._left]
        turns = self._turns_of(places, begun, ours)
        rates = KeyRates(context.options.rate_of_a_key, ours, self._now)
        paused = rates.paused([place for turn in turns for place in turn.waiting])
        turns = [turn for turn in turns if turn.found[0] not in paused]
        keys = {turn.found[0][0] for turn in turns}
        flying = free_places(context, keys, trusted(context, connection, keys, counted), self._room)
        begins: dict[Place, _KeyTurn] = {}
        # With a condition, rows stay although they have no such message, so the next turn would search them again.
        most = _PRIORITIES_AT_ONCE if wanted.where is None else None
        for turn in turns:
            served = [place for place in turn.served if flying.has_claimable(place)][:most]
            if served:
                begins[served[0]] = turn._replace(served=served)
            else:
                self._left.update(turn.found)
        states = {place: _state_of(place, row, flying) for place, row in begun.items()}
        had = {first: max(begun[place].had for place in turn.waiting) for first, turn in begins.items()}
        dealt, lapsed = self._share(had, list(begins), flying, rates)
        found, last = self._lock(dealt.shares, lapsed, states)
        shares = dealt.shares | self._lock_others(dealt, begins, flying, states, found)
        self._claim(found, dealt, begins, states, rates)
        self._end_turns(_Served(found, shares, dealt, begins, states, rates, paused, last))
        if found and not any(found.values()) and may_follow:
            self._pass_empty()
        return True

    def _turns_of(
        self, places: Sequence[Place], begun: dict[Place, Any], ours: Mapping[str, Sequence[Any]]
    ) -> list[_KeyTurn]:
        """Return the turns of rows; those of the same key in a table with ``fair_by`` have one turn.

        Adds the other rows of the keys to ``begun``.
        """
        if not self._is_fair:
            # While a limit is lifted, processes that know it already may have made rows follow.
            followed = {key for key, rows in ours.items() if any(row.is_due == FOLLOWS for row in rows)}
            settled = ours.keys() - followed
            return [_KeyTurn([place], [place], frozenset(), [place], place[0] in settled) for place in places]
        found: dict[str, list[Place]] = {}
        for place in places:
            found.setdefault(place[0], []).append(place)
        turns: list[_KeyTurn] = []
        for key, its in found.items():
            others = {(key, row.level): row for row in ours.get(key, ()) if row.is_due in (HAS_TURN, FOLLOWS)}
            begun |= {place: row for place, row in others.items() if place not in begun}
            due = sorted({*its, *others})
            served = [place for place in due if place not in self._left and place not in self._passed]
            following = frozenset(place for place, row in others.items() if row.is_due == FOLLOWS)
            turns.append(_KeyTurn(its, due, following, served, is_settled=key in ours))
        return turns

    def _claim(
        self,
        found: Mapping[Place, Sequence[Any]],
        dealt: Dealt[Place],
        turns: Mapping[Place, _KeyTurn],
        states: dict[Place, KeyState],
        rates: KeyRates,
    ) -> None:
        """Claim the found messages, and note them in the states and rates of their keys."""
        left = {first: chain.from_iterable(found.get(one, ()) for one in turns[first].served) for first in dealt.shares}
        ends = self._hand_out([row for place, count in dealt.visits for row in islice(left[place], count)])
        for place, its in found.items():
            sent = [
                row.waterclock_now
                for row in its
                if not _has_expired(row) and not is_exhausted(self._context, row.epoch or 0)
            ]
            if sent:
                rates.note_sent(place[0], len(sent), max(sent))
            if its:
                first = min(ends[row.seq] for row in its), min(row.seq for row in its)
                states[place] = states[place]._replace(first_at=_first_of(its[0])).with_leased(*first)
        rates.write(self._context, self._connection)

    def _end_turns(self, served: _Served) -> None:
        """Assign new turns to served keys, and put off those with no more due messages or with a used-up rate."""
        context, connection, is_whole = self._context, self._connection, self._wanted.where is None
        short = {place for place, its in served.found.items() if len(its) < served.shares[place]}
        leaving = set(short) if is_whole else set[Place]()
        ended: list[Place] = []
        following: list[Place] = []
        unfinished: dict[Place, int] = {}
        for first in served.dealt.shares:
            turn = served.turns[first]
            staying = [place for place in turn.due if place not in leaving]
            is_over = short.issuperset(place for place in turn.served if place in served.found)
            if first in served.dealt.unfinished and staying and (is_whole or not is_over):
                # The first row keeps the turn for the others, even without more messages: others may have later turns.
                leaving.discard(turn.found[0])
                waiting = [place for place in turn.waiting if place not in leaving]
                unfinished |= dict.fromkeys(waiting, served.dealt.unfinished[first])
            elif staying:
                ended.append(staying[0])
                following += [place for place in staying[1:] if place not in turn.following]
            if is_over and not is_whole:
                self._passed.update(turn.due)
        self._passed.update(leaving)
        paused = served.paused | served.rates.paused([*ended, *unfinished])
        settled = {first[0] for first, turn in served.turns.items() if turn.is_settled}

        def of(places: Iterable[Place]) -> dict[Place, KeyState]:
            return {place: served.states[place] for place in places if place not in paused}

        put_off(context, connection, {place: served.states[place] for place in paused}, paused, PACED)
        set_times(context, connection, of(unfinished), unfinished)
        give_turns(context, connection, of(ended), served.last)
        follow(context, connection, of(following))
        set_times(context, connection, of(served.found.keys() - {*ended, *following, *unfinished, *leaving}))
        left = {one: served.states[one]._replace(used_until=served.rates.used_until(one[0])) for one in leaving}
        place_all(context, connection, left, self._now, settled=settled)

    def _weight(self, key: str) -> int:
        return (self._context.options.weights or {}).get(key, 1)

    def _pass_empty(self) -> None:
        """Put off many of the next keys without due messages at once, for example after these were cancelled.

        Otherwise a claim of one message would examine the keys one by one.
        """
        context, connection = self._context, self._connection
        begun = next_turns(context, connection, _KEYS_AT_ONCE, self._tier, self._wanted.where, others=self._others)
        passed = self._left | self._passed
        states = {place: state_of(row) for place, row in begun.items() if place not in passed}
        place_all(context, connection, states, self._now, keeps_turns=True)

    def _share(
        self, begun: Mapping[Place, int], places: Sequence[Place], flying: InFlight, rates: KeyRates
    ) -> tuple[Dealt[Place], dict[Place, int]]:
        """Divide the room among the keys in turn, in each tier.

        Returns how many messages each key gets, and how many of these are messages whose lease has ended.
        """
        room, free = self._room, dict(flying.free)
        allowed = {key: rates.allowed(key, most) for key, most in flying.room.items()}
        all_dealt: Dealt[Place] = Dealt()
        lapsed: dict[Place, int] = {}
        for _, tier in groupby(places, key=lambda place: tier_of(self._context, place[1])):
            its = list(tier)
            most = {place: min(allowed[place[0]], flying.lapsed.get(place, 0) + free[place[0]]) for place in its}
            dealt = deal(its, most, room, {place: self._weight(place[0]) for place in its}, begun)
            for place, count in dealt.shares.items():
                again = min(count, flying.lapsed.get(place, 0))
                if again:
                    lapsed[place] = again
                free[place[0]] -= count - again
                allowed[place[0]] -= count
                room -= count
            all_dealt.add(dealt)
        return all_dealt, lapsed

    def _lock(
        self, shares: Mapping[Place, int], lapsed: Mapping[Place, int], states: Mapping[Place, KeyState]
    ) -> tuple[dict[Place, list[Any]], int | None]:
        """Lock the next messages of each key that no other transaction has locked; return the last turn, too."""
        if not shares:
            return {}, None
        asked: list[Search] = []
        again: list[sa.Select[Any]] = []
        for of_lapsed in (True, False) if lapsed else (False,):
            of = self._context, self._wanted.where
            statement = _next_messages(*of, of_lapsed=of_lapsed)
            for place, share in shares.items():
                count = lapsed.get(place, 0) if of_lapsed else share - lapsed.get(place, 0)
                if count:
                    state = states[place]
                    starts = {"low": state.first_at}
                    if of_lapsed:
                        starts |= {"lapsed_from": max(state.gap_to, state.leased_from), "lapsed_seq": state.leased_seq}
                        starts |= leased_from(self._context)
                    asked.append((statement, {**of_messages(place), "count": count, **starts}))
                    again.append(_next_messages(*of, of_lapsed=of_lapsed, locks=True))
        found: dict[Place, list[Any]] = {place: [] for place in shares}
        turns = last_turns(self._context, {tier_of(self._context, level) for _, level in shares})
        rows = execute_together(self._context, self._connection, [*asked, *turns])
        for (_, values), locking, seen in zip(asked, again, rows, strict=False):
            members = seen
            if any(row.seq is None for row in members):  # others have locked some: behind these may be more
                members = self._connection.execute(locking, values).all()
            # If the clock was set forward during this claim, leases that it has just begun seem to have ended.
            others = [row for row in members if row.claim_id != self._wanted.claim_id]
            found[values["key"], -values["priority"]] += sorted(others, key=attrgetter("time_next", "seq"))
        return found, max(turn[0][0] for turn in rows[len(asked) :])

    def _lock_others(
        self,
        dealt: Dealt[Place],
        turns: Mapping[Place, _KeyTurn],
        flying: InFlight,
        states: Mapping[Place, KeyState],
        found: dict[Place, list[Any]],
    ) -> dict[Place, int]:
        """Lock messages of lower priorities of the keys that have fewer messages than their shares of a higher one.

        Adds them to ``found``, and returns how many messages of each of these rows were looked for.
        """
        shares: dict[Place, int] = {}
        for nth in range(1, max((len(turn.served) for turn in turns.values()), default=0)):
            asked: dict[Place, int] = {}
            lapsed: dict[Place, int] = {}
            for first, share in dealt.shares.items():
                its = turns[first].served
                got = [row for place in its for row in found.get(place, ())]
                missing = share - len(got)
                if not missing or nth >= len(its):
                    continue
                place = its[nth]
                again = min(missing, flying.lapsed.get(place, 0))
                new = min(missing - again, flying.free[place[0]] - sum(row.claim_id is None for row in got))
                if again + new:
                    asked[place] = again + new
                if again:
                    lapsed[place] = again
            found |= self._lock(asked, lapsed, states)[0]
            shares |= asked
        return shares

    def _hand_out(self, rows: Sequence[Any]) -> dict[int, int]:
        """Claim messages; return the ends of their leases by seq, ns."""
        wanted = self._wanted
        ends: dict[int, int] = {}
        lease = wanted.lease_length
        for row in rows:
            length = lease.of(row.epoch, random.uniform(-1, 1)) if row.epoch else lease.shortest  # noqa: S311  # no secret
            until = row.waterclock_now + length
            self.claimed.append(Claimed(row, until, _has_expired(row)))
            ends[row.seq] = until
        if ends:
            values = {"pairs": list(ends.items()), "by": wanted.claim_id, "who": wanted.consumer}
            execute_later(self._connection, (_taking(self._context), values))
        return ends


def _state_of(place: Place, row: Any, flying: InFlight) -> KeyState:
    """Return what a row says, with the first of its leased messages if they were counted."""
    state, first = state_of(row), flying.firsts.get(place)
    return state if first is None else state._replace(leased_from=first[0], leased_seq=first[1])


def _first_of(row: Any) -> int:
    """Return the time before which no routed message of a key is due, once its first due ones are claimed."""
    # MariaDB locks messages that were committed after the statement began, which the search for the first one misses.
    return row.time_next if row.waterclock_first_at is None else min(row.waterclock_first_at, row.time_next)


def _has_expired(row: Any) -> bool:
    return row.expires_at is not None and row.expires_at <= row.waterclock_now


@built_once(maxsize=256)
def _time(context: TableContext) -> sa.Select[int]:
    """Select the current time. To an earlier time, messages that others sent since would seem to be in the future."""
    return sa.select(context.backend.now_sql())


@built_once(maxsize=256)
def _look(context: TableContext, known: int) -> sa.Select[*tuple[Any, ...]]:
    """Select the current time, whether messages are new, and whether keys need not sleep any longer.

    On MariaDB, also tiers without a bound that have turns, with ``known`` bounds.
    """
    others = others_in_turn(context, known) if context.sql.begins_at_constants else []
    return sa.select(context.backend.now_sql(), some_unrouted(context), some_slept(context), *others)


@built_once(maxsize=256)
def _next_messages(
    context: TableContext, where: sa.ColumnElement[bool] | None, *, of_lapsed: bool, locks: bool = False
) -> sa.Select[*tuple[Any, ...]]:
    """Lock due messages of a key and priority; under a limit, those whose lease has ended, or unclaimed ones.

    If ``locks``, the search itself locks them, and so finds those behind messages that others have locked.
    """
    rows, now = context.rows, context.backend.now_sql()
    key = context.sql.few(rows.c[MESSAGE_KEY]) if of_lapsed else rows.c[MESSAGE_KEY]
    chosen = [rows.c.time_next <= now, *([] if where is None else [where])]
    if of_lapsed:
        lapsed_from = sa.bindparam("lapsed_from", type_=sa.BigInteger)
        lapsed_seq = sa.bindparam("lapsed_seq", type_=sa.BigInteger)
        unacked = is_leased(context), rows.c.time_next >= lapsed_from, rows.c.seq >= lapsed_seq
        chosen.append(rows.c.claim_id.is_not(None))
    else:
        unacked = (rows.c.time_acked.is_(None),)
    if not of_lapsed and context.options.limit is not None:
        chosen.append((rows.c[MESSAGE_KEY] == NO_KEY) | rows.c.claim_id.is_(None))
    # Messages that other transactions have locked stay unacked, so the next search begins at the first of all.
    first = first_unacked(rows.alias("first")).correlate(None).scalar_subquery()
    found = (
        sa.select(*columns_read(rows), first.label("waterclock_first_at"), now.label("waterclock_now"))
        .where(*of_place(rows, key), is_from_low(rows), *unacked, *chosen)
        .order_by(rows.c.time_next, rows.c.seq)
        .limit(sa.bindparam("count", type_=sa.Integer))
    )

    def search(source: sa.FromClause) -> sa.Select[*tuple[Any, ...]]:
        seen = found if source is rows else adapted(source, rows)(found.with_only_columns(rows.c.seq))
        if not (of_lapsed and context.sql.begins_at_constants):
            return seen
        return seen.with_hint(source, leased_keys.index_of(source, "leased"))

    if locks:
        return search(rows).with_for_update(skip_locked=True)

    still = sa.and_(not_acked(rows), *of_place(rows, rows.c[MESSAGE_KEY]), *chosen)
    return context.sql.lock_free(rows, search, still)


@built_once(maxsize=256)
def _taking(context: TableContext) -> sa.Update:
    each, until = context.sql.update_pairs(context.rows)
    rows = context.rows
    return each.ordered_values(
        (rows.c.time_next, until),
        (rows.c.epoch, after_claim_sql(rows.c.epoch)),
        (rows.c.claim_id, sa.bindparam("by", type_=sa.BigInteger)),
        (rows.c.consumer, sa.bindparam("who", type_=rows.c.consumer.type)),
        (rows.c.routed, sa.literal_column("1")),
    )
