"""Finds unrouted (new) messages on MariaDB, in tables whose keys take turns, without reading dead index entries.

A trigger writes into each message the second in which it became unrouted, and NULL once it is routed. The index is
ordered by these seconds, and within a second by key. A search begins at a lower bound. So it skips the entries of
earlier messages, which remain while a transaction holds an old snapshot. Entries with NULL come before all others, so
no search passes those of routed messages, living or dead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import sqlalchemy as sa

from waterclock.database.engines.mariadb import NOW
from waterclock.tables.model.schema import MESSAGE_KEY, UNROUTED_SINCE
from waterclock.time import NS_PER

_SECOND = NS_PER["s"]

SINCE_START = "GREATEST(0, TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6))) * 1000"
"""How long the statement has taken: SYSDATE() is the current time, and the others the start of the statement, which may
have waited for a lock. They are not compared in the session's time zone, in which an hour repeats in autumn."""

CLOCK_SQL = f"({NOW} + {SINCE_START})"
"""The current time for triggers, ns."""

SINCE_SQL = f"{CLOCK_SQL} DIV {_SECOND}"
"""The second in which a message becomes unrouted, for triggers."""

MOST_PASSED = 16
"""Keys whose messages one search passes. The server plans three ranges of the index for each, in each second."""

_SECONDS, _PLANNED = 32, 64
"""The most seconds in which one search looks for other keys, and the product of their number with that of the passed
keys. The server plans such a search in 4 ms."""

_NEWEST = 4  # of so many seconds, one is of the newest ones: a new key is found there, however many others are new


def second_of(now: int) -> int:
    """Return the second of a time, ns."""
    return now // _SECOND


def since() -> sa.ColumnElement[int]:
    """Return the first column of the index, which only one table of a search has."""
    return sa.column(UNROUTED_SINCE, sa.BigInteger)


def is_not_passed(rows: sa.FromClause, count: int) -> sa.ColumnElement[bool]:
    """Return the condition that a message is in one of the seconds of `passing`, and is not passed with ``count`` keys.

    Passed are the messages of a key and priority, except those that are due before the first one that was found.
    """
    key, priority = rows.c[MESSAGE_KEY], rows.c.priority
    seconds = [sa.bindparam(f"second_{nth}", type_=sa.BigInteger) for nth in range(_seconds_of(count))]
    chosen: list[sa.ColumnElement[bool]] = [since().in_(seconds)]
    for nth in range(count):
        its = sa.bindparam(f"key_{nth}", type_=key.type)
        of, first = (sa.bindparam(f"{name}_{nth}", type_=sa.BigInteger) for name in ("priority", "first"))
        is_earlier = (priority == of) & (rows.c.time_next < first)
        # Written out, so that the server jumps over the range.
        same_key = (key == its) & ((priority < of) | is_earlier | (priority > of))
        chosen.append((key < its) | same_key | (key > its))
    return sa.and_(*chosen)


class Passing(NamedTuple):
    """A search that passes messages of some keys."""

    keys: int  # how many
    values: dict[str, int | str]  # the parameters of `is_not_passed`
    end: int  # the second at which to go on


def passing(passed: Mapping[tuple[str, int], int], after: int, now: int) -> Passing:
    """Return a search that passes keys.

    ``passed`` are keys and priorities, with the due times of their first messages. The search looks at the seconds from
    ``after`` on, and at the newest ones.
    """
    places = list(passed.items())[:MOST_PASSED]
    count = 1 << (len(places) - 1).bit_length()  # a power of two, so few texts are compiled
    newest = _seconds_of(count) // _NEWEST
    end = after + _seconds_of(count) - newest
    first = max(end, second_of(now) + 1 - newest)
    seconds = [*range(after, end), *range(first, first + newest)]
    values: dict[str, int | str] = {f"second_{nth}": second for nth, second in enumerate(seconds)}
    for nth in range(count):
        (key, priority), due = places[min(nth, len(places) - 1)]
        values |= {f"key_{nth}": key, f"priority_{nth}": priority, f"first_{nth}": due}
    return Passing(count, values, end)


def _seconds_of(count: int) -> int:
    return min(_SECONDS, _PLANNED // count)
