"""The topic: a log of messages that can be searched by time. Its methods call the modules of this package."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

import pyarrow as pa

from waterclock import tracing
from waterclock._support.html import facts_as_html
from waterclock.arrow import MESSAGE_TIMES, POSITIONED_SCHEMA, from_arrow
from waterclock.database.backend import Backend
from waterclock.errors import InvalidArgumentError, WaterclockError
from waterclock.frames import ArrowStream, as_messages, to_pandas, to_polars
from waterclock.message import Message, Position
from waterclock.time import Duration, Time, format_time, to_duration
from waterclock.topics.catalogue.altering import alter_topic, rename_topic
from waterclock.topics.catalogue.creating import create_topic, open_topic
from waterclock.topics.catalogue.damage_policy import Damage, OnDamage, check_on_damage
from waterclock.topics.catalogue.ledgers import LedgerInfo, list_files, list_ledgers, roll
from waterclock.topics.catalogue.storage import Storage
from waterclock.topics.catalogue.topic_info import TopicInfo, bounds_of_topic, topic_info
from waterclock.topics.finding import subscription_rows
from waterclock.topics.finding.finding import Found, check_by, find_first, find_newest, find_start, place_at
from waterclock.topics.finding.looking_up import look_up
from waterclock.topics.finding.positions import entry_boundary, place_of, position_of
from waterclock.topics.finding.subscription_rows import SubscriptionInfo
from waterclock.topics.format.entries import encode_entry
from waterclock.topics.model.bounds import Bounds
from waterclock.topics.model.names import check_integer, check_name, check_size
from waterclock.topics.model.topic_options import TopicChanges, TopicOptions
from waterclock.topics.reading.planning import plan_slices
from waterclock.topics.reading.pruning import ALL, ReadFilter, check_names
from waterclock.topics.reading.reading import (
    ReadOptions,
    check_columns,
    check_limit,
    check_position,
    positioned,
    read_chunks,
)
from waterclock.topics.reading.slicing import Slice
from waterclock.topics.store.ledger_root import LedgerRoot
from waterclock.topics.subscription import Subscription
from waterclock.topics.upkeep.compacting import FILE_BYTES, compact_topic
from waterclock.topics.upkeep.expiring import Expired, expire_topic
from waterclock.topics.upkeep.relocating import Progress, Relocated, relocate_topic
from waterclock.topics.upkeep.removing import remove_topic
from waterclock.topics.upkeep.retention import delete_before, end_of_older, enforce_retention
from waterclock.topics.upkeep.sealing import seal_ledgers
from waterclock.topics.upkeep.sweeping import sweep
from waterclock.topics.verifying.faults import Repaired, Verified
from waterclock.topics.verifying.repairing import repair_topic
from waterclock.topics.verifying.verifying import verify_topic
from waterclock.topics.writing.appending import Appended, append_entry
from waterclock.topics.writing.producers import numbered
from waterclock.topics.writing.producing import Producer

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

_MESSAGES_AT_ONCE = 4096


class Topic:
    """A log of messages, in ledgers. Created by ``Database.create_topic`` and ``Database.topic``. Thread-safe.

    Parameters
    ----------
    storage
        Its row in the catalogue, and its store.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    @classmethod
    def create(
        cls,
        backend: Backend,
        ledgers: str | LedgerRoot | None,
        name: str,
        options: TopicOptions,
        *,
        exist_ok: bool = False,
    ) -> Self:
        """Create a topic; `Database.create_topic` explains the options."""
        create_topic(backend, ledgers, name, options, exist_ok=exist_ok)
        return cls.open(backend, ledgers, name)

    @classmethod
    def open(cls, backend: Backend, ledgers: str | LedgerRoot | None, name: str) -> Self:
        """Open a topic; `Database.topic` lists the errors."""
        return cls(open_topic(backend, ledgers, name))

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.storage.name

    @property
    def info(self) -> TopicInfo:
        """Its contents and options, from the catalogue; equally fast for a topic of any size."""
        return topic_info(self.storage)

    @property
    def bounds(self) -> Bounds | None:
        """Smallest and largest times of the remaining messages; None without messages. Equally fast for any size."""
        return bounds_of_topic(self.storage)

    @property
    def head(self) -> Position:
        """The position of the next message to be written."""
        return self.storage.head()

    def append(
        self,
        messages: Message | Iterable[Message] | Iterable[Mapping[str, Any]] | ArrowStream,
        *,
        columns: Mapping[str, str] | None = None,
        payload: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        epoch: int | None = None,
    ) -> Appended:
        """Write messages as one entry at the end; durable and readable when this returns.

        If publish_time or receive_time is None, it is set to the database's clock, read before the messages are
        encoded. (SQLite has no clock of its own, so the machine's clock is used.) In a topic with ``max_ahead``,
        messages that are too far ahead of that clock are left out and listed in the result. Threads that append to one
        topic at the same time share transactions; each gets its own entry and result.

        Parameters
        ----------
        messages
            One Message, an iterable of Message objects or of dicts, or a table: of pyarrow, pandas, Polars or DuckDB,
            or anything else with Arrow's stream interface. Tables and dicts have source, stream, event_time and, if you
            have them, publish_time, receive_time, headers and payload; other columns are ignored. Times in tables are
            int64 nanoseconds, or datetimes with a time zone. A pyarrow RecordBatchReader is read to its end first.
        columns
            Names in the table or the dicts, if they differ: ``{"source": "device", "event_time": "measured_at"}``.
        payload
            Name of the column that holds payloads. Its texts are stored as UTF-8, its numbers and booleans as in JSON.
            Without this, payloads must be bytes.
        producer
            Name of a producer that numbers its messages. Then a repeated append writes nothing and returns the first
            position, if it is one of the producer's last 5 appends.
        sequence
            Number of the first of the messages, from 0; the others follow, including rejected ones. A producer's
            numbers only grow. Required with ``producer``.
        epoch
            Number of the producer's instance; a lower number than the topic's latest is refused. None: not compared.

        Raises
        ------
        InvalidArgumentError
            If the messages are empty, if they are too large for the database (MariaDB takes half of its
            max_allowed_packet), or if their numbers are invalid: used for other messages, repeated only in part, lower
            than the producer's last number but never appended, or so low that the topic no longer remembers them.
        SchemaError
            If a table lacks a column, or has one of another type.
        ProducerFencedError
            If a newer instance of the producer has taken over.
        UnavailableError
            If the database stays busy or unavailable.
        """
        storage = self.storage
        clock = storage.backend.now_about
        if columns is not None or payload is not None:
            messages = as_messages(messages, columns, payload)
        if tracing.active is not None and producer is None:  # a repeat of a numbered append must be equal to the first
            with tracing.active.appending(self.name, messages) as passed_on:
                return append_entry(storage, encode_entry(passed_on, clock, storage.ahead_limit()))
        entry = encode_entry(messages, clock, storage.ahead_limit(), with_checksum=producer is not None)
        return append_entry(storage, entry, numbered(producer, sequence, epoch, entry.given, entry.checksum))

    def read(
        self,
        start: Position | None = None,
        stop: Position | None = None,
        *,
        since: Time | None = None,
        until: Time | None = None,
        by: str = "publish_time",
        source: str | Collection[str] | None = None,
        stream: str | Collection[str] | None = None,
        limit: int | None = None,
        on_damage: OnDamage = "raise",
    ) -> Iterator[Message]:
        """Read messages in the order of their positions, up to the topic's end when reading begins.

        Parameters
        ----------
        start
            Position to begin at; None: the first remaining message.
        stop
            Position to stop before.
        since, until
            Instead of positions: begin at the first message at or after ``since``, and stop before the first one at or
            after ``until`` (see `find`). If times are out of order, messages between these two may be earlier than
            ``since``, and messages earlier than ``until`` may come later and are not read.
        by
            The time to which ``since`` and ``until`` refer, as in `find`. A message of a producer whose clock is far
            ahead is found for every publish_time up to its own; "effective_time" avoids this.
        source, stream
            Only messages of this source or stream, or of these; None: all. Files are read only in parts that may hold
            such sources.
        limit
            Maximum number of messages.
        on_damage
            ``"raise"``: damaged, lost or missing messages are an error. ``"skip"``: the reader skips them and logs a
            warning with the place and the number of messages.

        Raises
        ------
        DamagedError
            If a message differs from its written form, or is missing although it was not deleted; the error names the
            ledger and, if possible, the entry.
        UnavailableError
            If the file of a ledger is gone, or cannot be reached now; the error names it.
        """
        for batch in self.read_arrow(
            start,
            stop,
            since=since,
            until=until,
            by=by,
            source=source,
            stream=stream,
            limit=limit,
            on_damage=on_damage,
        ):
            for first in range(0, batch.num_rows, _MESSAGES_AT_ONCE):
                yield from from_arrow(batch.slice(first, _MESSAGES_AT_ONCE))

    def read_arrow(
        self,
        start: Position | None = None,
        stop: Position | None = None,
        *,
        since: Time | None = None,
        until: Time | None = None,
        by: str = "publish_time",
        source: str | Collection[str] | None = None,
        stream: str | Collection[str] | None = None,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
        on_damage: OnDamage = "raise",
    ) -> Iterator[pa.RecordBatch]:
        """Read as `read` does, in record batches of `waterclock.arrow.POSITIONED_SCHEMA`.

        Parameters
        ----------
        columns
            The columns to read, in this order; None: all. Other columns are neither read nor checked.
        """
        wanted = check_columns(columns)
        left = check_limit(limit)
        chosen = ReadFilter(sources=check_names(source, "source"), streams=check_names(stream, "stream"))
        damage = Damage(self.name, check_on_damage(on_damage))
        first, last = self._range(start, stop, since, until, check_by(by), on_damage)
        needed = [*wanted, *(name for name in chosen.columns if name not in wanted)]
        for chunk in read_chunks(self.storage, first, last, needed, damage, chosen):
            for batch in positioned(chunk, needed):
                found = chosen.rows(batch).select(wanted) if chosen.columns else batch
                if found.num_rows:
                    yield found if left is None else found.slice(0, left)
                if left is not None:
                    left -= found.num_rows
                    if left <= 0:
                        return

    def read_pandas(
        self, start: Position | None = None, stop: Position | None = None, **options: Unpack[ReadOptions]
    ) -> pd.DataFrame:
        """Read as `read_arrow` does, into one pandas data frame.

        Its columns are those of `waterclock.arrow.POSITIONED_SCHEMA`, or the ``columns`` given. Times are datetimes in
        UTC, exact to the nanosecond; payloads are bytes, headers dicts. Everything is loaded into memory, so pass a
        range.

        Raises
        ------
        InvalidArgumentError
            If pandas is not installed; also as `read`.
        DamagedError, UnavailableError
            As `read`.
        """
        return to_pandas(self._table(start, stop, options))

    def read_polars(
        self, start: Position | None = None, stop: Position | None = None, **options: Unpack[ReadOptions]
    ) -> pl.DataFrame:
        """Read as `read_pandas` does, into one Polars data frame. Headers are maps."""
        return to_polars(self._table(start, stop, options))

    def _table(self, start: Position | None, stop: Position | None, options: ReadOptions) -> pa.Table:
        columns = check_columns(options.get("columns"))
        schema = pa.schema([POSITIONED_SCHEMA.field(name) for name in columns])
        return pa.Table.from_batches(self.read_arrow(start, stop, **options), schema)

    def find(self, time: Time, by: str = "publish_time") -> Found:
        """Find the first remaining message at or after a time, exactly, even if times are out of order.

        One catalogue query and at most one ranged read of a file, for a topic of any size.

        Parameters
        ----------
        time
            An int (ns), an aware datetime, an ISO 8601 text with offset, or how long ago: ``"2h"``.
        by
            ``"publish_time"``, ``"event_time"``, ``"receive_time"`` or ``"effective_time"``, the smaller of
            publish_time and receive_time, which no producer's clock can move ahead.

        Raises
        ------
        DamagedError
            If the message is in a damaged part.
        UnavailableError
            If a file cannot be read now. A lost file is skipped, with a warning in the log.
        """
        return find_first(self.storage, check_by(by), self.storage.time(time, "time"))

    def newest(self, by: str = "event_time") -> Found:
        """Find the message with the largest time, anywhere in the topic; if several have it, the first of them.

        Two catalogue queries and at most one ranged read of a file, for a topic of any size. After ledgers were deleted
        or lost, until the next upkeep, also one query over all ledgers.

        Parameters
        ----------
        by
            The time to compare, as in `find`.

        Returns
        -------
        Found
            ``found`` is False, and ``position`` the topic's head, if the topic has no messages.

        Raises
        ------
        DamagedError, UnavailableError
            As in `find`. A lost file is skipped, with a warning in the log.
        """
        return find_newest(self.storage, check_by(by))

    def index(self, position: Position) -> int:
        """Return the number of a message in the topic, counted from 0 since the topic was created.

        ``topic.index(b) - topic.index(a)`` is the number of messages from ``a`` to before ``b``. Deleted messages keep
        their numbers, so the number of a message never changes.

        Parameters
        ----------
        position
            Position of the message. If no message is there, the next remaining message counts instead, or the head.

        Raises
        ------
        DamagedError, UnavailableError
            If the position is in a sealed ledger whose file is corrupt or cannot be read.
        """
        return place_of(self.storage, check_position(position, "position")).ordinal

    def at(self, index: int) -> Position:
        """Return the position of a message by its number in the topic, the inverse of `index`.

        Parameters
        ----------
        index
            Number of the message, from 0. If that message was deleted, the next remaining one counts; if it is not
            written yet, the topic's head.

        Raises
        ------
        DamagedError, UnavailableError
            If the message is in a sealed ledger whose file is corrupt or cannot be read, or in a missing ledger.
        """
        return position_of(self.storage, check_integer(index, "index"))

    def ledgers(self, start: int = 0, limit: int | None = None) -> list[LedgerInfo]:
        """Return the remaining ledgers, as the catalogue describes them; the open one is last.

        Parameters
        ----------
        start
            Number of the ledger to begin at, or the next remaining one.
        limit
            Maximum number; others are not read. For the next page, start at the last number plus one.
        """
        return list_ledgers(self.storage, check_integer(start, "start"), check_limit(limit))

    def alter(self, **options: Unpack[TopicChanges]) -> None:
        """Change options; omitted options keep their values.

        Appends and upkeep follow a changed ``roll_after``, ``roll_size`` or ``retention`` at once. A changed
        ``max_ahead`` or ``on_ahead`` applies at once to appends through this topic, and within a second to those of
        other processes. Existing messages stay until upkeep deletes those older than a shorter ``retention``. If a
        producer repeats an append, the limit of the first append applies.

        Parameters
        ----------
        **options
            ``roll_after``, ``roll_size``, ``retention``, ``max_ahead`` and ``on_ahead``, as in `Database.create_topic`.

        Raises
        ------
        InvalidArgumentError
            If an option is unknown or invalid.
        NotFoundError
            If the topic was removed.
        """
        alter_topic(self.storage, options)

    def rename(self, name: str) -> None:
        """Rename the topic; its messages, files, subscriptions and producers stay.

        Topics that are open in other processes keep working, and their errors and logs show the former name. Programs
        that open the topic by its former name no longer find it, among them pipelines, streams on Spark and commands.

        Parameters
        ----------
        name
            1 to 255 characters.

        Raises
        ------
        AlreadyExistsError
            If another topic has that name.
        NotFoundError
            If the topic was removed.
        """
        self.storage = rename_topic(self.storage, name)

    def roll(self) -> None:
        """Close the open ledger and open the next one; do nothing if it is empty."""
        roll(self.storage)

    def seal(self) -> int:
        """Write every closed ledger that no other process is sealing to a file; return how many.

        First it closes the open ledger if its age or size requires it, removes files of killed sealers, and deletes
        ledgers older than the topic's retention. Call it regularly.

        Raises
        ------
        DamagedError
            If ledgers are corrupt; those stay as they are, and all others are sealed first.
        UnavailableError
            If a file cannot be written or reads back differently; the ledger stays as it was.
        """
        return seal_ledgers(self.storage)

    def compact(self, file_bytes: int = FILE_BYTES) -> int:
        """Join small files of adjacent sealed ledgers into files of about ``file_bytes``; return how many were saved.

        No message changes its position, and readers continue: the old files stay for an hour. Ledgers that are
        damaged or lost stay as they are, all others are compacted around them, and a DamagedError or LostFileError at
        the end names them. If a store cannot be reached, an UnavailableError is raised at once.
        """
        return compact_topic(self.storage, check_size(file_bytes, "file_bytes"))

    def verify(self, *, deep: bool = False, progress: Progress | None = None) -> Verified:
        """Check that everything in the catalogue exists and is intact. The topic may be in use.

        Compares rows with one another: numbers without gaps, bounds, running maxima. Compares files with rows: each
        exists with its length and an intact footer, and no other file exists.

        Parameters
        ----------
        deep
            Also read every byte, compare it with its checksum, and compare every bound with the messages.
        progress
            Called with the number of finished files and unsealed ledgers, and the number of all.

        Raises
        ------
        UnavailableError
            If the store or the database cannot be reached, or its place holds another store; neither is a fault of the
            topic.
        """
        return verify_topic(self.storage, deep=deep, progress=progress)

    def repair(self, *, progress: Progress | None = None) -> Repaired:
        """Correct the catalogue from the files, and record lost messages.

        Ledger files that the catalogue has lost are imported. If the topic is empty, these are all of its files, so
        that a lost catalogue can be rebuilt. Bounds are measured again. Messages that a deep verification cannot read
        are recorded as lost: readers then skip them without an error, and all other messages keep their positions and
        numbers. No file is removed or changed.

        Parameters
        ----------
        progress
            As of `verify`, which runs before and after.

        Raises
        ------
        UnavailableError
            If the store or the database cannot be reached, or its place holds another store; nothing is recorded then.
        """
        return repair_topic(self.storage, progress)

    def subscribe(
        self,
        name: str,
        start: Position | Time = "earliest",
        *,
        by: str = "publish_time",
        lease: Duration = "30s",
        on_damage: OnDamage = "raise",
    ) -> Subscription:
        """Open a subscription, a named, durable reading position; create it if missing.

        Parameters
        ----------
        name
            1 to 255 characters.
        start
            Start of a new subscription: ``"earliest"``, ``"latest"``, a position, or the first message at or after
            a time. Ignored for an existing subscription.
        by
            The time to which ``start`` refers, as in `find`.
        lease
            How long the subscription stays with a reader that neither reads nor commits.
        on_damage
            The treatment of damaged, lost or missing messages, as for `read`. Skipped messages count as
            read once it commits.
        """
        check_by(by)
        check_on_damage(on_damage)
        if not subscription_rows.exists(self.storage, check_name(name)):
            subscription_rows.create(self.storage, name, place_at(self.storage, start, by, on_damage))
        return Subscription(self.storage, name, to_duration(lease, "lease"), on_damage)

    def subscriptions(self) -> list[SubscriptionInfo]:
        """Describe each subscription, in alphabetical order."""
        return subscription_rows.list_infos(self.storage)

    def unsubscribe(self, name: str) -> None:
        """Remove a subscription; NotFoundError if missing."""
        subscription_rows.remove(self.storage, check_name(name))

    def producer(self, name: str, *, linger: Duration = "5ms", max_bytes: int = 1 << 20) -> Producer:
        """Open a producer that takes one message at a time and appends many at once, in the background.

        A producer of the same name that was opened earlier can append no more: it gets a `ProducerFencedError`.

        Parameters
        ----------
        name
            1 to 255 characters.
        linger
            How long a message waits for others.
        max_bytes
            Size of the waiting messages at which they are appended at once.
        """
        return Producer(
            self.storage, check_name(name), to_duration(linger, "linger"), check_size(max_bytes, "max_bytes")
        )

    def expire(self, ttl: Duration) -> Expired:
        """Move all subscriptions past messages older than ``ttl``, and delete ledgers that have expired as a whole.

        A message's age follows from the smaller of its publish_time and its receive_time, so that a producer whose
        clock is ahead does not keep messages forever. A message is expired if it is older than ``ttl`` by the
        database's clock. Every subscription moves to the first message that is not expired, never backwards.

        Raises
        ------
        UnavailableError
            If another expiry of the topic is running, or if files must be deleted and their store is missing, is
            another one or cannot be reached.
        """
        return expire_topic(self.storage, to_duration(ttl, "ttl"))

    def truncate(self, before: Position | Time, *, force: bool = False) -> int:
        """Delete the ledgers that lie wholly before a position, or before the first message published at a time.

        If nothing remains after that, the open ledger is closed and deleted too.

        Parameters
        ----------
        before
            A position, a time, or how long ago: ``"30d"``. A ledger is deleted whole or not at all, so a position in
            the middle of a ledger keeps that ledger.
        force
            Also delete messages that a subscription has not read: it continues with the first remaining message.

        Returns
        -------
        int
            How many ledgers were deleted. Their files stay for an hour for current readers.

        Raises
        ------
        UnavailableError
            If there are files to delete, and their store is absent, is another one or cannot be reached.
        """
        if not isinstance(before, Position):
            before = end_of_older(self.storage, "publish_time", self.storage.time(before, "before"))
        return delete_before(self.storage, check_position(before, "before"), force=force)

    def enforce_retention(self, *, force: bool = False) -> int:
        """Delete the ledgers whose messages are all older than the topic's ``retention``; return how many.

        As in `truncate`, ``force`` also deletes messages that a subscription has not read.
        """
        return enforce_retention(self.storage, force=force)

    def sweep(self) -> int:
        """Remove due files of deleted ledgers and killed sealers, as `seal` does; return how many."""
        return sweep(self.storage)

    def files(self) -> list[str]:
        """Name the files of the sealed ledgers in full, in order, each once; without credentials and options."""
        return list_files(self.storage)

    def relocate(self, root: str | Path, *, filesystem: Any = None, progress: Progress | None = None) -> Relocated:
        """Move the topic's files to another store, or record where its store was moved to.

        If ``root`` holds the marker of the topic's store, because the folder was renamed or is mounted elsewhere, each
        of the topic's files must exist there with its size, and the catalogue gets the new place. Other topics of that
        store move with it. Otherwise the files are copied to the store at ``root``, which is created if missing, read
        back and compared. One transaction then switches the topic to it. The old files stay for an hour for current
        readers. If the call is killed at any point, no message is lost; call it again to continue.

        Topics that are open in other processes must be opened again: an `UnavailableError` says so when they seal,
        compact or, after the hour, read.

        Parameters
        ----------
        root
            Folder or filesystem URL, with any credentials it needs.
        filesystem
            A filesystem of pyarrow or fsspec; ``root`` is then a path on it.
        progress
            Called with how many files are done, and how many there are.

        Raises
        ------
        UnavailableError
            If a file is missing or reads back differently, or a store cannot be reached; nothing has moved then.
        """
        files, relocated = relocate_topic(self.storage, str(root), filesystem, progress)
        self.storage = replace(self.storage, files=files)
        return relocated

    def remove(self) -> None:
        """Remove the topic with its ledgers, files, subscriptions and producers. If killed midway, call it again."""
        remove_topic(self.storage)

    def plan(
        self,
        start: Position | None = None,
        stop: Position | None = None,
        *,
        max_messages: int = 1_000_000,
        wanted: ReadFilter = ALL,
        on_damage: OnDamage = "raise",
    ) -> list[Slice]:
        """Cut a range into slices that other processes can read, each on its own, with `slicing.read_slice`.

        The list is a snapshot of the topic, in the order of positions.

        Parameters
        ----------
        start, stop
            First position, and the one to stop before; None: the whole topic.
        max_messages
            Maximum size of a slice; only a single row group or entry may exceed it.
        wanted
            The wanted messages. Parts that cannot hold any, as far as the catalogue knows, are left out; the rest holds
            other messages too.
        on_damage
            The treatment of missing or unreadable ledgers, as for `read`. Entries and files are checked when slices are
            read.

        Raises
        ------
        DamagedError
            If ledgers are missing or unreadable, and ``on_damage`` is ``"raise"``.
        """
        first = Position(0, 0, 0) if start is None else check_position(start, "start")
        damage = Damage(self.name, check_on_damage(on_damage))
        return plan_slices(self.storage, first, stop, max_messages, wanted, damage)

    def advance(self, position: Position, messages: int) -> Position:
        """Return the position after about this number of messages, at the end of an entry and not past the topic's end.

        An entry is not cut, because messages that arrived together must reach a batcher together.
        """
        return entry_boundary(self.storage, check_position(position, "position"), messages)

    def messages_at(
        self,
        positions: Sequence[Position] | pa.Table | pa.RecordBatch,
        columns: Sequence[str] | None = None,
        *,
        pass_over: tuple[type[WaterclockError], ...] = (),
    ) -> pa.Table:
        """Read the messages at some positions, one row each, in the order of the positions.

        Parameters
        ----------
        positions
            Positions, or a table with the columns ledger, entry and index.
        columns
            The columns to read; None: all of `waterclock.arrow.POSITIONED_SCHEMA`.
        pass_over
            Errors for which unreadable messages become null rows instead.

        Raises
        ------
        NotFoundError
            If no message is at a position (any more).
        DamagedError
            If a message differs from its written form, or is missing although it was not deleted.
        LostFileError
            If the file of a ledger is gone.
        """
        return look_up(self.storage, positions, check_columns(columns), pass_over)

    def _range(
        self,
        start: Position | None,
        stop: Position | None,
        since: Time | None,
        until: Time | None,
        by: str,
        on_damage: OnDamage,
    ) -> tuple[Position, Position]:
        if start is not None and since is not None:
            raise InvalidArgumentError(f"'since' and 'start' must not both be given, got {since!r} and {start!r}")
        if stop is not None and until is not None:
            raise InvalidArgumentError(f"'until' and 'stop' must not both be given, got {until!r} and {stop!r}")
        end = self.head
        if until is not None:
            time = self.storage.time(until, "until")
            end = min(end, find_first(self.storage, by, time, on_damage=on_damage).position)
        elif stop is not None:
            end = min(end, check_position(stop, "stop"))
        if since is not None:
            return find_start(self.storage, by, self.storage.time(since, "since"), on_damage).position, end
        return Position(0, 0, 0) if start is None else check_position(start, "start"), end

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the database's URL and the topic's name; it is opened again by that name."""
        files = self.storage.files
        is_recorded = files.is_complete and files.place == files.recorded
        place = LedgerRoot(None) if is_recorded else LedgerRoot(files.root, files.filesystem).portable()
        return type(self).open, (self.storage.backend, place, self.name)

    def __repr__(self) -> str:
        return f"<Topic {self.name!r} in {self.storage.backend.name}>"

    def _repr_html_(self) -> str:
        """Show the topic in a notebook: how much it holds, and from when to when."""
        info, bounds = self.info, self.bounds
        facts: dict[str, object] = {"messages": f"{info.messages:,}", "ledgers": f"{info.ledgers:,}"}
        facts |= {"size": f"{info.size:,} B", "head": info.head}
        if bounds is not None:
            for name in MESSAGE_TIMES:
                facts[name] = f"{format_time(bounds.begin[name])} to {format_time(bounds.end[name])}"
        return facts_as_html(f"Topic {self.name}", facts)
