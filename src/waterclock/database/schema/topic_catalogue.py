"""The catalogue of topics: their counters, ledgers, entries, files, producers and subscriptions."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from waterclock.database.schema.catalogue import metadata
from waterclock.database.schema.types import BigInt, Blob, Key, LongText, Name, key_part, required

TIMES = ("event_time", "publish_time", "receive_time")  # the times of a message whose bounds the catalogue stores

BOUNDED = (*TIMES, "effective_time")
"""Those, and the time by which messages expire: the smaller of publish_time and receive_time."""


def _begins(of: str) -> Iterable[sa.Column[int]]:
    return [sa.Column(f"begin_{time}", BigInt, doc=f"Lowest {time} of {of}, ns; NULL: not known.") for time in TIMES]


def _ends(of: str) -> Iterable[sa.Column[int]]:
    return [sa.Column(f"end_{time}", BigInt, doc=f"Highest {time} of {of}, ns; NULL: not known.") for time in BOUNDED]


def _peaks(of: str) -> Iterable[sa.Column[int]]:
    return [sa.Column(f"peak_{time}", BigInt, doc=f"Highest {time} of {of}, ns; NULL: not known.") for time in BOUNDED]


stores = sa.Table(
    "waterclock_stores",
    metadata,
    sa.Column("id", Key, primary_key=True, doc="The store's id in the other tables."),
    sa.Column("identity", Name, nullable=False, unique=True, doc="The identity in the store's marker."),
    required("root", LongText, doc="URL of the store, without secrets."),
    required(
        "is_complete",
        sa.SmallInteger,
        doc="1 if the root alone opens the store; 0 if the caller also passed credentials, options or a filesystem.",
    ),
    required("created_at", BigInt, doc="When the store was first used, ns."),
    sqlite_autoincrement=True,
)
"""One row per folder or bucket with ledger files: the identity in its marker, and its URL without secrets."""

topics = sa.Table(
    "waterclock_topics",
    metadata,
    sa.Column(
        "id",
        Key,
        primary_key=True,
        doc="The topic's id in the other tables. The id of a removed topic is not used again.",
    ),
    sa.Column("name", Name, nullable=False, unique=True, doc="Name of the topic."),
    sa.Column("roll_after", BigInt, doc="Age at which the open ledger is closed, ns; NULL: no maximum age."),
    required("roll_size", BigInt, doc="Size at which the open ledger is closed, bytes."),
    sa.Column("retention", BigInt, doc="How long messages are kept, ns; NULL: forever."),
    required("created_at", BigInt, doc="When the topic was created, ns."),
    required("ledger", BigInt, doc="Number of the open ledger."),
    required("entries", BigInt, doc="Entries of the open ledger."),
    required("messages", BigInt, doc="Messages of the open ledger."),
    required("bytes", BigInt, doc="Bytes of the open ledger."),
    required("ordinal", BigInt, doc="Number of the next message of the topic."),
    sa.Column("opened_at", BigInt, doc="When the open ledger got its first entry, ns; NULL: not yet."),
    *_begins("the open ledger"),
    *_ends("the open ledger"),
    *_peaks("all ledgers that are closed"),
    required(
        "first_ledger",
        BigInt,
        "0",
        doc="The first ledger that was not deleted on purpose. If a later ledger is missing, the topic is damaged.",
    ),
    required("first_ordinal", BigInt, "0", doc="Number of the first message that was not deleted on purpose."),
    required("store_id", BigInt, doc="The store of the topic's files."),
    required(
        "origin", Name, doc="A number that is unique to this topic, across all databases. The topic's files contain it."
    ),
    sa.Column(
        "max_ahead",
        BigInt,
        doc="How far ahead of the clock a publish_time or receive_time may be, ns; NULL: any distance.",
    ),
    sa.Column("on_ahead", sa.String(16), doc="How a message that is further ahead is handled; NULL: it is rejected."),
    required("stored_bytes", BigInt, "0", doc="Bytes of all ledgers except the open ledger."),
    sa.Column(
        "stale_peaks",
        BigInt,
        doc="Up to this ledger, and shortly after it, the peaks of ledgers may still include deleted ledgers; NULL:"
        " all peaks are exact.",
    ),
    sa.Column("expiring_owner", Name, doc="The process that is deleting expired ledgers; NULL: no process."),
    sa.Column("expiring_until", BigInt, doc="When the turn of the process in the previous column ends, ns."),
    sqlite_autoincrement=True,  # the id of a removed topic must never be reused
)
"""One row per topic. Every append locks the row, so positions follow the order of commits."""

ledgers = sa.Table(
    "waterclock_ledgers",
    metadata,
    key_part("topic_id", BigInt, doc="The topic."),
    key_part("ledger", BigInt, doc="Number of the ledger in the topic."),
    required(
        "state",
        sa.String(16),
        doc="`closed`: the ledger's entries are rows. `sealed`: its messages are in a file. `lost`: a repair has"
        " recorded its messages as lost.",
    ),
    required("entries", BigInt, doc="Entries of the ledger."),
    required("messages", BigInt, doc="Messages of the ledger."),
    required(
        "bytes",
        BigInt,
        doc="Bytes of the ledger's entries. Once the ledger is sealed: bytes of its file, or of its part of a shared"
        " file.",
    ),
    required("first_ordinal", BigInt, doc="The number of the ledger's first message in the topic."),
    sa.Column("opened_at", BigInt, doc="When the ledger got its first entry, ns."),
    required("closed_at", BigInt, doc="When the ledger was closed, ns."),
    sa.Column("sealed_at", BigInt, doc="When the ledger was sealed, ns; NULL: not sealed."),
    *_begins("the ledger"),
    *_ends("the ledger"),
    *_peaks("the ledger and all before it"),
    sa.Column("path", Name, doc="Name of the ledger's file below the root of the store; NULL: no file."),
    sa.Column("file_bytes", BigInt, doc="Length of the whole file, bytes."),
    sa.Column("row_groups", LongText, doc="Time bounds of the row groups of the file, as JSON."),
    sa.Column("footer", Blob, doc="Footer of the file, so that reading a part of the file needs no other read."),
    sa.Column(
        "shared_footer", Blob, doc="Footer of a file that several ledgers share. Only the last of these ledgers has it."
    ),
    required("lost_in_file", BigInt, "0", doc="Messages of damaged row groups that are recorded as lost."),
    required(
        "imported",
        BigInt,
        "0",
        doc="1 if the file was imported, so that another database may also use it; otherwise 0.",
    ),
    sa.Column("checksums", Blob, doc="Checksums of the columns of the row groups in the file."),
    sa.Index("waterclock_ledgers_state_idx", "topic_id", "state", "ledger"),
    sa.Index("waterclock_ledgers_first_ordinal_idx", "topic_id", "first_ordinal"),
    sa.Index("waterclock_ledgers_lost_in_file_idx", "lost_in_file", "topic_id"),
    *(sa.Index(f"waterclock_ledgers_{time}_idx", "topic_id", f"peak_{time}", "ledger") for time in BOUNDED),
    *(sa.Index(f"waterclock_ledgers_begin_{time}_idx", "topic_id", f"begin_{time}") for time in TIMES),
)
"""One row per ledger that is ``closed`` (its entries are rows), ``sealed`` (its messages are in a file) or ``lost``
(recorded by a repair).

