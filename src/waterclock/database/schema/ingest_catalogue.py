"""The catalogue of ingests: their sessions with brokers, and how much of each file and partition is appended."""

from __future__ import annotations

import sqlalchemy as sa

from waterclock.database.schema.catalogue import metadata
from waterclock.database.schema.types import BigInt, Blob, LongText, Name

ingest_sessions = sa.Table(
    "waterclock_ingest_sessions",
    metadata,
    sa.Column("name", Name, primary_key=True, doc="The session: `CLIENT_ID@HOST:PORT`."),
    sa.Column("owner", BigInt, nullable=False, doc="Drawn by the process that uses it; another one is refused."),
    sa.Column("filters", LongText, nullable=False, doc="The filters that the broker may have for it, as JSON."),
    sa.Column(
        "unacked",
        Blob,
        nullable=False,
        doc="Messages that were appended and whose ack the broker may lack: packet id (2 bytes) and hash (8) each.",
    ),
    sa.Column("dropped", BigInt, doc="Messages that the broker said it dropped, of all its clients; NULL: not said."),
    sa.Column("seen_at", BigInt, nullable=False, doc="When its process last wrote this row, ns."),
)
"""One row a session. The append of a session's messages writes it, so the two never disagree."""

ingest_retained = sa.Table(
    "waterclock_ingest_retained",
    metadata,
    sa.Column("session", Name, primary_key=True, doc="The session."),
    sa.Column("topic_hash", BigInt, primary_key=True, autoincrement=False, doc="Of an MQTT topic."),
    sa.Column("content_hash", BigInt, nullable=False, doc="Of its retained message that was taken last."),
)
"""Retained messages that were taken: brokers send them again at each subscription."""

ingest_files = sa.Table(
    "waterclock_ingest_files",
    metadata,
    sa.Column("topic_id", BigInt, primary_key=True, autoincrement=False, doc="The topic that takes the messages."),
    sa.Column("device", BigInt, primary_key=True, autoincrement=False, doc="The file's device."),
    sa.Column("inode", BigInt, primary_key=True, autoincrement=False, doc="The file's inode."),
    sa.Column("owner", BigInt, nullable=False, doc="Drawn by the process that reads it; another one is refused."),
    sa.Column("path", LongText, nullable=False, doc="The last known path of the file."),
    sa.Column("offset", BigInt, nullable=False, doc="Bytes that are appended; of Parquet, all once its rows are."),
    sa.Column("lines", BigInt, nullable=False, doc="Lines that are appended, with the header; of Parquet, rows."),
    sa.Column(
        "fingerprint",
        Blob,
        nullable=False,
        doc="Hash of the first 1,024 bytes and of those before the offset: another one is another file.",
    ),
    sa.Column("seen_at", BigInt, nullable=False, doc="When its process last wrote this row, ns."),
)
"""One row per file and topic. The append of the file's messages writes it, so each message is appended once."""

ingest_partitions = sa.Table(
    "waterclock_ingest_partitions",
    metadata,
    sa.Column("topic_id", BigInt, primary_key=True, autoincrement=False, doc="The topic that takes the messages."),
    sa.Column("cluster", Name, primary_key=True, doc="Id of the Kafka cluster."),
    sa.Column("kafka_topic_id", Name, primary_key=True, doc="Id of the Kafka topic; one created again has another."),
    sa.Column("partition", BigInt, primary_key=True, autoincrement=False, doc="The partition's number."),
    sa.Column("kafka_topic", Name, nullable=False, doc="Name of the Kafka topic."),
    sa.Column("owner_epoch", BigInt, nullable=False, doc="How often it was taken; only the last process may append."),
    sa.Column("offset", BigInt, nullable=False, doc="Offset of the first record that is not appended."),
    sa.Column("seen_at", BigInt, nullable=False, doc="When its process last wrote this row, ns."),
)
"""One row per partition and topic. The append of the partition's records writes it, so each is appended once."""
