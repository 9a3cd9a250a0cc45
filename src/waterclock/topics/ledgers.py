"""The ledgers of a topic: what the catalogue says about each, and the closing of the open one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa

from waterclock.database.topic_catalogue import ledgers, topics
from waterclock.topics.bounds import Bounds
from waterclock.topics.counter import COUNTER_COLUMNS, Counter
from waterclock.topics.row_groups import RowGroup, row_groups_from_json
from waterclock.topics.sealed_ledger import ledgers_share_a_file
from waterclock.topics.storage import Storage

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

LedgerState = Literal["open", "closed", "sealed"]
"""``open``: gets the appends. ``closed``: complete, its entries still rows. ``sealed``: one Parquet file."""


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """One contiguous piece of a topic (after LedgerInfo of "find by timestamp", high level design).

    Attributes
    ----------
    ledger
        Its number in the topic, from 0.
    state
        Open, closed or sealed.
    entries, messages
        How many appends and messages it holds.
    size
        Bytes: of its file where it is sealed, of its entries before. Of a file that several ledgers share, its part.
    first_ordinal
        Number of its first message in the topic, counted from 0 without holes.
    bounds
        Smallest and largest event_time, publish_time and receive_time; None where it is empty, or where they are
        missing and the next `find` will measure them.
    opened_at, closed_at, sealed_at
        When it got its first entry, was closed and was sealed, ns; None where that has not happened.
    file
        Full name of its file, where it is sealed; after a compaction other ledgers have the same.
    row_groups
        The bounds within its file, where it is sealed.
    """

    ledger: int
    state: LedgerState
    entries: int
    messages: int
    size: int
    first_ordinal: int
    bounds: Bounds | None
    opened_at: int | None
    closed_at: int | None = None
    sealed_at: int | None = None
    file: str | None = None
    row_groups: tuple[RowGroup, ...] = ()

    @property
    def begin_publish_time(self) -> int | None:
        """Smallest publish_time, ns."""
        return None if self.bounds is None else self.bounds.begin["publish_time"]

    @property
    def end_publish_time(self) -> int | None:
        """Largest publish_time, ns."""
        return None if self.bounds is None else self.bounds.end["publish_time"]


def list_ledgers(storage: Storage) -> list[LedgerInfo]:
    """Give every ledger that is left, in order, the open one last."""
    columns = [column for column in ledgers.c if column is not ledgers.c.footer]
    closed = sa.select(*columns).where(ledgers.c.topic_id == storage.topic_id).order_by(ledgers.c.ledger)
    with storage.backend.snapshot() as connection:
        rows = connection.execute(closed).mappings().all()
        counter = Counter.of_row(storage.row(connection))
    return [*(_info(storage, row) for row in rows), _open_info(counter)]


def ledger_from(storage: Storage, connection: sa.Connection, ledger: int) -> sa.RowMapping | None:
    """Read the row of the first ledger from number ``ledger`` on that is left; None where that is the open one."""
    parameters = {"topic": storage.topic_id, "ledger": ledger}
    return connection.execute(_LEDGER_FROM, parameters).mappings().one_or_none()


def close_ledger(storage: Storage, connection: Any, counter: Counter, now: int) -> Counter:
    """Close the open ledger and open the next one, in the caller's transaction, which holds the topic's lock."""
    connection.execute(_CLOSE, [{"topic_id": storage.topic_id, **counter.closed_ledger(now)}])
    return counter.rolled()


def roll(storage: Storage, *, only_if_due: bool = False) -> None:
    """Close the open ledger and open the next one; nothing to do while it is empty."""

    def work(connection: sa.Connection) -> None:
        row, now = storage.lock(connection)
        counter = Counter.of_row(row)
        if counter.entries == 0 or (only_if_due and not counter.is_due(now)):
            return
        write_counter(storage, connection, close_ledger(storage, connection, counter, now))

    storage.backend.transact(work)


def write_counter(storage: Storage, connection: Any, counter: Counter) -> None:
    """Write the topic's row, whose lock the transaction holds."""
    values = {f"new_{name}": value for name, value in counter.columns().items()}
    connection.execute(_WRITE_COUNTER, {"topic": storage.topic_id, **values})


def _info(storage: Storage, row: sa.RowMapping) -> LedgerInfo:
    sealed = row["state"] == "sealed"
    groups = tuple(row_groups_from_json(row["row_groups"])) if row["row_groups"] else ()
    shares = ledgers_share_a_file(groups)
    return LedgerInfo(
        ledger=row["ledger"],
        state=row["state"],
        entries=row["entries"],
        messages=row["messages"],
        size=row["file_bytes"] if sealed and not shares else row["bytes"],
        first_ordinal=row["first_ordinal"],
        bounds=Bounds.of_row(row),
        opened_at=row["opened_at"],
        closed_at=row["closed_at"],
        sealed_at=row["sealed_at"],
        file=storage.files.name(row["path"]) if sealed else None,
        row_groups=groups,
    )


def _open_info(counter: Counter) -> LedgerInfo:
    return LedgerInfo(
        ledger=counter.ledger,
        state="open",
        entries=counter.entries,
        messages=counter.messages,
        size=counter.bytes,
        first_ordinal=counter.ordinal - counter.messages,
        bounds=counter.bounds,
        opened_at=counter.opened_at,
    )
