"""Deliberate faults: the simulator is only worth what it finds of them."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import sqlalchemy as sa
from tests.simulation.gate import Rewrite

from waterclock.database.per_database_cache import forget_built
from waterclock.tables.catalogue import totals
from waterclock.tables.consumers import receiving
from waterclock.tables.groups import consumers, group_state, routing
from waterclock.tables.messages.claiming import claiming, lost_claims
from waterclock.tables.messages.finishing import acking, dead_letters, expiring
from waterclock.tables.messages.group_admin import group_commands
from waterclock.tables.messages.upkeep import purging, reconcile
from waterclock.tables.model.claims.claim import Acked, Claimed

Replaced = tuple[Any, str, Any]
"""What stands in for something: module, name, and the other one."""

_LOCK = re.compile(r" FOR UPDATE(?: OF \w+)?(?P<skips> SKIP LOCKED)?")
_PARAMETER = r"(?:%\(\w+\)s(?:::\w+)?|%s|\?\d*|:\w+)"


@dataclass(frozen=True)
class Mutation:
    """A fault that is made on purpose.

    Attributes
    ----------
    name, scenario
        Its own, and that of the world in which it shows.
    rewrite
        Changes statements.
    replaced
        What stands in for functions.
    """

    name: str
    scenario: str
    rewrite: Rewrite = str
    replaced: tuple[Replaced, ...] = ()

    @contextmanager
    def made(self) -> Generator[None]:
        """Have the fault until the block ends."""
        with ExitStack() as patched:
            if self.replaced:  # what is built with them is not for others; a rewritten text is never kept
                patched.callback(forget_built)
                for module, name, other in self.replaced:
                    patched.enter_context(patch.object(module, name, other))
                forget_built()
            yield


def _unlocked(table: str, *, skips: bool) -> Rewrite:
    """Lock nothing of a table, in statements that skip what is locked or in those that wait for it."""
    return _relocked(table, "", skips=skips)


def _waiting(table: str) -> Rewrite:
    """Wait for what is locked of a table, in statements that skip it."""
    return _relocked(table, " FOR UPDATE", skips=True)


def _skipping(table: str) -> Rewrite:
    """Skip what is locked of a table, in statements that wait for it."""
    return _relocked(table, " FOR UPDATE SKIP LOCKED", skips=False)


def _relocked(table: str, other: str, *, skips: bool) -> Rewrite:
    def rewrite(text: str) -> str:
        found = _LOCK.search(text)
        is_meant = found is not None and re.search(table, text, re.DOTALL) is not None and bool(found["skips"]) == skips
        return _LOCK.sub(other, text) if is_meant else text

    return rewrite


def _unasked(verb: str, condition: str) -> Rewrite:
    """Leave a condition out of statements; the parameter stays."""

    def rewrite(text: str) -> str:
        return re.sub(f"({condition})", r"(\1 OR 1 = 1)", text) if re.match(verb, text) else text

    return rewrite


def _refuse(_context: object, _wanted: object, error: Exception, _claim: object) -> None:
    raise error


class NeverError(Exception):
    """Is raised by no one."""


def _no(*_: Any, **__: Any) -> bool:
    return False


def _nothing(*_: Any, **__: Any) -> None:
    """Stand in for what is to be done."""


def _none(*_: Any, **__: Any) -> set[Any]:
    return set()


_window = routing._route_window
_as_before = lost_claims._as_before
_join = consumers.join
_ack_leased = acking._ack_leased_rows
_return = acking._return
_bury = dead_letters.bury
_lock_free = group_state.lock_free_groups


def _forget_passed(context: Any, connection: Any, window: Any, _passed: set[str]) -> bool:
    return _window(context, connection, window, set())


def _end_at_once(context: Any, connection: Any, name: str, now: int) -> bool:
    consumers._release_some(context, connection, name, now)
    return True


def _join_anyhow(context: Any, connection: Any, name: str, most: int | None, now: int) -> consumers.Joined:
    table = consumers.consumers
    connection.execute(sa.delete(table).where(table.c.table_id == context.table_id, table.c.name == name))
    return _join(context, connection, name, most, now)


def _leave_out(context: Any, connection: Any, name: str, now: int) -> bool:
    """Release groups, and leave out what the consumer has of them."""
    del now
    found = list(connection.scalars(consumers._assigned(context), {"table": context.table_id, "who": name}))
    consumers._release(context, connection, found)
    return False


def _all_acked(context: Any, connection: Any, leased: Any) -> Acked:
    _ack_leased(context, connection, leased)
    return Acked(frozenset(), 0)


def _at_once(context: Any, connection: Any, leased: Any, statement: Any, values: Any) -> bool:
    return _return(context, connection, leased, statement, {**values, "delay": 0})


def _all_still(_context: Any, _connection: Any, leased: Any) -> list[bool]:
    return [True] * len(leased)


def _any_of(context: Any) -> sa.Select[Any]:
    rows = context.rows
    return sa.select(rows.c.seq, rows.c.group_id).where(context.unacked()).with_for_update()


def _any_of_free(context: Any) -> sa.Select[Any]:
    rows = context.rows
    columns = (rows.c.seq, rows.c.group_id, *([rows.c.routed] if context.options.groups else []))
    return sa.select(*columns).where(context.unacked()).with_for_update(skip_locked=True)


def _not_first(names: list[str], row: Any, now: int) -> Claimed:
    return _as_before(names, row, now)._replace(is_first=False)


def _look_at(context: Any, connection: Any, names: Any) -> dict[str, Any]:
    table = group_state.groups
    chosen = sa.select(table).where(table.c.table_id == context.table_id, table.c.group_id.in_(list(names)))
    return {row.group_id: row for row in connection.execute(chosen)}


def _of_names(context: Any, name: str = "groups") -> sa.Select[Any]:
    return sa.select(group_state.groups).where(group_state.these_groups(context, name))


def _all_names(_context: Any, _connection: Any, names: Any) -> list[str]:
    return sorted(names)


def _all_of(_claim: Any, names: Any) -> list[str]:
    return sorted(names)


def _write_totals(connection: Any, table_id: int, *, purged: int = 0, sent: int = 0) -> None:
    """Add to what was read before, as what others added meanwhile were not there."""
    table = totals.totals
    its = table.c.table_id == table_id
    known = connection.execute(sa.select(table.c.purged, table.c.sent).where(its)).one()
    connection.execute(sa.update(table).where(its).values(purged=known.purged + purged, sent=known.sent + sent))


def _is_over(rows: Any, now: Any) -> Any:
    return rows.c.expires_at <= now


NO_SWEEP: tuple[Replaced, ...] = ((reconcile, "settle_wrong", _nothing), (reconcile, "release_ownerless", _nothing))
_FREE_GROUPS = r"FROM waterclock_groups.*ready_at <="
_NAMED_GROUPS = r"FROM waterclock_groups(?!.*ready_at <=)"
_OF_ROWS = r"FROM orders"
_OF_GROUPS_OR_ROWS = rf"{_FREE_GROUPS}|(?:FROM|JOIN) orders"

MUTATIONS = {
    one.name: one
    for one in (
        Mutation(
            "first_messages_of_lost_claims_are_not_marked",
            "two_own",
            replaced=((lost_claims, "_as_before", _not_first),),
        ),
        # Locks
        Mutation(
            "passed_windows_are_forgotten",
            "a_hot_group",
            replaced=((routing, "_route_window", _forget_passed),),
        ),
        Mutation("claims_lock_nothing", "two_claim", _unlocked(_OF_GROUPS_OR_ROWS, skips=True)),
        Mutation("owners_lock_nothing", "two_claim_to_own", _unlocked(_OF_GROUPS_OR_ROWS, skips=True)),
        Mutation(
            "no_turn_of_routing",
            "an_operator_skips_owned",
            _unlocked("waterclock_message_tables", skips=True),
        ),
        Mutation(
            "commands_take_no_turn",
            "an_operator_skips_owned",
            replaced=((group_commands, "take_turn", _nothing),),
        ),
        Mutation(
            "one_that_left_keeps_locked_groups",
            "one_leaves",
            replaced=((consumers, "_end", _end_at_once), *NO_SWEEP),
        ),
        Mutation("rows_are_not_locked", "rows", _unlocked(_OF_ROWS, skips=True)),
        Mutation(
            "a_name_is_taken_but_once",
            "two_of_one_name",
            # Claiming past refused rows would hide it.
            replaced=((claiming, "ConstraintError", NeverError), (receiving, "claim_past", _refuse)),
        ),
        Mutation("purges_lock_no_row", "two_purgers", _unlocked(_OF_ROWS, skips=True)),
        Mutation("claims_lock_no_group", "two_claim", _unlocked(_FREE_GROUPS, skips=True)),
        Mutation("claims_wait_for_groups", "a_caller_keeps_a_group", _waiting(_FREE_GROUPS)),
        Mutation("owners_wait_for_groups", "a_caller_keeps_an_owned_group", _waiting(_FREE_GROUPS)),
        Mutation("routing_waits_for_rows", "a_caller_acks_what_is_new", _waiting(rf"{_OF_ROWS}.*routed (= 0|!= 1)")),
        Mutation("routing_locks_no_group", "a_hot_group", replaced=((routing, "locking_free", _of_names),)),
        Mutation("keys_are_not_locked", "one_key", _unlocked("FROM waterclock_unique_keys", skips=False)),
        Mutation("keys_that_are_locked_are_skipped", "one_key", _skipping("FROM waterclock_unique_keys")),
        Mutation("ticks_are_not_locked", "two_tick", _unlocked("FROM waterclock_schedules", skips=True)),
        Mutation("expiry_locks_no_row", "rows_expire", _unlocked(_OF_ROWS, skips=True)),
        Mutation("totals_are_written_over", "two_purgers", replaced=((purging, "add_totals", _write_totals),)),
        # Ownership and leases
        Mutation(
            "the_dead_keep_their_groups", "one_dies", replaced=((consumers, "release_lapsed", _nothing), *NO_SWEEP)
        ),
        Mutation(
            "renewals_go_by_name", "one_returns", _unasked("UPDATE", rf"waterclock_consumers\.session = {_PARAMETER}")
        ),
        Mutation(
            "leases_of_rows_are_not_compared", "rows", _unasked("UPDATE|WITH|SELECT", r"orders\.time_next <= [^ )]+")
        ),
        # Fences
        Mutation("acks_check_no_claim", "rows", _unasked("UPDATE", rf"orders\.claim_id = {_PARAMETER}")),
        Mutation(
            "acks_in_groups_check_no_claim", "two_receive", _unasked("UPDATE", rf"orders\.claim_id = {_PARAMETER}")
        ),
        Mutation("lost_acks_count", "rows", replaced=((acking, "_ack_leased_rows", _all_acked),)),
        # Retries and order
        Mutation("back_off_is_lost", "rows_fail", replaced=((acking, "_return", _at_once),)),
        Mutation("back_off_in_groups_is_lost", "one_fails", replaced=((acking, "_return", _at_once),)),
        # Settling
        Mutation("routing_settles_nothing", "two_receive", replaced=((routing, "settle", _nothing), *NO_SWEEP)),
        # Expiry
        Mutation(
            "what_was_given_longer_is_removed",
            "some_are_given_longer",
            replaced=((expiring, "_to_expire", _any_of), (expiring, "_locking", _any_of_free)),
        ),
        Mutation("what_is_out_expires", "some_expire", replaced=((expiring, "is_expired", _is_over),)),
        Mutation("no_sweep", "the_head_is_deleted", replaced=NO_SWEEP),
        Mutation("no_sweep_of_late_heads", "a_late_head_is_deleted", replaced=NO_SWEEP),
    )
}
