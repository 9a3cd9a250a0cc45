"""The catalogue of ingests: their sessions with brokers, and how much of each file and partition is appended."""

from __future__ import annotations

import sqlalchemy as sa

from waterclock.database.schema.catalogue import metadata
from waterclock.database.schema.types import BigInt, Blob, LongText, Name, key_part, required

ingest_sessions = sa.Table(
    "waterclock_ingest_sessions",
    metadata,
    key_part("name", Name, doc="The session: `CLIENT_ID@HOST:PORT`."),
    required("owner", BigInt, doc="A random number of the process that uses the session. Other processes are refused."),
    required("filters", LongText, doc="The filters that the broker may have for the session, as JSON."),
    required(
        "unacked",
        Blob,
        doc="Appended messages whose ack may not have reached the broker: for each, the packet id (2 bytes) and a"
        " hash (8 bytes).",
    ),
    sa.Column(
        "dropped",
        BigInt,
        doc="Messages that the broker has dropped, for all its clients, by its own count; NULL: not reported.",
    ),
    required("seen_at", BigInt, doc="When the process last wrote this row, ns."),
)
"""One row per MQTT session. The transaction that appends the session's messages also writes this row."""

ingest_retained = sa.Table(
    "waterclock_ingest_retained",
    metadata,
    key_part("session", Name, doc="The session."),
    key_part("topic_hash", BigInt, doc="Hash of the MQTT topic."),
    required("content_hash", BigInt, doc="Hash of the topic's retained message that was ingested last."),
)
"""One row per retained message that was ingested, because brokers send it again at each subscription."""

ingest_files = sa.Table(
    "waterclock_ingest_files",
    metadata,
    key_part("topic_id", BigInt, doc="The topic that takes the messages."),
    key_part("device", BigInt, doc="The file's device."),
    key_part("inode", BigInt, doc="The file's inode."),
    required("owner", BigInt, doc="A random number of the process that reads the file. Other processes are refused."),
    required("path", LongText, doc="The last known path of the file."),
    required("offset", BigInt, doc="Bytes that are appended. For Parquet, all bytes once all rows are appended."),
    required("lines", BigInt, doc="Lines that are appended, including the header. For Parquet, rows."),
    required(
        "fingerprint",
        Blob,
        doc="Hash of the first 1,024 bytes and of the bytes before the offset. A different hash means a different"
        " file.",
    ),
    required("seen_at", BigInt, doc="When the process last wrote this row, ns."),
)
"""One row per file and topic. The transaction that appends the file's messages also writes this row, so each message is
appended once."""

ingest_partitions = sa.Table(
    "waterclock_ingest_partitions",
    metadata,
    key_part("topic_id", BigInt, doc="The topic that takes the messages."),
    key_part("cluster", Name, doc="Id of the Kafka cluster."),
    key_part(
        "kafka_topic_id", Name, doc="Id of the Kafka topic. A topic that is deleted and created again has a new id."
    ),
    key_part("partition", BigInt, doc="The partition's number."),
    required("kafka_topic", Name, doc="Name of the Kafka topic."),
    required(
        "owner_epoch", BigInt, doc="How many times a process has taken the partition. Only the last process may append."
    ),
    required("offset", BigInt, doc="Offset of the first record that is not appended."),
    required("seen_at", BigInt, doc="When the process last wrote this row, ns."),
)
"""One row per Kafka partition and topic. The transaction that appends the partition's records also writes this row, so
each record is appended once."""