``peak_*`` never falls from one ledger to the next, so the first ledger with ``peak >= t`` is one index lookup, however
disordered the times are.
"""

entries = sa.Table(
    "waterclock_entries",
    metadata,
    key_part("topic_id", BigInt, doc="The topic."),
    key_part("ledger", BigInt, doc="The ledger."),
    key_part("entry", BigInt, doc="Number of the entry in the ledger."),
    required("first_ordinal", BigInt, doc="The number of the ledger's first message in the topic."),
    required("messages", BigInt, doc="Messages of the entry."),
    required("bytes", BigInt, doc="Bytes of the entry."),
    required(
        "token",
        BigInt,
        doc="A random number of the append. A producer whose commit was interrupted uses it to check whether the"
        " append was stored.",
    ),
    *_begins("the entry"),
    *_ends("the entry"),
    *_peaks("the entry and all before it in its ledger"),
    required("data", Blob, doc="The messages, as Arrow IPC."),
    *(sa.Index(f"waterclock_entries_{time}_idx", "topic_id", "ledger", f"peak_{time}", "entry") for time in BOUNDED),
)
"""One row per append to a ledger that is not sealed."""

files = sa.Table(
    "waterclock_files",
    metadata,
    key_part(
        "path",
        Name,
        doc="Name below the root of the topic's store. For a file in a former store of the topic, `IDENTITY:NAME`.",
    ),
    required("topic_id", BigInt, doc="The topic."),
    required("ledger", BigInt, doc="The ledger for which the file was written."),
    required(
        "state",
        sa.String(16),
        doc="`pending`: a process is writing the file. `copied`: a relocation is copying it. `deleted`: it will be"
        " removed.",
    ),
    required("owner", Name, doc="The process that is writing the file."),
    required("until", BigInt, doc="When the writer's lease ends, or when the file may be removed, ns."),
    sa.Index("waterclock_files_ledger_idx", "topic_id", "ledger"),
    sa.Index("waterclock_files_until_idx", "topic_id", "until"),
)
"""One row per file that belongs to no sealed ledger: it is being written or copied, or waits for its removal."""

producers = sa.Table(
    "waterclock_producers",
    metadata,
    key_part("topic_id", BigInt, doc="The topic."),
    key_part("name", Name, doc="The producer."),
    required(
        "producer_epoch",
        BigInt,
        doc="Epoch of the producer's current instance. Appends of older instances are refused.",
    ),
    sa.Column("last_sequence", BigInt, doc="The highest sequence number that was appended; NULL: no append yet."),
    required(
        "recent",
        LongText,
        doc="The last appends, as a JSON array of [first, last, ledger, entry, checksum, verdict]. Ledger and entry"
        " are null if all messages were rejected. The verdict is [judged_at, max_ahead, rejected], or null if no"
        " messages were rejected.",
    ),
    required(
        "covered",
        LongText,
        doc="All ranges of sequence numbers that were appended, as a JSON array of [first, last]. Adjacent ranges are"
        " joined.",
    ),
)
"""One row per producer that numbers its messages."""

subscriptions = sa.Table(
    "waterclock_subscriptions",
    metadata,
    key_part("topic_id", BigInt, doc="The topic."),
    key_part("name", Name, doc="The subscription."),
    required("created_at", BigInt, doc="When the row was created, ns."),
    required("ledger", BigInt, doc="Ledger of the next message to be read."),
    required("entry", BigInt, doc="Entry of the next message."),
    required("index", sa.Integer, doc="Index of the next message in its entry."),
    required("ordinal", BigInt, doc="Number of the next message in the topic."),
    required(
        "reader_epoch",
        BigInt,
        doc="Increases each time a reader takes the subscription. Readers with a lower number are refused.",
    ),
    sa.Column(
        "not_before",
        BigInt,
        doc="Messages with an earlier time are not delivered, ns; NULL: all messages are delivered.",
    ),
    sa.Column(
        "not_before_by",
        sa.String(16),
        doc="The kind of time that `not_before` refers to; NULL if `not_before` is NULL.",
    ),
    sa.Column("holder", Name, doc="The reader that has the subscription; NULL: no reader."),
    sa.Column("held_until", BigInt, doc="When the reader's lease ends, ns."),
)
"""One row per subscription: the position and number of the next message to read."""

followers = sa.Table(
    "waterclock_followers",
    metadata,
    key_part("topic_id", BigInt, doc="The topic that is batched."),
    key_part("name", Name, doc="The message table that gets the batches."),
    required("rule", LongText, doc="The batching options, as text."),
    required(
        "reader_epoch",
        BigInt,
        doc="Increases each time a process takes over. Processes with a lower number are refused.",
    ),
    required("ledger", BigInt, doc="Ledger of the next message to be read."),
    required("entry", BigInt, doc="Entry of the next message."),
    required("index", sa.Integer, doc="Index of the next message in its entry."),
    required("ordinal", BigInt, doc="Number of the next message in the topic."),
    sa.Column("clock", BigInt, doc="The receive clock, ns; NULL: not known."),
    sa.Column("state", Blob, doc="The state of the open batches; NULL: no open batches."),
)
"""One row per topic and message table of live batching: its position, written in the transaction of its batches."""
