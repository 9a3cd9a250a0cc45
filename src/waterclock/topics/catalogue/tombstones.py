"""Records messages as lost. Their rows remain in the catalogue, so that later messages keep their ordinals.

The row of a lost ledger has the state ``lost`` and no file. The row of a lost entry holds `LOST` as its data, which is
shorter than any entry. Both rows still count the lost messages, and every reader skips the lost messages. Damage that
is not recorded as lost is a fault that readers report.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from waterclock.checksum import framed
from waterclock.database.schema.topic_catalogue import BOUNDED, TIMES, entries, ledgers, topics
from waterclock.errors import InvalidArgumentError
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.model.bounds import Bounds, peak_columns, peak_of_row, raised
from waterclock.topics.model.counter import Counter

LOST = framed(b"WCL1", b"")
"""The data of an entry whose messages are lost."""

KEPT = entries.c.bytes > len(LOST)
"""Says in SQL which entries are not recorded as lost."""

_NO_BOUNDS = {f"begin_{time}": None for time in TIMES} | {f"end_{time}": None for time in BOUNDED}


def is_lost(data: bytes) -> bool:
    """Return whether this is the data of an entry that is recorded as lost; with a flipped bit it counts as damaged."""
    return data == LOST


def record_lost_ledger(storage: Storage, connection: sa.Connection, ledger: int) -> int:
    """Record that the messages of a ledger are gone for good; return how many.

    A ledger without a row gets one, which counts the messages missing up to the next ledger. If several neighbours are
    missing, the first one counts the messages of all. The file of a sealed ledger, and the rows of its entries, are
    left to the caller and the next sweep.

    Raises `InvalidArgumentError` if it is the open one, where only entries can be lost, or was deleted on purpose.

    Parameters
    ----------
    storage, connection
        The topic, and a transaction that holds its lock.
    ledger
        Its number.
    """
    topic = storage.row(connection)
    counter = Counter.of_row(topic)
    if not topic["first_ledger"] <= ledger < counter.ledger:
        raise InvalidArgumentError(
            f"ledger must be from {topic['first_ledger']} to {counter.ledger - 1} to be recorded as lost in topic"
            f" {storage.name!r}, got {ledger}"
        )
    key = (ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == ledger)
    row = connection.execute(sa.select(ledgers).where(*key)).mappings().one_or_none()
    lost = {"state": "lost", "path": None, "file_bytes": None, "row_groups": None, "footer": None, "checksums": None}
    bounds = None if row is None else Bounds.of_row(row)
    values: dict[str, Any] = {**lost, **({} if bounds else standing_in(storage, connection, ledger, row))}
    if row is not None:
        connection.execute(sa.update(ledgers).where(*key).values(values))
        return row["messages"]
    first, following = _gap(storage, connection, ledger, topic, counter)
    values |= {"entries": 0, "messages": following - first, "bytes": 0, "first_ordinal": first}
    now = storage.backend.now(connection)
    connection.execute(sa.insert(ledgers), {"topic_id": storage.topic_id, "ledger": ledger, "closed_at": now, **values})
    return following - first


def record_lost_entries(storage: Storage, connection: sa.Connection, ledger: int, numbers: Collection[int]) -> int:
    """Record that the messages of some entries of a ledger that is not sealed are gone for good; return how many.

    Entries without a row get one, which counts the messages missing up to the next entry. If several neighbours are
    missing, the first one counts the messages of all. The bounds of the ledger become those of the remaining messages;
    if none remain, they stay.

    Raises `InvalidArgumentError` if the ledger is not there or is sealed, or has not had so many entries.

    Parameters
    ----------
    storage, connection
        The topic, and a transaction that holds its lock.
    ledger
        A closed ledger, or the open one.
    numbers
        The entries' numbers.
    """
    counter = Counter.of_row(storage.row(connection))
    key = (ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger == ledger)
    row = connection.execute(sa.select(ledgers).where(*key)).mappings().one_or_none()
    closed = row is not None and row["state"] == "closed"
    if not closed and ledger != counter.ledger:
        raise InvalidArgumentError(
            f"ledger must name a ledger with missing entries, got {ledger} in topic {storage.name!r}"
        )
    count = row["entries"] if row is not None else counter.entries
    if wrong := [number for number in numbers if not 0 <= number < count]:
        raise InvalidArgumentError(
            f"numbers must be ≥ 0 and less than {count} (the number of entries of ledger {ledger}), got {wrong[0]}"
        )
    first = row["first_ordinal"] if row is not None else counter.ordinal - counter.messages
    end = first + (row["messages"] if row is not None else counter.messages)
    lost = _write_lost(storage, connection, ledger, sorted(set(numbers)), (first, end))
    values = _measured_anew(storage, connection, ledger)
    if row is not None:
        connection.execute(sa.update(ledgers).where(*key).values(values))
    else:
        connection.execute(sa.update(topics).where(topics.c.id == storage.topic_id).values(values))
    return lost


def _write_lost(
    storage: Storage, connection: sa.Connection, ledger: int, numbers: list[int], limits: tuple[int, int]
) -> int:
    here = (entries.c.topic_id == storage.topic_id, entries.c.ledger == ledger)
    statement = sa.select(entries.c.entry, entries.c.first_ordinal, entries.c.messages).where(*here)
    found = {row.entry: (row.first_ordinal, row.messages) for row in connection.execute(statement)}
    total = 0
    for number in numbers:
        gone = {"bytes": len(LOST), "data": LOST}
        if number in found:
            connection.execute(sa.update(entries).where(*here, entries.c.entry == number).values(gone))
        else:
            before = max((entry for entry in found if entry < number), default=None)
            after = min((entry for entry in found if entry > number), default=None)
            first = limits[0] if before is None else sum(found[before])
            following = limits[1] if after is None else found[after][0]
            found[number] = (first, following - first)
            place = {"topic_id": storage.topic_id, "ledger": ledger, "entry": number, "token": 0}
            place |= {"first_ordinal": first, "messages": following - first}
            connection.execute(sa.insert(entries), {**place, **gone})
        total += found[number][1]
    return total


def _measured_anew(storage: Storage, connection: sa.Connection, ledger: int) -> dict[str, int]:
    """Apply the running maximum to the remaining entries, and return the ledger's bounds and size."""
    here = (entries.c.topic_id == storage.topic_id, entries.c.ledger == ledger)
    columns = [column for column in entries.c if column is not entries.c.data]
    rows = connection.execute(sa.select(*columns).where(*here).order_by(entries.c.entry)).mappings().all()
    bounds: Bounds | None = None
    peak: Mapping[str, int] | None = None
    for row in rows:
        own = Bounds.of_row(row) if row["bytes"] > len(LOST) else None
        bounds = bounds if own is None else own.joined(bounds)
        peak = peak if own is None else raised(peak, own.end)
        values: dict[str, int | None] = {} if own is not None else {**_NO_BOUNDS}
        if peak_of_row(row) != peak:
            values |= peak_columns(peak)  # a lost entry gets that of its predecessor, so that no search ends there
        if values:
            connection.execute(sa.update(entries).where(*here, entries.c.entry == row["entry"]).values(values))
    return {**({} if bounds is None else bounds.columns()), "bytes": sum(row["bytes"] for row in rows)}


