"""A follower's row in the catalogue: its position, its rule's state, and a number that stops earlier followers."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from waterclock.database.schema.topic_catalogue import followers
from waterclock.errors import InvalidArgumentError, LeaseLostError
from waterclock.message import Position
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.finding.positions import Place


class FollowerState(NamedTuple):
    """The state of a follower between two transactions."""

    place: Place  # the next message to be read, and its number in the topic
    clock: int | None  # The receive clock, ns: no message received before it comes later. None: unknown.
    stream: bytes | None  # the state of the rule; None at the beginning


def enter(storage: Storage, table: str, rule: str, start: Place) -> tuple[int, FollowerState]:
    """Take over from an earlier process that batches a topic into a message table, or begin.

    Raises `InvalidArgumentError` if the earlier process had other options.

    Parameters
    ----------
    rule
        The options, as a text.
    start
        Where to begin if the topic was never batched into the table.

    Returns
    -------
    reader_epoch
        Fences the earlier process: its next transaction is refused.
    state
        Where to continue.
    """

    def take_over(connection: sa.Connection) -> tuple[int, FollowerState]:
        storage.lock(connection)  # so that two concurrent starts run one after the other
        row = _read(storage, connection, table)
        if row is None:
            values = {"topic_id": storage.topic_id, "name": table, "rule": rule, "reader_epoch": 1}
            connection.execute(sa.insert(followers), {**values, **_columns(FollowerState(start, None, None))})
            return 1, FollowerState(start, None, None)
        if row["rule"] != rule:
            raise InvalidArgumentError(
                f"cannot batch topic {storage.name!r} into table {table!r} with {rule}: earlier runs used"
                f" {row['rule']}. Use the same options, or another table"
            )
        reader_epoch = row["reader_epoch"] + 1
        connection.execute(sa.update(followers).where(*_key(storage, table)).values(reader_epoch=reader_epoch))
        return reader_epoch, _state(row)

    return storage.backend.transact(take_over)


def load(storage: Storage, table: str, reader_epoch: int) -> FollowerState:
    """Read where to continue after a transaction that failed; LeaseLostError if another process has taken over."""
    with storage.backend.snapshot() as connection:
        row = _read(storage, connection, table)
    if row is None or row["reader_epoch"] != reader_epoch:
        raise _fenced(storage, table)
    return _state(row)


def save(storage: Storage, connection: sa.Connection, table: str, reader_epoch: int, state: FollowerState) -> None:
    """Write where to continue, in the transaction that writes the batches.

    Raises
    ------
    LeaseLostError
        If another process has taken over; the transaction must then be rolled back.
    """
    mine = (*_key(storage, table), followers.c.reader_epoch == reader_epoch)
    if connection.execute(sa.update(followers).where(*mine).values(**_columns(state))).rowcount != 1:
        raise _fenced(storage, table)


def _fenced(storage: Storage, table: str) -> LeaseLostError:
    return LeaseLostError(
        f"another process is batching topic {storage.name!r} into table {table!r}. Only one process at a time may do"
        " this"
    )


def _read(storage: Storage, connection: sa.Connection, table: str) -> sa.RowMapping | None:
    return connection.execute(sa.select(followers).where(*_key(storage, table))).mappings().one_or_none()


def _state(row: sa.RowMapping) -> FollowerState:
    position = Position(row["ledger"], row["entry"], row["index"])
    return FollowerState(Place(position, row["ordinal"]), row["clock"], row["state"])


def _columns(state: FollowerState) -> dict[str, object]:
    position, ordinal = state.place
    places = {"ledger": position.ledger, "entry": position.entry, "index": position.index, "ordinal": ordinal}
    return {**places, "clock": state.clock, "state": state.stream}


def _key(storage: Storage, table: str) -> tuple[sa.ColumnElement[bool], ...]:
    return followers.c.topic_id == storage.topic_id, followers.c.name == table
