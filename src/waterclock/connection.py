"""The entry point: ``connect`` opens a database, and the database opens topics and message tables."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from waterclock._support.closing import Closing
from waterclock.backup.copying import Report, no_report
from waterclock.database.backend import Backend
from waterclock.database.engines.sqlite_file import file_of
from waterclock.errors import InvalidArgumentError
from waterclock.tables.model.keyspace import WHOLE
from waterclock.time import Clock, Duration, to_duration
from waterclock.topics.model.literals import OnAhead
from waterclock.topics.store.ledger_root import LedgerRoot, ledgers_beside

# Topics and message tables are imported when the first one is asked for: a program that works with the one need not
# wait for the other, nor a command that only opens the database for either.
if TYPE_CHECKING:
    import sqlalchemy as sa

    from waterclock.backup.backing_up import BackedUp
    from waterclock.tables.message_table import MessageTable
    from waterclock.tables.model.options import (
        AckOrder,
        Groups,
        IdType,
        OnExhausted,
        OnExpired,
        Payload,
        PurgeBy,
        Rebalance,
        Ungrouped,
    )
    from waterclock.tables.sharding.sharded_database import ShardedDatabase
    from waterclock.topics.catalogue.topic_info import TopicInfo
    from waterclock.topics.topic import Topic

_SECOND = 1_000_000_000
_SHORTEST_TIMEOUT = _SECOND // 10  # below, a slow commit would fail


class Database(Closing):
    """A database with its topics and message tables. Safe to share between threads; usable in ``with``.

    Attributes
    ----------
    backend
        Engine, transactions and clock, for callers who run SQL of their own.
    ledgers
        Folder or filesystem URL for the sealed ledgers of new topics, as passed to `connect`; None: unknown.
    """

    def __init__(self, backend: Backend, place: LedgerRoot) -> None:
        self.backend = backend
        self.ledgers = place.default if place.root is None else place.root
        self._place = place
        self._has_opened_tables = False

    def create_topic(
        self,
        name: str,
        *,
        roll_after: Duration | None = "1h",
        roll_size: int = 64 << 20,
        retention: Duration | None = None,
        max_ahead: Duration | None = None,
        on_ahead: OnAhead = "reject",
        exist_ok: bool = False,
    ) -> Topic:
        """Create a topic, a log of messages.

        Parameters
        ----------
        name
            1 to 255 characters.
        roll_after
            How long a ledger stays open at most; None: no limit.
        roll_size
            Bytes of entries at which the open ledger is closed and the next one opened.
        retention
            How long messages are kept; None: forever.
        max_ahead
            How far ahead of the database's clock a publish_time or receive_time may be; None: no limit. Without a
            limit, a single message three years ahead is found by every search for a publish_time in those years.
        on_ahead
            Treatment of a message that is further ahead: ``"reject"`` leaves it out of its append and names it, with
            the reason, in the result; ``"keep"`` writes it, with a warning in the log.
        exist_ok
            Return an existing topic as it is instead of raising. A ``UserWarning`` names non-default options that
            differ from those of the existing topic, with both values.

        Raises
        ------
        AlreadyExistsError
            If the topic exists and ``exist_ok`` is False.
        InvalidArgumentError
            If the place for its ledgers is unknown; see `connect`.
        UnavailableError
            If the store of its ledgers cannot be created or reached.
        """
        from waterclock.topics.model.topic_options import TopicOptions
        from waterclock.topics.topic import Topic

        options = TopicOptions.check(
            roll_after=roll_after, roll_size=roll_size, retention=retention, max_ahead=max_ahead, on_ahead=on_ahead
        )
        return Topic.create(self.backend, self._place, name, options, exist_ok=exist_ok)

    def topic(self, name: str) -> Topic:
        """Open a topic.

        The topic's ledgers are in the store in which they were written; a marker at its root identifies the store. The
        store is expected at the ``ledgers`` of `connect`. If ``ledgers`` is omitted or is another store, the store is
        expected at the place that the catalogue names. If that place cannot be reached just now, the topic opens
        anyway, so that producers can append.

        Raises
        ------
        NotFoundError
            If it is missing.
        UnavailableError
            If that place holds no store, or another store; the error names both places.
        """
        from waterclock.topics.topic import Topic

        return Topic.open(self.backend, self._place, name)

    def topics(self) -> list[str]:
        """Name every topic, in alphabetical order."""
        from waterclock.topics.catalogue.creating import topic_names

        return topic_names(self.backend)

    def topic_infos(self) -> list[TopicInfo]:
        """Return the facts of every topic in the catalogue, in alphabetical order, with one query."""
        from waterclock.topics.catalogue.topic_info import list_topics

        return list_topics(self.backend)

    def create_table(
        self,
        name: str,
        *,
        ack_wait: Duration = "30s",
        purge_after: Duration | None = "1d",
        batch_size: int = 10,
        cache_size: int = 10_000,
        poll_interval: Duration = "30s",
        min_backoff: Duration | None = None,
        max_backoff: Duration | None = None,
        jitter: float = 0.33,
        max_attempts: int | None = None,
        attempts_kept: int = 5,
        dead_letter: str | None = None,
        rate_limit: float | None = None,
        groups: Groups | None = None,
        group_header: str = "waterclock.group",
        ungrouped: Ungrouped = "default",
        ack_order: AckOrder = "strict",
        on_exhausted: OnExhausted = "dead_letter",
        on_expired: OnExpired = "drop",
        group_idle: Duration | None = None,
        rebalance: Rebalance = "manual",
        limit: Mapping[str, int] | None = None,
        rate: Mapping[str, str | float] | None = None,
        fair_by: str | None = None,
        weights: Mapping[str, int] | None = None,
        columns: Mapping[str, object] | None = None,
        id_type: IdType = "bigint",
        payload: Payload = "bytes",
        key_range: str = WHOLE,
        purge_by: PurgeBy = "rows",
        adopt: bool = False,
        exist_ok: bool = False,
    ) -> MessageTable:
        """Create a message table, a queue in an ordinary SQL table.

        Parameters
        ----------
        name
            Up to 48 letters, digits and underscores; the SQL table has the same name.
        ack_wait
            How long to wait for the first ack of a message before it is sent again; the wait doubles each time. At most
            fifty years, like ``min_backoff``.
        purge_after
            How long acked messages are kept; None: forever.
        batch_size
            How many messages a consumer takes at a time, unless it sets this itself.
        cache_size
            Maximum number of messages that a subscription holds at a time.
        poll_interval
            How often consumers look for messages that no notification announced.
        min_backoff
            Shortest pause after a failed attempt; None: messages are sent again as soon as their wait is over.
        max_backoff
            Longest wait; None: a year.
        jitter
            Fraction by which waits vary from the second attempt on.
        max_attempts
            Maximum number of times that a message is sent; None: no limit. Each claim counts, so with this option,
            workers and subscriptions claim a message only when they can start it.
        attempts_kept
            How many of a message's failed attempts are kept with it, at most 100; `Delivery.attempts` and
            `MessageTable.explain` show them.
        dead_letter
            The message table that takes messages whose attempts are used up, or that expire.
        rate_limit
            Maximum number of messages handed out per second; None: no limit.
        groups
            ``"sequenced"``: only the first messages of a group are sent, to one consumer; the next are sent once all of
            these are acked. ``"exclusive"``: a group stays with one consumer. None: messages have no order.
        group_header
            The header that names a message's group.
        ungrouped
            Messages without a group form one group (``"default"``), have no order (``"free"``) or are refused
            (``"reject"``).
        ack_order
            An ack that skips an earlier message of its group is refused (``"strict"``), held until its turn
            (``"hold"``) or accepted (``"lenient"``).
        on_exhausted
            When the first message of a group has used up its attempts, it moves to the dead-letter table and the group
            goes on (``"dead_letter"``), or the group waits for an operator (``"block"``).
        on_expired
            A message that expires before a consumer takes it is dropped (``"drop"``) or goes to the dead-letter table
            (``"dead_letter"``).
        group_idle
            How long an exclusive group without messages stays with its consumer; None: as long as the consumer lives.
        rebalance
            Exclusive groups move to another living consumer only by `MessageGroups.rebalance` (``"manual"``), or also
            when a consumer joins (``"join"``). A group moves once none of its messages is in flight.
        limit
            Maximum number of messages of one key that are leased at once, over all consumers, for example
            ``{"customer": 3}``. The key is a column of the table, otherwise a header, or the group (``"group"``);
            messages without the key are not limited. Keys take turns within one priority. None: no limit.
        rate
            Maximum number of messages of one key that are handed out per second, minute, hour or day, over all
            consumers, for example ``{"customer": "10/s"}``, ``{"kind": "600/m"}`` or ``{"kind": "5/h"}``; a number is
            per second. The key is named as in ``limit``; with both options, it must be the same key. None: no rate
            limit per key.
        fair_by
            The key by which messages take turns, named as in ``limit``: each key with due messages gets one message in
            turn, and the messages of one key are sent by priority and due time. None: messages are sent by priority and
            due time; if there is a ``limit`` or a ``rate``, keys take turns within one priority.
        weights
            The number of messages that a key gets in one turn, from 1 to 1,000, for example ``{"vip": 3}``; other keys
            get one. So while keys have waiting messages, they get shares in proportion to their weights. An integer is
            named as text, such as ``"7"``, and a boolean as ``"true"`` or ``"false"`` on PostgreSQL, otherwise as
            ``"1"`` or ``"0"``. None: all keys get the same share.
        columns
            Further columns: names, each with ``"bigint"``, ``"double"``, ``"boolean"``, ``"text"``, ``"bytes"``,
            ``"json"`` or a SQLAlchemy type. Names of our columns and of arguments of a put, and those that begin with
            ``waterclock_``, are refused.
        id_type
            ``"bigint"`` (the database generates missing ones), ``"text"`` or ``"uuid"`` (version 7).
        payload
            ``"bytes"``, ``"text"`` or ``"json"``.
        key_range
            The keyspace ids that the table holds; `ShardedDatabase` sets it for the shards of a table.
        purge_by
            ``"partition"``: acked messages lie in one partition for each day, on PostgreSQL and MariaDB, and purging
            drops whole days, which writes almost no log. ``"rows"``: they are deleted.
        adopt
            Turn the existing SQL table of this name into a message table: it must have the columns of *Vitess
            Messaging* ("Creating a message table"), and missing columns are added. Its rows are delivered.
        exist_ok
            Return an existing message table as it is instead of raising. A ``UserWarning`` names non-default options
            that differ from those of the existing table, with both values.

        Raises
        ------
        AlreadyExistsError
            If the table exists and ``exist_ok`` is False, or another SQL table has the name.
        InvalidArgumentError
            For an option that is invalid, or that this version does not have.
        NotFoundError, SchemaError
            If there is no SQL table to adopt, or a column of it is missing or has another type.
        """
        given = locals()  # the parameters, of which a table's options are some
        from waterclock.tables.message_table import MessageTable
        from waterclock.tables.model.options import TableOptions

        self._has_opened_tables = True
        options = TableOptions.check(**{each.name: given[each.name] for each in fields(TableOptions)})
        return MessageTable.create(self.backend, name, options, columns, adopt=adopt, exist_ok=exist_ok)

    def table(self, name: str) -> MessageTable:
        """Open a message table; NotFoundError if it is missing."""
        from waterclock.tables.message_table import MessageTable

        self._has_opened_tables = True
        return MessageTable.open(self.backend, name)

    def archive(self, table: str, topic: str, older_than: Duration = "0s") -> int:
        """Move messages acked longer than ``older_than`` ago from a message table to a topic, each exactly once.

        `waterclock.archive_to_topic.archive_table` describes an archived message. Returns the number of archived
        messages.

        Raises
        ------
        NotFoundError
            If there is no such table or topic.
        ProducerFencedError
            If another process has begun to archive the table meanwhile.
        """
        from waterclock.archive_to_topic import archive_table

        return archive_table(self.table(table), self.topic(topic), older_than)

    def backup(self, destination: str | Path, report: Report = no_report) -> BackedUp:
        """Back up an SQLite database with its ledger files into a folder, while others write.

        `waterclock.backup.backing_up.back_up` describes the folder; `waterclock.restore` restores the backup.
        """
        from waterclock.backup.backing_up import back_up

        return back_up(self.backend, self._place, destination, report)

    def tables(self) -> list[str]:
        """Name every message table, in alphabetical order."""
        from waterclock.tables.message_table import message_table_names

        return message_table_names(self.backend)

    def begin(self) -> AbstractContextManager[sa.Connection]:
        """Begin a transaction of your own: it commits when the block ends, and an error in the block rolls it back.

        Pass its connection as ``connection=`` to `MessageTable.put`, `Delivery.ack` and every other method that takes
        one. On SQLite the transaction waits for the write lock first, half a minute at most.

        Returns
        -------
        AbstractContextManager
            The block gets a SQLAlchemy ``Connection``, for statements of your own, too.

        Raises
        ------
        UnavailableError
            If the database is unavailable, busy, or read-only. If the connection is lost at the end of the block, the
            transaction may have been committed.
        RefusedError
            If the database refuses the commit, for example because of a deferred constraint.
        """
        return self.backend.lend()

    def close(self) -> None:
        """Close the connections.

        Messages of subscriptions that are still open return to the table when their leases end, and so do the groups of
        their consumers.
        """
        if self._has_opened_tables:
            from waterclock.tables.consumers.heartbeats import consumer_heartbeat
            from waterclock.tables.messages.rows import process_heartbeat

            consumer_heartbeat.forget(self.backend)
            process_heartbeat.forget(self.backend)
        self.backend.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as its URL and place of ledgers; it is opened again, with connections of its own."""
        return Database, (self.backend, self._place.portable())

    def __repr__(self) -> str:
        return f"<Database {self.backend.name}>"


