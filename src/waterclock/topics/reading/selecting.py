"""Selects the messages whose time, such as the event time, lies in a range, anywhere in a topic."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from waterclock.arrow import POSITIONED_SCHEMA
from waterclock.database.schema.topic_catalogue import ledgers
from waterclock.message import Position
from waterclock.time import MAX_NS
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.model.bounds import time_column
from waterclock.topics.model.counter import Counter
from waterclock.topics.model.literals import By
from waterclock.topics.reading.pruning import ReadFilter
from waterclock.topics.reading.reading import positioned, read_chunks


def select_by_time(storage: Storage, since: int, until: int, by: By) -> Iterator[pa.RecordBatch]:
    """Yield the messages with ``since <= time < until`` in the order of their positions; `MAX_NS` + 1 means no end.

    Ledgers whose bounds exclude the range are not read; all others are read whole, because times may be disordered.
    """
    if since >= until:
        return
    columns, last = list(POSITIONED_SCHEMA.names), until - 1
    for start, stop in _ledgers_with(storage, since, last, by):
        for chunk in read_chunks(storage, start, stop, columns):
            for batch in positioned(chunk, columns):
                time = time_column(batch, by)
                inside = pc.call_function(
                    "and",
                    [pc.call_function("greater_equal", [time, since]), pc.call_function("less_equal", [time, last])],
                )
                yield batch.filter(inside)


def _ledgers_with(storage: Storage, since: int, last: int, by: By) -> list[tuple[Position, Position]]:
    """Return the ranges of the ledgers that may hold a message of the range, and of the open one."""
    if by == "effective_time":  # at or after ``since`` only if both of its times are
        wanted = ReadFilter({"publish_time": (since, MAX_NS), "receive_time": (since, MAX_NS)})
    else:
        wanted = ReadFilter({by: (since, last)})
    statement = (
        sa.select(ledgers.c.ledger)
        .where(ledgers.c.topic_id == storage.topic_id, *wanted.conditions(ledgers))
        .order_by(ledgers.c.ledger)
    )
    with storage.backend.snapshot() as connection:
        head = Counter.of_row(storage.row(connection)).position
        numbers = connection.execute(statement).scalars().all()
    whole = [(Position(number, 0, 0), Position(number + 1, 0, 0)) for number in numbers if number < head.ledger]
    return [*whole, (Position(head.ledger, 0, 0), head)]