def standing_in(
    storage: Storage, connection: sa.Connection, ledger: int, row: sa.RowMapping | None
) -> dict[str, int | None]:
    """Copy its neighbours' times to a lost ledger that was never measured, so that it expires with them."""
    known = [ledgers.c.topic_id == storage.topic_id, *(ledgers.c[f"peak_{time}"].is_not(None) for time in BOUNDED)]
    before = sa.select(ledgers).where(*known, ledgers.c.ledger < ledger).order_by(ledgers.c.ledger.desc()).limit(1)
    after = sa.select(ledgers).where(*known, ledgers.c.ledger > ledger).order_by(ledgers.c.ledger).limit(1)
    earlier = connection.execute(before).mappings().one_or_none()
    later = connection.execute(after).mappings().one_or_none()
    end: dict[str, int]
    if earlier is not None:
        end = {time: earlier[f"peak_{time}"] for time in BOUNDED}
    elif later is not None and (bounds := Bounds.of_row(later)):
        end = {**bounds.begin, "effective_time": min(bounds.begin["publish_time"], bounds.begin["receive_time"])}
    else:
        now = storage.backend.now(connection) if row is None else row["closed_at"]
        end = {time: now for time in BOUNDED}  # noqa: C420  # pyright takes fromkeys for a dict of these names alone
    return {**Bounds({time: end[time] for time in TIMES}, end).columns(), **peak_columns(end)}


def _gap(
    storage: Storage, connection: sa.Connection, ledger: int, topic: sa.RowMapping, counter: Counter
) -> tuple[int, int]:
    """Return the numbers of a missing ledger's first message, and of the one after its last."""
    here = ledgers.c.topic_id == storage.topic_id
    ending = (ledgers.c.first_ordinal + ledgers.c.messages).label("end")
    before = sa.select(ending).where(here, ledgers.c.ledger < ledger).order_by(ledgers.c.ledger.desc()).limit(1)
    after = sa.select(ledgers.c.first_ordinal).where(here, ledgers.c.ledger > ledger).order_by(ledgers.c.ledger)
    end = connection.execute(before).scalar()
    following = connection.execute(after.limit(1)).scalar()
    return (
        topic["first_ordinal"] if end is None else end,
        counter.ordinal - counter.messages if following is None else following,
    )
