"""The catalogue of topics: their counters, ledgers, entries, files, producers and subscriptions."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from waterclock.database.catalogue import metadata
from waterclock.database.types import BigInt, Blob, Key, LongText, Name

TIMES = ("event_time", "publish_time", "receive_time")
"""The times of a message whose bounds the catalogue keeps."""

BOUNDED = (*TIMES, "effective_time")
"""Those, and the time by which messages expire: the smaller of publish_time and receive_time."""


def _begins() -> Iterable[sa.Column[int]]:
    return [sa.Column(f"begin_{time}", BigInt) for time in TIMES]


def _ends() -> Iterable[sa.Column[int]]:
    return [sa.Column(f"end_{time}", BigInt) for time in BOUNDED]


def _peaks() -> Iterable[sa.Column[int]]:
    return [sa.Column(f"peak_{time}", BigInt) for time in BOUNDED]


stores = sa.Table(
    "waterclock_stores",
    metadata,
    sa.Column("id", Key, primary_key=True),
    sa.Column("identity", Name, nullable=False, unique=True),
    sa.Column("root", LongText, nullable=False),
    sa.Column("is_complete", sa.SmallInteger, nullable=False),
    sa.Column("created_at", BigInt, nullable=False),
    sqlite_autoincrement=True,
)
"""One row a folder or bucket that holds ledger files: the identity in its marker, and its URL without secrets.

``is_complete`` is 1 where the root is all that it takes to open the store, and 0 where credentials, options or a
filesystem of the caller's were given with it, which the catalogue does not keep.
"""

topics = sa.Table(
    "waterclock_topics",
    metadata,
    sa.Column("id", Key, primary_key=True),
    sa.Column("name", Name, nullable=False, unique=True),
    sa.Column("roll_after", BigInt),
    sa.Column("roll_size", BigInt, nullable=False),
    sa.Column("retention", BigInt),
    sa.Column("created_at", BigInt, nullable=False),
    sa.Column("ledger", BigInt, nullable=False),
    sa.Column("entries", BigInt, nullable=False),
    sa.Column("messages", BigInt, nullable=False),
    sa.Column("bytes", BigInt, nullable=False),
    sa.Column("ordinal", BigInt, nullable=False),
    sa.Column("opened_at", BigInt),
    *_begins(),
    *_ends(),
    *_peaks(),
    sa.Column("first_ledger", BigInt, nullable=False, server_default="0"),
    sa.Column("first_ordinal", BigInt, nullable=False, server_default="0"),
    sa.Column("store_id", BigInt),
    sa.Column("max_ahead", BigInt),
    sa.Column("on_ahead", sa.String(16)),
    sa.Column("stored_bytes", BigInt, nullable=False, server_default="0"),
    sa.Column("stale_peaks", BigInt),
    sa.Column("expiring_owner", Name),
    sa.Column("expiring_until", BigInt),
    sqlite_autoincrement=True,  # the id of a topic that was removed must never name another one
)
"""One row a topic, and at once the counter that every append locks: position order is commit order.

``ledger`` is the open one; ``entries``, ``messages``, ``bytes``, ``opened_at``, ``begin_*`` and ``end_*`` are what it
holds so far. ``ordinal`` numbers the next message of the topic, and ``peak_*`` is the running maximum of each time
over all ledgers that are closed. ``first_ledger`` and ``first_ordinal`` are the first that were not deleted on purpose:
a ledger that is missing after them is a fault. ``store_id`` is the store of its files; NULL until the topic is first
opened by a version that knows stores. ``max_ahead`` and ``on_ahead`` say how far ahead of the clock a publish_time may
be, and what becomes of a message that is further (`waterclock.topics.ahead`). ``stored_bytes`` are the bytes of all
ledgers but the open one. ``stale_peaks``: up to this ledger, and behind it until they agree, peaks may still be those
of ledgers that were deleted; NULL where none are (`waterclock.topics.peaks`).
"""

ledgers = sa.Table(
    "waterclock_ledgers",
    metadata,
    sa.Column("topic_id", BigInt, primary_key=True, autoincrement=False),
    sa.Column("ledger", BigInt, primary_key=True, autoincrement=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("entries", BigInt, nullable=False),
    sa.Column("messages", BigInt, nullable=False),
    sa.Column("bytes", BigInt, nullable=False),
    sa.Column("first_ordinal", BigInt, nullable=False),
    sa.Column("opened_at", BigInt),
    sa.Column("closed_at", BigInt, nullable=False),
    sa.Column("sealed_at", BigInt),
    *_begins(),
    *_ends(),
    *_peaks(),
    sa.Column("path", Name),
    sa.Column("file_bytes", BigInt),
    sa.Column("row_groups", LongText),
    sa.Column("footer", Blob),
    sa.Column("shared_footer", Blob),
    sa.Column("lost_in_file", BigInt, nullable=False, server_default="0"),
    sa.Column("checksums", Blob),
    sa.Index("waterclock_ledgers_state_idx", "topic_id", "state", "ledger"),
    sa.Index("waterclock_ledgers_first_ordinal_idx", "topic_id", "first_ordinal"),
    *(sa.Index(f"waterclock_ledgers_{time}_idx", "topic_id", f"peak_{time}", "ledger") for time in BOUNDED),
    *(sa.Index(f"waterclock_ledgers_begin_{time}_idx", "topic_id", f"begin_{time}") for time in TIMES),
)
"""One row a ledger that is ``closed`` (its entries are rows), ``sealed`` (its messages are a file) or ``lost``
(they are gone for good, and a repair has recorded that, so that ordinals add up).

