"""Reads the ledgers of a topic from the catalogue, and closes the open ledger."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import sqlalchemy as sa

from waterclock.database.schema.topic_catalogue import BOUNDED, TIMES, ledgers, topics
from waterclock.database.sql_connection import SqlConnection
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.catalogue.stored_bytes import add_size
from waterclock.topics.format.row_groups import RowGroup, row_groups_from_json
from waterclock.topics.model.bounds import Bounds
from waterclock.topics.model.counter import COUNTER_COLUMNS, Counter

# Built once: building a statement takes longer than running it.
_WRITTEN = [name for name in COUNTER_COLUMNS if name not in ("roll_after", "roll_size")]
_WRITE_COUNTER = (
    sa.update(topics)
    .where(topics.c.id == sa.bindparam("topic"))
    .values({name: sa.bindparam(f"new_{name}") for name in _WRITTEN})
)
_CLOSE = sa.insert(ledgers)
_LEDGER_FROM = (
    sa.select(ledgers)
    .where(ledgers.c.topic_id == sa.bindparam("topic"), ledgers.c.ledger >= sa.bindparam("ledger"))
    .order_by(ledgers.c.ledger)
    .limit(1)
)

_LISTED = sa.select(
    *(ledgers.c[name] for name in ("ledger", "state", "entries", "messages", "bytes", "first_ordinal")),
    *(ledgers.c[name] for name in ("opened_at", "closed_at", "sealed_at", "path", "row_groups")),
    *(ledgers.c[f"begin_{time}"] for time in TIMES),
    *(ledgers.c[f"end_{time}"] for time in BOUNDED),
).order_by(ledgers.c.ledger)

LedgerState = Literal["open", "closed", "sealed", "lost"]
"""``open``: gets the appends. ``closed``: complete, its entries still rows. ``sealed``: one Parquet file.
``lost``: its messages are gone for good, and a repair has recorded that."""


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """One contiguous piece of a topic (LedgerInfo of *PIP-345: Optimize finding message by timestamp*).

    Attributes
    ----------
    ledger
        Its number in the topic, from 0.
    state
        Open, closed, sealed or lost.
    entries, messages
        How many appends and messages it holds.
    size
        Bytes: of its file if it is sealed, else of its entries. If several ledgers share a file, its part.
    first_ordinal
        Number of its first message in the topic, counted from 0 without gaps.
    opened_at, closed_at, sealed_at
        When it got its first entry, was closed and was sealed, ns; None if that has not happened.
    file
        Full name of its file, if it is sealed; after a compaction other ledgers share it.
    """

    ledger: int
    state: LedgerState
    entries: int
    messages: int
    size: int
    first_ordinal: int
    opened_at: int | None
    closed_at: int | None = None
    sealed_at: int | None = None
    file: str | None = None
    # Converted lazily: for a hundred thousand ledgers that takes longer than everything else.
    _bounds: tuple[int | None, ...] = (None,)
    _row_groups: str | None = field(default=None, repr=False)

    @property
    def bounds(self) -> Bounds | None:
        """Smallest and largest event_time, publish_time and receive_time.

        None if it is empty, or if they are missing and the next `find` will measure them.
        """
        return Bounds.of_values(self._bounds)

    @property
    def row_groups(self) -> tuple[RowGroup, ...]:
        """The bounds within its file, if it is sealed."""
        return tuple(row_groups_from_json(self._row_groups)) if self._row_groups else ()

    @property
    def begin_publish_time(self) -> int | None:
        """Smallest publish_time, ns."""
        return self.bounds.begin["publish_time"] if self.bounds else None

    @property
    def end_publish_time(self) -> int | None:
        """Largest publish_time, ns."""
        return self.bounds.end["publish_time"] if self.bounds else None


def list_ledgers(storage: Storage, start: int = 0, limit: int | None = None) -> list[LedgerInfo]:
    """Return at most ``limit`` remaining ledgers from number ``start`` on, in order, the open one last."""
    chosen = _LISTED.where(ledgers.c.topic_id == storage.topic_id, ledgers.c.ledger >= start).limit(limit)
    with storage.backend.snapshot() as connection:
        infos = [_info(storage, *row) for row in connection.execute(chosen)]
        counter = Counter.of_row(storage.row(connection))
    complete = limit is not None and len(infos) == limit
    return infos if complete or counter.ledger < start else [*infos, _open_info(counter)]


def list_files(storage: Storage) -> list[str]:
    """Name the files of the sealed ledgers in full, in order, each once."""
    return [storage.files.name(path) for path in sealed_paths(storage)]


def sealed_paths(storage: Storage) -> dict[str, int]:
    """Return the files of the sealed ledgers by their names in the store, in order, each with its size in bytes."""
    sealed = (ledgers.c.topic_id == storage.topic_id, ledgers.c.state == "sealed")
    statement = sa.select(ledgers.c.path, ledgers.c.file_bytes).where(*sealed).order_by(ledgers.c.ledger)
    with storage.backend.snapshot() as connection:
        return {row.path: row.file_bytes for row in connection.execute(statement)}


def ledger_from(storage: Storage, connection: sa.Connection, ledger: int) -> sa.RowMapping | None:
    """Read the row of the first remaining ledger from number ``ledger`` on; None if that is the open one."""
    parameters = {"topic": storage.topic_id, "ledger": ledger}
    return connection.execute(_LEDGER_FROM, parameters).mappings().one_or_none()


def close_ledger(storage: Storage, connection: SqlConnection, counter: Counter, now: int) -> Counter:
    """Close the open ledger and open the next one, in the caller's transaction, which holds the topic's lock."""
    connection.execute(_CLOSE, [{"topic_id": storage.topic_id, **counter.closed_ledger(now)}])
    add_size(storage, connection, counter.bytes)
    return counter.rolled()


def roll(storage: Storage, *, only_if_due: bool = False) -> None:
    """Close the open ledger and open the next one; do nothing if it is empty."""

    def close_open_ledger(connection: sa.Connection) -> None:
        row, now = storage.lock(connection)
        counter = Counter.of_row(row)
        if counter.entries == 0 or (only_if_due and not counter.is_due(now)):
            return
        write_counter(storage, connection, close_ledger(storage, connection, counter, now))

    storage.backend.transact(close_open_ledger)


def write_counter(storage: Storage, connection: SqlConnection, counter: Counter) -> None:
    """Write the topic's row, whose lock the transaction holds."""
    values = {f"new_{name}": value for name, value in counter.columns().items()}
    connection.execute(_WRITE_COUNTER, {"topic": storage.topic_id, **values})


def _info(
    storage: Storage,
    ledger: int,
    state: LedgerState,
    entries: int,
    messages: int,
    size: int,
    first_ordinal: int,
    opened_at: int | None,
    closed_at: int,
    sealed_at: int | None,
    path: str | None,
    row_groups: str | None,
    *bounds: int | None,
) -> LedgerInfo:
    return LedgerInfo(
        ledger,
        state,
        entries,
        messages,
        0 if state == "lost" else size,
        first_ordinal,
        opened_at,
        closed_at,
        sealed_at,
        storage.files.name(path) if path is not None and state == "sealed" else None,
        bounds,
        row_groups,
    )


def _open_info(counter: Counter) -> LedgerInfo:
    return LedgerInfo(
        ledger=counter.ledger,
        state="open",
        entries=counter.entries,
        messages=counter.messages,
        size=counter.bytes,
        first_ordinal=counter.ordinal - counter.messages,
        opened_at=counter.opened_at,
        _bounds=tuple(counter.bounds.columns().values()) if counter.bounds else (None,),
    )
