"""Reads and updates the rows of subscriptions. A row holds the durable position, and the reader that uses it now."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from waterclock.database.schema.topic_catalogue import subscriptions
from waterclock.errors import ConstraintError, LeaseLostError, NotFoundError, UnavailableError
from waterclock.message import Position
from waterclock.time import format_time
from waterclock.topics.catalogue.ledgers import ledger_from
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.finding.positions import Place
from waterclock.topics.model.counter import Counter


class SubscriptionInfo(NamedTuple):
    """The description of a subscription in the catalogue.

    Attributes
    ----------
    name
        Its name.
    position
        The next message to be read, as far as was committed.
    unread
        How many messages remain from there.
    epoch
        How often it was moved or changed hands.
    holder, held_until
        Its reader, and when its hold ends unless it reads again, ns; None if it has no reader.
    """

    name: str
    position: Position
    unread: int
    epoch: int
    holder: str | None
    held_until: int | None


class NotBefore(NamedTuple):
    """A limit below which messages are not delivered: a time, ns, and the kind of time."""

    time: int
    by: str


def create(storage: Storage, name: str, place: Place) -> bool:
    """Create a subscription; False if one of this name exists, which stays as it is."""

    def insert_subscription(connection: sa.Connection) -> None:
        _, now = storage.lock(connection)
        values = {"topic_id": storage.topic_id, "name": name, "created_at": now, "reader_epoch": 0}
        connection.execute(sa.insert(subscriptions), {**values, **_place_columns(place)})

    try:
        storage.backend.transact(insert_subscription)
    except ConstraintError:
        return False
    return True


def exists(storage: Storage, name: str) -> bool:
    """Return whether a subscription of this name exists."""
    with storage.backend.snapshot() as connection:
        return connection.execute(sa.select(subscriptions.c.name).where(*_key(storage, name))).scalar() is not None


def remove(storage: Storage, name: str) -> None:
    """Remove a subscription; NotFoundError if missing."""
    statement = sa.delete(subscriptions).where(*_key(storage, name))
    if storage.backend.transact(lambda connection: connection.execute(statement).rowcount) == 0:
        raise _absent(storage, name)


def list_infos(storage: Storage, name: str | None = None) -> list[SubscriptionInfo]:
    """Describe every subscription in alphabetical order, or the one of this name, in one snapshot."""
    statement = sa.select(subscriptions).where(subscriptions.c.topic_id == storage.topic_id)
    if name is not None:
        statement = statement.where(subscriptions.c.name == name)
    with storage.backend.snapshot() as connection:
        rows = connection.execute(statement.order_by(subscriptions.c.name)).mappings().all()
        counter = Counter.of_row(storage.row(connection))
        oldest = ledger_from(storage, connection, 0)
        now = storage.backend.now(connection)
    if name is not None and not rows:
        raise _absent(storage, name)
    first = counter.ordinal - counter.messages if oldest is None else oldest["first_ordinal"]
    return [_info(row, max(row["ordinal"], first), counter.ordinal, now) for row in rows]


def hold(storage: Storage, name: str, holder: str, lease: int) -> sa.RowMapping:
    """Assign a subscription to its reader, or extend its hold; return its row.

    Raises
    ------
    UnavailableError
        If another reader holds it; the text says which, and until when.
    """

    def take_lease(connection: sa.Connection) -> sa.RowMapping:
        row, now = _lock(storage, connection, name)
        values: dict[str, object] = {"holder": holder, "held_until": now + lease}
        if row["holder"] != holder:
            if row["holder"] is not None and row["held_until"] > now:
                raise UnavailableError(
                    f"subscription {name!r} of topic {storage.name!r} is being read by {row['holder']} until"
                    f" {format_time(row['held_until'])}. Only one reader at a time may read a subscription"
                )
            values["reader_epoch"] = row["reader_epoch"] + 1
        connection.execute(sa.update(subscriptions).where(*_key(storage, name)).values(values))
        return connection.execute(sa.select(subscriptions).where(*_key(storage, name))).mappings().one()

    return storage.backend.transact(take_lease)


def release(storage: Storage, name: str, holder: str) -> None:
    """Release a subscription; do nothing if another reader holds it."""
    mine = (*_key(storage, name), subscriptions.c.holder == holder)
    statement = sa.update(subscriptions).where(*mine).values(holder=None, held_until=None)
    storage.backend.transact(lambda connection: connection.execute(statement))


def commit(storage: Storage, name: str, reader_epoch: int, place: Place, lease: int) -> None:
    """Move a subscription forward to its reader's position; never backwards.

    Raises
    ------
    LeaseLostError
        If the subscription was moved, or taken by another reader, after this one last looked.
    """

    def write_position(connection: sa.Connection) -> None:
        row, now = _lock(storage, connection, name)
        if row["reader_epoch"] != reader_epoch:
            raise LeaseLostError(
                f"subscription {name!r} of topic {storage.name!r} was moved or taken over: it has reader epoch"
                f" {row['reader_epoch']}, this reader has {reader_epoch}, and {row['holder']} holds it now."
                " Discard the messages that this reader has not committed, and read again"
            )
        connection.execute(
            sa.update(subscriptions).where(*_key(storage, name)).values(**_forward(row, place), held_until=now + lease)
        )

    storage.backend.transact(write_position)


def move(storage: Storage, name: str, place: Place, not_before: NotBefore | None) -> None:
    """Move a subscription anywhere, and refuse later commits of earlier reads, in one transaction."""

    def move_reader(connection: sa.Connection) -> None:
        row, _ = _lock(storage, connection, name)
        limit = {"not_before": None, "not_before_by": None}
        if not_before is not None:
            limit = {"not_before": not_before.time, "not_before_by": not_before.by}
        values = {**_place_columns(place), "reader_epoch": row["reader_epoch"] + 1, **limit}
        connection.execute(sa.update(subscriptions).where(*_key(storage, name)).values(values))

    storage.backend.transact(move_reader)


def advance(storage: Storage, name: str, place: Place) -> int:
    """Move a subscription forward, never backwards, whichever reader holds it; return by how many messages."""

    def move_forward(connection: sa.Connection) -> int:
        row, _ = _lock(storage, connection, name)
        connection.execute(sa.update(subscriptions).where(*_key(storage, name)).values(_forward(row, place)))
        return max(place.ordinal - row["ordinal"], 0)

    return storage.backend.transact(move_forward)


def position_of_row(row: sa.RowMapping) -> Position:
    """Read the position of a subscription's row."""
    return Position(row["ledger"], row["entry"], row["index"])