``bytes`` are those of its entries until it is sealed, then those of its file, of which a ledger that shares it with
others has its part; ``file_bytes`` is the length of the whole file.
``peak_*`` is the running maximum over this ledger and all before it: it never falls from one ledger to the next, so
the first ledger with ``peak >= t`` is one step down an index however disordered the times are. ``footer`` is the
file's own, kept here so that reading a part of the file needs no other read. Of a file that ledgers share, the last of
them has the copy, as ``shared_footer``. ``checksums`` are those of the row groups' columns in the file
(`waterclock.topics.file_checksums`). ``lost_in_file`` counts the messages of damaged row groups of the file that
are recorded as lost.
"""

entries = sa.Table(
    "waterclock_entries",
    metadata,
    sa.Column("topic_id", BigInt, primary_key=True, autoincrement=False),
    sa.Column("ledger", BigInt, primary_key=True, autoincrement=False),
    sa.Column("entry", BigInt, primary_key=True, autoincrement=False),
    sa.Column("first_ordinal", BigInt, nullable=False),
    sa.Column("messages", BigInt, nullable=False),
    sa.Column("bytes", BigInt, nullable=False),
    sa.Column("token", BigInt, nullable=False),
    *_begins(),
    *_ends(),
    *_peaks(),
    sa.Column("data", Blob, nullable=False),
    *(sa.Index(f"waterclock_entries_{time}_idx", "topic_id", "ledger", f"peak_{time}", "entry") for time in BOUNDED),
)
"""One row an append to a ledger that is not sealed. ``data`` is Arrow IPC; ``peak_*`` runs over the ledger alone.

``token`` is drawn for each append, so that one whose commit was cut off can look whether it arrived.
"""

files = sa.Table(
    "waterclock_files",
    metadata,
    sa.Column("path", Name, primary_key=True),
    sa.Column("topic_id", BigInt, nullable=False),
    sa.Column("ledger", BigInt, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("owner", Name, nullable=False),
    sa.Column("until", BigInt, nullable=False),
    sa.Index("waterclock_files_ledger_idx", "topic_id", "ledger"),
    sa.Index("waterclock_files_until_idx", "topic_id", "until"),
)
"""Files that belong to no sealed ledger: ``pending`` (being written, until the lease ends) or ``deleted`` (waiting).

``path`` is the name below the root of the topic's store; of a file that was left in another store, from which the
topic has moved, it is ``IDENTITY:NAME``.
"""

producers = sa.Table(
    "waterclock_producers",
    metadata,
    sa.Column("topic_id", BigInt, primary_key=True, autoincrement=False),
    sa.Column("name", Name, primary_key=True),
    sa.Column("epoch", BigInt, nullable=False),
    sa.Column("last_sequence", BigInt),
    sa.Column("recent", LongText, nullable=False),
    sa.Column("covered", LongText),
)
"""Producers that number their messages.

``recent`` holds the last appends: [first, last, ledger, entry, checksum, judged_at] each; ledger and entry are null
where every message was rejected, and judged_at is null where none was. ``covered`` holds the ranges of numbers that
were ever appended: [first, last] each, joined where they touch.
"""

subscriptions = sa.Table(
    "waterclock_subscriptions",
    metadata,
    sa.Column("topic_id", BigInt, primary_key=True, autoincrement=False),
    sa.Column("name", Name, primary_key=True),
    sa.Column("created_at", BigInt, nullable=False),
    sa.Column("ledger", BigInt, nullable=False),
    sa.Column("entry", BigInt, nullable=False),
    sa.Column("index", sa.Integer, nullable=False),
    sa.Column("ordinal", BigInt, nullable=False),
    sa.Column("epoch", BigInt, nullable=False),
    sa.Column("not_before", BigInt),
    sa.Column("not_before_by", sa.String(16)),
    sa.Column("holder", Name),
    sa.Column("held_until", BigInt),
)
"""Durable reading positions: the next message to be read, and its number in the topic.

Messages whose time ``not_before_by`` (NULL: publish_time) is before ``not_before`` are not delivered.
"""
