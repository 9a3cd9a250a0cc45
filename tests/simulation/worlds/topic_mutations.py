"""Deliberate faults of topics: the simulator is only worth what it finds of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import sqlalchemy as sa
from tests.simulation.worlds.mutations import Mutation

from waterclock.database.backend import Backend
from waterclock.topics import subscription
from waterclock.topics.catalogue import ledgers
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.finding import subscription_rows
from waterclock.topics.model.producer_state import ProducerState
from waterclock.topics.upkeep import retention, sealing
from waterclock.topics.writing import producers

_LOCK = re.compile(r" FOR (?:NO KEY )?UPDATE")


def _unlocked(text: str, table: str, columns: str = "") -> str:
    """Lock nothing of a table, in statements that begin with these columns."""
    is_meant = f"FROM {table}" in text and re.match(rf"SELECT {columns}", text) is not None
    return _LOCK.sub("", text) if is_meant else text


def _appends_lock_nothing(text: str) -> str:
    # An append reads the clock first, all others the topic's row.
    return text if text.startswith("SELECT waterclock_topics.") else _unlocked(text, "waterclock_topics")


def _appends_skip(text: str) -> str:
    is_meant = "FROM waterclock_topics" in text and not text.startswith("SELECT waterclock_topics.")
    return _LOCK.sub(r"\g<0> SKIP LOCKED", text) if is_meant else text


def _upkeep_locks_nothing(text: str) -> str:
    return _unlocked(text, "waterclock_topics", "waterclock_topics")


def _subscriptions_lock_nothing(text: str) -> str:
    return _unlocked(text, "waterclock_subscriptions")


def _no_token(text: str) -> str:
    return re.sub(r"(waterclock_entries\.token = )", r"1 = 0 AND \1", text)


def _nothing(*_: Any, **__: Any) -> None:
    """Stand in for what is to be done."""


def _rows_first(storage: Any, pending: Any, file: Any) -> None:
    """Delete a ledger's entries before it has its file."""
    sealing.delete_rows(storage, pending.first)
    _commit(storage, pending, file)


def _anywhere(_row: Any, place: Any) -> dict[str, int]:
    return subscription_rows._place_columns(place)


def _of_any_epoch(storage: Any, name: str, _epoch: int, place: Any, _lease: int) -> None:
    subscription_rows.advance(storage, name, place)


def _lock_but_in(*rooms: ModuleType) -> Any:
    """Lock the topic's row for all but some modules, which only read it."""

    def lock(storage: Storage, connection: sa.Connection) -> tuple[sa.RowMapping, int]:
        if sys._getframe(1).f_globals["__name__"] not in [room.__name__ for room in rooms]:
            return _lock(storage, connection)
        return storage.row(connection), storage.backend.now(connection)

    return lock


@contextmanager
def _of_each_statement(backend: Backend, *, indexed: bool = False) -> Generator[sa.Connection]:
    """Read in a transaction whose statements see what others commit meanwhile."""
    del indexed
    with backend._reading_translated(), backend.engine.begin() as connection:
        yield connection


_commit = sealing._commit
_lock = Storage.lock

MUTATIONS = {
    one.name: one
    for one in (
        # Locks
        Mutation("appends_lock_no_counter", "two_append", _appends_lock_nothing),
        Mutation("deletions_lock_no_topic", "two_delete_at_once", _upkeep_locks_nothing),
        Mutation("rolls_lock_no_topic", "two_append", replaced=((Storage, "lock", _lock_but_in(ledgers)),)),
        Mutation(
            "retention_locks_no_topic", "two_delete_at_once", replaced=((Storage, "lock", _lock_but_in(retention)),)
        ),
        Mutation(
            "producers_lock_no_topic", "a_producer_returns", replaced=((Storage, "lock", _lock_but_in(producers)),)
        ),
        Mutation("appends_skip_a_locked_counter", "two_append", _appends_skip),
        Mutation("seeks_lock_no_subscription", "one_seeks", _subscriptions_lock_nothing),
        Mutation("two_hold_a_subscription", "two_follow", _subscriptions_lock_nothing),
        Mutation(
            "readers_have_no_snapshot",
            "two_seal",
            replaced=((Backend, "snapshot", _of_each_statement),),
        ),
        Mutation(
            "expiry_goes_back",
            "a_late_expiry",
            replaced=((subscription_rows, "_forward", _anywhere),),
        ),
        # Fences
        Mutation("commits_check_no_epoch", "one_seeks", replaced=((subscription.rows, "commit", _of_any_epoch),)),
        Mutation("sealers_check_no_lease", "two_seal", replaced=((sealing, "forget_pending", _nothing),)),
        # Deaths and answers
        Mutation("a_lost_answer_is_written_again", "threads_append", _no_token),
        Mutation("rows_go_before_their_file_is_known", "two_seal", replaced=((sealing, "_commit", _rows_first),)),
        # Numbers
        Mutation(
            "numbers_are_not_compared", "two_of_one_producer", replaced=((ProducerState, "find_repeat", _nothing),)
        ),
        # Readers
        Mutation("deletion_passes_readers", "two_truncate", replaced=((retention, "_slowest", _nothing),)),
    )
}