def not_before_of_row(row: sa.RowMapping) -> NotBefore | None:
    """Read the limit of a subscription's row; None if it has none."""
    return None if row["not_before"] is None else NotBefore(row["not_before"], row["not_before_by"])


def _lock(storage: Storage, connection: sa.Connection, name: str) -> tuple[sa.RowMapping, int]:
    statement = sa.select(subscriptions, storage.backend.now_sql().label("now")).where(*_key(storage, name))
    row = connection.execute(statement.with_for_update()).mappings().one_or_none()
    if row is None:
        raise _absent(storage, name)
    return row, row["now"]


def _forward(row: sa.RowMapping, place: Place) -> dict[str, int]:
    return _place_columns(place) if place.position > position_of_row(row) else {"reader_epoch": row["reader_epoch"]}


def _place_columns(place: Place) -> dict[str, int]:
    position = place.position
    return {
        "ledger": position.ledger,
        "entry": position.entry,
        "index": position.index,
        "ordinal": place.ordinal,
    }


def _info(row: sa.RowMapping, ordinal: int, head: int, now: int) -> SubscriptionInfo:
    held = row["holder"] is not None and row["held_until"] > now
    return SubscriptionInfo(
        row["name"],
        position_of_row(row),
        head - ordinal,
        row["reader_epoch"],
        row["holder"] if held else None,
        row["held_until"] if held else None,
    )


def _key(storage: Storage, name: str) -> tuple[sa.ColumnElement[bool], ...]:
    return subscriptions.c.topic_id == storage.topic_id, subscriptions.c.name == name


def _absent(storage: Storage, name: str) -> NotFoundError:
    return NotFoundError(f"no subscription named {name!r} in topic {storage.name!r}. Create the subscription first")
