"""Maintains each ledger's running maximum: the largest time of the topic's messages up to the end of the ledger.

A search for a time uses the running maxima to find the ledger. They must never be too low, and must never fall from one
ledger to the next. A running maximum that is too high, because its ledger was deleted, only slows a search down: the
search begins at an earlier ledger, walks from ledger to ledger and finds the same message. So a deletion only notes in
the topic's row (``stale_peaks``) that running maxima may be stale. Later, `lower_peaks` lowers them, up to
`_LEDGERS_AT_ONCE` per transaction. It begins at the first remaining ledger, and stops at the first one whose running
maximum is already right.

If `lower_peaks` is killed, the maxima of finished ledgers are right, and the maxima of later ledgers may still be too
high. So ``stale_peaks`` holds the first ledger that is not finished. A right maximum before this ledger does not stop
the next run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import sqlalchemy as sa

from waterclock.database.schema.topic_catalogue import BOUNDED, ledgers, topics
from waterclock.time import MIN_NS
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.model.bounds import peak_columns, peak_of_row

_LEDGERS_AT_ONCE = 500

_Peak = dict[str, int | None]

_COLUMNS = [
    *(ledgers.c[name] for name in ("ledger", "state", "messages")),
    *(ledgers.c[f"{kind}_{time}"] for kind in ("end", "peak") for time in BOUNDED),
]


def peak_before(storage: Storage, connection: sa.Connection, ledger: int) -> Mapping[str, int] | None:
    """Return the running maximum before a ledger; None if no earlier ledger has one."""
    known = [ledgers.c[f"peak_{time}"].is_not(None) for time in BOUNDED]
    statement = (
        sa.select(ledgers.c.ledger, *(ledgers.c[f"peak_{time}"] for time in BOUNDED))
        .where(ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger < ledger, *known)
        .order_by(ledgers.c.ledger.desc())
        .limit(1)
    )
    row = connection.execute(statement).mappings().one_or_none()
    return None if row is None else peak_of_row(row)


def raise_later(storage: Storage, connection: sa.Connection, ledger: int, peak: Mapping[str, int]) -> None:
    """Apply a ledger's running maximum to the ledgers after it; the transaction holds the topic's lock."""
    for time, value in peak.items():
        column = ledgers.c[f"peak_{time}"]
        later = (ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger > ledger, column < value)
        connection.execute(sa.update(ledgers).where(*later).values({column: value}))


def note_deletion(storage: Storage, connection: sa.Connection, topic: sa.RowMapping) -> None:
    """Record in the deleting transaction that ledgers were deleted from the start of a topic.

    Parameters
    ----------
    topic
        The topic's row.
    """
    first = next(iter(_ledgers_from(storage, connection, 0, 1)), None)
    if first is not None and all(first[f"peak_{time}"] == first[f"end_{time}"] is not None for time in BOUNDED):
        return  # it includes all earlier ledgers
    stale = max(topic["stale_peaks"] or 0, 0 if first is None else first["ledger"])
    _write(storage, connection, {"stale_peaks": stale})


def lower_peaks(storage: Storage) -> None:
    """Lower running maxima that deleted ledgers had raised to those of the remaining ledgers."""
    with storage.backend.snapshot() as connection:
        if storage.row(connection)["stale_peaks"] is None:
            return
    at: int | None = 0
    while at is not None:
        at = storage.backend.transact(partial(_lower_some, storage, at))


def _lower_some(storage: Storage, start: int, connection: sa.Connection) -> int | None:
    """Lower the running maxima of some ledgers from ``start`` on; return where to continue, None at the end."""
    topic, _ = storage.lock(connection)
    stale: int = topic["stale_peaks"] or 0
    before = peak_before(storage, connection, start)
    peak: _Peak = dict.fromkeys(BOUNDED) if before is None else dict(before)
    rows = _ledgers_from(storage, connection, start, _LEDGERS_AT_ONCE)
    changed: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    agreed = False
    for row in rows:
        known = {time: row[f"peak_{time}"] for time in BOUNDED}
        right = {time: _carried(peak, row, time) for time in BOUNDED}
        # A ledger that is empty or was not measured matches anything.
        agreed = right == known and row["ledger"] >= stale and None not in known.values() and row["messages"] > 0
        if agreed:
            break
        times = tuple(time for time in BOUNDED if right[time] != known[time])
        if times:
            new = {f"new_{time}": right[time] for time in times}
            changed[times].append({"topic": storage.topic_id, "number": row["ledger"], **new})
    for times, values in changed.items():
        connection.execute(_lowering(times), values)
    if not agreed and len(rows) == _LEDGERS_AT_ONCE:
        following: int = rows[-1]["ledger"] + 1
        _write(storage, connection, {"stale_peaks": max(stale, following)})
        return following
    total = {} if agreed else peak_columns(None if None in peak.values() else peak)  # pyright: ignore[reportArgumentType]  # without None
    _write(storage, connection, {"stale_peaks": None, **total})
    return None


@cache
def _lowering(times: tuple[str, ...]) -> sa.Update:
    """Build the statement that writes the running maxima of some times; each one costs an index entry."""
    return (
        sa.update(ledgers)
        .where(ledgers.c.topic_id == sa.bindparam("topic"), ledgers.c.ledger == sa.bindparam("number"))
        .values({f"peak_{time}": sa.bindparam(f"new_{time}") for time in times})
    )


def _carried(peak: _Peak, row: sa.RowMapping, time: str) -> int | None:
    """Apply the running maximum of one time to one more ledger; return that ledger's."""
    end, known = row[f"end_{time}"], row[f"peak_{time}"]
    if row["messages"] == 0:
        return peak[time]
    if row["state"] == "lost":  # no search ends there; without a running maximum it would be measured
        return MIN_NS if peak[time] is None else peak[time]
    if end is None:
        end = known  # not measured, so there is no lower value
    if end is None:
        return None
    before = peak[time]
    peak[time] = end if before is None else max(before, end)
    return peak[time]


def _ledgers_from(storage: Storage, connection: sa.Connection, ledger: int, most: int) -> list[sa.RowMapping]:
    statement = (
        sa.select(*_COLUMNS)
        .where(ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger >= ledger)
        .order_by(ledgers.c.ledger)
        .limit(most)
    )
    return list(connection.execute(statement).mappings())


def _write(storage: Storage, connection: sa.Connection, values: Mapping[str, int | None]) -> None:
    connection.execute(sa.update(topics).where(topics.c.id == storage.topic_id).values(values))
