"""The catalogue of ingests: their sessions with brokers, and how much of each file and partition is appended."""

from __future__ import annotations

import sqlalchemy as sa

from waterclock.database.schema.catalogue import metadata
from waterclock.database.schema.types import BigInt, Blob, LongText, Name, key_part, required

ingest_sessions = sa.Table(
    "waterclock_ingest_sessions",
    metadata,
    key_part("name", Name, doc="The session: `CLIENT_ID@HOST:PORT`."),
    required("owner", BigInt, doc="Drawn by the process that uses it; another one is refused."),
    required("filters", LongText, doc="The filters that the broker may have for it, as JSON."),
    required(
        "unacked",
        Blob,
        doc="Messages that were appended and whose ack the broker may lack: packet id (2 bytes) and hash (8) each.",
    ),
    sa.Column("dropped", BigInt, doc="Messages that the broker said it dropped, of all its clients; NULL: not said."),
    required("seen_at", BigInt, doc="When its process last wrote this row, ns."),
)
"""One row a session. The append of a session's messages writes it, so the two never disagree."""

ingest_retained = sa.Table(
    "waterclock_ingest_retained",
    metadata,
    key_part("session", Name, doc="The session."),
    key_part("topic_hash", BigInt, doc="Of an MQTT topic."),
    required("content_hash", BigInt, doc="Of its retained message that was taken last."),
)
"""Retained messages that were taken: brokers send them again at each subscription."""

ingest_files = sa.Table(
    "waterclock_ingest_files",
    metadata,
    key_part("topic_id", BigInt, doc="The topic that takes the messages."),
    key_part("device", BigInt, doc="The file's device."),
    key_part("inode", BigInt, doc="The file's inode."),
    required("owner", BigInt, doc="Drawn by the process that reads it; another one is refused."),
    required("path", LongText, doc="The last known path of the file."),
    required("offset", BigInt, doc="Bytes that are appended; of Parquet, all once its rows are."),
    required("lines", BigInt, doc="Lines that are appended, with the header; of Parquet, rows."),
    required(
        "fingerprint",
        Blob,
        doc="Hash of the first 1,024 bytes and of those before the offset: another one is another file.",
    ),
    required("seen_at", BigInt, doc="When its process last wrote this row, ns."),
)
"""One row per file and topic. The append of the file's messages writes it, so each message is appended once."""

ingest_partitions = sa.Table(
    "waterclock_ingest_partitions",
    metadata,
    key_part("topic_id", BigInt, doc="The topic that takes the messages."),
    key_part("cluster", Name, doc="Id of the Kafka cluster."),
    key_part("kafka_topic_id", Name, doc="Id of the Kafka topic; one created again has another."),
    key_part("partition", BigInt, doc="The partition's number."),
    required("kafka_topic", Name, doc="Name of the Kafka topic."),
    required("owner_epoch", BigInt, doc="How often it was taken; only the last process may append."),
    required("offset", BigInt, doc="Offset of the first record that is not appended."),
    required("seen_at", BigInt, doc="When its process last wrote this row, ns."),
)
"""One row per partition and topic. The append of the partition's records writes it, so each is appended once."""