@overload
def connect(
    url: str,
    ledgers: str | Path | None = None,
    filesystem: Any = None,
    *,
    create: bool | None = None,
    timeout: Duration = "30s",
    clock: Clock | None = None,
) -> Database: ...


@overload
def connect(
    *,
    shards: Mapping[str, str],
    create: bool | None = None,
    timeout: Duration = "30s",
    clock: Clock | None = None,
) -> ShardedDatabase: ...


def connect(
    url: str | None = None,
    ledgers: str | Path | None = None,
    filesystem: Any = None,
    *,
    shards: Mapping[str, str] | None = None,
    create: bool | None = None,
    timeout: Duration = "30s",
    clock: Clock | None = None,
) -> Database | ShardedDatabase:
    """Open a database.

    Parameters
    ----------
    url
        ``sqlite:///factory.db``, ``postgresql+psycopg://…`` or ``mysql+pymysql://…``. PyMySQL reads the machine's
        certificates at each new connection, some 45 ms, unless the URL ends with ``?ssl_disabled=true``, which suits a
        MariaDB on the same machine or on a trusted network. Behind a PgBouncer that pools transactions, a URL of
        PostgreSQL ends with ``?prepare_threshold=none``; consumers then get no notifications, and poll. An SQLite file
        that may not be written to, or that is named as ``sqlite:///file:factory.db?mode=ro&uri=true``, can be read if
        its catalogue has this version.
    ledgers
        Folder or filesystem URL for sealed ledgers: ``s3://bucket/folder`` (or ``s3a``), ``gs``, ``abfs``, ``hdfs``, or
        the URL of any other filesystem that fsspec supports. Needed for new topics, except on SQLite, whose default is
        ``FILE-ledgers/`` next to the file. Existing topics are found without ``ledgers``, unless their store needs
        credentials or options, which the catalogue does not keep.
    filesystem
        A filesystem of pyarrow or fsspec; ``ledgers`` is then a path on it.
    shards
        Instead of a URL: several databases whose message tables are spread over them, by key range, such as
        ``{"-80": url1, "80-": url2}`` ("Subsetting" in *Vitess Messaging*).
    create
        Whether to create the catalogue, the tables named ``waterclock_*``, if the database has none. None: only when a
        topic or message table is created. True: now, with the SQLite file if missing; an older catalogue is migrated.
        False: raise `NotFoundError`.
    timeout
        How long a call waits for a database that is busy or unavailable, or that is silent on an open connection. A
        statement on a large table may need more. A call whose last attempt begins late takes up to twice as long. It
        does not apply to your own transactions, whether on ``backend.engine`` or on your own connections.
    clock
        A function that replaces the database's clock in tests and simulations: returns ns since the epoch.

    Raises
    ------
    InvalidArgumentError
        For an unsupported URL, for an invalid filesystem or one without ``ledgers``, or if the shards' key ranges leave
        a gap or overlap.
    NotFoundError
        If the database has no catalogue and ``create`` is False. If ``create`` is None, the first call that needs the
        catalogue raises this error.
    SchemaError
        If the catalogue is newer than this library, or older and ``create`` is not True.
    UnavailableError
        If the database cannot be opened; with shards, if none of them can be opened.
    """
    seconds = to_duration(timeout, "timeout", minimum=_SHORTEST_TIMEOUT) / _SECOND
    if shards is not None:
        if url is not None or ledgers is not None:
            raise InvalidArgumentError("cannot combine shards with url or ledgers: each shard has its own URL")
        if not isinstance(shards, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # a caller may give anything
            raise InvalidArgumentError("shards must be a dict of URLs by key range, such as {'-80': …, '80-': …}")
        from waterclock.tables.sharding.sharded_database import ShardedDatabase

        # Shards hold no topics, so their ledgers are never used.
        return ShardedDatabase(
            shards,
            lambda each: Database(Backend(each, clock=clock, create=create, timeout=seconds), LedgerRoot(None)),
        )
    if url is None:
        raise InvalidArgumentError("url is missing; name a database, such as sqlite:///factory.db")
    if filesystem is not None and ledgers is None:
        raise InvalidArgumentError("ledgers is missing. Pass the path of the ledger files on this filesystem")
    root = None if ledgers is None else str(ledgers)
    on = None
    if filesystem is not None:
        from waterclock.topics.store.roots import wrapped

        on = wrapped(filesystem)
    backend = Backend(url, clock=clock, create=create, timeout=seconds)
    default = ledgers_beside(str(file_of(backend.url))) if backend.dialect.name == "sqlite" else None
    return Database(backend, LedgerRoot(root, on, default))
