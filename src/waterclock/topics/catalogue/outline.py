"""Lists a topic's ledgers and their times for a picture. If there are many ledgers, lists a sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from waterclock.database.schema.topic_catalogue import ledgers
from waterclock.topics.catalogue.ledgers import LedgerState
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.model.counter import Counter
from waterclock.topics.model.literals import By


class LedgerBlock(NamedTuple):
    """A ledger, or a sampled one that represents all ledgers up to the next sample."""

    # Its number, and how many ledgers the block stands for.
    ledger: int
    stands_for: int
    state: LedgerState | str  # state of the ledger; ``missing`` if the catalogue lacks it though it was not deleted
    # Number of its first message in the topic, and how many messages the block holds.
    first_ordinal: int
    messages: int
    # Smallest and largest time of the ledger, ns; None: not measured, or empty.
    begin: int | None
    end: int | None
    peak: int | None  # largest time of this ledger and of all before it, ns


class Outline(NamedTuple):
    """The ledgers of a range of time."""

    blocks: list[LedgerBlock]  # in order
    # The ledgers and messages that were deleted at the beginning of the topic.
    trimmed_ledgers: int
    trimmed_messages: int
    head: int  # number of the next message to be written
    lost: list[int]  # the first ledgers that a repair has recorded as lost, also those between samples


def outline(
    storage: Storage, by: By, since: int | None = None, until: int | None = None, *, most: int = 300
) -> Outline:
    """Read at most about ``most`` ledgers that hold the times from ``since`` to ``until``, ns.

    The running maxima are indexed, so the range costs two look-ups. If it has more ledgers, every n-th is read.

    Parameters
    ----------
    by
        The kind of time.
    since, until
        None: from the first ledger, to the open one.
    """
    with storage.backend.snapshot() as connection:
        row = storage.row(connection)
        counter = Counter.of_row(row)
        first = row["first_ledger"] if since is None else _reaching(storage, connection, by, since, counter)
        last = counter.ledger if until is None else _reaching(storage, connection, by, until, counter)
        step = -(-(last - first + 1) // most)
        found = connection.execute(_statement(storage, by, first, last, step)).all()
        lost = sa.select(ledgers.c.ledger).where(ledgers.c.topic_id == storage.topic_id, ledgers.c.state == "lost")
        losses = connection.execute(lost.order_by(ledgers.c.ledger).limit(most)).scalars().all()
    rows: list[tuple[Any, ...]] = [tuple(one) for one in found]
    if last >= counter.ledger:
        bounds, before = counter.bounds, None if counter.peak is None else counter.peak[by]
        begin, end = (None, None) if bounds is None else (bounds.begin.get(by), bounds.end[by])
        peak = max((time for time in (end, before) if time is not None), default=None)
        rows.append((counter.ledger, "open", counter.ordinal - counter.messages, counter.messages, begin, end, peak))
    blocks = _blocks(rows, step)
    return Outline(blocks, row["first_ledger"], row["first_ordinal"], counter.ordinal, list(losses))


def _reaching(storage: Storage, connection: sa.Connection, by: By, time: int, counter: Counter) -> int:
    """Find the first ledger whose running maximum reaches a time; the open one if none does."""
    peak = ledgers.c[f"peak_{by}"]
    statement = sa.select(ledgers.c.ledger).where(ledgers.c.topic_id == storage.topic_id, peak >= time)
    found = connection.execute(statement.order_by(peak, ledgers.c.ledger).limit(1)).scalar()
    return counter.ledger if found is None else found


def _statement(storage: Storage, by: By, first: int, last: int, step: int) -> sa.Select[*tuple[Any, ...]]:
    columns = (ledgers.c[name] for name in ("ledger", "state", "first_ordinal", "messages"))
    times = (ledgers.c[f"{kind}_{by}"] for kind in ("begin", "end", "peak"))
    chosen = sa.select(*columns, *times).where(ledgers.c.topic_id == storage.topic_id)
    if step == 1:
        chosen = chosen.where(ledgers.c.ledger >= first, ledgers.c.ledger <= last)
    else:
        chosen = chosen.where(ledgers.c.ledger.in_(range(first, last + 1, step)))
    return chosen.order_by(ledgers.c.ledger)


def _blocks(rows: Sequence[tuple[Any, ...]], step: int) -> list[LedgerBlock]:
    blocks: list[LedgerBlock] = []
    for place, (ledger, state, first, messages, begin, end, peak) in enumerate(rows):
        following = rows[place + 1] if place + 1 < len(rows) else None
        count, held = 1, messages
        if following is not None and step > 1:
            count, held = following[0] - ledger, following[2] - first
        blocks.append(LedgerBlock(ledger, count, state, first, held, begin, end, peak))
        missing = following[0] - ledger - 1 if following is not None and step == 1 else 0
        if following is not None and missing:
            start = first + messages
            blocks.append(LedgerBlock(ledger + 1, missing, "missing", start, following[2] - start, None, None, peak))
    return blocks
