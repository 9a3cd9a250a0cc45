"""The subscription: a named, durable reading position in a topic. One reader at a time can use it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from waterclock._support.closing import Closing
from waterclock._support.pickling import refuse_pickling
from waterclock.arrow import POSITIONED_SCHEMA, from_arrow
from waterclock.errors import LeaseLostError, WaterclockError
from waterclock.message import Message, Position
from waterclock.time import Duration, Time, to_duration
from waterclock.topics.catalogue.damage_policy import Damage, OnDamage
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.finding import subscription_rows as rows
from waterclock.topics.finding.finding import check_by, place_at
from waterclock.topics.finding.positions import Place
from waterclock.topics.finding.subscription_rows import NotBefore, SubscriptionInfo
from waterclock.topics.model.bounds import time_column
from waterclock.topics.model.counter import Counter
from waterclock.topics.model.names import new_holder
from waterclock.topics.reading.reading import check_limit, positioned, read_chunks
from waterclock.topics.upkeep.expiring import Expired, expire_subscription

_PIECE = 4096  # messages converted from columns to objects at once


class Backlog(NamedTuple):
    """The unread messages of a subscription."""

    messages: int  # how many messages
    age: int  # how long ago the first of them was received, ns; 0 without messages


class _ReadAhead(NamedTuple):
    first_ordinal: int
    batch: pa.RecordBatch


class Subscription(Closing):
    """A named, durable reading position in a topic. Created by `Topic.subscribe`; usable in ``with``.

    One reader at a time holds a subscription, from its first `read` until it is closed, or idle for as long as the
    lease. Messages that were read but not committed are read again by the next reader: at least once.

    Parameters
    ----------
    storage
        The topic.
    name
        Name of an existing subscription.
    lease
        How long it stays with a reader that neither reads nor commits, ns.
    on_damage
        The treatment of damaged, lost or missing messages.
    """

    def __init__(self, storage: Storage, name: str, lease: int, on_damage: OnDamage = "raise") -> None:
        self.name = name
        self._on_damage: OnDamage = on_damage
        self._damage = Damage(storage.name, on_damage)
        self._storage = storage
        self._lease = lease
        self._holder = new_holder()
        self._lock = threading.Lock()
        self._reader_epoch = -1  # belongs to no subscription: the first read takes the position from the catalogue
        self._at = Place(Position(0, 0, 0), 0)
        self._committed = self._at
        self._pieces: Iterator[_ReadAhead] = iter(())
        self._rest: _ReadAhead | None = None
        self._stop = self._at

    def read(self, limit: int = 1000) -> list[Message]:
        """Continue after the last `read`, or at the place that the subscription was moved to.

        Messages before an unreadable part are returned first; the next call raises its error.

        Raises
        ------
        DamagedError
            If a message differs from its written form, or is missing though it was not deleted.
        UnavailableError
            If another reader holds the subscription (the text says which), or a ledger's file cannot be read.
        """
        check_limit(limit)
        with self._lock:
            not_before = self._hold()
            committed, skipped = self._at == self._committed, self._damage.skipped
            messages: list[Message] = []
            while len(messages) < limit:
                try:
                    piece = self._rest or self._next_piece()
                except WaterclockError:
                    if messages:
                        break
                    raise
                if piece is None:
                    break
                messages += self._take(piece, limit - len(messages), not_before)
            if not messages and committed and skipped == self._damage.skipped:
                self._pass_over()
            return messages

    def commit(self) -> None:
        """Commit everything that was read so far; durable when this returns.

        Raises
        ------
        LeaseLostError
            If the subscription was moved by `seek`, or taken over after the lease, since it was last read. The messages
            that were read are then delivered again.
        """
        with self._lock:
            if self._at != self._committed:
                rows.commit(self._storage, self.name, self._reader_epoch, self._at, self._lease)
                self._committed = self._at

    def seek(self, to: Position | Time, *, by: str = "publish_time", filter_older: bool = False) -> Position:
        """Move the subscription, whichever reader holds it; commits of messages read before the move are refused.

        Parameters
        ----------
        to
            A position, a time (the first message at or after it; a duration means how long ago), or ``"earliest"`` or
            ``"latest"``.
        by
            The time to which ``to`` refers, as in `Topic.find`. A message of a producer whose clock is far ahead is
            found for every publish_time up to its own; "effective_time" avoids this.
        filter_older
            With a time: also skip messages after that place whose own time (the one that ``by`` names) is earlier. Such
            messages exist if producers' clocks disagree.

        Returns
        -------
        Position
            Its new position.
        """
        time = check_by(by)
        not_before = None
        if filter_older and not isinstance(to, Position) and to not in ("earliest", "latest"):
            to = self._storage.time(to, "to")
            not_before = NotBefore(to, time)
        place = place_at(self._storage, to, time, self._on_damage)
        rows.move(self._storage, self.name, place, not_before)
        return place.position

    def expire(self, ttl: Duration) -> Expired:
        """Pass over the messages that are older than ``ttl``, up to the first that is not; see `Topic.expire`.

        Raises
        ------
        UnavailableError
            If an expiry of the topic is running already.
        """
        return expire_subscription(self._storage, self.name, to_duration(ttl, "ttl"))

    @property
    def info(self) -> SubscriptionInfo:
        """Its description in the catalogue."""
        return rows.list_infos(self._storage, self.name)[0]

    @property
    def position(self) -> Position:
        """The next message to be read, as far as was committed."""
        return self.info.position

    @property
    def backlog(self) -> Backlog:
        """The unread messages from `position` on, including damaged ones and those that `seek` filters."""
        info = self.info
        if info.unread == 0:
            return Backlog(0, 0)
        passing = Damage(self._storage.name, "skip", quiet=True)  # the first readable message determines the age
        first = next(read_chunks(self._storage, info.position, self._storage.head(), ["receive_time"], passing), None)
        if first is None:
            return Backlog(info.unread, 0)
        received = first.table["receive_time"][0].as_py()
        return Backlog(info.unread, max(self._storage.backend.now() - received, 0))

    def close(self) -> None:
        """Release it to other readers. Uncommitted messages will be read again."""
        with self._lock:
            rows.release(self._storage, self.name, self._holder)
            self._reader_epoch = -1

    def _hold(self) -> NotBefore | None:
        row = rows.hold(self._storage, self.name, self._holder, self._lease)
        durable = Place(rows.position_of_row(row), row["ordinal"])
        # Another epoch: it was moved or had another reader. Further ahead: messages expired meanwhile.
        if row["reader_epoch"] != self._reader_epoch or durable.position > self._at.position:
            self._reader_epoch = row["reader_epoch"]
            self._at = self._committed = durable
            self._open()
        return rows.not_before_of_row(row)

    def _open(self) -> None:
        self._rest = None
        with self._storage.backend.snapshot() as connection:
            counter = Counter.of_row(self._storage.row(connection))
        self._stop = Place(counter.position, counter.ordinal)
        self._pieces = self._read_pieces(self._at.position, self._stop.position)

    def _read_pieces(self, start: Position, stop: Position) -> Iterator[_ReadAhead]:
        for chunk in read_chunks(self._storage, start, stop, POSITIONED_SCHEMA.names, self._damage):
            ordinal = chunk.first_ordinal
            for batch in positioned(chunk, POSITIONED_SCHEMA.names):
                for first in range(0, batch.num_rows, _PIECE):
                    piece = batch.slice(first, _PIECE)
                    yield _ReadAhead(ordinal, piece)
                    ordinal += piece.num_rows

    def _next_piece(self) -> _ReadAhead | None:
        """Return the next piece; looks once whether more was appended since the last look."""
        piece = next(self._pieces, None)
        if piece is None:
            self._open()
            piece = next(self._pieces, None)
        if piece is None:
            self._at = self._stop  # no readable message is left before it
        return piece

    def _take(self, piece: _ReadAhead, wanted: int, not_before: NotBefore | None) -> list[Message]:
        """Take some messages of a piece, keep the rest of it, and note the position of the next read."""
        batch = piece.batch
        end = min(wanted, batch.num_rows)
        taken = batch.slice(0, end)
        if not_before is not None:
            fresh = np.flatnonzero(time_column(batch, not_before.by).to_numpy() >= not_before.time)
            end = int(fresh[wanted - 1]) + 1 if len(fresh) >= wanted else batch.num_rows
            taken = batch.take(pa.array(fresh[:wanted]))
        if end < batch.num_rows:
            self._rest = _ReadAhead(piece.first_ordinal + end, batch.slice(end))
            self._at = _place(self._rest)
        else:
            last = _place(_ReadAhead(piece.first_ordinal + end, batch.slice(end - 1)))
            self._rest = None
            self._at = last._replace(position=last.position._replace(index=last.position.index + 1))
            self._look_ahead()
        return from_arrow(taken)

    def _pass_over(self) -> None:
        """Move past deleted and lost messages for good: no reader will ever commit them."""
        if self._at == self._committed:
            return
        try:
            rows.commit(self._storage, self.name, self._reader_epoch, self._at, self._lease)
        except LeaseLostError:
            return  # moved meanwhile; the next read begins there
        self._committed = self._at

    def _look_ahead(self) -> None:
        """Advance to the next message, or to the topic's end."""
        try:
            self._rest = next(self._pieces, None)
        except WaterclockError:
            return  # the next read looks again, and reports it
        self._at = self._stop if self._rest is None else _place(self._rest)

    def __repr__(self) -> str:
        return f"<Subscription {self.name!r} of {self._storage.name!r}>"

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self, "Pickle the topic, and subscribe in the other process")


def _place(piece: _ReadAhead) -> Place:
    position = Position(*(piece.batch.column(name)[0].as_py() for name in ("ledger", "entry", "index")))
    return Place(position, piece.first_ordinal)
